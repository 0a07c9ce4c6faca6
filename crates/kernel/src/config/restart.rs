//! The keys that a reload cannot change.

use super::Config;

/// Declares the keys with a value that is fixed from the start of the process to its end.
macro_rules! restart_keys {
    ($($section:ident.$key:ident)*) => {
        /// Keys that are fixed from the start of the process to its end: listeners and their routes, threads, stores
        /// and their keys, cache sizes, log format, trace exporter.
        pub const RESTART_KEYS: &[&str] = &[$(concat!(stringify!($section), ".", stringify!($key))),*];

        /// Restores in `new` the values in force that only a restart can change.
        pub(super) fn restore_values(new: &mut Config, in_force: &Config) {
            let old = in_force.clone();
            $(new.$section.$key = old.$section.$key;)*
        }
    };
}

restart_keys! {
    admin.console admin.listen audit.anchor audit.enabled audit.spool_bytes audit.spool_dir directory.cache_entries
    directory.heartbeat_key directory.internal_url_key directory.url_key keys.dir keys.seal_key
    registry.shared_addresses_move_credentials server.listen server.replica server.threads stores.shared stores.sql
    stores.sql_connections stores.timeout telemetry.log_format telemetry.otlp_endpoint telemetry.otlp_headers
    telemetry.otlp_protocol telemetry.otlp_timeout telemetry.service_name
}

/// True if a change of `key` takes effect at the next start only.
pub(super) fn needs_restart(key: &str) -> bool {
    RESTART_KEYS.contains(&key)
}
