-- The address that a request came from, as far as audit.client_address lets it be written down.
ALTER TABLE structure_events ADD COLUMN client_address TEXT;
