//! Directory of agents: registrations, heartbeats and destinations of messages (`docs/reference/http-api.md`,
//! "Registry"). Owns the URL keys and the lease key in the shared state.
//!
//! Steady state reads no store: an entry stays in memory until its lease ends, an invalidation arrives, or a URL
//! key changes. Invariant: an [`Endpoint`] exists only if the address policy allows its URL, and every dialled
//! address comes from [`Addresses::agent_address`].

pub mod events;
pub mod stops;
pub mod tasks;

mod address;
mod announcer;
mod capacity;
mod choice;
mod core;
mod heartbeats;
mod lapses;
mod liveness;
mod probing;
mod registration;
mod rejections;
mod resolution;
mod upstream;
mod views;
mod waking;

use std::sync::{Arc, OnceLock};

use self::address::Resolver;
pub use self::address::{AddressDecision, Addresses, AgentAddress, Endpoint, LookupFor, Policy};
use self::announcer::Announcer;
pub use self::capacity::{
    CallKind, CallOutcome, CapacityView, NoSlot, OwnTimeouts, Slot, Slots, TargetSlots,
};
pub use self::choice::{Preference, choose_instance, find_gone};
use self::core::Core;
pub use self::heartbeats::{HeartbeatResult, Heartbeats};
pub use self::lapses::Lapses;
pub use self::liveness::Heartbeat;
use self::liveness::{HeartbeatBuffer, Presence};
pub use self::probing::{ProbePlan, Probes};
pub use self::registration::{
    AGENT_CARD_BYTES_MAX, Change, Creation, Editor, Recheck, Registrar, Registration,
    RegistrationResult, Registrations, Terms, Update, VettedUpdate, listed_urls, org_of_new,
    reports_itself,
};
pub use self::rejections::workspace_id_taken as id_taken;
pub use self::resolution::{
    Agent, AgentOptions, CardLocation, CardSource, Destination, Entries, Finding, Instance,
    JsonRpc, Learnt, Observer, Place, Resolution,
};
pub use self::upstream::{ClientIdentity, UpstreamAuth, UpstreamTls};
pub use self::views::{DiscoveryResult, ListReader, Peer, Views};
pub use self::waking::{Wake, WakeRequest, WakeTimes, Wakers};
use crate::events::Events;
use access::workspace::Workspaces;
use kernel::config::Live;
use kernel::metrics::Metrics;
use stores::coherence::Coherence;
use stores::shared::Shared;
use trust::Seal;

/// The directory, by the work of its parts.
pub struct Directory {
    /// Registrations of agents, and changes of workspaces.
    pub registrations: Registrations,
    /// Cached entries of workspaces.
    pub entries: Arc<Entries>,
    /// Destinations of permitted messages.
    pub resolution: Arc<Resolution>,
    /// Addresses to dial.
    pub addresses: Arc<Addresses>,
    /// Calls in progress, by target.
    pub slots: Arc<Slots>,
    /// Workspaces for readers.
    pub views: Arc<Views>,
    /// Heartbeats of agents.
    pub heartbeats: Heartbeats,
    /// Lapses of heartbeats.
    pub lapses: Arc<Lapses>,
    /// Wakers of agents that sleep.
    pub waking: Wakers,
    /// Probes of agents that do not register.
    pub probing: Probes,
}

impl Directory {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: &Live,
        workspaces: Workspaces,
        shared: Shared,
        coherence: Arc<Coherence>,
        events: Arc<Events>,
        seal: Arc<Seal>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let announcer = Arc::new(Announcer {
            workspaces: workspaces.clone(),
            events: Arc::clone(&events),
            coherence: Arc::clone(&coherence),
        });
        let presence = Presence::new(
            config,
            shared.clone(),
            workspaces.clone(),
            Arc::clone(&announcer),
        );
        let core = Arc::new(Core {
            resolver: Arc::new(Resolver::new(config)),
            heartbeats: Arc::new(HeartbeatBuffer::new(config.clone())),
            slots: Slots::new(&metrics, &announcer, &presence),
            config: config.clone(),
            workspaces,
            shared,
            coherence,
            events,
            seal,
            metrics,
            announcer,
            presence,
        });
        let core = || Arc::clone(&core);
        let addresses = Arc::new(Addresses {
            resolver: Arc::clone(&core().resolver),
            workspaces: core().workspaces.clone(),
            announcer: Arc::clone(&core().announcer),
            config: config.clone(),
            is_only_replica: core().shared.is_embedded(),
        });
        let lapses = Arc::new(Lapses::new(core()));
        let entries = Entries::new(core());
        let resolution = Arc::new(Resolution {
            entries: Arc::clone(&entries),
            lapses: Arc::clone(&lapses),
            learnt: Learnt::default(),
        });
        let views = Arc::new(Views {
            resolution: Arc::clone(&resolution),
            core: core(),
        });
        Self {
            waking: Wakers {
                entries: Arc::clone(&entries),
                addresses: Arc::clone(&addresses),
            },
            probing: Probes {
                entries: Arc::clone(&entries),
                core: core(),
            },
            registrations: Registrations {
                workspaces: core().workspaces.clone(),
                seal: Arc::clone(&core().seal),
                resolver: Arc::clone(&core().resolver),
                addresses: Arc::clone(&addresses),
                presence: Arc::clone(&core().presence),
                heartbeats: Arc::clone(&core().heartbeats),
                announcer: Arc::clone(&core().announcer),
                views: Arc::clone(&views),
                card_reader: OnceLock::new(),
            },
            heartbeats: Heartbeats {
                entries: Arc::clone(&entries),
                core: core(),
            },
            slots: Arc::clone(&core().slots),
            entries,
            resolution,
            addresses,
            views,
            lapses,
        }
    }
}

#[cfg(test)]
mod tests;
