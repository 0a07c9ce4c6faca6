-- Bytes of an inbox count apart from what the workspace itself keeps: senders cannot use up the room for its delegations
-- and answers of calls with a key. The owner is 'inbox:' and the workspace; no workspace id has a colon.
--
-- No row comes or goes between the sums and the new functions. The mode is that of the next migration, which alters the
-- table: a lock that grows could deadlock with an older replica.
LOCK TABLE activity_logs IN ACCESS EXCLUSIVE MODE;

INSERT INTO kept_changes (owner, bytes)
    SELECT workspace_id, -SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs GROUP BY workspace_id;

INSERT INTO kept_changes (owner, bytes)
    SELECT 'inbox:' || workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs
    GROUP BY workspace_id;

CREATE OR REPLACE FUNCTION activity_logs_kept_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT 'inbox:' || workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM added
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION activity_logs_kept_less() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT 'inbox:' || workspace_id, -SUM(request_bytes + response_bytes + update_bytes) FROM gone
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION activity_logs_kept_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (
        'inbox:' || NEW.workspace_id,
        NEW.response_bytes + NEW.update_bytes - OLD.response_bytes - OLD.update_bytes);
    RETURN NULL;
END $$;
