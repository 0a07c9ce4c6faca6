-- The schema that SQLite and PostgreSQL share. `0001_schema.sqlite.sql` and `0001_schema.postgres.sql` follow it.
--
-- Times and numbers are BIGINT (times in milliseconds), ids and JSON are TEXT, there are no booleans and no blobs.
-- There are no foreign keys between the tables of different modules: a row outlives what it refers to (a removed
-- workspace keeps its tokens, revoked).

-- Workspaces

CREATE TABLE workspaces (
    id                   TEXT   NOT NULL PRIMARY KEY,
    -- When this generation of the id began, after an operator gave a removed id away again. 0: it is the first.
    -- Tokens, tasks and calls of an earlier generation prove and find nothing.
    born_at              BIGINT NOT NULL DEFAULT 0,
    name                 TEXT   NOT NULL,
    role                 TEXT,
    parent_id            TEXT,
    org                  TEXT,
    -- Grows with each move and with the removal of the workspace. A token that says why its bearer may reach a
    -- target holds the sum over the lines of both, so that it also ends with any move above them.
    access_generation    BIGINT NOT NULL DEFAULT 0,
    status               TEXT   NOT NULL,
    delivery_mode        TEXT   NOT NULL,
    liveness             TEXT   NOT NULL,
    url                  TEXT,
    internal_url         TEXT,
    -- Which addresses of the name in the URL get calls: `first`, or `each` as an instance. NULL: `first`.
    resolve              TEXT,
    -- The number of rows in `workspace_instances`.
    instances            BIGINT NOT NULL DEFAULT 0,
    card_url             TEXT,
    agent_card           TEXT,
    -- Who may read the agent's card: `public`, `private`, or NULL, as `card.access` says.
    card_access          TEXT,
    upstream_auth        TEXT,
    -- The scheme, host and port that the agent's credential is for. NULL: the first that it registers.
    upstream_auth_base   TEXT,
    -- TLS towards the agent, as JSON: certificates and key, sealed, and what may be shown of the certificates.
    upstream_tls         TEXT,
    -- Proof in the tokens that the agent gets with calls: `pair`, `request`, or NULL, which is `pair`.
    proof                TEXT,
    complete             TEXT,
    -- Whether callers may ask the agent for push notifications: 0, 1, or NULL, as `a2a.push_notifications` says.
    push_notifications   BIGINT,
    -- Translation of calls between generations: `auto`, `off`, or NULL, as `a2a.bridge` says.
    bridge               TEXT,
    -- The calls with which the agent gets a chain token: `person`, `always`, `never`, or NULL, which is `person`.
    chain                TEXT,
    -- What carries calls where the agent's card names several interfaces: `auto`, `jsonrpc`, `http+json`, `grpc`, or
    -- NULL, which is `auto`.
    transport            TEXT,
    -- HTTP status of refusals of JSON-RPC calls: `http`, `200`, or NULL, as `a2a.refusal_status` says.
    refusal_status       TEXT,
    -- Waker of a sleeping agent, as JSON: URL, method, times, and the header fields, sealed.
    wake                 TEXT,
    -- Probe of an agent that does not register, as JSON: what is asked, how often, and the failures until offline.
    probe                TEXT,
    max_concurrent       BIGINT,
    idle_timeout_seconds BIGINT,
    current_task         TEXT,
    active_tasks         BIGINT NOT NULL DEFAULT 0,
    last_seen            BIGINT,
    created_at           BIGINT NOT NULL,
    updated_at           BIGINT NOT NULL
);

-- Pages of children, of an org and of its roots, each in order of id. No org is one org.
CREATE INDEX workspaces_parent_id_id ON workspaces (parent_id, id);

CREATE INDEX workspaces_org_id ON workspaces (COALESCE(org, ''), id);

CREATE INDEX workspaces_root_id ON workspaces (COALESCE(org, ''), id) WHERE parent_id IS NULL;

-- The sweep looks every second for workspaces that never sent a heartbeat. The terms of the condition stand as in the
-- statement, since SQLite compares them by text.
CREATE INDEX workspaces_unseen ON workspaces (id)
    WHERE status IN ('online', 'degraded') AND liveness = 'heartbeat' AND last_seen IS NULL;

-- The sweep looks every second for lapsed heartbeats. Workspaces of `assumed` liveness send none, and most of them
-- were last seen long ago: the index keeps them apart.
CREATE INDEX workspaces_status_liveness_last_seen ON workspaces (status, liveness, last_seen);

-- Every replica reads the workspaces with a probe every few seconds.
CREATE INDEX workspaces_probe ON workspaces (id) WHERE probe IS NOT NULL;

-- The named instances of agents.
CREATE TABLE workspace_instances (
    workspace_id  TEXT   NOT NULL,
    instance_id   TEXT   NOT NULL,
    url           TEXT   NOT NULL,
    internal_url  TEXT,
    draining      BIGINT NOT NULL DEFAULT 0,
    -- 1: an operator set the workspace's credential for this URL, too.
    has_auth      BIGINT NOT NULL DEFAULT 0,
    registered_at BIGINT NOT NULL,
    last_seen     BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, instance_id)
);

-- The servers at which agents are registered. A row with an empty slot has its origin alone. A server that an operator
-- shares has the workspace's id as slot.
CREATE TABLE agent_origins (
    origin       TEXT NOT NULL,
    slot         TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    base         TEXT NOT NULL,
    PRIMARY KEY (origin, slot)
);

CREATE INDEX agent_origins_workspace_id ON agent_origins (workspace_id);

-- One row: grows with each invalidation that a replica could not publish. See the crate `stores`, `coherence`.
CREATE TABLE coherence_gaps (
    id    BIGINT PRIMARY KEY,
    noted BIGINT NOT NULL
);

-- Tokens
--
-- Hashes are SHA-256 in 64 lower-case hexadecimal digits. A token itself is never stored.

CREATE TABLE workspace_auth_tokens (
    id           TEXT   NOT NULL PRIMARY KEY,
    workspace_id TEXT   NOT NULL,
    token_hash   TEXT   NOT NULL UNIQUE,
    prefix       TEXT   NOT NULL,
    -- What the token's maker calls it.
    label        TEXT,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    -- When the token ends by itself. NULL: when it is revoked.
    expires_at   BIGINT,
    revoked_at   BIGINT
);

CREATE INDEX workspace_auth_tokens_workspace_id ON workspace_auth_tokens (workspace_id);

CREATE TABLE enrolment_tokens (
    token_hash      TEXT   NOT NULL PRIMARY KEY,
    -- The token is listed and revoked by its id, like the other tokens of a workspace.
    id              TEXT,
    workspace_id    TEXT   NOT NULL,
    prefix          TEXT,
    -- 1: a token of an org or of a subtree made it. 0: an operator did.
    by_org          BIGINT NOT NULL DEFAULT 0,
    -- The access generation of the workspace's line when an org token made the token: it is good only there.
    -- NULL: an operator made it.
    line_generation BIGINT,
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT NOT NULL,
    redeemed_at     BIGINT,
    revoked_at      BIGINT
);

CREATE INDEX enrolment_tokens_workspace_id ON enrolment_tokens (workspace_id);

-- One with a workspace looks after a subtree of the org: that workspace, the root, and those below it. `born_at` is that of
-- the root: a token does not pass to a later generation of its id.
CREATE TABLE org_tokens (
    id           TEXT   NOT NULL PRIMARY KEY,
    org          TEXT   NOT NULL,
    workspace_id TEXT,
    born_at      BIGINT,
    token_hash   TEXT   NOT NULL UNIQUE,
    prefix       TEXT   NOT NULL,
    note         TEXT,
    created_at   BIGINT NOT NULL,
    revoked_at   BIGINT
);

CREATE INDEX org_tokens_org ON org_tokens (org);

CREATE INDEX org_tokens_workspace_id ON org_tokens (workspace_id);

CREATE TABLE admin_tokens (
    token_hash TEXT   NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL
);

-- Tokens of operators with a role: `read`, `operate` or `admin`. `issuer`, `subject` and `name` are of a person who
-- signed in at the console: the token is that of the session, and is never shown.
CREATE TABLE operator_tokens (
    id         TEXT   NOT NULL PRIMARY KEY,
    token_hash TEXT   NOT NULL UNIQUE,
    prefix     TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    label      TEXT,
    issuer     TEXT,
    subject    TEXT,
    name       TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);

-- Grants

-- Who may message whom beyond what the hierarchy permits. One row for each ordered pair: a revoked grant stays, so
-- that revoking it again notifies the replicas again.
CREATE TABLE access_grants (
    id         TEXT   NOT NULL PRIMARY KEY,
    caller_id  TEXT   NOT NULL,
    target_id  TEXT   NOT NULL,
    note       TEXT,
    expires_at BIGINT,
    created_at BIGINT NOT NULL,
    removed_at BIGINT,
    UNIQUE (caller_id, target_id)
);

-- Inbox

-- How far each inbox has come (contract 6.1). A writer that appends locks its row until the commit, so that numbers
-- are without gaps and in the order of commits.
CREATE TABLE inbox_heads (
    workspace_id TEXT   NOT NULL PRIMARY KEY,
    last_seq     BIGINT NOT NULL,
    acked_seq    BIGINT NOT NULL
);

-- Messages that wait to be fetched. Ids are UUIDs of version 7, so they are in the order of time. A row that begins a
-- task has the task's id.
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
    -- How many gateways the entry's call has gone through, this one included. NULL: the entry is no call.
    hops           BIGINT,
    -- The chain of the call, as JSON. NULL: it has no chain.
    chain          TEXT,
    -- The account of the sender and its group, which limit each sender's share of an inbox. 0: none.
    account        BIGINT NOT NULL DEFAULT 0,
    account_group  BIGINT NOT NULL DEFAULT 0,
    updates        BIGINT NOT NULL DEFAULT 0,
    update_bytes   BIGINT NOT NULL DEFAULT 0,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    UNIQUE (workspace_id, seq)
);

-- The entries that continue a task: few rows do.
CREATE INDEX activity_logs_task_id ON activity_logs (task_id) WHERE id <> task_id;

-- What happened to a task since it began, in order. An update means nothing without its task, and both tables are one
-- module's: hence the one foreign key.
CREATE TABLE task_updates (
    task_id    TEXT   NOT NULL REFERENCES activity_logs (id) ON DELETE CASCADE,
    n          BIGINT NOT NULL,
    body       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (task_id, n)
);

-- Mailbox

-- Calls that the gateway has accepted or claimed, and what came of them. They outlive a restart (contract 6.4). `kind`
-- is `delegation` or `deferred` for calls that are made later (jobs), and `keyed` for calls with an idempotency key,
-- which may be sent again. A gateway that works on a row has a lease on it until `leased_until`, and the number in
-- `fence`, which is another with each claim: what an earlier holder still writes changes nothing.
CREATE TABLE mailbox_items (
    -- Of a keyed call: a hash of caller, target and key.
    id              TEXT   NOT NULL PRIMARY KEY,
    kind            TEXT   NOT NULL,
    owner           TEXT   NOT NULL,
    -- What is sent, as JSON: a task, or a call with what of its request head matters. Of a keyed call: a hash of it.
    body            TEXT   NOT NULL,
    -- Of a job: the result, or the error, as it came. Of a keyed call: status, fields, and the body or the name of its
    -- stream, as JSON.
    answer          TEXT,
    kept_bytes      BIGINT NOT NULL DEFAULT 0,
    state           TEXT   NOT NULL,
    -- The gateway that runs a keyed call.
    holder          TEXT,
    leased_until    BIGINT NOT NULL DEFAULT 0,
    fence           BIGINT NOT NULL DEFAULT 0,
    -- The deadline of a job. A keyed call is forgotten then.
    expires_at      BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    -- Of a keyed call: the state of its task, as the answer says.
    task_state      TEXT,
    -- Of jobs alone, up to the end.
    caller          TEXT   NOT NULL DEFAULT '',
    source_id       TEXT,
    target_id       TEXT   NOT NULL DEFAULT '',
    idempotency_key TEXT,
    priority        BIGINT NOT NULL DEFAULT 0,
    attempts        BIGINT NOT NULL DEFAULT 0,
    due_at          BIGINT NOT NULL DEFAULT 0,
    inbox_task      TEXT,
    untold          BIGINT NOT NULL DEFAULT 0
);

-- A key is free again when its job has failed or expired.
CREATE UNIQUE INDEX mailbox_items_idempotency_key ON mailbox_items (kind, owner, idempotency_key)
    WHERE idempotency_key IS NOT NULL AND state NOT IN ('failed', 'expired');

CREATE INDEX mailbox_items_delegations ON mailbox_items (source_id, id) WHERE kind = 'delegation';

CREATE INDEX mailbox_items_unfinished_owner ON mailbox_items (owner) WHERE state IN ('pending', 'dispatched');

CREATE INDEX mailbox_items_unfinished_target ON mailbox_items (target_id) WHERE state IN ('pending', 'dispatched');

-- Every gateway looks for these every second.
CREATE INDEX mailbox_items_pending ON mailbox_items (priority DESC, created_at, id) WHERE state = 'pending';

CREATE INDEX mailbox_items_pending_deadline ON mailbox_items (expires_at) WHERE state = 'pending';

CREATE INDEX mailbox_items_dispatched ON mailbox_items (leased_until) WHERE state = 'dispatched';

-- The result of a row with `untold` 1 is still to be delivered, at `due_at`.
CREATE INDEX mailbox_items_untold ON mailbox_items (due_at) WHERE untold = 1;

CREATE INDEX mailbox_items_finished ON mailbox_items (updated_at)
    WHERE state IN ('completed', 'failed', 'expired', 'canceled');

CREATE INDEX mailbox_items_inbox_task ON mailbox_items (inbox_task) WHERE state = 'dispatched';

CREATE INDEX mailbox_items_in_inbox ON mailbox_items (id) WHERE state = 'dispatched' AND inbox_task IS NOT NULL;

CREATE INDEX mailbox_items_source ON mailbox_items (source_id) WHERE source_id IS NOT NULL;

CREATE INDEX mailbox_items_running ON mailbox_items (holder) WHERE state = 'running';

CREATE INDEX mailbox_items_keyed ON mailbox_items (expires_at) WHERE kind = 'keyed';

-- Audit

-- The signed part of each chain: where it begins and ends. `statement` says the same as the columns.
CREATE TABLE audit_chains (
    replica   TEXT   NOT NULL PRIMARY KEY,
    first_seq BIGINT NOT NULL,
    last_seq  BIGINT NOT NULL,
    statement TEXT   NOT NULL,
    signed_at BIGINT NOT NULL
);

-- Stops

-- Stops of operators: which calls are refused, and why. `scope` is `workspace`, `subtree`, `org`, `pair` or `all`.
-- `name` is the workspace, the org, or the caller of a pair, and `target` the target of a pair.
CREATE TABLE stops (
    id           TEXT   NOT NULL PRIMARY KEY,
    scope        TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    target       TEXT   NOT NULL,
    org          TEXT,
    -- The org of the token that made the stop: it covers that org only. NULL: another maker.
    by_org       TEXT,
    -- The root of the subtree of the token that made the stop: it covers nothing outside of it. NULL: another maker.
    by_subtree   TEXT,
    mode         TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    created_by   TEXT   NOT NULL,
    -- The operator who made the stop, as audit records name one: a JSON object. NULL: an org token made it.
    operator     TEXT,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    -- How far the cancellation of known tasks is: `none`, `wanted`, `listed` or `done`. One replica at a time does
    -- it, until `leased_until`.
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

-- What a person, a session, a run or a credential began by `before_at` is over. `rk`: 96 bits of a hash of its kind and
-- names; the id has the org behind it, of one that a token of an org made. `change_no`: the last change of the row.
CREATE TABLE revocations (
    id         TEXT   NOT NULL PRIMARY KEY,
    rk         TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    org        TEXT,
    before_at  BIGINT NOT NULL,
    reason     TEXT,
    created_by TEXT   NOT NULL,
    expires_at BIGINT NOT NULL,
    change_no  BIGINT NOT NULL
);

CREATE INDEX revocations_change_no ON revocations (change_no);

-- One number that grows with each change of `revocations`.
CREATE TABLE revocation_changes (
    id    BIGINT NOT NULL PRIMARY KEY,
    noted BIGINT NOT NULL
);

-- Tasks

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

-- Who started a task, where no Redis keeps it: a gateway alone. `task_key` and `at_key` are the names that Redis has
-- for the same: of the task at its target, and of the task among those of its owner. `started` grows from row to row:
-- milliseconds since 1970, times 1000, and the place in a batch.
CREATE TABLE task_owners (
    task_key   TEXT   NOT NULL PRIMARY KEY,
    at_key     TEXT   NOT NULL,
    owner      TEXT   NOT NULL,
    target     TEXT   NOT NULL,
    started    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX task_owners_at_key ON task_owners (at_key, started);

CREATE INDEX task_owners_owner ON task_owners (owner, started);

CREATE INDEX task_owners_expires_at ON task_owners (expires_at);

-- The instance that has a task or a context, where no Redis keeps it: a gateway alone. `bound_key` is the name that
-- Redis has for the same. `value` is the id of the instance, followed by ` ended` if the task has ended. `owner` is
-- the caller that got the answer which bound it.
CREATE TABLE task_bindings (
    bound_key  TEXT   NOT NULL PRIMARY KEY,
    value      TEXT   NOT NULL,
    owner      TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX task_bindings_expires_at ON task_bindings (expires_at);

CREATE INDEX task_bindings_owner ON task_bindings (owner, expires_at);

-- Usage

-- Sums of the audit's calls by day (UTC, days since 1970). `kind` is `caller` or `target` for a workspace on that
-- side, and `caller_org` or `target_org` for all of an org. `org` is '' for none, and `workspace` for all of an org.
CREATE TABLE usage_days (
    kind         TEXT   NOT NULL,
    org          TEXT   NOT NULL,
    workspace    TEXT   NOT NULL,
    day          BIGINT NOT NULL,
    calls        BIGINT NOT NULL,
    streams      BIGINT NOT NULL,
    refused      BIGINT NOT NULL,
    failed       BIGINT NOT NULL,
    bytes_in     BIGINT NOT NULL,
    bytes_out    BIGINT NOT NULL,
    duration_ms  BIGINT NOT NULL,
    agent_failed BIGINT NOT NULL,
    PRIMARY KEY (kind, org, workspace, day)
);

CREATE INDEX usage_days_day ON usage_days (day);

CREATE INDEX usage_days_workspace ON usage_days (workspace, day);

-- What the last calls of agents that failed or refused some tell. `recent`: the last five, the newest in the lowest
-- bit; 1 failed. Times are in milliseconds since 1970; 0: never.
CREATE TABLE call_troubles (
    workspace    TEXT   NOT NULL PRIMARY KEY,
    recent       BIGINT NOT NULL,
    failed_since BIGINT NOT NULL,
    last_failed  BIGINT NOT NULL,
    calls        BIGINT NOT NULL,
    failed       BIGINT NOT NULL,
    outcome      TEXT   NOT NULL,
    status       BIGINT NOT NULL,
    busy_at      BIGINT NOT NULL,
    ended_at     BIGINT NOT NULL
);
