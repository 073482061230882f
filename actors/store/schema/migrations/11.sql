-- Format 11: channels: what came in and was not answered yet, answers that are not sent yet, and who may write.
CREATE TABLE channels (
    name   TEXT PRIMARY KEY,
    cursor TEXT                                     -- JSON: how far its adapter has asked its platform
) STRICT, WITHOUT ROWID;
CREATE TABLE channel_inbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    channel    TEXT NOT NULL,
    received   INTEGER NOT NULL,                    -- in milliseconds
    is_message INTEGER NOT NULL,                    -- 0: as the platform said it; 1: what the adapter made of it
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX channel_inbox_order ON channel_inbox (channel, id);
CREATE TABLE channel_seen (                         -- the latest messages, by their ids on the platform
    channel  TEXT NOT NULL,
    id       TEXT NOT NULL,
    received INTEGER NOT NULL,
    PRIMARY KEY (channel, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX channel_seen_order ON channel_seen (channel, received);
CREATE TABLE channel_outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    channel      TEXT NOT NULL,
    conversation TEXT NOT NULL,                     -- answers of one are sent one after the other
    made         INTEGER NOT NULL,                  -- in milliseconds
    requests     TEXT NOT NULL,                     -- JSON
    next         INTEGER NOT NULL,                  -- how many of them were carried out
    state        INTEGER NOT NULL,                  -- 0 waits, 1 is being sent, 2 failed, 3 nobody knows
    error        TEXT
) STRICT;
CREATE INDEX channel_outbox_order ON channel_outbox (channel, id);
CREATE TABLE channel_peers (                        -- who was let in by an operator
    channel TEXT NOT NULL,
    name    TEXT NOT NULL,
    since   INTEGER NOT NULL,
    PRIMARY KEY (channel, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE channel_codes (                        -- who was told a code
    channel TEXT NOT NULL,
    name    TEXT NOT NULL,
    code    TEXT NOT NULL,
    told    INTEGER NOT NULL,
    PRIMARY KEY (channel, name)
) STRICT, WITHOUT ROWID;
