-- Format 8: what plugins keep.
CREATE TABLE plugin_namespaces (
    id        INTEGER PRIMARY KEY,
    owner     TEXT NOT NULL,
    agent     TEXT NOT NULL,
    namespace TEXT NOT NULL,
    keys      INTEGER NOT NULL DEFAULT 0,           -- how many there are
    bytes     INTEGER NOT NULL DEFAULT 0,           -- of all keys and values
    UNIQUE (owner, agent, namespace)
) STRICT;
CREATE TABLE plugin_values (
    namespace INTEGER NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,                        -- JSON
    UNIQUE (namespace, key)
) STRICT;
