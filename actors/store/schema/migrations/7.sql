-- Format 7: what owners hold. Each row of events and attachments counts 64 bytes besides what is in it.
ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;           -- of its rows in events and attachments
UPDATE sessions SET bytes =
    (SELECT coalesce(sum(length(body) + 64), 0) FROM events WHERE session = sessions.id)
    + (SELECT coalesce(sum(length(data) + 64), 0) FROM attachments WHERE session = sessions.id);
CREATE TABLE holdings (                         -- the sums of that, kept by triggers
    owner    TEXT PRIMARY KEY,
    sessions INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO holdings SELECT owner, count(*), sum(bytes) FROM sessions GROUP BY owner;
CREATE TRIGGER session_made AFTER INSERT ON sessions BEGIN
    INSERT INTO holdings (owner, sessions, bytes) VALUES (new.owner, 1, new.bytes)
        ON CONFLICT (owner) DO UPDATE SET sessions = sessions + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER session_grown AFTER UPDATE OF bytes ON sessions WHEN new.owner = old.owner AND new.bytes <> old.bytes BEGIN
    UPDATE holdings SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;
CREATE TRIGGER session_given AFTER UPDATE OF owner ON sessions WHEN new.owner <> old.owner BEGIN
    UPDATE holdings SET sessions = sessions - 1, bytes = bytes - old.bytes WHERE owner = old.owner;
    DELETE FROM holdings WHERE owner = old.owner AND sessions < 1;
    INSERT INTO holdings (owner, sessions, bytes) VALUES (new.owner, 1, new.bytes)
        ON CONFLICT (owner) DO UPDATE SET sessions = sessions + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER session_gone AFTER DELETE ON sessions BEGIN
    UPDATE holdings SET sessions = sessions - 1, bytes = bytes - old.bytes WHERE owner = old.owner;
    DELETE FROM holdings WHERE owner = old.owner AND sessions < 1;
END;
CREATE TABLE deleted_sessions (                 -- whose rows in events and attachments are yet to go
    session INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE sizes (
    day   INTEGER PRIMARY KEY,                  -- since 1970, UTC
    bytes INTEGER NOT NULL                      -- of the database that were in use when the day began
) STRICT;
