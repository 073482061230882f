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
//! | `holdings` | how many sessions each owner has, and their bytes |
//! | `deleted_sessions` | sessions that are gone, but for rows that are deleted a few at a time |
//! | `sizes` | how large the database was on each day |
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

use clawmux_core::auth::Owner;
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
    "
-- Format 6: the key of a session says whose it is. Whatever names one by its key follows, before it has
-- another.
UPDATE jobs SET
    session = owned_key(CASE owner WHEN '' THEN
        coalesce((SELECT s.owner FROM sessions s WHERE s.key = jobs.session), '') ELSE owner END, session),
    result_to = owned_key(CASE owner WHEN '' THEN
        coalesce((SELECT s.owner FROM sessions s WHERE s.key = jobs.result_to), '') ELSE owner END, result_to);
UPDATE agents SET
    session = owned_key(owner, session),
    parent = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agents.parent), owner), parent),
    root = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agents.root), owner), root);
UPDATE agent_notes SET
    session = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agent_notes.session), owner), session);
UPDATE usage SET session = owned_key(s.owner, s.key)
    FROM sessions s WHERE s.key = usage.session AND s.owner <> '';
ALTER TABLE sessions ADD COLUMN agent TEXT NOT NULL DEFAULT '';             -- that of its key
ALTER TABLE sessions ADD COLUMN conversation TEXT NOT NULL DEFAULT '';      -- the id of its present conversation
ALTER TABLE sessions ADD COLUMN uuid_before TEXT;                           -- before this format, where that was another
UPDATE sessions SET agent = key_agent(key), conversation = conversation_id(key, created, reset);
DROP INDEX sessions_uuid;
UPDATE sessions SET key = owned_key(owner, key), uuid_before = uuid WHERE owner <> '';
UPDATE sessions SET uuid = session_uuid(key) WHERE owner <> '' AND agent <> '';
UPDATE sessions SET uuid_before = NULL WHERE uuid_before = uuid;
CREATE UNIQUE INDEX sessions_uuid ON sessions (uuid, owner);
CREATE INDEX sessions_uuid_before ON sessions (uuid_before) WHERE uuid_before IS NOT NULL;
CREATE INDEX sessions_conversation ON sessions (conversation, owner);
CREATE INDEX sessions_agent ON sessions (agent, updated);
",
    "
-- Format 7: what owners hold. Each row of events and attachments counts 64 bytes besides what is in it.
ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;           -- of its rows in events and attachments
UPDATE sessions SET bytes =
    (SELECT coalesce(sum(length(body) + 64), 0) FROM events WHERE session = sessions.id)
    + (SELECT coalesce(sum(length(data) + 64), 0) FROM attachments WHERE session = sessions.id);
CREATE TABLE holdings (                         -- the sums of that, kept by triggers
    owner    TEXT PRIMARY KEY,
    sessions INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO holdings SELECT owner, count(*), sum(bytes) FROM sessions GROUP BY owner;
CREATE TRIGGER session_made AFTER INSERT ON sessions BEGIN
    INSERT INTO holdings (owner, sessions, bytes) VALUES (new.owner, 1, new.bytes)
        ON CONFLICT (owner) DO UPDATE SET sessions = sessions + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER session_grown AFTER UPDATE OF bytes ON sessions WHEN new.owner = old.owner AND new.bytes <> old.bytes BEGIN
    UPDATE holdings SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;
CREATE TRIGGER session_given AFTER UPDATE OF owner ON sessions WHEN new.owner <> old.owner BEGIN
    UPDATE holdings SET sessions = sessions - 1, bytes = bytes - old.bytes WHERE owner = old.owner;
    DELETE FROM holdings WHERE owner = old.owner AND sessions < 1;
    INSERT INTO holdings (owner, sessions, bytes) VALUES (new.owner, 1, new.bytes)
        ON CONFLICT (owner) DO UPDATE SET sessions = sessions + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER session_gone AFTER DELETE ON sessions BEGIN
    UPDATE holdings SET sessions = sessions - 1, bytes = bytes - old.bytes WHERE owner = old.owner;
    DELETE FROM holdings WHERE owner = old.owner AND sessions < 1;
END;
CREATE TABLE deleted_sessions (                 -- whose rows in events and attachments are yet to go
    session INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE sizes (
    day   INTEGER PRIMARY KEY,                  -- since 1970, UTC
    bytes INTEGER NOT NULL                      -- of the database that were in use when the day began
) STRICT;
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
                    format!("the store has format {format}, this clawmux knows up to {FORMAT}"),
                    format!("use {by}, or a newer one; or put a copy from before the update in its place"),
                ))
            }
            Self::Foreign => Some((
                "the file is not a clawmux store: it is another program's database, or its beginning is damaged".into(),
                "point store.path somewhere else, or put a backup in its place with `clawmux restore`".into(),
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
    })?;
    // What can't be read as a key stays as it is: the session of that name could not be named before either.
    db.create_scalar_function("owned_key", 2, flags, |arguments| {
        let (owner, key): (String, Option<String>) = (arguments.get(0)?, arguments.get(1)?);
        Ok(key.map(|key| match SessionKey::parse(&unowned(&key)) {
            Ok(read) => read.in_space(&Owner::from_name(&owner)).as_str().to_owned(),
            Err(_) => key,
        }))
    })?;
    db.create_scalar_function("key_agent", 1, flags, |arguments| {
        let key: String = arguments.get(0)?;
        Ok(SessionKey::parse(&unowned(&key)).map_or_else(|_| String::new(), |key| key.agent().into_owned()))
    })?;
    // As it was told before; since then a session that was begun under a UUID has that as its first.
    db.create_scalar_function("conversation_id", 3, flags, |arguments| {
        let (key, created, begun): (String, i64, i64) =
            (arguments.get(0)?, arguments.get(1)?, arguments.get(2)?);
        Ok(SessionKey::derived_conversation_id(&key, created, begun))
    })
}

/// A key that says nothing of an owner, from before they did: its agent may have had a `/` in its name.
fn unowned(key: &str) -> String {
    match key.split_once(':') {
        Some((agent, rest)) => format!("{}:{rest}", agent.replace('/', "%2F")),
        None => key.to_owned(),
    }
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

    /// A file of an older format, with sessions of two owners and all that names sessions by their keys.
    fn of_format(format: usize) -> Connection {
        let db = Connection::open_in_memory().unwrap();
        add_functions(&db).unwrap();
        for step in &MIGRATIONS[..format] {
            db.execute_batch(step).unwrap();
        }
        db.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        db.pragma_update(None, "user_version", i64::try_from(format).unwrap()).unwrap();
        for (row, (key, owner)) in (1..).zip(OLD) {
            db.execute(
                "INSERT INTO sessions (id, key, owner, created, updated, head, reserved, cleared, opened)
                 VALUES (?1, ?2, ?3, ?4, ?4, 0, 0, 0, 1)",
                rusqlite::params![row, key, owner, 1000 + row],
            )
            .unwrap();
            if format >= 4 {
                let uuid = if key == "broken" { "'x'" } else { "session_uuid(key)" };
                db.execute(&format!("UPDATE sessions SET uuid = {uuid} WHERE id = ?"), [row]).unwrap();
            }
            if format >= 3 {
                db.execute("UPDATE sessions SET reset = 4 WHERE id = 2", []).unwrap();
            }
            db.execute(
                "INSERT INTO usage (session, run, agent, provider, model, input_tokens, output_tokens, at)
                 VALUES (?, 'r', 'main', 'p', 'm', 1, 1, 0)",
                [key],
            )
            .unwrap();
        }
        db
    }

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const OLD: [(&str, &str); 6] = [
        ("main:openclaw:main:main", "ada"),
        ("main:websocket:ada:main", "ada"),
        ("work:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main", "jwt:b/o:b"),
        ("main:cli:home/x:main", ""),
        ("work:telegram:a%3Ab:1%25", ""),
        ("broken", "ada"),
    ];

    #[test]
    fn sessions_of_every_older_format_keep_their_owner_their_uuid_and_their_conversation() {
        for format in 1..=5 {
            // Before format 4 a name that is none ends the migration there.
            let old = &OLD[..if format < 4 { 5 } else { 6 }];
            let mut db = of_format(format);
            db.execute("DELETE FROM sessions WHERE id > ?", [i64::try_from(old.len()).unwrap()]).unwrap();
            migrate(&mut db).unwrap();
            let rows: Vec<[String; 5]> = db
                .prepare(
                    "SELECT key, owner, uuid, coalesce(uuid_before, ''), agent FROM sessions ORDER BY id",
                )
                .unwrap()
                .query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let expected = [
                "ada/main:openclaw:main:main",
                "ada/main:websocket:ada:main",
                "jwt%3Ab%2Fo%3Ab/work:wundr:0f8fad5b-d9cb-469f-a165-70867728950e:main",
                "main:cli:home/x:main",
                "work:telegram:a%3Ab:1%25",
                "broken",
            ];
            for ([key, owner, uuid, before, agent], ((was, whose), now)) in
                rows.iter().zip(old.iter().zip(expected)).take(5)
            {
                assert_eq!((key.as_str(), owner.as_str()), (now, *whose), "from {format}");
                let (was, now) = (SessionKey::parse(was).unwrap(), SessionKey::parse(now).unwrap());
                assert_eq!((now.owner(), uuid), (Owner::from_name(whose), &now.uuid()));
                assert_eq!(*agent, was.agent());
                let is_another = was.uuid() != now.uuid();
                assert_eq!(
                    *before,
                    if is_another { was.uuid() } else { String::new() },
                    "from {format}: {now}"
                );
            }
            assert_eq!(rows.len(), old.len());
            assert_eq!(rows[2][2], UUID, "who made it under one goes on with it");
            let conversation = |row: i64| -> String {
                db.query_row("SELECT conversation FROM sessions WHERE id = ?", [row], |row| row.get(0))
                    .unwrap()
            };
            let reset = if format >= 3 { 4 } else { 0 };
            assert_eq!(conversation(2), SessionKey::derived_conversation_id(OLD[1].0, 1002, reset));
            assert_eq!(conversation(3), SessionKey::derived_conversation_id(OLD[2].0, 1003, 0));
            let usage: Vec<String> = db
                .prepare("SELECT session FROM usage ORDER BY id LIMIT 5")
                .unwrap()
                .query_map([], |row| row.get(0))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert_eq!(usage, expected[..5], "from {format}");
        }
    }

    #[test]
    fn what_names_sessions_by_their_keys_follows_them() {
        let mut db = of_format(5);
        db.execute_batch(
            "INSERT INTO jobs (job, owner, name, enabled, kind, session, prompt, result_to, misfire, once, created, updated, settled)
             VALUES ('own', 'ada', 'n', 1, 'at', 'main:cron:own:main', 'p', 'main:openclaw:main:main', 'once', 0, 0, 0, 0),
                    ('operators', '', 'n', 1, 'at', 'main:websocket:ada:main', 'p', 'main:xeno:default:main', 'once', 0, 0, 0, 0),
                    ('plain', '', 'n', 1, 'at', 'main:cron:plain:main', 'p', NULL, 'once', 0, 0, 0, 0);
             INSERT INTO agents (agent, owner, session, parent, root, depth, place, role, kind, task, priority, phase, prompt,
                 settling, turns, completed, at_task, input_tokens, output_tokens, created, updated)
             VALUES ('a', 'ada', 'main:agent:a:main', 'main:websocket:ada:main', 'main:websocket:ada:main', 1, 0, '', 'k', 't',
                 'low', 'waiting', '', 0, 0, 0, 0, 0, 0, 0, 0),
                    ('b', '', 'main:agent:b:main', NULL, 'main:agent:b:main', 1, 0, '', 'k', 't', 'low', 'waiting', '',
                 0, 0, 0, 0, 0, 0, 0, 0);
             INSERT INTO agent_notes VALUES ('n', 'main:websocket:ada:main', 'ada', 'done');",
        )
        .unwrap();
        migrate(&mut db).unwrap();
        let texts = |sql: &str| -> Vec<String> {
            let mut statement = db.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        assert_eq!(
            texts("SELECT session || ' > ' || coalesce(result_to, '-') FROM jobs ORDER BY job"),
            [
                "ada/main:websocket:ada:main > main:xeno:default:main",
                "ada/main:cron:own:main > ada/main:openclaw:main:main",
                "main:cron:plain:main > -",
            ]
        );
        assert_eq!(
            texts(
                "SELECT session || ' < ' || coalesce(parent, '-') || ' < ' || root FROM agents ORDER BY agent"
            ),
            [
                "ada/main:agent:a:main < ada/main:websocket:ada:main < ada/main:websocket:ada:main",
                "main:agent:b:main < - < main:agent:b:main",
            ]
        );
        assert_eq!(texts("SELECT session FROM agent_notes"), ["ada/main:websocket:ada:main"]);
    }

    #[test]
    fn another_programs_database_is_refused() {
        let mut db = Connection::open_in_memory().unwrap();
        db.execute_batch("CREATE TABLE notes (text)").unwrap();
        assert_eq!(migrate(&mut db).unwrap_err().code, ErrorCode::Conflict);
    }
}
