-- The instance that has a task or a context, where no Redis keeps it: a gateway alone. `bound_key` is the name that Redis
-- has for the same. `value` is the id of the instance, followed by ` ended` if the task has ended. `owner` is the caller
-- whose answer bound it.
CREATE TABLE task_bindings (
    bound_key  TEXT   NOT NULL PRIMARY KEY,
    value      TEXT   NOT NULL,
    owner      TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX task_bindings_expires_at ON task_bindings (expires_at);

CREATE INDEX task_bindings_owner ON task_bindings (owner, expires_at);
