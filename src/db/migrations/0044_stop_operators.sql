-- The operator who made a stop, as audit records name one: a JSON object. NULL: an org token made it, or an earlier release.
ALTER TABLE stops ADD COLUMN operator TEXT;
