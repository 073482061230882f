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
