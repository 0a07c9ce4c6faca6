-- The named instances of workspaces' agents. An entry of a workspace without any asks nothing here.
CREATE TABLE workspace_instances (
    workspace_id  TEXT   NOT NULL,
    instance_id   TEXT   NOT NULL,
    url           TEXT   NOT NULL,
    internal_url  TEXT,
    draining      BIGINT NOT NULL DEFAULT 0,
    -- 1: the workspace's credential is for this URL, too, by an operator.
    has_auth      BIGINT NOT NULL DEFAULT 0,
    registered_at BIGINT NOT NULL,
    last_seen     BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, instance_id)
);

-- The number of rows above.
ALTER TABLE workspaces ADD COLUMN instances BIGINT NOT NULL DEFAULT 0;
