-- Whether callers may ask the agent for push notifications: 0, 1, or NULL, as a2a.push_notifications says.
ALTER TABLE workspaces ADD COLUMN push_notifications BIGINT;
