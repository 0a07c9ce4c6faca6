//! Key names in the shared state.

use uuid::Uuid;

/// Returns the key of the events, by number.
pub(super) fn events(id: Uuid) -> String {
    format!("gw:stream:{}", id.simple())
}

/// Returns the key of the metadata: the caller and the writer.
pub(super) fn meta(id: Uuid) -> String {
    format!("gw:stream-meta:{}", id.simple())
}

/// Returns the key of the reader's heartbeat: present while another replica reads the stream.
pub(super) fn reader(id: Uuid) -> String {
    format!("gw:stream-reader:{}", id.simple())
}

/// Returns the key of a replica's heartbeat: present while the writer lives.
pub(super) fn replica(id: &str) -> String {
    format!("gw:replica:{id}")
}
