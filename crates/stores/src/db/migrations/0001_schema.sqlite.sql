-- The part of the schema that SQLite has alone. It follows `0001_schema.sql`.

-- Inbox

-- Without it SQLite reads all of a long body to reach the columns behind it.
CREATE INDEX activity_logs_account ON activity_logs (workspace_id, seq, account, account_group);

-- Audit

-- The numbers of chains.
CREATE TABLE audit_replicas (
    chain   INTEGER PRIMARY KEY,
    replica TEXT NOT NULL UNIQUE
);

-- The numbers of words from closed sets.
CREATE TABLE audit_words (
    id   INTEGER PRIMARY KEY,
    word TEXT NOT NULL UNIQUE
);

-- Who called whom, and who changed what (contract 10), in few bytes, and without an index that every record enters.
-- There is a chain for each start of a replica. `id` is the chain and `seq`, which starts at 1. `event_type`,
-- `credential_kind`, `rule`, `method` and `outcome` are words; that of the method of a translated call ends with the
-- generations, the caller's first. `prev` is the hash of the record before, absent where that is the row before.
-- `hash` is the SHA-256 of the canonical record. Request and task ids that are UUIDs, and trace ids, are bytes.
CREATE TABLE structure_events (
    id                INTEGER PRIMARY KEY,
    chain             INTEGER AS (id >> 40) VIRTUAL,
    seq               INTEGER AS (id & 1099511627775) VIRTUAL,
    time              INTEGER NOT NULL,
    event_type        INTEGER NOT NULL,
    request_id,
    trace_id          BLOB,
    caller            TEXT,
    credential_kind   INTEGER,
    credential_prefix TEXT,
    -- The address that the request came from, as far as `audit.client_address` lets it be recorded.
    client_address    TEXT,
    target            TEXT,
    org               TEXT,
    rule              INTEGER,
    method            INTEGER,
    outcome           INTEGER NOT NULL,
    status            INTEGER NOT NULL,
    request_bytes     INTEGER NOT NULL,
    response_bytes    INTEGER NOT NULL,
    duration_ms       INTEGER NOT NULL,
    task_id,
    detail            TEXT,
    prev              BLOB,
    hash              BLOB NOT NULL,
    -- The chain of delegation of a call: its root, the id of the root's run, the number of actors between, and the
    -- hashes of the chain tokens that were handed in and sent (member `chain`).
    root              TEXT,
    txn               TEXT,
    depth             INTEGER,
    link              TEXT,
    sent              TEXT,
    -- The run and the context of a call. Bytes as of a trace id and of a task id.
    run,
    context
);

CREATE INDEX structure_events_txn ON structure_events (txn) WHERE txn IS NOT NULL;

-- Bytes of a request id hold the time of its request: a short one is found by that.
CREATE INDEX structure_events_untimed ON structure_events (request_id)
    WHERE duration_ms > 1000 OR typeof(request_id) = 'text';

-- The times of each 4096 numbers: `block` is `id >> 12`.
CREATE TABLE audit_blocks (
    block      INTEGER PRIMARY KEY,
    first_time INTEGER NOT NULL,
    last_time  INTEGER NOT NULL
);

-- The blocks in which a caller, a target, a rare outcome or a rare event is found. `key` is a hash of its name.
CREATE TABLE audit_seen (
    key   INTEGER NOT NULL,
    block INTEGER NOT NULL,
    PRIMARY KEY (key, block)
) WITHOUT ROWID;

-- Kept bytes

-- Bytes that are kept for each owner in inboxes, answers of calls with a key, and delegations. The triggers write it
-- in the transaction that writes or deletes the row, so that it holds whatever deletes rows. Bytes of an inbox are
-- apart from what the workspace itself keeps, so that senders cannot use up the room for its delegations and answers:
-- the owner is `inbox:` and the workspace. No workspace id has a colon.
CREATE TABLE kept_changes (
    owner TEXT   NOT NULL PRIMARY KEY,
    bytes BIGINT NOT NULL
);

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

CREATE TRIGGER mailbox_items_kept_more AFTER INSERT ON mailbox_items WHEN NEW.kept_bytes <> 0 BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER mailbox_items_kept_changed AFTER UPDATE OF kept_bytes ON mailbox_items
WHEN NEW.kept_bytes <> OLD.kept_bytes BEGIN
    INSERT INTO kept_changes (owner, bytes) VALUES (NEW.owner, NEW.kept_bytes - OLD.kept_bytes)
        ON CONFLICT (owner) DO UPDATE SET bytes = kept_changes.bytes + excluded.bytes;
END;

CREATE TRIGGER mailbox_items_kept_less AFTER DELETE ON mailbox_items WHEN OLD.kept_bytes <> 0 BEGIN
    UPDATE kept_changes SET bytes = bytes - OLD.kept_bytes WHERE owner = OLD.owner;
END;

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
) WITHOUT ROWID;
