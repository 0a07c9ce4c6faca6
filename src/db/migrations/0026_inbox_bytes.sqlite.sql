-- Bytes of an inbox count apart from what the workspace itself keeps: senders cannot use up the room for its delegations
-- and answers of calls with a key. The owner is 'inbox:' and the workspace; no workspace id has a colon.
DROP TRIGGER activity_logs_kept_more;
DROP TRIGGER activity_logs_kept_changed;
DROP TRIGGER activity_logs_kept_less;

INSERT INTO kept_changes (owner, bytes)
    SELECT workspace_id, -SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs WHERE TRUE GROUP BY workspace_id
    ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;

INSERT INTO kept_changes (owner, bytes)
    SELECT 'inbox:' || workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs
    GROUP BY workspace_id;

CREATE TRIGGER activity_logs_kept_more AFTER INSERT ON activity_logs
WHEN NEW.request_bytes + NEW.response_bytes + NEW.update_bytes <> 0 BEGIN
    INSERT INTO kept_changes (owner, bytes)
        VALUES ('inbox:' || NEW.workspace_id, NEW.request_bytes + NEW.response_bytes + NEW.update_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER activity_logs_kept_changed AFTER UPDATE OF response_bytes, update_bytes ON activity_logs
WHEN NEW.response_bytes + NEW.update_bytes <> OLD.response_bytes + OLD.update_bytes BEGIN
    INSERT INTO kept_changes (owner, bytes)
        VALUES (
            'inbox:' || NEW.workspace_id,
            NEW.response_bytes + NEW.update_bytes - OLD.response_bytes - OLD.update_bytes
        )
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER activity_logs_kept_less AFTER DELETE ON activity_logs
WHEN OLD.request_bytes + OLD.response_bytes + OLD.update_bytes <> 0 BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.request_bytes - OLD.response_bytes - OLD.update_bytes
        WHERE owner = 'inbox:' || OLD.workspace_id;
END;
