-- The part of the schema that PostgreSQL has alone. It follows `0001_schema.sql`.

-- Audit

-- Who called whom, and who changed what (contract 10). There is a chain for each start of a replica: `seq` starts at
-- 1, `prev` is the hash of the record before, `hash` the SHA-256 of the canonical record. There is a partition for
-- each month (UTC), which a writer makes: retention drops whole ones.
CREATE TABLE structure_events (
    replica           TEXT   NOT NULL,
    seq               BIGINT NOT NULL,
    time              BIGINT NOT NULL,
    event_type        TEXT   NOT NULL,
    request_id        TEXT,
    trace_id          TEXT,
    caller            TEXT,
    credential_kind   TEXT,
    credential_prefix TEXT,
    target            TEXT,
    org               TEXT,
    rule              TEXT,
    method            TEXT,
    outcome           TEXT   NOT NULL,
    status            BIGINT NOT NULL,
    request_bytes     BIGINT NOT NULL,
    response_bytes    BIGINT NOT NULL,
    duration_ms       BIGINT NOT NULL,
    task_id           TEXT,
    detail            TEXT,
    prev              TEXT   NOT NULL,
    hash              TEXT   NOT NULL,
    -- The address that the request came from, as far as `audit.client_address` lets it be recorded.
    client_address    TEXT,
    -- The generations between which the call was translated, the caller's first. NULL: it was not.
    bridged           TEXT,
    -- The chain of delegation of a call: its root, the id of the root's run, the number of actors between, and the
    -- hashes of the chain tokens that were handed in and sent.
    root              TEXT,
    txn               TEXT,
    depth             BIGINT,
    link              TEXT,
    chain             TEXT,
    -- The run and the context of a call.
    run               TEXT,
    context           TEXT,
    PRIMARY KEY (replica, seq, time)
) PARTITION BY RANGE (time);

CREATE INDEX structure_events_time ON structure_events (time);

CREATE INDEX structure_events_caller ON structure_events (caller, time);

CREATE INDEX structure_events_target ON structure_events (target, time);

CREATE INDEX structure_events_request ON structure_events (request_id);

CREATE INDEX structure_events_txn ON structure_events (txn) WHERE txn IS NOT NULL;

-- Kept bytes

-- Bytes that are kept for each owner in inboxes, answers of calls with a key, and delegations: the sum of its rows.
-- The triggers add rows in the transaction that writes or deletes what is kept, so that it holds whatever deletes
-- rows. They only add, so that no transaction waits for another one's. Gateways merge the rows in the background.
-- Bytes of an inbox are apart from what the workspace itself keeps, so that senders cannot use up the room for its
-- delegations and answers: the owner is `inbox:` and the workspace. No workspace id has a colon.
CREATE TABLE kept_changes (
    owner TEXT   NOT NULL,
    bytes BIGINT NOT NULL
);

CREATE INDEX kept_changes_owner ON kept_changes (owner) INCLUDE (bytes);

CREATE FUNCTION activity_logs_kept_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT 'inbox:' || workspace_id, SUM(request_bytes + response_bytes + update_bytes) FROM added
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE FUNCTION activity_logs_kept_less() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes)
        SELECT 'inbox:' || workspace_id, -SUM(request_bytes + response_bytes + update_bytes) FROM gone
        GROUP BY workspace_id HAVING SUM(request_bytes + response_bytes + update_bytes) <> 0;
    RETURN NULL;
END $$;

CREATE FUNCTION activity_logs_kept_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (
        'inbox:' || NEW.workspace_id,
        NEW.response_bytes + NEW.update_bytes - OLD.response_bytes - OLD.update_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION mailbox_items_kept_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION mailbox_items_kept_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes - OLD.kept_bytes);
    RETURN NULL;
END $$;

CREATE FUNCTION mailbox_items_kept_less() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER mailbox_items_kept_more AFTER INSERT ON mailbox_items FOR EACH ROW
    WHEN (NEW.kept_bytes <> 0) EXECUTE FUNCTION mailbox_items_kept_more();

CREATE TRIGGER mailbox_items_kept_changed AFTER UPDATE OF kept_bytes ON mailbox_items FOR EACH ROW
    WHEN (NEW.kept_bytes <> OLD.kept_bytes) EXECUTE FUNCTION mailbox_items_kept_changed();

CREATE TRIGGER mailbox_items_kept_less AFTER DELETE ON mailbox_items
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION mailbox_items_kept_less();

-- Sums of the audit's calls by time: `span` and `at` are seconds (since 1970), `name` is a workspace that was called,
-- `org:` and an org, or '' for all calls. NULL is zero.
CREATE TABLE call_cells (
    span INTEGER NOT NULL,
    at   BIGINT  NOT NULL,
    name TEXT    NOT NULL,
    answered INTEGER,
    agent_failed INTEGER,
    gateway_failed INTEGER,
    denied INTEGER,
    rejected INTEGER,
    left_early INTEGER,
    streams INTEGER,
    ms_5 INTEGER,
    ms_10 INTEGER,
    ms_25 INTEGER,
    ms_50 INTEGER,
    ms_100 INTEGER,
    ms_250 INTEGER,
    ms_500 INTEGER,
    ms_1000 INTEGER,
    ms_2500 INTEGER,
    ms_5000 INTEGER,
    ms_10000 INTEGER,
    ms_more INTEGER,
    PRIMARY KEY (span, at, name)
);
