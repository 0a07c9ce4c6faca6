-- Tokens of operators with a role, `read`, `operate` or `admin`. They have a table of their own, so that a replica of the
-- release before, which knows no roles, knows none of them either. `issuer`, `subject` and `name` are of a person who signed
-- in at the console: the token is that of the session, and is never shown.
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
