-- Who called whom, and who changed what (contract 10). A chain for each start of a replica: `seq` counts from 1,
-- `prev` is the hash of the record before, `hash` the SHA-256 of the canonical record.
-- With a rowid: indexes hold that, and not the name of the replica over and over.
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
    UNIQUE (replica, seq)
);

CREATE INDEX structure_events_time ON structure_events (time);

CREATE INDEX structure_events_caller ON structure_events (caller, time);

CREATE INDEX structure_events_target ON structure_events (target, time);

CREATE INDEX structure_events_request ON structure_events (request_id);

-- What is signed of each chain: where it begins and ends. `statement` says the same as the columns.
CREATE TABLE audit_chains (
    replica   TEXT   NOT NULL PRIMARY KEY,
    first_seq BIGINT NOT NULL,
    last_seq  BIGINT NOT NULL,
    statement TEXT   NOT NULL,
    signed_at BIGINT NOT NULL
);
