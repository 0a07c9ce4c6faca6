-- Only the tables in SQLite change.
SELECT 1;
