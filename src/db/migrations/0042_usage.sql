-- Sums of the audit's calls by day (UTC, days since 1970). `kind` is `caller` or `target` for a workspace on that side, and
-- `caller_org` or `target_org` for all of an org. `org` is '' for none, and `workspace` for all of an org.
CREATE TABLE usage_days (
    kind        TEXT   NOT NULL,
    org         TEXT   NOT NULL,
    workspace   TEXT   NOT NULL,
    day         BIGINT NOT NULL,
    calls       BIGINT NOT NULL,
    streams     BIGINT NOT NULL,
    refused     BIGINT NOT NULL,
    failed      BIGINT NOT NULL,
    bytes_in    BIGINT NOT NULL,
    bytes_out   BIGINT NOT NULL,
    duration_ms BIGINT NOT NULL,
    PRIMARY KEY (kind, org, workspace, day)
);

CREATE INDEX usage_days_day ON usage_days (day);

CREATE INDEX usage_days_workspace ON usage_days (workspace, day);

-- The records of a chain up to this one are in the sums. Records of earlier releases are added in steps.
ALTER TABLE audit_chains ADD COLUMN counted_seq BIGINT NOT NULL DEFAULT 0;
