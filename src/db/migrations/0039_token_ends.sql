-- What its maker calls a token of a workspace, and the time at which it ends by itself; NULL: when it is revoked. A replica
-- of the release before takes a token after its end, too.
ALTER TABLE workspace_auth_tokens ADD COLUMN label TEXT;
ALTER TABLE workspace_auth_tokens ADD COLUMN expires_at BIGINT;
