-- Who may message whom besides what the hierarchy says. One row for each ordered pair: a grant that
-- was taken back stays, so that taking it back again tells the replicas again.
CREATE TABLE access_grants (
    id         TEXT   NOT NULL PRIMARY KEY,
    caller_id  TEXT   NOT NULL,
    target_id  TEXT   NOT NULL,
    note       TEXT,
    expires_at BIGINT,
    created_at BIGINT NOT NULL,
    removed_at BIGINT,
    UNIQUE (caller_id, target_id)
);

-- Pages of children, of an org and of its roots, each in order of id. No org counts as one org.
CREATE INDEX workspaces_parent_id_id ON workspaces (parent_id, id);

CREATE INDEX workspaces_org_id ON workspaces (COALESCE(org, ''), id);

CREATE INDEX workspaces_root_id ON workspaces (COALESCE(org, ''), id) WHERE parent_id IS NULL;
