-- Addresses of the name in the URL that get calls: `first`, or `each` as an instance. NULL: `first`.
ALTER TABLE workspaces ADD COLUMN resolve TEXT;
