-- Enrolment tokens are listed and revoked like the other tokens of a workspace: by an id, with what may be shown of them.
-- Those that are there keep a name that follows from their hash; a replica of the release before writes neither.
ALTER TABLE enrolment_tokens ADD COLUMN id TEXT;
ALTER TABLE enrolment_tokens ADD COLUMN prefix TEXT;
ALTER TABLE enrolment_tokens ADD COLUMN revoked_at BIGINT;
UPDATE enrolment_tokens SET id = 'e' || substr(token_hash, 1, 31), prefix = 'a2ae_';
