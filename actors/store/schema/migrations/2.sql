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
