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
    SELECT CASE WHEN substr(e.body, 1, 19) = CAST('{"outcome":"failed"' AS BLOB) THEN 2 ELSE 1 END
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
