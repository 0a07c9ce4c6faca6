-- When this generation of an id began: an operator gave a removed id away again. 0: it is the first. Tokens, tasks and
-- calls of an earlier generation prove and find nothing.
ALTER TABLE workspaces ADD COLUMN born_at BIGINT NOT NULL DEFAULT 0;
