//! Source of an agent's card, and the places where the agent serves it: the registered `card_url`, else the
//! well-known paths of its origin, else the same paths below its URL.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::destination::{Agent, Destination};
use crate::address::{AddressDecision, Endpoint, Policy};
use crate::liveness::AgentUrls;
use access::workspace::Workspace;
use kernel::config::Bridging;
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;
use trust::SealedSecret;

/// Well-known paths of A2A 0.3 and 1.0, and of 0.2.
const WELL_KNOWN: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// Places where an agent may serve its card: one server, and paths that are tried in order.
#[derive(Clone, Debug)]
pub struct CardLocation {
    /// Server. Checked like any agent's; its path is not used.
    pub endpoint: Endpoint,
    /// Cached decision about its addresses.
    pub address_decision: Arc<AddressDecision>,
    /// Agent, if it is on the same server: only there the agent's credential and the gateway's certificate are
    /// sent.
    pub agent: Option<Arc<Agent>>,
    /// Paths, with queries.
    pub paths: Vec<String>,
}

/// Source of the card of one workspace.
#[derive(Debug)]
pub struct CardSource {
    /// The workspace.
    pub id: WorkspaceId,
    /// Display name.
    pub name: String,
    /// Purpose of the agent, as free text.
    pub role: Option<String>,
    /// Registered card.
    pub registered: Option<Arc<str>>,
    /// True if callers may ask for push notifications.
    pub push_notifications: bool,
    /// Translation of calls that the agent does not speak.
    pub bridge: Bridging,
    /// URLs of the agent that are removed from the card.
    pub hidden: Vec<String>,
    /// Place where the agent serves its card, or the reason why it cannot be fetched. `None`: it has only an
    /// inbox.
    pub place: Result<Option<CardLocation>, Rejection>,
    /// Hash of the source and of the agent's location; changes with either.
    pub fingerprint: [u8; 32],
}

impl CardSource {
    /// `push_notifications`: true if callers may ask for them, unless the workspace's row says otherwise.
    pub(super) fn new(
        workspace: &Workspace,
        urls: &AgentUrls,
        destination: Result<Destination, Rejection>,
        (push_notifications, bridge): (bool, Bridging),
        policy: &Policy,
    ) -> Self {
        let place = match destination {
            Ok(Destination::Agent(agent)) => {
                CardLocation::new(workspace.card_url.as_deref(), agent, policy).map(Some)
            }
            Ok(Destination::Inbox(_)) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        let card = workspace.agent_card.as_deref();
        let mut source = Self {
            id: workspace.id.clone(),
            name: workspace.name.clone(),
            role: workspace.role.clone(),
            registered: card.map(|card| card.get().into()),
            push_notifications: workspace.push_notifications.unwrap_or(push_notifications),
            bridge: workspace.bridge.unwrap_or(bridge),
            hidden: hidden_urls(workspace, urls),
            place,
            fingerprint: [0; 32],
        };
        source.fingerprint = fingerprint(&source, workspace);
        source
    }
}

impl CardLocation {
    /// Returns the place of these paths at the server of the agent.
    pub(crate) fn at_agent(agent: Arc<Agent>, paths: Vec<String>) -> Self {
        Self {
            endpoint: agent.endpoint.clone(),
            address_decision: Arc::clone(&agent.address_decision),
            agent: Some(agent),
            paths,
        }
    }

    /// Returns the places of the card of an agent.
    ///
    /// # Errors
    /// `address_forbidden`, for the card URL.
    pub(crate) fn new(
        card_url: Option<&str>,
        agent: Arc<Agent>,
        policy: &Policy,
    ) -> Result<Self, Rejection> {
        let own = &agent.endpoint;
        let Some(card_url) = card_url else {
            let path = own.path_and_query.split('?').next().unwrap_or_default();
            let below = path.trim_end_matches('/');
            let mut paths = WELL_KNOWN.map(str::to_owned).to_vec();
            if !below.is_empty() {
                paths.extend(WELL_KNOWN.map(|path| format!("{below}{path}")));
            }
            return Ok(Self::at_agent(agent, paths));
        };
        let endpoint = Endpoint::parse_as("card_url", card_url, policy)?;
        let paths = vec![endpoint.path_and_query.clone()];
        if endpoint.has_host_of(own) {
            return Ok(Self::at_agent(agent, paths));
        }
        Ok(Self {
            address_decision: AddressDecision::new(&agent.id),
            endpoint,
            agent: None,
            paths,
        })
    }
}

/// Returns the URLs of the agent that are removed from its card.
pub(crate) fn hidden_urls(workspace: &Workspace, urls: &AgentUrls) -> Vec<String> {
    let instances = urls.instances.iter().flatten().map(String::as_str);
    let known = [
        urls.host.as_deref(),
        urls.internal.as_deref(),
        workspace.url.as_deref(),
        workspace.internal_url.as_deref(),
        workspace.card_url.as_deref(),
    ];
    let known = known.into_iter().flatten().chain(instances);
    let mut hidden: Vec<String> = known.map(str::to_owned).collect();
    hidden.dedup();
    hidden
}

fn fingerprint(source: &CardSource, workspace: &Workspace) -> [u8; 32] {
    let auth = workspace.upstream_auth.as_ref().map(SealedSecret::as_str);
    let tls = workspace.upstream_tls.as_ref();
    let place = match &source.place {
        Ok(Some(place)) => format!("{} {:?}", place.endpoint.url(), place.paths),
        Ok(None) => String::new(),
        Err(refusal) => refusal.reason.as_str().to_owned(),
    };
    let parts = [
        Some(source.name.as_str()),
        source.role.as_deref(),
        source.registered.as_deref(),
        Some(["", "push"][usize::from(source.push_notifications)]),
        Some(source.bridge.as_str()),
        Some(place.as_str()),
        auth,
        workspace.upstream_auth_base.as_deref(),
        tls.map(|tls| tls.sealed.as_str()),
    ];
    let mut hash = Sha256::new();
    for part in parts
        .into_iter()
        .chain(source.hidden.iter().map(|url| Some(url.as_str())))
    {
        // The length comes first, so that different lists have different hashes.
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(length.to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.finalize().into()
}
