-- 1: a token of an org made it, or of a subtree. 0: an operator did, or an earlier release.
ALTER TABLE enrolment_tokens ADD COLUMN by_org BIGINT NOT NULL DEFAULT 0;
