-- Proof in the tokens that the agent gets with calls: 'pair', 'request', or NULL, which is 'pair'.
ALTER TABLE workspaces ADD COLUMN proof TEXT;
