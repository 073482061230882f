-- Format 10: what was agreed to of the tools of MCP servers.
CREATE TABLE mcp_servers (
    name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE mcp_tools (
    server TEXT NOT NULL REFERENCES mcp_servers (name) ON DELETE CASCADE,
    tool   TEXT NOT NULL,
    digest BLOB NOT NULL,                           -- SHA-256 of all that a model is told of it
    PRIMARY KEY (server, tool)
) STRICT, WITHOUT ROWID;
