//! Liveness of workspaces: leases and URL keys in the shared state, the latest heartbeats, and lapses.

mod heartbeat_buffer;
mod presence;

pub use self::heartbeat_buffer::Heartbeat;
pub(super) use self::heartbeat_buffer::HeartbeatBuffer;
pub(super) use self::presence::{AgentUrls, Presence, Pulse, SharedValues, must_beat};
