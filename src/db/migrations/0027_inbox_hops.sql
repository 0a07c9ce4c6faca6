-- How many gateways an entry's call has gone through, this one included; NULL: it is no call, or came before.
ALTER TABLE activity_logs ADD COLUMN hops BIGINT;
