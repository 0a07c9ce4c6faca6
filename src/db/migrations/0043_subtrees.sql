-- Tokens of an org that look after a subtree of it: a workspace, the root, and those below it. `born_at` is that of the
-- root: a token does not pass to a later life of its id. They have a table of their own, so that a replica of the release
-- before, which would take them for tokens of the whole org, knows none of them.
CREATE TABLE subtree_tokens (
    id           TEXT   NOT NULL PRIMARY KEY,
    org          TEXT   NOT NULL,
    workspace_id TEXT   NOT NULL,
    born_at      BIGINT NOT NULL,
    token_hash   TEXT   NOT NULL UNIQUE,
    prefix       TEXT   NOT NULL,
    note         TEXT,
    created_at   BIGINT NOT NULL,
    revoked_at   BIGINT
);

CREATE INDEX subtree_tokens_org ON subtree_tokens (org);

CREATE INDEX subtree_tokens_workspace_id ON subtree_tokens (workspace_id);

-- The root of the subtree of the token that made a stop: it covers nothing outside of it. NULL: another maker.
ALTER TABLE stops ADD COLUMN by_subtree TEXT;
