-- Each costs every note of a heartbeat a write. The first is the beginning of another index, the second
-- is asked for by nobody. Before anything else, since this takes the strongest lock on the table.
DROP INDEX workspaces_parent_id;
DROP INDEX workspaces_org;

-- The sweep's look for workspaces that were never heard: without it a look at the whole table, every
-- second. The terms of the condition stand as in the statement, since SQLite compares them by text.
CREATE INDEX workspaces_unseen ON workspaces (id)
  WHERE status IN ('online', 'degraded') AND liveness = 'heartbeat' AND last_seen IS NULL;
