-- Calls that are made later and outlive a restart (contract 6.4): what workspaces delegated, and calls that were
-- deferred because their target was away. `call` is a deferred call as it goes to the agent, with what of its request
-- head matters; a delegation's is made of `task`. Whoever works on a row has a lease on it until `leased_until`, and
-- the number in `fence`, which grows with each claim: what an earlier holder still writes changes nothing.
CREATE TABLE delegations (
    id              TEXT   NOT NULL PRIMARY KEY,
    kind            TEXT   NOT NULL,
    owner           TEXT   NOT NULL,
    caller          TEXT   NOT NULL,
    source_id       TEXT,
    target_id       TEXT   NOT NULL,
    task            TEXT,
    call            TEXT,
    idempotency_key TEXT,
    state           TEXT   NOT NULL,
    priority        BIGINT NOT NULL,
    attempts        BIGINT NOT NULL DEFAULT 0,
    due_at          BIGINT NOT NULL,
    deadline        BIGINT NOT NULL,
    leased_until    BIGINT NOT NULL DEFAULT 0,
    fence           BIGINT NOT NULL DEFAULT 0,
    inbox_task      TEXT,
    result          TEXT,
    error           TEXT,
    untold          BIGINT NOT NULL DEFAULT 0,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);

-- A key is free again when what it named has failed or expired.
CREATE UNIQUE INDEX delegations_idempotency_key ON delegations (kind, owner, idempotency_key)
    WHERE state NOT IN ('failed', 'expired');

CREATE INDEX delegations_owner_id ON delegations (owner, id);

CREATE INDEX delegations_unfinished_owner ON delegations (owner) WHERE state IN ('pending', 'dispatched');

CREATE INDEX delegations_unfinished_target ON delegations (target_id) WHERE state IN ('pending', 'dispatched');

-- What is looked for every second.
CREATE INDEX delegations_pending ON delegations (priority DESC, created_at, id) WHERE state = 'pending';

CREATE INDEX delegations_pending_deadline ON delegations (deadline) WHERE state = 'pending';

CREATE INDEX delegations_dispatched ON delegations (leased_until) WHERE state = 'dispatched';

-- Of those that have ended, `due_at` is when to tell of them.
CREATE INDEX delegations_untold ON delegations (due_at) WHERE untold = 1;

CREATE INDEX delegations_finished ON delegations (updated_at) WHERE state NOT IN ('pending', 'dispatched');

CREATE INDEX delegations_inbox_task ON delegations (inbox_task) WHERE state = 'dispatched';
