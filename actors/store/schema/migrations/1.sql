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
