-- Format 15: the model that an agent was given when it was put to work, as PROVIDER/MODEL.
ALTER TABLE agents ADD COLUMN model TEXT;
