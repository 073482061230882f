-- Format 6: the key of a session says whose it is. Whatever names one by its key follows, before it has
-- another.
UPDATE jobs SET
    session = owned_key(CASE owner WHEN '' THEN
        coalesce((SELECT s.owner FROM sessions s WHERE s.key = jobs.session), '') ELSE owner END, session),
    result_to = owned_key(CASE owner WHEN '' THEN
        coalesce((SELECT s.owner FROM sessions s WHERE s.key = jobs.result_to), '') ELSE owner END, result_to);
UPDATE agents SET
    session = owned_key(owner, session),
    parent = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agents.parent), owner), parent),
    root = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agents.root), owner), root);
UPDATE agent_notes SET
    session = owned_key(coalesce((SELECT s.owner FROM sessions s WHERE s.key = agent_notes.session), owner), session);
UPDATE usage SET session = owned_key(s.owner, s.key)
    FROM sessions s WHERE s.key = usage.session AND s.owner <> '';
ALTER TABLE sessions ADD COLUMN agent TEXT NOT NULL DEFAULT '';             -- that of its key
ALTER TABLE sessions ADD COLUMN conversation TEXT NOT NULL DEFAULT '';      -- the id of its present conversation
ALTER TABLE sessions ADD COLUMN uuid_before TEXT;                           -- before this format, where that was another
UPDATE sessions SET agent = key_agent(key), conversation = conversation_id(key, created, reset);
DROP INDEX sessions_uuid;
UPDATE sessions SET key = owned_key(owner, key), uuid_before = uuid WHERE owner <> '';
UPDATE sessions SET uuid = session_uuid(key) WHERE owner <> '' AND agent <> '';
UPDATE sessions SET uuid_before = NULL WHERE uuid_before = uuid;
CREATE UNIQUE INDEX sessions_uuid ON sessions (uuid, owner);
CREATE INDEX sessions_uuid_before ON sessions (uuid_before) WHERE uuid_before IS NOT NULL;
CREATE INDEX sessions_conversation ON sessions (conversation, owner);
CREATE INDEX sessions_agent ON sessions (agent, updated);
