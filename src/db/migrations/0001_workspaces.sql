-- One text for SQLite and PostgreSQL: times and numbers are BIGINT (times in milliseconds), ids and
-- JSON are TEXT, there are no booleans and no blobs. No foreign keys between tables: each belongs to
-- one room, and a row outlives what it refers to (a removed workspace keeps its tokens, revoked).

CREATE TABLE workspaces (
    id                   TEXT   NOT NULL PRIMARY KEY,
    name                 TEXT   NOT NULL,
    role                 TEXT,
    parent_id            TEXT,
    org                  TEXT,
    status               TEXT   NOT NULL,
    delivery_mode        TEXT   NOT NULL,
    liveness             TEXT   NOT NULL,
    url                  TEXT,
    internal_url         TEXT,
    card_url             TEXT,
    agent_card           TEXT,
    upstream_auth        TEXT,
    complete             TEXT,
    max_concurrent       BIGINT,
    idle_timeout_seconds BIGINT,
    current_task         TEXT,
    active_tasks         BIGINT NOT NULL DEFAULT 0,
    last_seen            BIGINT,
    created_at           BIGINT NOT NULL,
    updated_at           BIGINT NOT NULL
);

CREATE INDEX workspaces_parent_id ON workspaces (parent_id);

CREATE INDEX workspaces_org ON workspaces (org);

-- What the sweep for lapsed heartbeats asks every second.
CREATE INDEX workspaces_status_last_seen ON workspaces (status, last_seen);

-- Hashes are SHA-256 in 64 lower-case hexadecimal digits; a token itself is never stored.
CREATE TABLE workspace_auth_tokens (
    id           TEXT   NOT NULL PRIMARY KEY,
    workspace_id TEXT   NOT NULL,
    token_hash   TEXT   NOT NULL UNIQUE,
    prefix       TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    revoked_at   BIGINT
);

CREATE INDEX workspace_auth_tokens_workspace_id ON workspace_auth_tokens (workspace_id);

CREATE TABLE enrolment_tokens (
    token_hash   TEXT   NOT NULL PRIMARY KEY,
    workspace_id TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    redeemed_at  BIGINT
);

CREATE INDEX enrolment_tokens_workspace_id ON enrolment_tokens (workspace_id);

CREATE TABLE org_tokens (
    id         TEXT   NOT NULL PRIMARY KEY,
    org        TEXT   NOT NULL,
    token_hash TEXT   NOT NULL UNIQUE,
    prefix     TEXT   NOT NULL,
    note       TEXT,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE INDEX org_tokens_org ON org_tokens (org);

CREATE TABLE admin_tokens (
    token_hash TEXT   NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL
);
