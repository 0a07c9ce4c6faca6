-- Bytes that are kept for each owner in inboxes, answers of calls with a key, and delegations: the sum of its rows. The
-- triggers add rows in the transaction that writes or deletes what is counted, so that it holds whatever deletes rows;
-- rows are only added there, so that no transaction waits for another one's. Gateways merge them in the background.
CREATE TABLE kept_changes (
    owner TEXT   NOT NULL,
    bytes BIGINT NOT NULL
);

CREATE INDEX kept_changes_owner ON kept_changes (owner) INCLUDE (bytes);

ALTER TABLE idempotent_calls ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE idempotent_calls ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE delegations ADD COLUMN kept_bytes BIGINT NOT NULL DEFAULT 0;

INSERT INTO kept_changes (owner, bytes)
    SELECT workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM activity_logs GROUP BY workspace_id;

CREATE FUNCTION activity_logs_kept_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM added
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE FUNCTION activity_logs_kept_less() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT workspace_id, -SUM(request_bytes + response_bytes + update_bytes) FROM gone
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE FUNCTION activity_logs_kept_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (
        NEW.workspace_id, NEW.response_bytes + NEW.update_bytes - OLD.response_bytes - OLD.update_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION owned_kept_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION owned_kept_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (OLD.owner, -OLD.kept_bytes), (NEW.owner, NEW.kept_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION owned_kept_less() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT owner, -SUM(kept_bytes) FROM gone GROUP BY owner HAVING SUM(kept_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE TRIGGER activity_logs_kept_more AFTER INSERT ON activity_logs
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION activity_logs_kept_more();

CREATE TRIGGER activity_logs_kept_less AFTER DELETE ON activity_logs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION activity_logs_kept_less();

CREATE TRIGGER activity_logs_kept_changed AFTER UPDATE OF response_bytes, update_bytes ON activity_logs FOR EACH ROW
    WHEN (NEW.response_bytes + NEW.update_bytes <> OLD.response_bytes + OLD.update_bytes)
    EXECUTE FUNCTION activity_logs_kept_changed();

CREATE TRIGGER idempotent_calls_kept_changed AFTER UPDATE OF kept_bytes, owner ON idempotent_calls FOR EACH ROW
    WHEN (NEW.kept_bytes <> OLD.kept_bytes OR NEW.owner <> OLD.owner) EXECUTE FUNCTION owned_kept_changed();

CREATE TRIGGER idempotent_calls_kept_less AFTER DELETE ON idempotent_calls
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION owned_kept_less();

CREATE TRIGGER delegations_kept_more AFTER INSERT ON delegations FOR EACH ROW
    WHEN (NEW.kept_bytes <> 0) EXECUTE FUNCTION owned_kept_more();

CREATE TRIGGER delegations_kept_changed AFTER UPDATE OF kept_bytes ON delegations FOR EACH ROW
    WHEN (NEW.kept_bytes <> OLD.kept_bytes) EXECUTE FUNCTION owned_kept_changed();

CREATE TRIGGER delegations_kept_less AFTER DELETE ON delegations
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION owned_kept_less();
