//! Resolves a permit to a destination, and to the source of the agent's card. None of this affects access, which
//! the permit has decided before.
//!
//! What calls have shown of agents: the generation in which they take them, where their card says another one, and the
//! path to which they redirect them. Kept until the registration or the card changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::future::Cache;
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use super::card::CardSource;
use super::destination::{AgentOptions, Destination, called_at};
use super::entries::{Entries, Entry};
use crate::core::Core;
use crate::lapses::Lapses;
use crate::liveness::{Pulse, must_beat};
use crate::rejections::{not_found, workspace_removed};
use a2a::Generation;
use a2a::method::Method;
use access::explain::{Fact, Source, Witness};
use access::hierarchy::Permit;
use access::identity::{Principal, Proof};
use access::workspace::{Status, Workspace};
use kernel::config::{CardAccess, RefusalStatus};
use kernel::ids::WorkspaceId;
use kernel::metrics::LapseSource;
use kernel::rejection::{AtStage as _, Rejection};
use kernel::stage::Stage;
use kernel::time::{Timestamp, to_millis};

/// Resolves permits.
pub struct Resolution {
    pub(crate) entries: Arc<Entries>,
    pub(crate) lapses: Arc<Lapses>,
    /// The findings that calls made of agents.
    pub learnt: Learnt,
}

impl Resolution {
    /// Returns the destination of a permitted message.
    ///
    /// # Errors
    /// `workspace_offline`, `workspace_restarting`, `address_forbidden`, `workspace_removed`;
    /// `store_unavailable` if no entry is known.
    pub async fn resolve(&self, permit: &Permit) -> Result<Destination, Rejection> {
        let entry = self.entries.get(permit.target()).await;
        let entry = entry.at(Stage::State)?;
        self.find_destination(permit.target(), &entry).await
    }

    /// Resolves a permitted message as [`Resolution::resolve`] does, and reports the facts to `witness`. Records
    /// neither a lapse nor a use; values read are cached.
    ///
    /// # Errors
    /// As [`Resolution::resolve`].
    pub async fn explain(
        &self,
        permit: &Permit,
        witness: &mut impl Witness,
    ) -> Result<Destination, Rejection> {
        let read = self.entries.get_with_source(permit.target()).await;
        let (entry, remembered) = read.at(Stage::State)?;
        let evidence = Evidence {
            core: &self.entries.core,
            entry: &entry,
            remembered,
        };
        evidence.report(witness);
        entry.reach.clone()
    }

    /// Returns the registered options of a workspace, whether or not it can be reached.
    ///
    /// # Errors
    /// `workspace_not_found`; `store_unavailable`.
    pub async fn load_options(&self, permit: &Permit) -> Result<AgentOptions, Rejection> {
        let entry = self.entries.get(permit.target()).await.at(Stage::State)?;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        Ok(AgentOptions::from_workspace(
            workspace,
            &self.entries.core.config.get(),
        ))
    }

    /// Returns the HTTP status of refusals of the caller's JSON-RPC calls: that of its workspace, or else of
    /// `a2a.refusal_status`.
    pub async fn refusal_status(&self, caller: Option<&Arc<Proof>>) -> RefusalStatus {
        let own = match caller.map(|proof| &proof.principal) {
            Some(Principal::Workspace { id }) => self.entries.get(id).await.ok(),
            _ => None,
        };
        let own = own.and_then(|entry| entry.workspace.as_ref()?.refusal_status);
        own.unwrap_or(self.entries.core.config.get().a2a.refusal_status)
    }

    /// Returns the destination of a message; records a lapse that is not recorded yet.
    pub(crate) async fn find_destination(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Destination, Rejection> {
        if entry.pulse == Pulse::Lapsed && !entry.lapse_noted.swap(true, Ordering::AcqRel) {
            let read_at = entry.read_at.shared.unwrap_or(entry.loaded_at);
            let missing = Timestamp::now().before(read_at.elapsed());
            Box::pin(self.lapses.record(id, missing, LapseSource::Request)).await;
        }
        entry.reach.clone()
    }

    /// Returns the source of the card of a permitted target. A target that cannot be reached has one, too.
    ///
    /// # Errors
    /// `workspace_removed`, `workspace_not_found`, `store_unavailable`.
    pub async fn card_source(&self, permit: &Permit) -> Result<Arc<CardSource>, Rejection> {
        self.source_by_id(permit.target()).await
    }

    /// As [`Resolution::card_source`], for what the gateway does by itself.
    ///
    /// # Errors
    /// As [`Resolution::card_source`].
    pub async fn source_by_id(&self, id: &WorkspaceId) -> Result<Arc<CardSource>, Rejection> {
        let entry = self.entries.get(id).await.at(Stage::State)?;
        self.source_of(id, &entry).await
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
        let default = self.entries.core.config.get().card.access;
        let is_public = |entry: &Entry| {
            let workspace = entry.workspace.as_ref();
            workspace.is_some_and(|one| {
                one.status != Status::Removed
                    && one.card_access.unwrap_or(default) == CardAccess::Public
            })
        };
        let in_memory = self.entries.cache.get(id);
        if !in_memory.is_some_and(|entry| is_public(&entry))
            && !self
                .entries
                .core
                .workspaces
                .has_public_card(id, default)
                .await?
        {
            return Ok(None);
        }
        let entry = self.entries.get(id).await?;
        if !is_public(&entry) {
            return Ok(None);
        }
        self.source_of(id, &entry).await.map(Some)
    }

    async fn source_of(
        &self,
        id: &WorkspaceId,
        entry: &Entry,
    ) -> Result<Arc<CardSource>, Rejection> {
        let destination = self.find_destination(id, entry).await;
        let workspace = entry.workspace.as_ref().ok_or_else(not_found)?;
        if workspace.status == Status::Removed {
            return Err(workspace_removed());
        }
        let config = self.entries.core.config.get();
        let a2a = &config.a2a;
        let source = entry.card.get_or_init(|| {
            Arc::new(CardSource::new(
                workspace,
                &entry.urls,
                destination,
                (a2a.push_notifications, a2a.bridge),
                &self.entries.core.resolver.policy(),
            ))
        });
        Ok(Arc::clone(source))
    }
}

// What calls have shown of agents.

impl Resolution {
    /// Returns what the answers of a target have shown of the generation that it takes for `method`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn finding(
        &self,
        permit: &Permit,
        method: Method,
    ) -> Result<Option<Finding>, Rejection> {
        if self.learnt.is_empty() {
            return Ok(None);
        }
        let source = self.card_source(permit).await?;
        Ok(self.learnt.find(&source, method).await)
    }

    /// Returns what keeps the generation that the answer of a target shows for `method`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn observer(
        &self,
        permit: &Permit,
        method: Method,
        (tried, agrees): (Generation, bool),
    ) -> Result<Observer, Rejection> {
        Ok(Observer {
            learnt: self.learnt.clone(),
            source: self.card_source(permit).await?,
            method,
            tried,
            agrees,
        })
    }

    /// Returns the place to which a target redirects calls of `path`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn place(&self, permit: &Permit, path: &str) -> Result<Option<Place>, Rejection> {
        let source = self.card_source(permit).await?;
        Ok(self.learnt.find_place(&source, path).await)
    }

    /// Keeps that the agent of a workspace redirected a call of JSON-RPC, and took it there.
    pub async fn keep_place(&self, id: &WorkspaceId, from: &str, to: &str) {
        if let Ok(source) = self.source_by_id(id).await {
            let keep = |known: &mut Findings| known.keep_place(from, to);
            self.learnt.change(&source, keep).await;
        }
    }

    /// Returns the warnings for the owner of a workspace.
    pub async fn warnings(&self, id: &WorkspaceId) -> Vec<String> {
        if self.learnt.is_empty() {
            return Vec::new();
        }
        let Ok(source) = self.source_by_id(id).await else {
            return Vec::new();
        };
        let known = self.learnt.known(&source).await;
        known.map_or_else(Vec::new, |known| known.warnings())
    }
}

/// Maximum agents of which something is kept.
const AGENTS_MAX: u64 = 10_000;

/// Time for which a method counts as unknown in both generations.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);

/// Maximum bytes of a path that is kept.
const PATH_BYTES_MAX: usize = 1024;

/// The evidence that an agent has given for a method.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The generation in which it takes calls. `None`: it knows the method in neither.
    pub takes: Option<Generation>,
    /// True if its card says the same.
    agrees: bool,
    /// The time at which it showed that.
    pub learnt_at: Instant,
}

/// The place to which an agent redirects calls of JSON-RPC.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path and query that it redirects.
    pub from: String,
    /// Path and query at which it takes calls.
    pub path: String,
    /// The time at which it took one there.
    pub learnt_at: Instant,
}

/// The findings of one agent. Those of a send hold for all methods without findings of their own.
#[derive(Clone, Default)]
struct Findings {
    /// Fingerprint of the registration of which they are.
    of: [u8; 32],
    /// `None`: shown by a send.
    by_method: Vec<(Option<Method>, Finding)>,
    place: Option<Place>,
}

impl Findings {
    /// Keeps that a call to `from` was taken at `to`. The place that was kept may have redirected it.
    fn keep_place(&mut self, from: &str, to: &str) {
        let earlier = self.place.take().filter(|place| place.path == from);
        let place = Place {
            from: earlier.map_or_else(|| from.to_owned(), |place| place.from),
            path: to.to_owned(),
            learnt_at: Instant::now(),
        };
        let is_kept = place.from != to && to.len() <= PATH_BYTES_MAX;
        self.place = is_kept.then_some(place);
    }

    /// Returns what the owner of the agent can set right, as sentences.
    fn warnings(&self) -> Vec<String> {
        let others = self.by_method.iter().filter(|(_, finding)| !finding.agrees);
        let generations = others.filter_map(|(method, finding)| {
            let takes = finding.takes?;
            let calls = method.and_then(Method::name).unwrap_or("calls");
            let (takes, other) = (takes.version(), takes.other().version());
            Some(format!(
                "the agent's answers show that it takes {calls} in A2A {takes} and not in {other}: its card should say so"
            ))
        });
        let place = self.place.iter().map(|Place { from, path, .. }| {
            format!("the agent redirects calls of {from} to {path}, where they are sent now: register that URL")
        });
        generations.chain(place).collect()
    }
}

/// The findings of all agents. Cheap to clone.
#[derive(Clone)]
pub struct Learnt {
    agents: Cache<WorkspaceId, Arc<Findings>>,
    /// True until something was learnt: then calls look nothing up.
    is_empty: Arc<AtomicBool>,
}

impl Default for Learnt {
    fn default() -> Self {
        Self {
            agents: Cache::new(AGENTS_MAX),
            is_empty: Arc::new(AtomicBool::new(true)),
        }
    }
}

impl Learnt {
    /// True if nothing was learnt of any agent.
    pub fn is_empty(&self) -> bool {
        self.is_empty.load(Ordering::Acquire)
    }

    /// Returns what an agent has shown for `method`.
    pub async fn find(&self, source: &CardSource, method: Method) -> Option<Finding> {
        let known = self.known(source).await?;
        let find = |key| known.by_method.iter().find(|(shown, _)| *shown == key);
        let own = find(key_of(method)).or_else(|| find(None));
        let own = own.map(|(_, finding)| *finding);
        own.filter(|own| own.takes.is_some() || own.learnt_at.elapsed() < UNKNOWN_FOR)
    }

    /// Returns the place to which an agent redirects calls of `path`.
    pub async fn find_place(&self, source: &CardSource, path: &str) -> Option<Place> {
        let place = self.known(source).await?.place.clone();
        place.filter(|place| place.from == path)
    }

    /// Forgets what an agent has shown: its card has changed.
    pub async fn forget(&self, id: &WorkspaceId) {
        self.agents.invalidate(id).await;
    }

    /// Forgets the place of an agent, which has registered again or has another URL.
    pub async fn forget_place(&self, id: &WorkspaceId) {
        if let Some(known) = self.agents.get(id).await.filter(|one| one.place.is_some()) {
            let mut known = Arc::unwrap_or_clone(known);
            known.place = None;
            self.agents.insert(id.clone(), Arc::new(known)).await;
        }
    }

    async fn known(&self, source: &CardSource) -> Option<Arc<Findings>> {
        let known = self.agents.get(&source.id).await;
        known.filter(|known| known.of == source.fingerprint)
    }

    async fn change(&self, source: &CardSource, change: impl FnOnce(&mut Findings)) {
        let known = self.known(source).await.unwrap_or_default();
        let mut known = Arc::unwrap_or_clone(known);
        known.of = source.fingerprint;
        change(&mut known);
        self.agents.insert(source.id.clone(), Arc::new(known)).await;
        self.is_empty.store(false, Ordering::Release);
    }
}

/// Keeps what the answer to one call shows.
pub struct Observer {
    pub(super) learnt: Learnt,
    pub(super) source: Arc<CardSource>,
    pub(super) method: Method,
    /// The generation in which the call was sent.
    pub(super) tried: Generation,
    /// True if the agent's card says the same.
    pub(super) agrees: bool,
}

impl Observer {
    /// Keeps that the agent took the call, or did not know it in this generation either.
    pub async fn record(self, has_taken: bool) {
        let takes = has_taken.then_some(self.tried);
        let key = key_of(self.method);
        let found = Finding {
            takes,
            agrees: has_taken && self.agrees,
            learnt_at: Instant::now(),
        };
        let keep = |known: &mut Findings| {
            let is_other = |(shown, found): &(Option<Method>, Finding)| {
                // An agent that takes a call in neither generation may just begin or end.
                *shown != key || !has_taken && found.takes.is_some()
            };
            known.by_method.retain(is_other);
            let is_known = known.by_method.iter().any(|(shown, _)| *shown == key);
            if !is_known {
                known.by_method.push((key, found));
            }
        };
        self.learnt.change(&self.source, keep).await;
    }
}

/// A method that sends a message stands for the agent.
fn key_of(method: Method) -> Option<Method> {
    (!method.sends()).then_some(method)
}

/// Evidence for one resolution.
pub(super) struct Evidence<'e> {
    pub(super) core: &'e Core,
    pub(super) entry: &'e Entry,
    /// True if the entry was in memory.
    pub(super) remembered: bool,
}

impl Evidence<'_> {
    /// Reports the facts of the entry up to the one that decided.
    pub(super) fn report(&self, witness: &mut impl Witness) {
        let entry = self.entry;
        let Some(workspace) = &entry.workspace else {
            witness.record(|| self.of_row(Stage::State, json!({"exists": false})));
            return;
        };
        let refused_at = entry.reach.as_ref().err().and_then(|why| why.stage);
        let polls = matches!(entry.reach, Ok(Destination::Inbox(_)));
        let ends_here = refused_at == Some(Stage::State);
        witness.record(|| self.state_fact(workspace, ends_here));
        if polls || ends_here {
            return;
        }
        witness.record(|| self.liveness_fact(workspace));
        if refused_at == Some(Stage::Liveness) {
            return;
        }
        witness.record(|| self.url_fact(workspace));
        if refused_at == Some(Stage::Url) {
            return;
        }
        witness.record(|| {
            let mut value = json!({
                "credential": workspace.upstream_auth.is_some(),
                "certificates": workspace.upstream_tls.is_some(),
                "proof": workspace.proof.unwrap_or_default().as_str(),
            });
            if workspace.upstream_auth.is_some() && entry.calls_without_credential() {
                value["credential_withheld"] = json!(
                    "the agent is not where an operator set upstream_auth for it: set it again"
                );
            }
            self.of_row(Stage::Upstream, value)
        });
    }

    /// `is_last`: no further check follows, so the liveness is reported here.
    fn state_fact(&self, workspace: &Workspace, is_last: bool) -> Fact {
        let mut value = json!({
            "exists": true,
            "status": workspace.status.as_str(),
            "delivery_mode": workspace.delivery_mode.as_str(),
            "stale": self.entry.read_at.stale,
        });
        if is_last {
            let last_seen = self.core.heartbeats.last_sign_of(workspace);
            value["liveness"] = json!(workspace.liveness.as_str());
            value["last_seen"] = json!(last_seen);
            value["heartbeat_age_ms"] = json!(age_ms(last_seen));
            if workspace.active_probe().is_some() {
                value["probed"] = json!(true);
            }
        }
        self.of_row(Stage::State, value)
    }

    fn liveness_fact(&self, workspace: &Workspace) -> Fact {
        let entry = self.entry;
        let last_seen = self.core.heartbeats.last_sign_of(workspace);
        let mut value = match entry.pulse {
            Pulse::Beats(_) => {
                let left = entry.alive_for();
                // Each heartbeat grants the full TTL.
                let beat = self.core.presence.leases.ttl().checked_sub(left);
                json!({
                    "liveness": "heartbeat", "beats": true, "last_seen": last_seen,
                    "lapses_in_ms": to_millis(left), "heartbeat_age_ms": beat.map(to_millis),
                })
            }
            Pulse::Lapsed => json!({
                "liveness": "heartbeat", "beats": false, "last_seen": last_seen,
                "heartbeat_age_ms": age_ms(last_seen), "ttl_ms": to_millis(self.core.presence.leases.ttl()),
            }),
            Pulse::AsItsStatus if must_beat(workspace) => json!({
                "liveness": "heartbeat", "beats": null, "last_seen": last_seen,
                "unavailable": "no lease can be read: its status counts",
            }),
            Pulse::AsItsStatus => {
                json!({"liveness": workspace.liveness.as_str(), "last_seen": last_seen})
            }
        };
        if !entry.instances.is_empty() {
            let alive = entry.instances.iter().filter(|one| one.is_alive()).count();
            value["instances"] = json!({"alive": alive, "offline": entry.instances.len() - alive});
        }
        self.of_shared_state(Stage::Liveness, value, must_beat(workspace))
    }

    fn url_fact(&self, workspace: &Workspace) -> Fact {
        let entry = self.entry;
        let url = called_at(&entry.urls.host, &workspace.card_url, workspace.liveness);
        let from = match url {
            None => None,
            Some(_) if entry.urls.shared => {
                let [url_key, _] = self.core.presence.url_keys(&workspace.id);
                Some(url_key)
            }
            Some(_) if entry.urls.host.is_some() => Some("the workspace's row".to_owned()),
            Some(_) => Some("the workspace's card_url".to_owned()),
        };
        let from = match &entry.reach {
            Ok(Destination::Agent(agent)) => {
                let instance = agent.instance.as_ref();
                instance.map(|id| format!("the instance {id}")).or(from)
            }
            _ => from,
        };
        let value = json!({"url": url.map(mask_credentials), "from": from});
        self.of_shared_state(Stage::Url, value, entry.urls.shared)
    }

    /// Returns a fact of the row. A stale row counts as memory, too.
    fn of_row(&self, check: Stage, value: Value) -> Fact {
        let source = if self.remembered || self.entry.read_at.stale {
            Source::Memory
        } else {
            Source::Sql
        };
        Fact::new(check, source, value).with_age(self.entry.read_at.row.elapsed())
    }

    /// Returns a fact of the shared state, if it is one and was read there; else of the row.
    fn of_shared_state(&self, check: Stage, value: Value, is_shared: bool) -> Fact {
        let Some(read_at) = self.entry.read_at.shared.filter(|_| is_shared) else {
            return self.of_row(check, value);
        };
        let source = match self.remembered || self.core.shared.is_embedded() {
            true => Source::Memory,
            false => Source::Redis,
        };
        Fact::new(check, source, value).with_age(read_at.elapsed())
    }
}

/// Age by wall-clock time.
fn age_ms(last_seen: Option<Timestamp>) -> Option<u64> {
    last_seen.map(|at| to_millis(Timestamp::now().since(at)))
}

/// Returns the URL without user and password. An agent's URL may not have them, and they are never shown.
fn mask_credentials(text: &str) -> String {
    let parsed = Url::parse(text).ok().filter(Url::has_host);
    let Some(mut url) = parsed else {
        return "(not the URL of a server)".to_owned();
    };
    if url.username().is_empty() && url.password().is_none() {
        return text.to_owned();
    }
    // Both fail only for URLs without a host, which have no user.
    let _ = url.set_password(None);
    let _ = url.set_username("***");
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_redirects_is_replaced() {
        let mut known = Findings::default();
        for (from, to, kept) in [
            ("/a", "/b", Some(("/a", "/b"))),
            ("/b", "/c", Some(("/a", "/c"))),
            ("/d", "/e", Some(("/d", "/e"))),
            ("/e", "/d", None),
            ("/d", &*"/".repeat(PATH_BYTES_MAX + 1), None),
        ] {
            known.keep_place(from, to);
            let place = known.place.as_ref();
            let place = place.map(|place| (&*place.from, &*place.path));
            assert_eq!(place, kept, "{from}");
        }
    }
}

#[cfg(test)]
mod evidence_tests {
    use super::*;

    #[test]
    fn userinfo_is_shown_to_nobody() {
        for (url, shown) in [
            (
                "http://127.0.0.1:9001/a?x=1",
                Some("http://127.0.0.1:9001/a?x=1"),
            ),
            ("http://u:geheim@h/a", Some("http://***@h/a")),
            ("http://geheim@h/", Some("http://***@h/")),
            ("http://:geheim@h/", Some("http://***@h/")),
            ("u:geheim@h", None),
            ("//u:geheim@h", None),
            ("mailto:geheim@h", None),
        ] {
            assert_eq!(
                mask_credentials(url),
                shown.unwrap_or("(not the URL of a server)")
            );
        }
    }
}
