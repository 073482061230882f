//! What brings an older store up, format by format.
//!
//! A step is never changed once it was released: files that went through it are out there. A new one is
//! added at the end.

/// What takes a store from format N (its index here) to format N + 1.
pub(super) const MIGRATIONS: &[&str] = &[
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
