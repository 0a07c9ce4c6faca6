-- Bytes that are kept for each owner in inboxes, answers of calls with a key, and delegations. The triggers write it in
-- the transaction that writes or deletes the row, so that it holds whatever deletes rows.
CREATE TABLE kept_changes (
    owner TEXT   NOT NULL PRIMARY KEY,
    bytes BIGINT NOT NULL
);

ALTER TABLE idempotent_calls ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE idempotent_calls ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE delegations ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0;

INSERT INTO kept_changes (owner, bytes)
    SELECT workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs GROUP BY workspace_id;

CREATE TRIGGER activity_logs_kept_more AFTER INSERT ON activity_logs
WHEN NEW.request_bytes + NEW.response_bytes + NEW.update_bytes <> 0 BEGIN
    INSERT INTO kept_changes (owner, bytes)
        VALUES (NEW.workspace_id, NEW.request_bytes + NEW.response_bytes + NEW.update_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER activity_logs_kept_changed AFTER UPDATE OF response_bytes, update_bytes ON activity_logs
WHEN NEW.response_bytes + NEW.update_bytes <> OLD.response_bytes + OLD.update_bytes BEGIN
    INSERT INTO kept_changes (owner, bytes)
        VALUES (NEW.workspace_id, NEW.response_bytes + NEW.update_bytes - OLD.response_bytes - OLD.update_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER activity_logs_kept_less AFTER DELETE ON activity_logs
WHEN OLD.request_bytes + OLD.response_bytes + OLD.update_bytes <> 0 BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.request_bytes - OLD.response_bytes - OLD.update_bytes
        WHERE owner = OLD.workspace_id;
END;

CREATE TRIGGER idempotent_calls_kept_changed AFTER UPDATE OF kept_bytes, owner ON idempotent_calls
WHEN NEW.kept_bytes <> OLD.kept_bytes OR NEW.owner <> OLD.owner BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.kept_bytes WHERE owner = OLD.owner;
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER idempotent_calls_kept_less AFTER DELETE ON idempotent_calls WHEN OLD.kept_bytes <> 0 BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.kept_bytes WHERE owner = OLD.owner;
END;

CREATE TRIGGER delegations_kept_more AFTER INSERT ON delegations WHEN NEW.kept_bytes <> 0 BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER delegations_kept_changed AFTER UPDATE OF kept_bytes ON delegations
WHEN NEW.kept_bytes <> OLD.kept_bytes BEGIN
    UPDATE kept_changes SET bytes = bytes + NEW.kept_bytes - OLD.kept_bytes WHERE owner = NEW.owner;
END;

CREATE TRIGGER delegations_kept_less AFTER DELETE ON delegations WHEN OLD.kept_bytes <> 0 BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.kept_bytes WHERE owner = OLD.owner;
END;
