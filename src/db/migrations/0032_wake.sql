-- Waker of a sleeping agent, as JSON: URL, method, times, and the header fields, sealed.
ALTER TABLE workspaces ADD COLUMN wake TEXT;
