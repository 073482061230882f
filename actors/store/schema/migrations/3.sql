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
                AND e.kind = 'ended' AND substr(e.body, 1, 19) = CAST('{"outcome":"failed"' AS BLOB))
        OR EXISTS (SELECT 1 FROM events e
            WHERE e.session = runs.session AND e.seq BETWEEN runs.prompted AND runs.ended
                AND e.run = runs.id AND e.kind = 'text' AND substr(e.body, 1, 11) <> CAST('{"text":"",' AS BLOB)
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
