//! What the parts of the directory have in common.

use std::sync::Arc;

use super::address::Resolver;
use super::announcer::Announcer;
use super::capacity::Slots;
use super::liveness::{HeartbeatBuffer, Presence};
use crate::coherence::Coherence;
use crate::config::Live;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::trust::Seal;
use crate::workspace::Workspaces;

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
