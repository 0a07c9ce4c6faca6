-- The account of the sender of an entry and its group, by which shares of an inbox are counted; 0: none is.
ALTER TABLE activity_logs ADD COLUMN account BIGINT NOT NULL DEFAULT 0;
ALTER TABLE activity_logs ADD COLUMN account_group BIGINT NOT NULL DEFAULT 0;
