-- Format 9: tool calls that were made, each with the hash of all before it.
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
INSERT INTO audit_chain VALUES (1, zeroblob(32), 1, 0, zeroblob(32));
