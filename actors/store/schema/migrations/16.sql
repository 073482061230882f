-- Format 16: what of its past a conversation shows its model, and what stands for the rest.
ALTER TABLE sessions ADD COLUMN window_seq INTEGER NOT NULL DEFAULT 0;      -- the event that moved it last
ALTER TABLE sessions ADD COLUMN window_from INTEGER NOT NULL DEFAULT 0;     -- turns that ended up to here are not seen
ALTER TABLE sessions ADD COLUMN window_named INTEGER NOT NULL DEFAULT 0;    -- attachments of turns up to here are only named
ALTER TABLE sessions ADD COLUMN summary TEXT NOT NULL DEFAULT '';           -- what was said in those that are not seen
