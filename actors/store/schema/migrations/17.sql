-- Format 17: vectors that a model of a provider made of entries.
ALTER TABLE memories ADD COLUMN embedded_by TEXT NOT NULL DEFAULT '';   -- the model, as PROVIDER/MODEL; '' = none did
CREATE TABLE memory_vectors (
    memory INTEGER PRIMARY KEY,                                         -- in memories
    vector BLOB NOT NULL                                                -- numbers of 4 bytes, of length 1 together
) STRICT;
CREATE INDEX memories_embedded_by ON memories (embedded_by, id) WHERE superseded IS NULL AND dimensions = 0;
