-- Probe of an agent that does not register, as JSON: what is asked, how often, and how many failures count.
ALTER TABLE workspaces ADD COLUMN probe TEXT;

-- Every replica reads the workspaces with a probe every few seconds.
CREATE INDEX workspaces_probe ON workspaces (id) WHERE probe IS NOT NULL;
