-- Records in a third of the space: words, chains and hashes in few bytes, and no index that every record enters. The
-- records that exist stay as they are, and are read there until retention has removed them.
ALTER TABLE structure_events RENAME TO structure_events_1;

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

-- `id` is the chain and the sequence number. `event_type`, `credential_kind`, `rule`, `method` and `outcome` are words.
-- `prev` is absent where it is the hash of the row before. Request and task ids that are UUIDs, and trace ids, are bytes.
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
    hash              BLOB NOT NULL
);

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
