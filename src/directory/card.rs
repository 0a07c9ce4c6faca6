//! Source of an agent's card, and the places where the agent serves it: the registered `card_url`, else the
//! well-known paths of its origin, else the same paths below its URL.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::endpoint::Endpoint;
use super::entry::{Entry, Urls, not_found, removed};
use super::{Agent, Destination, Directory, Settled};
use crate::config::CardAccess;
use crate::hierarchy::Permit;
use crate::ids::WorkspaceId;
use crate::rejection::Rejection;
use crate::trust::Sealed;
use crate::workspace::{Status, Workspace};

/// Well-known paths of A2A 0.3 and 1.0, and of 0.2.
const WELL_KNOWN: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// Places where an agent may serve its card: one server, and paths that are tried in order.
#[derive(Clone, Debug)]
pub struct CardPlace {
    /// Server. Checked like any agent's; its path is not used.
    pub endpoint: Endpoint,
    /// Cached decision about its addresses.
    pub settled: Arc<Settled>,
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
    /// URLs of the agent that are removed from the card.
    pub hidden: Vec<String>,
    /// Place where the agent serves its card, or the reason why it cannot be fetched. `None`: it has only an
    /// inbox.
    pub place: Result<Option<CardPlace>, Rejection>,
    /// Hash of the source and of the agent's location; changes with either.
    pub fingerprint: [u8; 32],
}

impl Directory {
    /// Returns the source of the card of a permitted target. A target that cannot be reached has one, too.
    ///
    /// # Errors
    /// `workspace_removed`, `workspace_not_found`, `store_unavailable`.
    pub async fn card_source(&self, permit: &Permit) -> Result<Arc<CardSource>, Rejection> {
        let entry = self.entry(permit.target()).await?;
        self.source_of(permit.target(), &entry).await
    }

    async fn source_of(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Arc<CardSource>, Rejection> {
        let destination = self.destination(id, entry).await;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        if workspace.status == Status::Removed {
            return Err(removed());
        }
        let source = entry.card.get_or_init(|| {
            let source = self.source(workspace, &entry.urls, destination);
            Arc::new(source)
        });
        Ok(Arc::clone(source))
    }

    /// Returns the source of the card of `id` if it is public. `None`: a credential is required, or there is no
    /// such workspace. A public card may be in memory; every other id costs one statement, so that the latency
    /// does not show which of them exist.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn public_card_source(
        &self,
        id: &WorkspaceId,
    ) -> Result<Option<Arc<CardSource>>, Rejection> {
        let default = self.config.get().card.access;
        let is_public = |entry: &Entry| {
            let workspace = entry.workspace.as_ref();
            workspace.is_some_and(|one| {
                one.status != Status::Removed
                    && one.card_access.unwrap_or(default) == CardAccess::Public
            })
        };
        let in_memory = self.entries.get(id).await;
        if !in_memory.is_some_and(|entry| is_public(&entry))
            && !self.workspaces.has_public_card(id, default).await?
        {
            return Ok(None);
        }
        let entry = self.entry(id).await?;
        if !is_public(&entry) {
            return Ok(None);
        }
        self.source_of(id, &entry).await.map(Some)
    }

    fn source(
        &self,
        workspace: &Workspace,
        urls: &Urls,
        destination: Result<Destination, Rejection>,
    ) -> CardSource {
        let configured = self.config.get().a2a.push_notifications;
        let push_notifications = workspace.push_notifications.unwrap_or(configured);
        let place = match destination {
            Ok(Destination::Agent(agent)) => {
                let place = self.place(workspace.card_url.as_deref(), agent);
                place.map(Some)
            }
            Ok(Destination::Inbox(_)) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        let card = workspace.agent_card.as_deref();
        let mut source = CardSource {
            id: workspace.id.clone(),
            name: workspace.name.clone(),
            role: workspace.role.clone(),
            registered: card.map(|card| card.get().into()),
            push_notifications,
            hidden: hidden(workspace, urls),
            place,
            fingerprint: [0; 32],
        };
        source.fingerprint = fingerprint(&source, workspace);
        source
    }

    fn place(&self, card_url: Option<&str>, agent: Arc<Agent>) -> Result<CardPlace, Rejection> {
        let own = &agent.endpoint;
        let Some(card_url) = card_url else {
            let path = own.path_and_query.split('?').next().unwrap_or_default();
            let below = path.trim_end_matches('/');
            let mut paths = WELL_KNOWN.map(str::to_owned).to_vec();
            if !below.is_empty() {
                paths.extend(WELL_KNOWN.map(|path| format!("{below}{path}")));
            }
            return Ok(CardPlace {
                endpoint: own.clone(),
                settled: Arc::clone(&agent.settled),
                agent: Some(agent),
                paths,
            });
        };
        let endpoint = Endpoint::parse_as("card_url", card_url, &self.resolver.policy())?;
        let paths = vec![endpoint.path_and_query.clone()];
        let same = endpoint.has_host_of(own);
        Ok(CardPlace {
            settled: if same {
                Arc::clone(&agent.settled)
            } else {
                Settled::new(&agent.id)
            },
            endpoint: if same { own.clone() } else { endpoint },
            agent: same.then_some(agent),
            paths,
        })
    }
}

/// Returns the URLs of the agent that are removed from its card.
pub(super) fn hidden(workspace: &Workspace, urls: &Urls) -> Vec<String> {
    let known = [
        urls.host.as_deref(),
        urls.internal.as_deref(),
        workspace.url.as_deref(),
        workspace.internal_url.as_deref(),
        workspace.card_url.as_deref(),
    ];
    let mut hidden: Vec<String> = known.into_iter().flatten().map(str::to_owned).collect();
    hidden.dedup();
    hidden
}

fn fingerprint(source: &CardSource, workspace: &Workspace) -> [u8; 32] {
    let auth = workspace.upstream_auth.as_ref().map(Sealed::as_str);
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
        Some(if source.push_notifications {
            "push"
        } else {
            ""
        }),
        Some(place.as_str()),
        auth,
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
