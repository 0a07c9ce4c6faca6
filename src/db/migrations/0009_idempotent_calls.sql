-- Calls that may be sent again: which of them runs where, and what came of it. `scope` is a hash of
-- caller, target and key; `run` names one dispatch.
CREATE TABLE idempotent_calls (
    scope       TEXT   NOT NULL PRIMARY KEY,
    body_hash   TEXT   NOT NULL,
    run         TEXT   NOT NULL,
    holder      TEXT   NOT NULL,
    state       TEXT   NOT NULL,
    lease_until BIGINT NOT NULL,
    status      BIGINT,
    fields      TEXT,
    body        TEXT,
    task_state  TEXT,
    stream      TEXT,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL
);

CREATE INDEX idempotent_calls_run ON idempotent_calls (run);

CREATE INDEX idempotent_calls_running ON idempotent_calls (holder) WHERE state = 'running';

CREATE INDEX idempotent_calls_expires_at ON idempotent_calls (expires_at);
