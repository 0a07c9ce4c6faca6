-- Stops of operators: whose calls are refused, and why. `scope` is `workspace`, `subtree`, `org`, `pair` or `all`; `name` is
-- the workspace, the org, or the caller of a pair, and `target` the target of a pair. `by_org`: an org token made it, so
-- it covers that org only. `cancel` is how far the cancellation of known tasks is: `none`, `wanted`, `listed` or `done`; one
-- replica at a time does it, until `leased_until`.
CREATE TABLE stops (
    id           TEXT   NOT NULL PRIMARY KEY,
    scope        TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    target       TEXT   NOT NULL,
    org          TEXT,
    by_org       TEXT,
    mode         TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    created_by   TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    cancel       TEXT   NOT NULL,
    leased_until BIGINT NOT NULL,
    fence        BIGINT NOT NULL
);

-- One number that grows with each change of `stops`: each replica compares it several times a second.
CREATE TABLE stop_changes (
    id    BIGINT NOT NULL PRIMARY KEY,
    noted BIGINT NOT NULL
);

-- The tasks that a stop has canceled at their agents, with the outcome of each: `pending` first.
CREATE TABLE stop_tasks (
    stop_id TEXT NOT NULL,
    target  TEXT NOT NULL,
    task    TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (stop_id, target, task)
);

CREATE INDEX stop_tasks_outcome ON stop_tasks (stop_id, outcome);

-- Tasks that agents have begun and not ended, as far as the gateway has seen. `caller` is the owner of the task.
CREATE TABLE open_tasks (
    target     TEXT   NOT NULL,
    task       TEXT   NOT NULL,
    caller     TEXT   NOT NULL,
    caller_org TEXT,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (target, task)
);

CREATE INDEX open_tasks_expires_at ON open_tasks (expires_at);
