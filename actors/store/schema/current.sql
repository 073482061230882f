-- Written by a test with CLAWMUX_RECORD=1; see mod.rs.
CREATE TABLE meta (
    opened INTEGER NOT NULL
, version TEXT NOT NULL DEFAULT '', device_secret BLOB NOT NULL DEFAULT x'', applied INTEGER NOT NULL DEFAULT 0, digest BLOB NOT NULL                        -- over all records up to it
    DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000', sessions INTEGER NOT NULL DEFAULT 0, cluster TEXT NOT NULL DEFAULT '', generation INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO meta VALUES (0, '', randomblob(32), 0, X'0000000000000000000000000000000000000000000000000000000000000000', 0, '', 0);
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
, label TEXT, settings BLOB NOT NULL DEFAULT X'7B7D', reset INTEGER NOT NULL DEFAULT 0, input_before INTEGER NOT NULL DEFAULT 0, output_before INTEGER NOT NULL DEFAULT 0, kept_from INTEGER NOT NULL DEFAULT 0, messages INTEGER NOT NULL DEFAULT 0, title TEXT NOT NULL DEFAULT '', preview TEXT NOT NULL DEFAULT '', uuid TEXT NOT NULL DEFAULT '', closed INTEGER NOT NULL DEFAULT 0, outcome INTEGER NOT NULL DEFAULT 0, agent TEXT NOT NULL DEFAULT '', conversation TEXT NOT NULL DEFAULT '', uuid_before TEXT, bytes INTEGER NOT NULL DEFAULT 0, cache_read_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0, cache_read_before INTEGER NOT NULL DEFAULT 0, cache_write_before INTEGER NOT NULL DEFAULT 0, cost INTEGER NOT NULL DEFAULT 0, cost_before INTEGER NOT NULL DEFAULT 0, window_seq INTEGER NOT NULL DEFAULT 0, window_from INTEGER NOT NULL DEFAULT 0, window_named INTEGER NOT NULL DEFAULT 0, summary TEXT NOT NULL DEFAULT '') STRICT;
CREATE INDEX sessions_updated ON sessions (updated);
CREATE INDEX sessions_owner ON sessions (owner, updated);
CREATE TABLE runs (
    id       INTEGER PRIMARY KEY,
    run      TEXT NOT NULL UNIQUE,
    session  INTEGER NOT NULL,
    prompted INTEGER NOT NULL,                  -- number of its Prompted
    settled  INTEGER NOT NULL,                  -- its text up to this number is in events
    ended    INTEGER                            -- number of its Ended
, progress INTEGER NOT NULL DEFAULT 0, started INTEGER, messages INTEGER NOT NULL DEFAULT 1, provider TEXT, model TEXT, waits INTEGER NOT NULL DEFAULT 0) STRICT;
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
, cache_read_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '', cost INTEGER, interrupted INTEGER NOT NULL DEFAULT 0, changed TEXT) STRICT;
CREATE INDEX usage_session ON usage (session, at);
CREATE INDEX usage_at ON usage (at, input_tokens, output_tokens);
CREATE INDEX runs_past ON runs (session, progress, ended) WHERE ended IS NOT NULL;
CREATE INDEX sessions_label ON sessions (label) WHERE label IS NOT NULL;
CREATE INDEX idempotency_run ON idempotency (run);
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
    used    INTEGER, origin TEXT,
    PRIMARY KEY (device, role)
) STRICT, WITHOUT ROWID;
CREATE TABLE attachments (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,                   -- number of the prompt
    place   INTEGER NOT NULL,                   -- among those of the prompt, from 0
    data    BLOB NOT NULL,
    PRIMARY KEY (session, seq, place)
) STRICT;
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
, subject TEXT, predicate TEXT, object TEXT, confidence INTEGER, slot INTEGER, subject_name INTEGER, object_name INTEGER, teller TEXT NOT NULL DEFAULT 'client', run TEXT, superseded INTEGER, successor TEXT, hashed BLOB NOT NULL DEFAULT x'', embedded_by TEXT NOT NULL DEFAULT '') STRICT;
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
, model TEXT) STRICT, WITHOUT ROWID;
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
, since INTEGER) STRICT, WITHOUT ROWID;
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
CREATE TABLE credential_uses (                                              -- of those of the configuration
    name   TEXT PRIMARY KEY,
    used   INTEGER NOT NULL,
    origin TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sessions_uuid ON sessions (uuid, owner);
CREATE INDEX sessions_uuid_before ON sessions (uuid_before) WHERE uuid_before IS NOT NULL;
CREATE INDEX sessions_conversation ON sessions (conversation, owner);
CREATE INDEX sessions_agent ON sessions (agent, updated);
CREATE TABLE holdings (                         -- the sums of that, kept by triggers
    owner    TEXT PRIMARY KEY,
    sessions INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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
CREATE TABLE plugin_namespaces (
    id        INTEGER PRIMARY KEY,
    owner     TEXT NOT NULL,
    agent     TEXT NOT NULL,
    namespace TEXT NOT NULL,
    keys      INTEGER NOT NULL DEFAULT 0,           -- how many there are
    bytes     INTEGER NOT NULL DEFAULT 0,           -- of all keys and values
    UNIQUE (owner, agent, namespace)
) STRICT;
CREATE TABLE plugin_values (
    namespace INTEGER NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,                        -- JSON
    UNIQUE (namespace, key)
) STRICT;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    record TEXT NOT NULL,                           -- JSON
    hash   BLOB NOT NULL                            -- of the hash before it, its number and the record
) STRICT;
CREATE TABLE audit_chain (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    base  BLOB NOT NULL,                            -- the hash before the first record that is kept
    first INTEGER NOT NULL,                         -- its number
    last  INTEGER NOT NULL,                         -- the number of the last record
    head  BLOB NOT NULL                             -- its hash
) STRICT;
INSERT INTO audit_chain VALUES (1, X'0000000000000000000000000000000000000000000000000000000000000000', 1, 0, X'0000000000000000000000000000000000000000000000000000000000000000');
CREATE TABLE mcp_servers (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE mcp_tools (
    server TEXT NOT NULL REFERENCES mcp_servers (name) ON DELETE CASCADE,
    tool   TEXT NOT NULL,
    digest BLOB NOT NULL,                           -- SHA-256 of all that a model is told of it
    PRIMARY KEY (server, tool)
) STRICT, WITHOUT ROWID;
CREATE TABLE channels (
    name   TEXT PRIMARY KEY,
    cursor TEXT                                     -- JSON: how far its adapter has asked its platform
) STRICT, WITHOUT ROWID;
CREATE TABLE channel_inbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    channel    TEXT NOT NULL,
    received   INTEGER NOT NULL,                    -- in milliseconds
    is_message INTEGER NOT NULL,                    -- 0: as the platform said it; 1: what the adapter made of it
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX channel_inbox_order ON channel_inbox (channel, id);
CREATE TABLE channel_seen (                         -- the latest messages, by their ids on the platform
    channel  TEXT NOT NULL,
    id       TEXT NOT NULL,
    received INTEGER NOT NULL,
    PRIMARY KEY (channel, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX channel_seen_order ON channel_seen (channel, received);
CREATE TABLE channel_peers (                        -- who was let in by an operator
    channel TEXT NOT NULL,
    name    TEXT NOT NULL,
    since   INTEGER NOT NULL,
    PRIMARY KEY (channel, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE channel_codes (                        -- who was told a code
    channel TEXT NOT NULL,
    name    TEXT NOT NULL,
    code    TEXT NOT NULL,
    told    INTEGER NOT NULL,
    PRIMARY KEY (channel, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage_days (                       -- sums of usage rows
    day                INTEGER NOT NULL,        -- since 1970, UTC
    owner              TEXT NOT NULL,
    agent              TEXT NOT NULL,
    provider           TEXT NOT NULL,
    model              TEXT NOT NULL,
    calls              INTEGER NOT NULL,
    unpriced           INTEGER NOT NULL,        -- of these, those without a known price
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cost               INTEGER NOT NULL,
    last               INTEGER NOT NULL,        -- when the last of them ended
    PRIMARY KEY (day, owner, agent, provider, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE calls (                            -- of models, under way: what is reserved for them
    id            INTEGER PRIMARY KEY,
    session       TEXT NOT NULL,
    run           TEXT NOT NULL,
    agent         TEXT NOT NULL,
    owner         TEXT NOT NULL,
    provider      TEXT NOT NULL,
    model         TEXT NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost          INTEGER,
    at            INTEGER NOT NULL
) STRICT;
CREATE INDEX memories_slot ON memories (owner, slot) WHERE slot IS NOT NULL;
CREATE TABLE learning_days (                                        -- what learning has spent
    day    INTEGER PRIMARY KEY,                                     -- since 1970, UTC
    tokens INTEGER NOT NULL
) STRICT;
CREATE TABLE memory_vectors (
    memory INTEGER PRIMARY KEY,                                         -- in memories
    vector BLOB NOT NULL                                                -- numbers of 4 bytes, of length 1 together
) STRICT;
CREATE INDEX memories_embedded_by ON memories (embedded_by, id) WHERE superseded IS NULL AND dimensions = 0;
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    channel      TEXT NOT NULL,
    conversation TEXT NOT NULL,                     -- answers of one are sent one after the other
    made         INTEGER NOT NULL,                  -- in milliseconds
    address      TEXT NOT NULL,                     -- where it goes, in the channel's words
    answer       TEXT,                              -- JSON: what is to be said
    requests     TEXT,                              -- JSON: what an adapter has made of it
    next         INTEGER NOT NULL,                  -- how many of them were carried out
    state        INTEGER NOT NULL,                  -- 0 waits, 1 is being sent, 2 failed, 3 nobody knows
    error        TEXT
) STRICT;
CREATE INDEX outbox_order ON outbox (channel, id);
CREATE TABLE positions (
    subject TEXT PRIMARY KEY,                       -- in the log of a cluster
    last    INTEGER NOT NULL,                       -- the last record under it
    token   INTEGER NOT NULL                        -- the highest token of one
) STRICT, WITHOUT ROWID;
CREATE TABLE generations (
    generation INTEGER PRIMARY KEY,
    applied    INTEGER NOT NULL,                    -- the last record of it that the present one was begun with
    digest     BLOB NOT NULL                        -- over all records up to that
) STRICT;
