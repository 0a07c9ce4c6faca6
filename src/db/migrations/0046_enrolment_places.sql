-- The access generation of the workspace's line in which an org token made the enrolment token: it is good only there.
-- NULL: an operator made it, or an earlier release.
ALTER TABLE enrolment_tokens ADD COLUMN line_generation BIGINT;
