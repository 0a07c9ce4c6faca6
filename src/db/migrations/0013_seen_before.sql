-- The index before that of 12. By itself: its lock keeps readers out, too, and is not to be held while an index is made.
DROP INDEX workspaces_status_last_seen;
