-- Format 20: which cluster the store is of, and how the logs that it had before the present one were left.
ALTER TABLE meta ADD COLUMN cluster TEXT NOT NULL DEFAULT '';           -- its id; '' = of none
ALTER TABLE meta ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;      -- of the log that applied and digest are of
CREATE TABLE generations (
    generation INTEGER PRIMARY KEY,
    applied    INTEGER NOT NULL,                    -- the last record of it that the present one was begun with
    digest     BLOB NOT NULL                        -- over all records up to that
) STRICT;
