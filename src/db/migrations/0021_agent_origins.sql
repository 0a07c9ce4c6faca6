-- At which servers agents are registered. A row with an empty slot has its origin alone; what an operator shares has
-- the workspace's id there.
CREATE TABLE agent_origins (
    origin TEXT NOT NULL,
    slot TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    base TEXT NOT NULL,
    PRIMARY KEY (origin, slot)
);
CREATE INDEX agent_origins_workspace_id ON agent_origins (workspace_id);

-- For which scheme, host and port the credential of the agent was set; NULL: for the first that it registers.
ALTER TABLE workspaces ADD COLUMN upstream_auth_base TEXT;
