-- Of a delegation: how many gateways its call has gone through, this one included, and the client that asked for it.
-- A deferred call has both in `call`.
ALTER TABLE delegations ADD COLUMN hops BIGINT NOT NULL DEFAULT 1;

ALTER TABLE delegations ADD COLUMN client TEXT;
