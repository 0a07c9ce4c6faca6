-- By whose word a workspace is paused: operator or org; NULL where it is not, or was before this column: an operator's.
ALTER TABLE workspaces ADD COLUMN paused_by TEXT;
