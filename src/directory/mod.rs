//! Where is the agent, and does it live: from a permit to an endpoint or the inbox, registration and
//! heartbeats (contract §4), and the concurrency limit of each target.
//!
//! Owns the URL keys and the lease key in the shared state. Steady state asks no store: an entry is
//! in memory until the lease it saw ends, the coherence link says otherwise, or a URL key changes.
//! Invariant: an [`Endpoint`] exists only if the address policy let its URL through, and
//! [`Directory::agent_address`] is the only way from it to an address that is dialled.

mod address;
mod announce;
mod beat;
mod card;
mod change;
mod discover;
mod endpoint;
mod entry;
mod evidence;
mod follow;
mod heartbeat_buffer;
mod json_rpc;
mod keys;
mod lease;
mod life;
mod lifecycle;
mod nameservers;
mod origins;
mod own;
mod peers;
mod presence;
mod redact;
mod register;
mod resolve;
mod resolver;
mod settled;
mod slots;
mod sweep;
mod tree_rules;
mod upstream_auth;
mod upstream_tls;
mod validate;
mod webhook;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use self::entry::Entry;
use self::heartbeat_buffer::HeartbeatBuffer;
use self::keys::KeyPattern;
use self::lease::Leases;
pub use self::resolver::LookupFor;
use self::resolver::Resolver;
use self::slots::{Calls, Slots};
use crate::a2a::Generation;
use crate::coherence::{Coherence, Coherent};
use crate::config::{Complete, Live};
use crate::events::Events;
use crate::ids::WorkspaceId;
use crate::metrics::{self, Metrics};
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::shares::{Account, Full};
use crate::trust::Seal;
use crate::workspace::Workspaces;

pub use self::address::Policy;
pub use self::beat::{Beat, Beaten};
pub use self::card::{CardPlace, CardSource};
pub use self::change::Change;
pub use self::discover::Discovered;
pub use self::endpoint::Endpoint;
pub use self::entry::NotReached;
pub use self::json_rpc::JsonRpc;
pub use self::peers::{Peer, Sight};
pub use self::register::{Creation, Registered, Registrar, Registration, Terms};
pub use self::settled::Settled;
pub use self::slots::Slot;
pub use self::tree_rules::Editor;
pub use self::upstream_auth::UpstreamAuth;
pub use self::upstream_tls::{ClientIdentity, UpstreamTls};
pub use self::validate::AGENT_CARD_BYTES_MAX;

/// How long a URL key lives without being refreshed.
const URL_TTL: Duration = Duration::from_secs(300);
/// How often a heartbeat renews them: half of it, so that a missed turn does no harm.
const URL_RENEWAL: Duration = Duration::from_secs(150);
/// After how long to ask again for a workspace that cannot be reached (contract §1.1).
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// Where a permitted message goes.
#[derive(Clone, Debug)]
pub enum Destination {
    /// To the agent that listens there.
    Agent(Arc<Agent>),
    /// To the inbox, from which the agent fetches it.
    Inbox(AgentOptions),
}

impl Destination {
    /// How its agent is to be spoken to.
    pub fn options(&self) -> &AgentOptions {
        match self {
            Self::Agent(agent) => &agent.options,
            Self::Inbox(options) => options,
        }
    }
}

/// How a workspace is to be spoken to, whether or not it can be reached.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Which generation of A2A its agent speaks, by its card.
    pub generation: Generation,
    /// Whether it registered one. If it did not, a fetched card may know better.
    pub has_card: bool,
    /// Whether its agent is known by the place of its card alone, for want of a registered URL: the server is
    /// the agent's, and at which path calls reach it stands in the card.
    pub path_in_card: bool,
    /// Whether callers may ask it for push notifications.
    pub push_notifications: bool,
    /// How much of an incomplete call is filled in.
    pub complete: Complete,
}

/// A reachable agent and what a call to it needs to know.
#[derive(Debug)]
pub struct Agent {
    /// Its workspace.
    pub id: WorkspaceId,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Where it takes JSON-RPC, if not at the path of its URL.
    pub json_rpc: JsonRpc,
    /// How it is to be spoken to.
    pub options: AgentOptions,
    /// Its own bound on silence; `None`: `timeouts.idle`.
    pub idle_timeout: Option<Duration>,
    /// The credential that it asks of whoever calls it.
    pub upstream_auth: Option<UpstreamAuth>,
    /// By which certificates it is verified, and is shown ours. `None`: the system's, and none.
    pub upstream_tls: Option<UpstreamTls>,
    /// Which addresses are known to be its own.
    pub settled: Arc<Settled>,
    /// Calls in progress at most.
    concurrency_max: usize,
    calls: Arc<Calls>,
}

/// The room.
pub struct Directory {
    workspaces: Workspaces,
    shared: Shared,
    coherence: Arc<Coherence>,
    events: Arc<Events>,
    seal: Arc<Seal>,
    metrics: Arc<Metrics>,
    resolver: Resolver,
    leases: Leases,
    heartbeat_buffer: Arc<HeartbeatBuffer>,
    slots: Slots,
    entries: Coherent<WorkspaceId, Arc<Entry>>,
    /// The last entry that was read whole, for when no store answers (architecture D8).
    known: Cache<WorkspaceId, Arc<Entry>>,
    /// Counts what was said of workspaces, so that a load can tell that it was overtaken.
    changes: Arc<AtomicU64>,
    /// Since when SQL does not answer, in milliseconds after `started`; 0: it does.
    outage_since: AtomicU64,
    started: Instant,
    /// Whether every change of a URL key is heard of.
    watched: Arc<AtomicBool>,
    url_key: KeyPattern,
    internal_url_key: KeyPattern,
    config: Live,
    closing: AtomicBool,
}

impl Directory {
    /// Assembles the room; asks nothing.
    pub fn new(
        config: &Live,
        workspaces: Workspaces,
        shared: Shared,
        coherence: Arc<Coherence>,
        events: Arc<Events>,
        seal: Arc<Seal>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let at_start = config.get();
        let entries_max = at_start.directory.cache_entries;
        let entries = Coherent::new(
            Arc::clone(&coherence),
            Arc::clone(&metrics),
            metrics::Cache::Directory,
            (entries_max, Some(|entry: &Arc<Entry>| entry.weight())),
            |entry: &Arc<Entry>| entry.is_current(),
        );
        let known = Cache::builder()
            .max_capacity(entries_max)
            .weigher(|_, entry: &Arc<Entry>| entry.weight())
            .build();
        let changes = Arc::default();
        let heartbeat_buffer = Arc::new(HeartbeatBuffer::new(config.clone()));
        resolve::forget_what_changes(&coherence, &entries, &known, &changes, &heartbeat_buffer);
        let heartbeat_key = &at_start.directory.heartbeat_key;
        Self {
            resolver: Resolver::new(config),
            leases: Leases::new(shared.clone(), heartbeat_key, config.clone()),
            heartbeat_buffer,
            slots: Slots::default(),
            entries,
            known,
            changes,
            outage_since: AtomicU64::new(0),
            started: Instant::now(),
            // In process there is no other writer, and our own writes invalidate.
            watched: Arc::new(AtomicBool::new(shared.is_embedded())),
            url_key: KeyPattern::new(&at_start.directory.url_key),
            internal_url_key: KeyPattern::new(&at_start.directory.internal_url_key),
            config: config.clone(),
            closing: AtomicBool::new(false),
            workspaces,
            shared,
            coherence,
            events,
            seal,
            metrics,
        }
    }

    /// No lapse is noted from here on: the process ends, and others note it.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// The address that a URL means: looked up, and judged by the address policy. An agent is called at
    /// [`Directory::agent_address`].
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable`.
    pub(crate) async fn address(
        &self,
        endpoint: &Endpoint,
        asker: LookupFor,
    ) -> Result<SocketAddr, Rejection> {
        let resolved = self.resolver.resolve(endpoint, asker, &mut ()).await?;
        Ok(resolved.address)
    }

    /// How many calls the workspace has in progress at this replica.
    pub fn calls_in_progress(&self, id: &WorkspaceId) -> usize {
        self.slots.taken(id)
    }

    /// Takes one of the agent's slots for a call of `account`.
    ///
    /// # Errors
    /// `agent_busy` when all are taken, or the caller has half of what other callers leave.
    pub fn slot(&self, agent: &Agent, account: Account) -> Result<Slot, Rejection> {
        let gauge = &self.metrics.target_permits;
        let taken = Slot::take(&agent.calls, account, agent.concurrency_max, gauge);
        taken.map_err(|full| busy(agent, full))
    }
}

fn busy(agent: &Agent, full: Full) -> Rejection {
    let message = match full {
        Full::All => "the workspace has as many calls in progress as it takes; try again shortly",
        Full::Share | Full::Each => {
            "calls of this caller have half of the places that others leave at the workspace (limits.target_concurrency, \
             or its max_concurrent); try again shortly"
        }
    };
    Rejection::new(Reason::AgentBusy, message)
        .retry_after(Duration::from_secs(1))
        .fact("limit", agent.concurrency_max)
}

#[cfg(test)]
mod tests;
