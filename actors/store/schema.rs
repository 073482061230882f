//! The database's tables, its format version, and how an older one is brought up.
//!
//! A file says by its `application_id` that it is clawmux's and by its `user_version` which format
//! it has. A newer format is refused: reading it half would be worse.
//!
//! | table | holds |
//! |---|---|
//! | `meta` | one row: how often the log was opened, and by which clawmux last |
//! | `sessions` | one row a session: whose it is, how far its log goes, what it spent |
//! | `runs` | one row a run: from where to where it is in the log, and up to where its text is in `events` |
//! | `events` | the log itself, but for the text of steps that still stream |
//! | `deltas` | that text: one row for each group commit, of all sessions together |
//! | `attachments` | the bytes of what prompts brought along; what they are is in `events` |
//! | `idempotency` | which run a key stands for |
//! | `usage` | what every model call cost |
//! | `usage_days` | the sums of that for each day: what a month cost is asked at every start |
//! | `memories` | what is remembered for owners, with what it is found by |
//! | `memory_owners` | how much that is for each |
//! | `devices` | the paired devices |
//! | `agents` | the agents that were put to work for sessions |
//! | `teams`, `team_said`, `team_mail` | their teams: what was said at the task, and messages that wait |
//! | `agent_notes` | what is yet to be put into conversations |
//! | `device_grants` | what each may come as, and what its token is made of; the rest of it is `meta.device_secret` |
//! | `tokens` | the API keys and JWTs that the daemon gave out: of a key its SHA-256, of a JWT its id |
//! | `jobs` | what is done at set times |
//! | `firings` | when each of them was done and what came of it, the latest |
//! | `job_days` | what each of them spent on a day |
//! | `credential_uses` | when the credentials of the configuration were last used, and from where |
//! | `files` | what is known of the files of clients; their bytes are in the folder `files` of the home |
//!
//! A step of a migration is never changed once it was released: files that went through it are out
//! there. A new one is added at the end.

use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::SessionKey;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

use super::sql;

/// "clwm" in ASCII.
const APPLICATION_ID: i64 = 0x636c_776d;

/// What takes a store from format N (its index here) to format N + 1.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE meta (
    opened INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (0);

CREATE TABLE sessions (
    id            INTEGER PRIMARY KEY,
    key           TEXT NOT NULL UNIQUE,
    owner         TEXT NOT NULL,
    created       INTEGER NOT NULL,
    updated       INTEGER NOT NULL,
    head          INTEGER NOT NULL,             -- of what is in events; text that streams may be further
    reserved      INTEGER NOT NULL,
    cleared       INTEGER NOT NULL,             -- number of the last Cleared; 0 = never
    opened        INTEGER NOT NULL,             -- meta.opened when it was last written to
    input_tokens  INTEGER NOT NULL DEFAULT 0,   -- sums of its usage rows
    output_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sessions_updated ON sessions (updated);
CREATE INDEX sessions_owner ON sessions (owner, updated);

CREATE TABLE runs (
    id       INTEGER PRIMARY KEY,
    run      TEXT NOT NULL UNIQUE,
    session  INTEGER NOT NULL,
    prompted INTEGER NOT NULL,                  -- number of its Prompted
    settled  INTEGER NOT NULL,                  -- its text up to this number is in events
    ended    INTEGER                            -- number of its Ended
) STRICT;
CREATE INDEX runs_session ON runs (session, prompted);
CREATE INDEX runs_unfinished ON runs (session) WHERE ended IS NULL;

CREATE TABLE events (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,                   -- the last number it covers
    first   INTEGER NOT NULL,                   -- the first; less only for text
    run     INTEGER,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE deltas (
    id   INTEGER PRIMARY KEY,
    page BLOB NOT NULL
) STRICT;

CREATE TABLE idempotency (
    owner TEXT NOT NULL,
    key   TEXT NOT NULL,
    run   INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    id            INTEGER PRIMARY KEY,
    session       TEXT NOT NULL,
    run           TEXT NOT NULL,
    agent         TEXT NOT NULL,
    provider      TEXT NOT NULL,
    model         TEXT NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    at            INTEGER NOT NULL
) STRICT;
CREATE INDEX usage_session ON usage (session, at);
CREATE INDEX usage_at ON usage (at, input_tokens, output_tokens);
",
    "
ALTER TABLE meta ADD COLUMN version TEXT NOT NULL DEFAULT '';   -- of the clawmux that opened it last

CREATE TABLE usage_days (
    day           INTEGER PRIMARY KEY,          -- since 1970, UTC
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL
) STRICT;
ALTER TABLE runs ADD COLUMN progress INTEGER NOT NULL DEFAULT 0;   -- 0 waited, 1 begun, 2 the model said something
UPDATE runs SET progress = coalesce((
    SELECT max(CASE WHEN e.kind IN ('text', 'tool_called') THEN 2 WHEN e.kind = 'started' THEN 1 END) FROM events e
    WHERE e.session = runs.session AND e.seq BETWEEN runs.prompted AND coalesce(runs.ended, runs.settled)
        AND e.run = runs.id
), 0);
CREATE INDEX runs_past ON runs (session, progress, ended) WHERE ended IS NOT NULL;
INSERT INTO usage_days
    SELECT at / 86400000, sum(input_tokens), sum(output_tokens) FROM usage GROUP BY at / 86400000;
",
    "
-- What lists and histories say of a session without a look into its log.
ALTER TABLE sessions ADD COLUMN label TEXT;                                 -- as in settings
ALTER TABLE sessions ADD COLUMN settings BLOB NOT NULL DEFAULT X'7B7D';     -- that of the last Configured
ALTER TABLE sessions ADD COLUMN reset INTEGER NOT NULL DEFAULT 0;           -- number of the last Cleared that began a new conversation
ALTER TABLE sessions ADD COLUMN input_before INTEGER NOT NULL DEFAULT 0;    -- of its tokens, those before that
ALTER TABLE sessions ADD COLUMN output_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN kept_from INTEGER NOT NULL DEFAULT 0;       -- no run prompted before this number is remembered
ALTER TABLE sessions ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;        -- of the runs that are remembered
ALTER TABLE sessions ADD COLUMN title TEXT NOT NULL DEFAULT '';             -- the beginning of the first prompt since the last Cleared
ALTER TABLE sessions ADD COLUMN preview TEXT NOT NULL DEFAULT '';           -- that of the last message
CREATE INDEX sessions_label ON sessions (label) WHERE label IS NOT NULL;
ALTER TABLE runs ADD COLUMN started INTEGER;                                -- number of its Started
ALTER TABLE runs ADD COLUMN messages INTEGER NOT NULL DEFAULT 1;            -- its prompt, tool results and answer
ALTER TABLE runs ADD COLUMN provider TEXT;                                  -- who answered last
ALTER TABLE runs ADD COLUMN model TEXT;
CREATE INDEX idempotency_run ON idempotency (run);
UPDATE sessions SET kept_from = cleared + 1;
UPDATE runs SET
    started = (SELECT min(e.seq) FROM events e
        WHERE e.session = runs.session AND e.seq BETWEEN runs.prompted AND coalesce(runs.ended, 9223372036854775807)
            AND e.run = runs.id AND e.kind = 'started'),
    messages = 1
        + (SELECT count(*) FROM events e
            WHERE e.session = runs.session AND e.seq BETWEEN runs.prompted AND coalesce(runs.ended, 9223372036854775807)
                AND e.run = runs.id AND e.kind = 'tool_returned')
        + (runs.ended IS NOT NULL AND (EXISTS (SELECT 1 FROM events e
            WHERE e.session = runs.session AND e.seq = runs.ended
                AND e.kind = 'ended' AND substr(e.body, 1, 19) = CAST('{\"outcome\":\"failed\"' AS BLOB))
        OR EXISTS (SELECT 1 FROM events e
            WHERE e.session = runs.session AND e.seq BETWEEN runs.prompted AND runs.ended
                AND e.run = runs.id AND e.kind = 'text' AND substr(e.body, 1, 11) <> CAST('{\"text\":\"\",' AS BLOB)
                AND (SELECT n.kind FROM events n
                    WHERE n.session = e.session AND n.seq > e.seq AND n.seq <= runs.ended AND n.run = runs.id
                        AND n.kind IN ('step_ended', 'restarted', 'ended')
                    ORDER BY n.seq LIMIT 1) <> 'restarted')));
UPDATE runs SET progress = 1 WHERE progress = 0 AND started IS NOT NULL;
UPDATE sessions SET messages = (SELECT coalesce(sum(r.messages), 0) FROM runs r
    WHERE r.session = sessions.id AND r.prompted >= sessions.kept_from);
UPDATE sessions SET title = coalesce((
    SELECT CASE WHEN json_valid(CAST(e.body AS TEXT)) THEN substr(CAST(e.body AS TEXT) ->> 'content', 1, 120) END
    FROM events e WHERE e.session = sessions.id AND e.seq >= sessions.kept_from AND e.kind = 'prompted'
    ORDER BY e.seq LIMIT 1
), '');
UPDATE sessions SET preview = coalesce((
    SELECT CASE WHEN json_valid(CAST(e.body AS TEXT))
        THEN substr(coalesce(CAST(e.body AS TEXT) ->> 'content', CAST(e.body AS TEXT) ->> 'text'), 1, 240) END
    FROM events e WHERE e.session = sessions.id AND e.seq >= sessions.kept_from AND e.kind IN ('prompted', 'text')
    ORDER BY e.seq DESC LIMIT 1
), '');
UPDATE runs SET provider = u.provider, model = u.model
    FROM (SELECT run, provider, model, max(at) FROM usage GROUP BY run) u WHERE u.run = runs.run;

ALTER TABLE meta ADD COLUMN device_secret BLOB NOT NULL DEFAULT x'';   -- what device tokens are made of
UPDATE meta SET device_secret = randomblob(32);

CREATE TABLE devices (
    device     TEXT PRIMARY KEY,                -- SHA-256 of the key
    public_key BLOB NOT NULL,
    about      TEXT NOT NULL,                   -- what it says of itself, as JSON
    peer       TEXT NOT NULL,                   -- where it came from
    credential TEXT NOT NULL,                   -- the name of the credential it was paired with
    created    INTEGER NOT NULL,
    approved   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE device_grants (
    device  TEXT NOT NULL,
    role    TEXT NOT NULL,
    scopes  TEXT NOT NULL,                      -- names, separated by spaces
    salt    BLOB NOT NULL,
    issued  INTEGER NOT NULL,
    rotated INTEGER,
    revoked INTEGER,
    used    INTEGER,
    PRIMARY KEY (device, role)
) STRICT, WITHOUT ROWID;

CREATE TABLE attachments (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,                   -- number of the prompt
    place   INTEGER NOT NULL,                   -- among those of the prompt, from 0
    data    BLOB NOT NULL,
    PRIMARY KEY (session, seq, place)
) STRICT;
",
    "
-- Format 4.
CREATE TABLE memory_owners (
    id         INTEGER PRIMARY KEY,
    owner      TEXT NOT NULL UNIQUE,
    scratchpad INTEGER NOT NULL DEFAULT 0,      -- how many entries of this tier
    episodic   INTEGER NOT NULL DEFAULT 0,
    semantic   INTEGER NOT NULL DEFAULT 0,
    embedded   INTEGER NOT NULL DEFAULT 0,      -- how many of them all have a vector
    bytes      INTEGER NOT NULL DEFAULT 0,      -- the sum of theirs
    stored     INTEGER NOT NULL DEFAULT 0       -- when something was stored last
) STRICT;

CREATE TABLE memories (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,   -- a question goes through them in parts: never used twice
    memory         TEXT NOT NULL UNIQUE,
    owner          INTEGER NOT NULL,            -- in memory_owners
    tier           TEXT NOT NULL,
    kind           TEXT NOT NULL,
    session        INTEGER,
    created        INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,            -- what it counts of its owner's limit
    distinct_terms INTEGER NOT NULL,
    whole          INTEGER NOT NULL,            -- stands for its terms in their order
    dimensions     INTEGER NOT NULL,            -- of its vector; 0 = it has none
    terms          BLOB NOT NULL,               -- their digests, 8 bytes each, sorted
    vector         BLOB NOT NULL,               -- numbers of 4 bytes, of length 1 together
    content        TEXT NOT NULL,
    metadata       TEXT                         -- as JSON
) STRICT;
CREATE INDEX memories_owner ON memories (owner);
CREATE INDEX memories_session ON memories (session, owner) WHERE session IS NOT NULL;
CREATE TABLE agents (                           -- put to work for a session, or in a team
    agent      TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    session    TEXT NOT NULL,
    parent     TEXT,                            -- the session it works for
    root       TEXT NOT NULL,                   -- the session whose budget it spends
    depth      INTEGER NOT NULL,
    team       TEXT,
    place      INTEGER NOT NULL,                -- in the team
    role       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    task       TEXT NOT NULL,
    priority   TEXT NOT NULL,
    tokens_max INTEGER,
    phase      TEXT NOT NULL,                   -- waiting, turn, completed, failed, stopped
    prompt     TEXT NOT NULL,                   -- of the turn under way
    mail       INTEGER,                         -- the message that is about
    code       TEXT,                            -- why it is over
    why        TEXT,
    settling   INTEGER NOT NULL,                -- whether its session is yet to be told to stop
    turns      INTEGER NOT NULL,
    completed  INTEGER NOT NULL,
    at_task    INTEGER NOT NULL,
    answer     TEXT,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    updated    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE teams (
    team        TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    name        TEXT NOT NULL,
    description TEXT,
    strategy    TEXT NOT NULL,
    rounds      INTEGER NOT NULL,
    task        TEXT NOT NULL,
    priority    TEXT NOT NULL,
    members     TEXT NOT NULL,                  -- separated by spaces, in order
    state       TEXT NOT NULL,
    why         TEXT,
    created     INTEGER NOT NULL,
    updated     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE team_said (                        -- at the task, while the team is at work
    team   TEXT NOT NULL,
    number INTEGER NOT NULL,
    place  INTEGER NOT NULL,
    text   TEXT NOT NULL,
    PRIMARY KEY (team, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE team_mail (                        -- messages that wait or are at work
    number    INTEGER PRIMARY KEY,
    message   TEXT NOT NULL,
    sender    TEXT NOT NULL,
    recipient TEXT NOT NULL,
    content   TEXT NOT NULL
) STRICT;

CREATE TABLE agent_notes (                      -- yet to be put into the session's conversation
    note    TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    owner   TEXT NOT NULL,
    content TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    token   TEXT PRIMARY KEY,                   -- its id; of a JWT its jti
    name    TEXT NOT NULL,
    kind    TEXT NOT NULL,
    sha256  BLOB,                               -- of an API key
    scopes  TEXT NOT NULL,                      -- names, separated by spaces
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER,
    used    INTEGER,
    origin  TEXT                                -- where it was used last
) STRICT, WITHOUT ROWID;
ALTER TABLE sessions ADD COLUMN uuid TEXT NOT NULL DEFAULT '';              -- names it to clients that know sessions by one
ALTER TABLE sessions ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;          -- whether it was stopped for good
ALTER TABLE sessions ADD COLUMN outcome INTEGER NOT NULL DEFAULT 0;         -- of the last run to end: 1 by itself or aborted, 2 failed; 0 = none since the last reset
UPDATE sessions SET uuid = session_uuid(key);
UPDATE sessions SET outcome = coalesce((
    SELECT CASE WHEN substr(e.body, 1, 19) = CAST('{\"outcome\":\"failed\"' AS BLOB) THEN 2 ELSE 1 END
    FROM events e WHERE e.session = sessions.id AND e.seq > sessions.reset AND e.kind = 'ended'
    ORDER BY e.seq DESC LIMIT 1
), 0);
CREATE UNIQUE INDEX sessions_uuid ON sessions (uuid);
ALTER TABLE runs ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;               -- calls of it that wait for approval

CREATE TABLE files (
    id         BLOB PRIMARY KEY,
    upload     BLOB NOT NULL,                   -- how its client named it
    owner      TEXT NOT NULL,
    name       TEXT,
    media_type TEXT,
    total      INTEGER,                         -- how many bytes were announced
    sha256     BLOB,                            -- what it is, or is said to be while it is not complete
    size       INTEGER NOT NULL,                -- bytes that are on the disk
    complete   INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    updated    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX files_owner ON files (owner, created, size);
CREATE INDEX files_created ON files (created);
CREATE INDEX files_unfinished ON files (id) WHERE complete = 0;
",
    "
-- Format 5.
CREATE TABLE jobs (
    job         TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    name        TEXT NOT NULL,
    description TEXT,
    enabled     INTEGER NOT NULL,
    kind        TEXT NOT NULL,                  -- at, every, cron
    first       INTEGER,                        -- of at and every
    every       INTEGER,
    expression  TEXT,
    zone        TEXT,
    session     TEXT NOT NULL,
    prompt      TEXT NOT NULL,
    model       TEXT,
    thinking    TEXT,
    max_tokens  INTEGER,
    result_to   TEXT,
    misfire     TEXT NOT NULL,
    once        INTEGER NOT NULL,               -- whether it is gone once it was done well
    note        TEXT,
    created     INTEGER NOT NULL,
    updated     INTEGER NOT NULL,
    settled     INTEGER NOT NULL                -- all its times up to this are dealt with
) STRICT, WITHOUT ROWID;
CREATE TABLE firings (
    job           TEXT NOT NULL,
    scheduled     INTEGER NOT NULL,
    manual        INTEGER NOT NULL,
    begun         INTEGER NOT NULL,
    ended         INTEGER,
    state         TEXT NOT NULL,                -- running, ok, error, skipped
    code          TEXT,
    why           TEXT,
    missed        INTEGER NOT NULL DEFAULT 0,
    run           TEXT,
    text          TEXT,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, scheduled)
) STRICT, WITHOUT ROWID;
CREATE INDEX firings_open ON firings (begun) WHERE ended IS NULL;
CREATE TABLE job_days (
    job    TEXT NOT NULL,
    day    INTEGER NOT NULL,                    -- since 1970, UTC
    tokens INTEGER NOT NULL,
    PRIMARY KEY (job, day)
) STRICT, WITHOUT ROWID;
ALTER TABLE tokens ADD COLUMN since INTEGER;                                -- when the first was made of those that were rotated; NULL = this is it
ALTER TABLE device_grants ADD COLUMN origin TEXT;                           -- where it was used last
CREATE TABLE credential_uses (                                              -- of those of the configuration
    name   TEXT PRIMARY KEY,
    used   INTEGER NOT NULL,
    origin TEXT NOT NULL
) STRICT, WITHOUT ROWID;
",
];

/// Whether a run has an answer in the end, given its session (1), the numbers of its prompt and its
/// end (2, 3) and its row (4): text that no restart made void. The migration has the same words.
pub(super) const HAS_ANSWER: &str = "SELECT EXISTS (SELECT 1 FROM events e
    WHERE e.session = ?1 AND e.seq BETWEEN ?2 AND ?3 AND e.run = ?4 AND e.kind = 'text'
        AND substr(e.body, 1, 11) <> CAST('{\"text\":\"\",' AS BLOB)
        AND coalesce((SELECT n.kind FROM events n
            WHERE n.session = ?1 AND n.seq > e.seq AND n.seq <= ?3 AND n.run = ?4
                AND n.kind IN ('step_ended', 'restarted', 'ended')
            ORDER BY n.seq LIMIT 1), 'ended') <> 'restarted')";

/// How far a run came, as `runs.progress` says it; 0 = its turn never came.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// Its turn came.
    Begun = 1,
    /// The model said something.
    Answered = 2,
    /// It is no run: something was said in the model's name.
    Injected = 3,
}

/// The present format.
pub(super) const FORMAT: i64 = MIGRATIONS.len() as i64;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is in it yet.
    Empty,
    /// A log of this format; not a newer one.
    Log(i64),
    /// A log of a newer format, and the version of clawmux that wrote it, if it says so.
    Newer { format: i64, version: Option<String> },
    /// Another program's.
    Foreign,
}

/// Looks at what the file is.
///
/// # Errors
/// What SQLite says.
pub(super) fn kind(db: &Connection) -> rusqlite::Result<Kind> {
    let pragma = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (id, format) = (pragma("application_id")?, pragma("user_version")?);
    if id == APPLICATION_ID && (1..=FORMAT).contains(&format) {
        return Ok(Kind::Log(format));
    }
    if id == APPLICATION_ID {
        let version = db.query_row("SELECT version FROM meta", [], |row| row.get(0)).ok();
        return Ok(Kind::Newer { format, version: version.filter(|version: &String| !version.is_empty()) });
    }
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(if id == 0 && format == 0 && tables == 0 { Kind::Empty } else { Kind::Foreign })
}

impl Kind {
    /// Why it is not for this clawmux, and what to do; none where it is.
    pub(super) fn complaint(&self) -> Option<(String, String)> {
        match self {
            Self::Empty | Self::Log(_) => None,
            Self::Newer { format, version } => {
                let by = version.as_ref().map_or_else(
                    || "the version that wrote it".into(),
                    |version| format!("clawmux {version}, which wrote it"),
                );
                Some((
                    format!("the log has format {format}, this clawmux knows up to {FORMAT}"),
                    format!("use {by}, or a newer one; or put a copy from before the update in its place"),
                ))
            }
            Self::Foreign => Some((
                "the file is the database of another program, or its beginning is damaged".into(),
                "point store.path somewhere else, or put a copy in its place".into(),
            )),
        }
    }

    /// From which format on it is to be migrated.
    ///
    /// # Errors
    /// `Conflict` where it is not for this clawmux.
    pub(super) fn format(&self) -> Result<i64, Error> {
        if let Some((what, advice)) = self.complaint() {
            return Err(ErrorCode::Conflict.error(format!("{what}: {advice} (clawmux doctor says more)")));
        }
        Ok(if let Self::Log(format) = self { *format } else { 0 })
    }
}

/// Brings the store to the present format, each step in a transaction of its own: an interrupted
/// one leaves the format before it.
///
/// # Errors
/// `Conflict` where the file is another program's or of a newer clawmux; else what SQLite says.
pub(super) fn migrate(db: &mut Connection) -> Result<(), Error> {
    let from = kind(db).map_err(|e| sql(&e))?.format()?;
    add_functions(db).map_err(|e| sql(&e))?;
    let formats = 1..=FORMAT;
    for (format, step) in formats.zip(MIGRATIONS).filter(|(format, _)| *format > from) {
        let tx = db.transaction().map_err(|e| sql(&e))?;
        tx.execute_batch(step)
            .and_then(|()| tx.pragma_update(None, "application_id", APPLICATION_ID))
            .and_then(|()| tx.pragma_update(None, "user_version", format))
            .and_then(|()| tx.commit())
            .map_err(|e| sql(&e))?;
    }
    Ok(())
}

/// What steps of a migration call that SQL can't say.
fn add_functions(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("session_uuid", 1, flags, |arguments| {
        let key: String = arguments.get(0)?;
        SessionKey::parse(&key)
            .map(|key| key.uuid())
            .map_err(|error| rusqlite::Error::UserFunctionError(Box::new(error)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_gets_the_tables_and_opens_again() {
        let mut db = Connection::open_in_memory().unwrap();
        migrate(&mut db).unwrap();
        migrate(&mut db).unwrap();
        let opened: i64 = db.query_row("SELECT opened FROM meta", [], |row| row.get(0)).unwrap();
        assert_eq!(opened, 0);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let mut db = Connection::open_in_memory().unwrap();
        migrate(&mut db).unwrap();
        db.pragma_update(None, "user_version", 99).unwrap();
        let refused = |db: &mut Connection| {
            let error = migrate(db).unwrap_err();
            assert_eq!(error.code, ErrorCode::Conflict);
            assert!(error.message.contains("format 99"), "{error}");
            error.message
        };
        assert!(refused(&mut db).contains("the version that wrote it"));
        db.execute_batch("UPDATE meta SET version = '9.1.0'").unwrap();
        assert!(refused(&mut db).contains("clawmux 9.1.0"));
        for garbage in ["0", "-5", "-2147483648"] {
            db.execute_batch(&format!("PRAGMA user_version = {garbage}")).unwrap();
            assert_eq!(migrate(&mut db).unwrap_err().code, ErrorCode::Conflict, "{garbage}");
        }
    }

    #[test]
    fn a_step_that_fails_leaves_the_format_before_it() {
        let mut db = Connection::open_in_memory().unwrap();
        db.execute_batch(MIGRATIONS[0]).unwrap();
        db.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        db.pragma_update(None, "user_version", 1).unwrap();
        // In the way of the second half of the step.
        db.execute_batch("CREATE TABLE usage_days (x)").unwrap();
        migrate(&mut db).unwrap_err();
        assert_eq!(kind(&db).unwrap(), Kind::Log(1));
        db.prepare("SELECT version FROM meta").expect_err("nothing of the step is left");
        db.execute_batch("DROP TABLE usage_days").unwrap();
        migrate(&mut db).unwrap();
        assert_eq!(kind(&db).unwrap(), Kind::Log(FORMAT));
    }

    #[test]
    fn sessions_of_format_3_get_their_uuids_and_how_their_last_run_ended() {
        let mut db = Connection::open_in_memory().unwrap();
        for step in &MIGRATIONS[..3] {
            db.execute_batch(step).unwrap();
        }
        db.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        db.pragma_update(None, "user_version", 3).unwrap();
        let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let keys =
            ["main:websocket:ada:main".into(), format!("main:wundr:{uuid}:main"), "main:test:c:main".into()];
        for (row, key) in (1..).zip(&keys) {
            db.execute(
                "INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened, reset)
                 VALUES (?1, ?2, '', 0, 0, 9, 0, 0, 1, ?3)",
                rusqlite::params![row, key, if row == 3 { 5 } else { 0 }],
            )
            .unwrap();
            for (seq, outcome) in [(2, "completed"), (4, "failed")] {
                let body = format!(r#"{{"outcome":"{outcome}","usage":{{"input":1,"output":1}}}}"#);
                db.execute(
                    "INSERT INTO events (session, seq, first, run, at, kind, body) VALUES (?, ?, ?, 1, 0, 'ended', ?)",
                    rusqlite::params![row, seq + row % 2, seq, body.as_bytes()],
                )
                .unwrap();
            }
        }
        migrate(&mut db).unwrap();
        let rows: Vec<(String, i64)> = db
            .prepare("SELECT uuid, outcome FROM sessions ORDER BY id")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let derived = |key: &str| SessionKey::parse(key).unwrap().uuid();
        assert_eq!(rows, [(derived(&keys[0]), 2), (uuid.into(), 2), (derived(&keys[2]), 0)]);
    }

    #[test]
    fn another_programs_database_is_refused() {
        let mut db = Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE notes (text)").unwrap();
        assert_eq!(migrate(&mut db).unwrap_err().code, ErrorCode::Conflict);
    }
}
