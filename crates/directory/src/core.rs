//! What the parts of the directory have in common.

use std::sync::Arc;

use super::address::Resolver;
use super::announcer::Announcer;
use super::capacity::Slots;
use super::liveness::{HeartbeatBuffer, Presence};
use crate::events::Events;
use access::workspace::Workspaces;
use kernel::config::Live;
use kernel::metrics::Metrics;
use stores::coherence::Coherence;
use stores::shared::Shared;
use trust::Seal;

/// What the parts of the directory have in common.
pub(crate) struct Core {
    pub(super) config: Live,
    pub(super) workspaces: Workspaces,
    pub(super) shared: Shared,
    pub(super) coherence: Arc<Coherence>,
    pub(super) events: Arc<Events>,
    pub(super) seal: Arc<Seal>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) announcer: Arc<Announcer>,
    pub(super) resolver: Arc<Resolver>,
    pub(super) presence: Arc<Presence>,
    /// Latest heartbeats at this replica.
    pub(super) heartbeats: Arc<HeartbeatBuffer>,
    pub(super) slots: Arc<Slots>,
}
