-- Format 19: how far the store is in the log of a cluster, and a number for each session that no other had.
ALTER TABLE meta ADD COLUMN applied INTEGER NOT NULL DEFAULT 0;         -- the last record; 0 = none
ALTER TABLE meta ADD COLUMN digest BLOB NOT NULL                        -- over all records up to it
    DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000';
ALTER TABLE meta ADD COLUMN sessions INTEGER NOT NULL DEFAULT 0;        -- how many were ever made
UPDATE meta SET sessions = max((SELECT coalesce(max(id), 0) FROM sessions),
                               (SELECT coalesce(max(session), 0) FROM deleted_sessions));
CREATE TABLE positions (
    subject TEXT PRIMARY KEY,                       -- in the log of a cluster
    last    INTEGER NOT NULL,                       -- the last record under it
    token   INTEGER NOT NULL                        -- the highest token of one
) STRICT, WITHOUT ROWID;
