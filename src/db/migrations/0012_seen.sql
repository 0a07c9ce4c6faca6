-- The sweep looks every second for workspaces that have to beat and were not heard of late. Those of `assumed` liveness
-- need not beat, so most of them were last seen long ago: along the old index each of them was read, every second.
-- By itself: until it is made, rows are read, and cannot be changed.
CREATE INDEX workspaces_status_liveness_last_seen ON workspaces (status, liveness, last_seen);
