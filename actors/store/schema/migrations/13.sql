-- Format 13: what calls cost in money, for whom they were made, and which are under way.
ALTER TABLE usage ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN cost INTEGER;                              -- in billionths of a dollar; NULL: no price was known
ALTER TABLE usage ADD COLUMN interrupted INTEGER NOT NULL DEFAULT 0;    -- 1: the daemon was gone before it ended: what was reserved
ALTER TABLE usage ADD COLUMN changed TEXT;                              -- what its request had other than the session's last one; NULL: not known
UPDATE usage SET owner = key_owner(session) WHERE instr(session, '/') > 0;
DROP TABLE usage_days;
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
INSERT INTO usage_days
    SELECT at / 86400000, owner, agent, provider, model, count(*), count(*), sum(input_tokens), sum(output_tokens),
        sum(cache_read_tokens), sum(cache_write_tokens), 0, max(at)
    FROM usage GROUP BY 1, 2, 3, 4, 5;
ALTER TABLE sessions ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN cost_before INTEGER NOT NULL DEFAULT 0;
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
