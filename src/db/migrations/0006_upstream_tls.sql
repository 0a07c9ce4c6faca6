-- TLS towards one agent: certificates and key, sealed, and what may be shown of the certificates. JSON.
ALTER TABLE workspaces ADD COLUMN upstream_tls TEXT;
