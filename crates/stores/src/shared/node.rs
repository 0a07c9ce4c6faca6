//! A Redis server by its address.

use redis::AsyncConnectionConfig;

/// Host and port.
pub(super) type Address = (String, u16);

/// Returns the settings of a connection without clocks of its own: its users have theirs.
pub(super) fn config_without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}
