-- Who started a task, where no Redis keeps it: a gateway alone. `task_key` and `at_key` are the names that Redis has for
-- the same: of the task at its target, and of the task among those of its owner. `started` grows from row to row: milliseconds
-- since 1970, times 1000, and the place in a batch.
CREATE TABLE task_owners (
    task_key   TEXT   NOT NULL PRIMARY KEY,
    at_key     TEXT   NOT NULL,
    owner      TEXT   NOT NULL,
    target     TEXT   NOT NULL,
    started BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX task_owners_at_key ON task_owners (at_key, started);

CREATE INDEX task_owners_owner ON task_owners (owner, started);

CREATE INDEX task_owners_expires_at ON task_owners (expires_at);
