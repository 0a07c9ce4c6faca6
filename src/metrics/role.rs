//! The role of the process: a sidecar has a part of a gateway's metrics.

/// The role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Gateway,
    Sidecar,
}

/// True if only a gateway has the family. A sidecar's constant zero would look like a fault.
pub(super) fn is_gateway_only(name: &str) -> bool {
    const ROOMS: &str = "audit_ cache_ card_ coherent config_ console_ event_readers events_ idempotent_ inbox_ job \
        kept_ key lapses_ linger queue_ rate_shares_ store_ stream_log_ target_permits task_notes_";
    let name = name.strip_prefix("a2a_gateway_");
    name.is_some_and(|name| ROOMS.split(' ').any(|room| name.starts_with(room)))
}
