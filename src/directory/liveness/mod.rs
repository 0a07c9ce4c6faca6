//! Liveness of workspaces: leases and URL keys in the shared state, the latest heartbeats, and lapses.

mod heartbeat_buffer;
mod instance_heartbeats;
mod key_pattern;
mod lapses;
mod lease;
mod presence;

pub(super) use self::heartbeat_buffer::HeartbeatBuffer;
pub(super) use self::instance_heartbeats::InstanceReport;
pub use self::lapses::Lapses;
pub(super) use self::lease::{Lease, Pulse, must_beat};
pub(super) use self::presence::{AgentUrls, Presence, SharedValues};
