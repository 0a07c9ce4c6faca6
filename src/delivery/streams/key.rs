//! The names in the shared state.

use uuid::Uuid;

/// The events, by number.
pub(super) fn events(id: Uuid) -> String {
    format!("gw:stream:{}", id.simple())
}

/// Whose it is, and who writes it.
pub(super) fn meta(id: Uuid) -> String {
    format!("gw:stream-meta:{}", id.simple())
}

/// There while somebody reads it on another replica.
pub(super) fn reader(id: Uuid) -> String {
    format!("gw:stream-reader:{}", id.simple())
}

/// There while the replica that writes it lives.
pub(super) fn replica(id: &str) -> String {
    format!("gw:replica:{id}")
}
