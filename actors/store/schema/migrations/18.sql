-- Format 18: one outbox for all channels and the bus. What is to be said is put into it with the end of its run; an
-- adapter makes requests of it when it is sent.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    channel      TEXT NOT NULL,
    conversation TEXT NOT NULL,                     -- answers of one are sent one after the other
    made         INTEGER NOT NULL,                  -- in milliseconds
    address      TEXT NOT NULL,                     -- where it goes, in the channel's words
    answer       TEXT,                              -- JSON: what is to be said
    requests     TEXT,                              -- JSON: what an adapter has made of it
    next         INTEGER NOT NULL,                  -- how many of them were carried out
    state        INTEGER NOT NULL,                  -- 0 waits, 1 is being sent, 2 failed, 3 nobody knows
    error        TEXT
) STRICT;
INSERT INTO outbox (id, channel, conversation, made, address, requests, next, state, error)
    SELECT id, channel, conversation, made, '', requests, next, state, error FROM channel_outbox;
DROP TABLE channel_outbox;
CREATE INDEX outbox_order ON outbox (channel, id);
