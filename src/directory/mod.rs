//! Directory of agents: resolves a permit to an endpoint or an inbox, keeps registrations and heartbeats
//! (`docs/reference/http-api.md`, "Registry"), and limits the concurrency of each target.
//!
//! Owns the URL keys and the lease key in the shared state. Steady state reads no store: an entry stays in
//! memory until its lease ends, an invalidation arrives, or a URL key changes. Invariant: an [`Endpoint`]
//! exists only if the address policy allows its URL, and every dialled address comes from
//! [`Directory::agent_address`].

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

/// Lifetime of a URL key without renewal.
const URL_TTL: Duration = Duration::from_secs(300);
/// Interval of renewals by heartbeats: half the lifetime, so that one may be missed.
const URL_RENEWAL: Duration = Duration::from_secs(150);
/// `Retry-After` for a workspace that cannot be reached.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// Destination of a permitted message.
#[derive(Clone, Debug)]
pub enum Destination {
    /// To the agent at its endpoint.
    Agent(Arc<Agent>),
    /// To the inbox, which the agent polls.
    Inbox(AgentOptions),
}

impl Destination {
    /// Returns the options of its agent.
    pub fn options(&self) -> &AgentOptions {
        match self {
            Self::Agent(agent) => &agent.options,
            Self::Inbox(options) => options,
        }
    }
}

/// Protocol options of a workspace, whether or not it can be reached.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Generation of A2A in its card.
    pub generation: Generation,
    /// True if it registered a card. Otherwise a fetched card may have more.
    pub has_card: bool,
    /// True if only the card URL of its agent is registered: the server is known, and the path for calls is in
    /// the card.
    pub path_in_card: bool,
    /// True if callers may ask it for push notifications.
    pub push_notifications: bool,
    /// Completion mode for incomplete calls.
    pub complete: Complete,
}

/// A reachable agent, with the settings for calls to it.
#[derive(Debug)]
pub struct Agent {
    /// Workspace of the agent.
    pub id: WorkspaceId,
    /// Location of its agent.
    pub endpoint: Endpoint,
    /// Paths for JSON-RPC, if they differ from the path of its URL.
    pub json_rpc: JsonRpc,
    /// Protocol options.
    pub options: AgentOptions,
    /// Its own limit on silence; `None`: `timeouts.idle`.
    pub idle_timeout: Option<Duration>,
    /// Credential that the agent requires of its callers.
    pub upstream_auth: Option<UpstreamAuth>,
    /// Certificates that verify it, and the gateway's client certificate. `None`: the system's, and none.
    pub upstream_tls: Option<UpstreamTls>,
    /// Cached decision about its addresses.
    pub settled: Arc<Settled>,
    /// Maximum calls in progress.
    concurrency_max: usize,
    calls: Arc<Calls>,
}

/// The directory: registrations, leases and destinations.
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
    /// Last complete entry of each workspace, for an outage of the stores (`docs/reference/store-failures.md`).
    known: Cache<WorkspaceId, Arc<Entry>>,
    /// Counter of changes of workspaces; a load compares it to detect that it was overtaken.
    changes: Arc<AtomicU64>,
    /// Start of the outage of SQL, in milliseconds after `started`; 0: SQL answers.
    outage_since: AtomicU64,
    started: Instant,
    /// True while all changes of URL keys are received.
    watched: Arc<AtomicBool>,
    url_key: KeyPattern,
    internal_url_key: KeyPattern,
    config: Live,
    closing: AtomicBool,
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
            // The embedded store has no other writer, and this process's writes invalidate.
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

    /// Stops recording lapses: the process shuts down, and other replicas record them.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Resolves the host of a URL and checks its addresses by the policy. For an agent use
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

    /// Returns the calls of the workspace in progress at this replica.
    pub fn calls_in_progress(&self, id: &WorkspaceId) -> usize {
        self.slots.taken(id)
    }

    /// Takes one of the agent's slots for a call of `account`.
    ///
    /// # Errors
    /// `agent_busy` if all are taken, or the caller has half of the slots that other callers leave.
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
