//! The keys that a reload cannot change.

use super::Config;

/// Keys that are fixed from the start of the process to its end: listeners and their routes,
/// threads, stores and their keys, cache sizes, log format, trace exporter.
pub const RESTART_KEYS: &str = "admin.console admin.listen audit.anchor audit.enabled audit.spool_bytes \
    audit.spool_dir directory.cache_entries directory.heartbeat_key directory.internal_url_key directory.url_key \
    keys.dir keys.seal_key registry.shared_addresses_move_credentials server.listen server.replica server.threads \
    stores.shared stores.sql stores.sql_connections stores.timeout telemetry.log_format telemetry.otlp_endpoint \
    telemetry.otlp_headers telemetry.otlp_protocol telemetry.otlp_timeout telemetry.service_name";

/// True if a change of `key` takes effect at the next start only.
pub(super) fn needs_restart(key: &str) -> bool {
    RESTART_KEYS.split(' ').any(|fixed| fixed == key)
}

/// Restores in `new` the values in force that only a restart can change.
pub(super) fn restore_values(new: &mut Config, in_force: &Config) {
    let old = in_force.clone();
    new.admin.console = old.admin.console;
    new.admin.listen = old.admin.listen;
    new.audit.anchor = old.audit.anchor.clone();
    new.audit.enabled = old.audit.enabled;
    new.audit.spool_bytes = old.audit.spool_bytes;
    new.audit.spool_dir = old.audit.spool_dir;
    new.directory.cache_entries = old.directory.cache_entries;
    new.directory.heartbeat_key = old.directory.heartbeat_key;
    new.directory.internal_url_key = old.directory.internal_url_key;
    new.directory.url_key = old.directory.url_key;
    new.keys = old.keys;
    new.registry.shared_addresses_move_credentials = old.registry.shared_addresses_move_credentials;
    new.server.listen = old.server.listen;
    new.server.replica = old.server.replica.clone();
    new.server.threads = old.server.threads;
    new.stores = old.stores;
    let (new, old) = (&mut new.telemetry, old.telemetry);
    new.log_format = old.log_format;
    new.otlp_endpoint = old.otlp_endpoint;
    new.otlp_headers = old.otlp_headers;
    new.otlp_protocol = old.otlp_protocol;
    new.otlp_timeout = old.otlp_timeout;
    new.service_name = old.service_name;
}
