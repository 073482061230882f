-- Format 14: facts: what an entry says as subject, predicate and object, and what took its place.
ALTER TABLE memories ADD COLUMN subject TEXT;
ALTER TABLE memories ADD COLUMN predicate TEXT;
ALTER TABLE memories ADD COLUMN object TEXT;
ALTER TABLE memories ADD COLUMN confidence INTEGER;                 -- in percent
ALTER TABLE memories ADD COLUMN slot INTEGER;                       -- what the fact is about: a newer one takes its place
ALTER TABLE memories ADD COLUMN subject_name INTEGER;               -- stands for the subject, where that is a name
ALTER TABLE memories ADD COLUMN object_name INTEGER;
ALTER TABLE memories ADD COLUMN teller TEXT NOT NULL DEFAULT 'client';
ALTER TABLE memories ADD COLUMN run TEXT;
ALTER TABLE memories ADD COLUMN superseded INTEGER;                 -- when something took its place
ALTER TABLE memories ADD COLUMN successor TEXT;                     -- the memory that did
ALTER TABLE memories ADD COLUMN hashed BLOB NOT NULL DEFAULT x'';   -- the vector that is made here
UPDATE memories SET hashed = memory_hashed(content);
CREATE INDEX memories_slot ON memories (owner, slot) WHERE slot IS NOT NULL;

CREATE TABLE learning_days (                                        -- what learning has spent
    day    INTEGER PRIMARY KEY,                                     -- since 1970, UTC
    tokens INTEGER NOT NULL
) STRICT;
