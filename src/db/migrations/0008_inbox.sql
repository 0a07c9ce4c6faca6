-- Messages that wait to be fetched (contract 6.1). How far each inbox has come: its row is locked by whoever
-- appends, until the commit, so that numbers are without gaps and in the order of commits.
CREATE TABLE inbox_heads (
    workspace_id TEXT   NOT NULL PRIMARY KEY,
    last_seq     BIGINT NOT NULL,
    acked_seq    BIGINT NOT NULL
);

-- Ids are UUIDs of version 7, so they are in the order of time. A row that begins a task has the task's id.
CREATE TABLE activity_logs (
    id             TEXT   NOT NULL PRIMARY KEY,
    workspace_id   TEXT   NOT NULL,
    seq            BIGINT NOT NULL,
    activity_type  TEXT   NOT NULL,
    source_id      TEXT,
    source_kind    TEXT   NOT NULL,
    target_id      TEXT,
    method         TEXT,
    request_body   TEXT,
    request_bytes  BIGINT NOT NULL,
    response_body  TEXT,
    response_bytes BIGINT NOT NULL,
    status         TEXT   NOT NULL,
    task_id        TEXT,
    context_id     TEXT,
    owner          TEXT   NOT NULL,
    updates        BIGINT NOT NULL DEFAULT 0,
    update_bytes   BIGINT NOT NULL DEFAULT 0,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    UNIQUE (workspace_id, seq)
);

-- What continues a task: few rows do.
CREATE INDEX activity_logs_task_id ON activity_logs (task_id) WHERE id <> task_id;

-- What happened to a task since it was begun, in order. Both tables are one room's, and an update means nothing
-- without its task: hence the one foreign key.
CREATE TABLE task_updates (
    task_id    TEXT   NOT NULL REFERENCES activity_logs (id) ON DELETE CASCADE,
    n          BIGINT NOT NULL,
    body       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (task_id, n)
);
