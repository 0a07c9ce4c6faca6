-- Translation of calls between generations: 'auto', 'off', or NULL, which is as `a2a.bridge` says.
ALTER TABLE workspaces ADD COLUMN bridge TEXT;
