//! Address to dial for an agent. Its name may come to resolve to the server of another workspace's agent, long
//! after its registration, so each new address of a name is claimed in SQL before it is dialled. Without SQL the
//! claimed addresses can still be called, and new ones are `store_unavailable`.
//!
//! Decision about the addresses of an agent, kept with its entry while its name has these addresses: a call to
//! such an address reads no store.
//!
//! Origins of the URLs of a registration or a change: by name and by each address, so that the agent of another
//! workspace is found under each spelling.
//!
//! Checks URLs of requests: those of a registration, and those for push notifications, which a caller names and
//! the agent calls. Neither the gateway nor an agent must be made to call an address that is forbidden to the
//! gateway (`docs/reference/a2a.md`, "Push notifications").

#[cfg(any(test, feature = "testing"))]
impl AgentAddress {
    /// Returns these addresses, as those of one name.
    pub fn for_tests(addresses: &[SocketAddr]) -> Self {
        Self {
            first: addresses[0],
            others: addresses[1..].to_vec(),
            decision: AddressDecision::new(
                &WorkspaceId::parse("target").expect("a name in a test is valid"),
            ),
        }
    }

    /// Returns the address that made a connection where the first made none.
    pub fn preferred(&self) -> Option<IpAddr> {
        self.decision.connected.load().as_deref().copied()
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures_util::future::try_join_all;

use super::endpoint::{Endpoint, Target, parse_url};
use super::policy::canonical_address;
use super::resolver::{LookupFor, REGISTRATIONS, Resolver, is_of_this_machine};
use crate::announcer::Announcer;
use crate::rejections::invalid;
use access::explain::Witness;
use access::workspace::{Claim, HeldOrigin, Origin, Origins, Workspaces, url_base};
use kernel::config::Live;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use stores::store::Unavailable;

/// Addresses of one name that are dialled at most.
const DIALLED_MAX: usize = 4;

/// The addresses to dial for an agent, each of which was checked.
#[derive(Clone, Debug)]
pub struct AgentAddress {
    /// The one that is dialled first.
    pub first: SocketAddr,
    /// Those of the same name that are dialled if that one makes no connection.
    others: Vec<SocketAddr>,
    decision: Arc<AddressDecision>,
}

impl AgentAddress {
    /// Puts `first` before the others of its name, and before it the one that made a connection.
    fn new(first: SocketAddr, of_name: &[IpAddr], decision: &Arc<AddressDecision>) -> Self {
        let connected = decision.connected.load().as_deref().copied();
        let preferred = connected.filter(|known| of_name.contains(known));
        let preferred = preferred.unwrap_or(first.ip());
        let mut others = Vec::new();
        for ip in std::iter::once(first.ip()).chain(of_name.iter().copied()) {
            let address = SocketAddr::new(ip, first.port());
            if ip != preferred && others.len() + 1 < DIALLED_MAX && !others.contains(&address) {
                others.push(address);
            }
        }
        Self {
            first: SocketAddr::new(preferred, first.port()),
            others,
            decision: Arc::clone(decision),
        }
    }

    /// True if there are several.
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns them in the order in which they are dialled.
    pub fn in_order(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Notes at which of them a connection was made.
    pub fn note_connected(&self, at: SocketAddr) {
        if at != self.first {
            self.decision.connected.store(Some(Arc::new(at.ip())));
        }
    }
}

/// Resolves the URLs of agents, and keeps apart the servers of different workspaces.
pub struct Addresses {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) workspaces: Workspaces,
    pub(crate) announcer: Arc<Announcer>,
    pub(crate) config: Live,
    /// True if all addresses of this machine belong to one gateway.
    pub(crate) is_only_replica: bool,
}

/// The name of a gRPC interface in refusals.
const GRPC: &str = "the gRPC interface in the agent's card";

impl Addresses {
    /// Returns the addresses to dial for `endpoint`, on the server of `decision`: checked by
    /// the policy, and not held by another workspace. Reports the facts to `witness`.
    ///
    /// # Errors
    /// `agent_unreachable`; `address_forbidden`, also if the name resolves to the server of another workspace;
    /// `store_unavailable` if that cannot be decided.
    pub async fn agent_address(
        &self,
        decision: &Arc<AddressDecision>,
        endpoint: &Endpoint,
        asker: LookupFor,
        witness: &mut impl Witness,
    ) -> Result<AgentAddress, Rejection> {
        let resolved = self.resolver.resolve(endpoint, asker, witness).await?;
        let (address, of_name) = resolved;
        if let Some(addresses) = &of_name {
            match decision.check(addresses) {
                Some(known) => known?,
                // Boxed: a name rarely has another address, and this future would otherwise widen that of every
                // exchange.
                None => Box::pin(self.claim_addresses(decision, endpoint, addresses)).await?,
            }
        }
        // At one address of a name, an instance: the others are not its own.
        let of_name = of_name.filter(|_| endpoint.only.is_none());
        let of_name = of_name.as_deref().unwrap_or_default();
        Ok(AgentAddress::new(address, of_name, decision))
    }

    /// Returns the place in a URL of a gRPC interface, which needs no scheme: `scheme` is that of one without.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`.
    pub(crate) fn parse_grpc(&self, url: &str, scheme: &str) -> Result<Endpoint, Rejection> {
        let scheme = if url.contains("://") { "" } else { scheme };
        let policy = self.resolver.policy();
        Endpoint::parse_as(GRPC, &format!("{scheme}{url}"), &policy)
    }

    async fn claim_addresses(
        &self,
        decision: &AddressDecision,
        endpoint: &Endpoint,
        addresses: &Arc<[IpAddr]>,
    ) -> Result<(), Rejection> {
        let id = &decision.workspace;
        // At one address of a name, an instance: the others are not its own.
        let own = endpoint.only.as_slice();
        let claimed = if own.is_empty() { addresses } else { own };
        let refusal = match self.origins_at(endpoint, claimed, false) {
            Ok(origins) => match self.claim_free(id, &Origins::new(origins)).await? {
                Claim::Held { .. } => None,
                Claim::Taken(HeldOrigin { by, origin, .. }) => {
                    tracing::warn!(workspace.id = %id, holder = %by, %origin, "The name in an agent's URL has come to \
                        mean the server of another workspace's agent: calls are refused until it has another address. \
                        If the other agent has left, deregister it; if they share the server, list it in \
                        registry.shared_origins");
                    Some(foreign_server(endpoint))
                }
            },
            Err(refusal) => Some(refusal),
        };
        decision.store(addresses, refusal.clone());
        refusal.map_or(Ok(()), Err)
    }

    /// Claims them, also if another workspace has released one of them.
    async fn claim_free(&self, id: &WorkspaceId, origins: &Origins) -> Result<Claim, Unavailable> {
        let mut claim = self.workspaces.claim_origins(id, origins).await?;
        if let Claim::Taken(_) = claim {
            for held in self.left_by_others(id, origins).await? {
                let left = self.workspaces.release_origin(&held).await;
                self.announcer.invalidate_after(&held.by, &left).await;
                left?;
            }
            claim = self.workspaces.claim_origins(id, origins).await?;
        }
        if claim == (Claim::Held { released: true }) {
            // Other replicas may still take the former addresses for those of this workspace.
            self.announcer.invalidate_after(id, &Ok(())).await;
        }
        Ok(claim)
    }
}

fn foreign_server(endpoint: &Endpoint) -> Rejection {
    let title = endpoint.title;
    if endpoint.only.is_some() {
        // Another instance takes the call.
        let message = format!(
            "the address of this instance, by the name in {title}, is one at which another workspace's agent is registered"
        );
        return Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent);
    }
    let message = format!(
        "the name in {title} has come to mean a server at which another workspace's agent is registered: give the name \
         the agent's own address. An operator can list a server with several agents in registry.shared_origins"
    );
    Rejection::new(Reason::AddressForbidden, message)
}

/// Cached decision about the addresses of one workspace's server.
#[derive(Debug)]
pub struct AddressDecision {
    pub(super) workspace: WorkspaceId,
    /// The addresses of a name, and the result of SQL for them.
    verdict: ArcSwapOption<(Arc<[IpAddr]>, Option<Rejection>)>,
    /// The address of a name with several at which a connection was made, where the first made none.
    pub(super) connected: ArcSwapOption<IpAddr>,
}

impl AddressDecision {
    /// Creates it without a decision.
    pub(crate) fn new(workspace: &WorkspaceId) -> Arc<Self> {
        Arc::new(Self {
            workspace: workspace.clone(),
            verdict: ArcSwapOption::empty(),
            connected: ArcSwapOption::empty(),
        })
    }

    /// Copies the decision of `other` for the same server.
    pub(crate) fn take_over(&self, other: &Self) {
        self.verdict.store(other.verdict.load_full());
        self.connected.store(other.connected.load_full());
    }

    /// Returns the cached decision about these addresses. A rejection counts only for the DNS answer that it
    /// was made for.
    pub(super) fn check(&self, addresses: &Arc<[IpAddr]>) -> Option<Result<(), Rejection>> {
        let verdict = self.verdict.load();
        let (known, refusal) = &**verdict.as_ref()?;
        match refusal {
            Some(refusal) => Arc::ptr_eq(known, addresses).then(|| Err(refusal.clone())),
            None => {
                let mut found = addresses.iter();
                let all = found.all(|address| known.contains(address));
                all.then_some(Ok(()))
            }
        }
    }

    /// Stores the decision about these addresses.
    pub(super) fn store(&self, addresses: &Arc<[IpAddr]>, refusal: Option<Rejection>) {
        let verdict = (Arc::clone(addresses), refusal);
        self.verdict.store(Some(Arc::new(verdict)));
    }
}

/// Maximum addresses of one name: each is a server that no other workspace can register.
const ADDRESSES_MAX: usize = 64;

/// Look-ups of a name before one of its addresses is taken for released.
const LOOKUPS: usize = 4;

/// Maximum holders of servers that are looked up for one claim. Each look-up has a timeout, and they run one
/// after another.
const HOLDERS_MAX: usize = 4;

impl Addresses {
    /// Returns the origins of the checked `urls` of `id`, with what the change is to release of other workspaces.
    /// `may_share`: true if the editor of the workspace allows other workspaces on the server; otherwise
    /// `registry.shared_origins` decides.
    ///
    /// # Errors
    /// `address_forbidden`: the policy forbids one, or a name has more than [`ADDRESSES_MAX`] addresses;
    /// `store_unavailable`.
    pub(crate) async fn origins_of(
        &self,
        id: &WorkspaceId,
        urls: impl IntoIterator<Item = Option<&str>>,
        may_share: bool,
    ) -> Result<Origins, Rejection> {
        let mut origins = Vec::new();
        for url in urls.into_iter().flatten() {
            let endpoint = self.resolver.parse(url)?;
            let asker = LookupFor::for_url(REGISTRATIONS);
            let addresses = self.resolver.lookup_all(&endpoint, asker).await;
            origins.extend(self.origins_at(&endpoint, &addresses, may_share)?);
        }
        let mut origins = Origins::new(origins);
        origins.left = self.left_by_others(id, &origins).await?;
        Ok(origins)
    }

    /// Returns those of `origins` that another workspace than `id` holds by a name that has other addresses
    /// now: containers swap addresses when they restart. A name without an answer keeps its origins.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub(super) async fn left_by_others(
        &self,
        id: &WorkspaceId,
        origins: &Origins,
    ) -> Result<Vec<HeldOrigin>, Unavailable> {
        let held = self.workspaces.held_by_others(id, origins).await?;
        let mut left = Vec::new();
        for held in held.into_iter().take(HOLDERS_MAX) {
            if !self.still_means(&held).await {
                tracing::info!(workspace.id = %held.by, origin = held.origin, "The name in an agent's URL has other \
                    addresses now; the origin of the former one is free for another workspace");
                left.push(held);
            }
        }
        Ok(left)
    }

    async fn still_means(&self, held: &HeldOrigin) -> bool {
        let Ok(endpoint) = self.resolver.parse(&held.base) else {
            return true;
        };
        if matches!(endpoint.target, Target::Literal(_)) {
            return true;
        }
        // A name of many addresses may answer with some of them at a time.
        for _ in 0..LOOKUPS {
            let asker = LookupFor::for_registration();
            let addresses = self.resolver.lookup_all(&endpoint, asker).await;
            let meant = self.origins_at(&endpoint, &addresses, false);
            let is_meant = addresses.is_empty()
                || meant.map_or(true, |meant| {
                    meant.iter().any(|one| one.origin == held.origin)
                });
            if is_meant {
                return true;
            }
        }
        false
    }

    /// Returns the origins of `endpoint`, for these addresses of its host.
    ///
    /// # Errors
    /// `address_forbidden`: there are more than [`ADDRESSES_MAX`].
    pub(super) fn origins_at(
        &self,
        endpoint: &Endpoint,
        addresses: &[IpAddr],
        may_share: bool,
    ) -> Result<Vec<Origin>, Rejection> {
        if addresses.len() > ADDRESSES_MAX {
            let (title, count) = (endpoint.title, addresses.len());
            let message = format!(
                "the name in {title} has {count} addresses, and an agent has at most {ADDRESSES_MAX}: name a host with fewer"
            );
            return Err(Rejection::new(Reason::AddressForbidden, message));
        }
        let config = self.config.get();
        let shared = &config.registry.shared_origins;
        let scheme = if endpoint.tls { "https" } else { "http" };
        // Each in its canonical form, for comparison, and as URLs have it.
        let port = endpoint.port;
        let mut places = Vec::new();
        if let Target::Name(name) = &endpoint.target {
            let name = name.strip_suffix('.').unwrap_or(name);
            places.push((format!("{name}:{port}"), endpoint.host.clone()));
        }
        for address in addresses.iter().map(|address| canonical_address(*address)) {
            let host = match address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            };
            // All of these addresses belong to one server. Each gateway has its own addresses, and only
            // loopback addresses are the same on all of them, unless it is the only replica.
            let is_here =
                address.is_loopback() || (self.is_only_replica && is_of_this_machine(address));
            let place = if is_here { "loopback" } else { &*host };
            let place = format!("{place}:{port}");
            let is_default = port == if endpoint.tls { 443 } else { 80 };
            let in_urls = if is_default {
                host
            } else {
                format!("{host}:{port}")
            };
            places.push((place, in_urls));
        }
        let is_listed = |host: &str| {
            let mut listed = shared.iter();
            listed.any(|one| one.covers(endpoint.tls, host, "/"))
        };
        let is_shared = may_share
            || is_listed(&endpoint.host)
            || places.iter().any(|(_, host)| is_listed(host));
        let url = endpoint.url();
        let origins = places.into_iter().map(|(place, _)| Origin {
            origin: format!("{scheme} {place}"),
            base: url_base(&url).to_owned(),
            is_shared,
        });
        Ok(origins.collect())
    }
}

/// Name of a URL for push notifications in rejections.
const WEBHOOK: &str = "the URL for push notifications";

/// The arguments are wrong, though the reason is that of the address policy.
const INVALID_PARAMS: i32 = -32_602;

/// Handling of a name that cannot be resolved from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    /// The gateway itself connects to it.
    Required,
    /// A name on the agents' own network, which the gateway may not be on.
    Optional,
}

/// Checked URLs, and their origins.
#[derive(Clone)]
pub(crate) struct VettedUrls {
    pub(crate) url: Option<String>,
    pub(crate) internal_url: Option<String>,
    pub(crate) card_url: Option<String>,
    pub(crate) urls: Vec<String>,
    pub(crate) origins: Origins,
}

impl Addresses {
    /// Checks the URL in `member` of a body by the address policy, as for each connection. Returns its
    /// normalized form.
    async fn vet_url(
        &self,
        member: &'static str,
        url: Option<&str>,
        lookup: Lookup,
    ) -> Result<Option<String>, Rejection> {
        let Some(url) = url else { return Ok(None) };
        parse_url(url).map_err(|wrong| invalid(format!("{member} {wrong}")))?;
        let endpoint = Endpoint::parse_as(member, url, &self.resolver.policy())?;
        let asker = LookupFor::for_registration();
        match self.resolver.resolve(&endpoint, asker, &mut ()).await {
            Err(refusal)
                if refusal.reason == Reason::AddressForbidden || lookup == Lookup::Required =>
            {
                Err(refusal)
            }
            Ok(_) | Err(_) => Ok(Some(endpoint.url())),
        }
    }

    /// Checks the URLs of a registration, a creation or a change of `id`: `url`, `internal_url` and `card_url`, and
    /// `urls`, those of instances; `may_share` as in [`Addresses::origins_of`].
    pub(crate) async fn vet_urls(
        &self,
        id: &WorkspaceId,
        [url, internal_url, card_url]: [Option<&str>; 3],
        urls: &[String],
        may_share: bool,
    ) -> Result<VettedUrls, Rejection> {
        let url = self.vet_url("url", url, Lookup::Required).await?;
        let internal_url = self.vet_url("internal_url", internal_url, Lookup::Optional);
        let internal_url = internal_url.await?;
        let card_url = self.vet_url("card_url", card_url, Lookup::Required);
        let card_url = card_url.await?;
        let mut each = Vec::with_capacity(urls.len());
        for url in urls {
            each.push(self.vet_url("urls", Some(url), Lookup::Required));
        }
        let vetted: Vec<String> = try_join_all(each).await?.into_iter().flatten().collect();
        let mut urls = vec![url.as_deref(), internal_url.as_deref(), card_url.as_deref()];
        urls.extend(vetted.iter().map(|url| Some(url.as_str())));
        let origins = self.origins_of(id, urls, may_share).await?;
        Ok(VettedUrls {
            url,
            internal_url,
            card_url,
            urls: vetted,
            origins,
        })
    }

    /// Checks the URL of a waker like that of an agent. Returns its normalized form.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`, `agent_unreachable` (its name has no address).
    pub(crate) async fn vet_waker(&self, url: &str) -> Result<String, Rejection> {
        let vetted = self
            .vet_url("wake.url", Some(url), Lookup::Required)
            .await?;
        Ok(vetted.unwrap_or_default())
    }

    /// Returns a URL that an operator named, which rejections call `title`, as an endpoint, with the address to dial.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable` (its name has no address).
    pub async fn resolve_url(
        &self,
        title: &'static str,
        url: &str,
    ) -> Result<(Endpoint, SocketAddr), Rejection> {
        let endpoint = Endpoint::parse_as(title, url, &self.resolver.policy())?;
        let asker = LookupFor::for_call(Account::default());
        let (address, _) = self.resolver.resolve(&endpoint, asker, &mut ()).await?;
        Ok((endpoint, address))
    }

    /// Checks a URL for push notifications like the URL of an agent. A name without an address here is
    /// rejected, since its meaning at the agent is unknown.
    ///
    /// `account`: the account of the look-up.
    ///
    /// The agent resolves the name again when it calls, which the gateway cannot check.
    ///
    /// # Errors
    /// `address_forbidden`, with the code of invalid params.
    pub async fn vet_webhook(&self, url: &str, account: Account) -> Result<(), Rejection> {
        let judged = async {
            let endpoint = Endpoint::parse_as(WEBHOOK, url, &self.resolver.policy())?;
            let asker = LookupFor::for_url(account);
            self.resolver.resolve(&endpoint, asker, &mut ()).await
        };
        // Without its cause: callers could fill the log with it.
        judged.await.map(drop).map_err(|refusal| {
            Rejection::new(Reason::AddressForbidden, refusal.message).with_rpc_code(INVALID_PARAMS)
        })
    }
}
