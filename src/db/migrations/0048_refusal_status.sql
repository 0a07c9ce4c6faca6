-- HTTP status of refusals of its JSON-RPC calls: 'http', '200', or NULL, which is as `a2a.refusal_status` says.
ALTER TABLE workspaces ADD COLUMN refusal_status TEXT;
