//! Directory of agents: registrations, heartbeats and destinations of messages (`docs/reference/http-api.md`,
//! "Registry"). Owns the URL keys and the lease key in the shared state.
//!
//! Steady state reads no store: an entry stays in memory until its lease ends, an invalidation arrives, or a URL
//! key changes. Invariant: an [`Endpoint`] exists only if the address policy allows its URL, and every dialled
//! address comes from [`Addresses::agent_address`].

mod address;
mod announcer;
mod capacity;
mod choice;
mod heartbeats;
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
pub use self::heartbeats::{Heartbeat, HeartbeatResult, Heartbeats};
pub use self::liveness::Lapses;
use self::liveness::{HeartbeatBuffer, Presence};
pub use self::probing::{Probe, ProbeClaim, ProbePlan, Probes};
pub use self::registration::{
    AGENT_CARD_BYTES_MAX, BulkRegistrations, Change, Creation, Editor, Recheck, Registrar,
    Registration, RegistrationResult, Registrations, Terms, Update, VettedUpdate, id_taken,
    listed_urls, org_of_new, reports_itself,
};
use self::resolution::Destinations;
pub use self::resolution::{
    Agent, AgentOptions, CardLocation, CardSource, Destination, Entries, Finding, Instance,
    JsonRpc, Learnt, Observer, Place, Resolution, ResolutionFailure,
};
pub use self::upstream::{ClientIdentity, UpstreamAuth, UpstreamTls};
pub use self::views::{DiscoveryResult, ListReader, Peer, Views};
pub use self::waking::{Wake, WakeRequest, WakeTimes, Wakers};
use crate::coherence::Coherence;
use crate::config::Live;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::shared::Shared;
use crate::trust::Seal;
use crate::workspace::Workspaces;

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
        let announcer = Arc::new(Announcer::new(&workspaces, &events, &coherence));
        let resolver = Arc::new(Resolver::new(config));
        let addresses = Arc::new(Addresses {
            resolver: Arc::clone(&resolver),
            workspaces: workspaces.clone(),
            announcer: Arc::clone(&announcer),
            config: config.clone(),
            is_only_replica: shared.is_embedded(),
        });
        let presence = Presence::new(config, shared, workspaces.clone(), Arc::clone(&announcer));
        let buffer = Arc::new(HeartbeatBuffer::new(config.clone()));
        let lapses = Lapses::new(&workspaces, &presence, &buffer, &announcer, &metrics);
        let slots = Arc::new(Slots::new(&metrics, &announcer, &presence));
        let destinations = Destinations {
            config: config.clone(),
            seal: Arc::clone(&seal),
            resolver: Arc::clone(&resolver),
            presence: Arc::clone(&presence),
            heartbeats: Arc::clone(&buffer),
            slots: Arc::clone(&slots),
        };
        let entries = Entries::new(workspaces.clone(), destinations, &coherence, metrics);
        let resolution = Arc::new(Resolution {
            entries: Arc::clone(&entries),
            lapses: Arc::clone(&lapses),
            workspaces: workspaces.clone(),
            resolver: Arc::clone(&resolver),
            config: config.clone(),
            learnt: Learnt::default(),
        });
        let views = Arc::new(Views {
            workspaces: workspaces.clone(),
            resolution: Arc::clone(&resolution),
            presence: Arc::clone(&presence),
            heartbeats: Arc::clone(&buffer),
            resolver: Arc::clone(&resolver),
            config: config.clone(),
            slots: Arc::clone(&slots),
        });
        Self {
            waking: Wakers::new(&entries, &addresses, &seal, presence.shared(), config),
            probing: Probes::new(&entries, &addresses, &slots, presence.shared()),
            registrations: Registrations {
                workspaces: workspaces.clone(),
                seal,
                resolver,
                addresses: Arc::clone(&addresses),
                presence: Arc::clone(&presence),
                heartbeats: Arc::clone(&buffer),
                announcer: Arc::clone(&announcer),
                views: Arc::clone(&views),
                card_reader: OnceLock::new(),
            },
            heartbeats: Heartbeats {
                entries: Arc::clone(&entries),
                workspaces,
                presence,
                buffer,
                announcer,
                events,
                slots: Arc::clone(&slots),
            },
            entries,
            resolution,
            addresses,
            slots,
            views,
            lapses,
        }
    }
}

#[cfg(test)]
mod tests;
