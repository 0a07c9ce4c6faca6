-- Grows with each move and with the removal of the workspace. A token that says why its bearer may reach
-- a target remembers the sum over the lines of both, so that it ends with any move above, too.
ALTER TABLE workspaces ADD COLUMN access_generation BIGINT NOT NULL DEFAULT 0;
