//! Destination of the messages to a workspace: its agent or its inbox, or the reason why it cannot be reached.
//!
//! JSON-RPC path in a registered card. It counts for an agent that is registered by its host alone, since many
//! agents take calls at a path below it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use url::{Host, Url};

use super::CachedInstance;
use crate::address::{AddressDecision, Addresses, AgentAddress, Endpoint, LookupFor, is_private};
use crate::capacity::TargetSlots;
use crate::core::Core;
use crate::liveness::{AgentUrls, Pulse};
use crate::rejections::{RETRY_AFTER, workspace_removed};
use crate::upstream::{UpstreamAuth, UpstreamTls};
use a2a::Generation;
use a2a::card::{AgentSides, Binding, Card, Carrier, says_push};
use access::workspace::{CallerProof, DeliveryMode, Liveness, Status, Workspace, url_base};
use kernel::config::{Bridging, ChainMode, CompletionMode, Config, Transport};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;

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
    /// Org of the workspace.
    pub org: Option<Arc<str>>,
    /// Generation of A2A in its card.
    pub generation: Generation,
    /// The sides on which it can be called, by its registered card.
    pub spoken: AgentSides,
    /// Translation of calls that it does not speak.
    pub bridge: Bridging,
    /// What carries calls where its card names several interfaces; `None`: what the caller uses.
    pub transport: Option<Carrier>,
    /// True if it registered a card that says what it speaks. Otherwise its own card may.
    pub has_card: bool,
    /// True if only the card URL of its agent is registered: the server is known, and the path for calls is in
    /// the card.
    pub path_in_card: bool,
    /// True if callers may ask it for push notifications.
    pub push_notifications: bool,
    /// Completion mode for incomplete calls.
    pub complete: CompletionMode,
}

impl AgentOptions {
    /// Returns the registered options of a workspace.
    pub(crate) fn from_workspace(workspace: &Workspace, config: &Config) -> Self {
        let card = workspace.agent_card.as_ref();
        let spoken = card.and_then(|card| Card::parse(card.get().as_bytes()).ok());
        let spoken = spoken.map_or_else(AgentSides::default, |card| AgentSides::from_card(&card));
        let card: Option<serde_json::Value> =
            card.and_then(|card| serde_json::from_str(card.get()).ok());
        let says_no_push = card.as_ref().and_then(says_push) == Some(false);
        Self {
            org: workspace.org.as_deref().map(Arc::from),
            generation: card.map_or_else(Generation::default, |card| Generation::from_card(&card)),
            has_card: !spoken.is_unknown(),
            spoken,
            bridge: workspace.bridge.unwrap_or(config.a2a.bridge),
            transport: match workspace.transport.unwrap_or(Transport::Auto) {
                Transport::Auto => None,
                Transport::JsonRpc => Some(Carrier::JsonRpc),
                Transport::HttpJson => Some(Carrier::HttpJson),
                Transport::Grpc => Some(Carrier::Grpc),
            },
            path_in_card: false,
            push_notifications: workspace
                .push_notifications
                .unwrap_or(config.a2a.push_notifications)
                && !says_no_push,
            complete: workspace.complete.unwrap_or(config.a2a.complete),
        }
    }
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
    /// Proof in the caller tokens that it gets.
    pub proof: CallerProof,
    /// The calls with which it gets a chain token.
    pub chain: ChainMode,
    /// Credential that the agent requires of its callers.
    pub upstream_auth: Option<UpstreamAuth>,
    /// Certificates that verify it, and the gateway's client certificate. `None`: the system's, and none.
    pub upstream_tls: Option<UpstreamTls>,
    /// Cached decision about its addresses.
    pub address_decision: Arc<AddressDecision>,
    /// Slots for calls in progress.
    pub slots: TargetSlots,
    /// Instance of the workspace; `None`: the workspace has no named instances.
    pub instance: Option<InstanceId>,
    /// Instances that can be called, this one among them; empty without named instances.
    pub instances: Box<[Instance]>,
}

impl Agent {
    /// Returns its instances; itself, if it has none.
    pub(super) fn each(&self) -> impl Iterator<Item = &Self> {
        let own = self.instances.is_empty().then_some(self);
        let instances = self.instances.iter().map(|one| &*one.agent);
        own.into_iter().chain(instances)
    }

    /// Returns the place of a gRPC interface of its card, with the addresses to dial: at its own host, or at one that
    /// the address policy opens. A place at another host gets no credential that was registered for the agent's.
    ///
    /// # Errors
    /// As [`Addresses::agent_address`]; `address_forbidden`, also without TLS to an address that is not private.
    pub async fn grpc_address(
        &self,
        addresses: &Addresses,
        url: &str,
        asker: LookupFor,
    ) -> Result<(Endpoint, AgentAddress), Rejection> {
        let scheme = match self.upstream_tls {
            Some(_) => "https://",
            None => "http://",
        };
        let mut endpoint = addresses.parse_grpc(url, scheme)?;
        let is_own = endpoint.sni == self.endpoint.sni;
        if !is_own && self.upstream_auth.is_some() {
            return Err(refuse_grpc(
                "is at another host than the agent's URL, and the workspace has upstream_auth: register the URL at that host",
            ));
        }
        let mut decision = AddressDecision::new(&self.id);
        if is_own {
            endpoint.only = self.endpoint.only;
            decision = Arc::clone(&self.address_decision);
        }
        let mut witness = ();
        let address = addresses.agent_address(&decision, &endpoint, asker, &mut witness);
        let address = address.await?;
        if !endpoint.tls && !address.in_order().all(|at| is_private(at.ip())) {
            return Err(refuse_grpc(
                "is without TLS at a public address: write https:// before it, or set upstream_tls",
            ));
        }
        Ok((endpoint, address))
    }

    /// Returns the slots of each place that takes calls that are bound to none: its own, or those of its instances.
    pub fn open_slots(&self) -> impl Iterator<Item = &TargetSlots> {
        let own = self.instances.is_empty().then_some(&self.slots);
        let instances = self.instances.iter().filter(|one| !one.is_draining);
        own.into_iter().chain(instances.map(|one| &one.agent.slots))
    }
}

fn refuse_grpc(rule: &str) -> Rejection {
    let message = format!("the gRPC interface in the agent's card {rule}");
    Rejection::new(Reason::AddressForbidden, message)
}

/// Instance of a workspace's agent that can be called.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The agent at its own endpoint, with its own slots and no further instances.
    pub agent: Arc<Agent>,
    /// True if it takes only calls that are bound to it.
    pub is_draining: bool,
}

// Finds the destination of the messages to a workspace, from its values in the stores.
impl Core {
    /// Returns the destination of messages, or the reason why there is none.
    pub(super) fn find_destination(
        &self,
        workspace: &Workspace,
        urls: &AgentUrls,
        pulse: Pulse,
        instances: &[CachedInstance],
    ) -> Result<Destination, Rejection> {
        if let Some(inbox) = self.by_state(workspace, urls).at(Stage::State)? {
            return Ok(inbox);
        }
        if pulse == Pulse::Lapsed {
            return Err(self.reject_silent(workspace, "the workspace has sent no heartbeat"));
        }
        let agent = self.agent_of(workspace, urls, instances);
        agent.map(Destination::Agent)
    }

    /// Returns the agent of a workspace, or the reason why it cannot be called, whatever its status.
    pub(super) fn agent_of(
        &self,
        workspace: &Workspace,
        urls: &AgentUrls,
        instances: &[CachedInstance],
    ) -> Result<Arc<Agent>, Rejection> {
        if !instances.is_empty() {
            return self.one_of(workspace, instances);
        }
        let called_at = called_at(&urls.host, &workspace.card_url, workspace.liveness);
        let endpoint = match called_at {
            Some(url) => self.resolver.parse(url),
            None => Err(self.reject_offline(
                workspace,
                "the workspace has registered no URL to be reached at",
            )),
        };
        let is_moved = self.moved_credential(workspace, urls).is_some();
        let mut agent = self.build_agent(workspace, endpoint.at(Stage::Url)?, None, is_moved)?;
        agent.options.path_in_card = urls.host.is_none();
        Ok(Arc::new(agent))
    }

    /// Returns the place to which another program moved the agent by its URL key, if its credential goes along.
    pub(super) fn moved_credential(
        &self,
        workspace: &Workspace,
        urls: &AgentUrls,
    ) -> Option<String> {
        let goes_along = self.config.get().registry.shared_addresses_move_credentials;
        let url = urls.host.as_deref().filter(|_| urls.shared && goes_along)?;
        let url = self.resolver.parse(url).ok()?.url();
        let is_own = workspace.url.as_deref().map(url_base) == Some(url_base(&url));
        let is_elsewhere = !is_own && !workspace.has_credential_for(&url);
        let has_place = workspace.upstream_auth.is_some() && workspace.upstream_auth_base.is_some();
        (has_place && is_elsewhere).then(|| url_base(&url).to_owned())
    }

    /// Returns the first instance that takes new calls, with all that can be called; if none does, one that drains.
    fn one_of(
        &self,
        workspace: &Workspace,
        instances: &[CachedInstance],
    ) -> Result<Arc<Agent>, Rejection> {
        let mut alive = Vec::new();
        let (mut refused, mut first) = (None, None::<&CachedInstance>);
        for one in instances.iter().filter(|one| one.is_alive()) {
            let is_draining = one.row.is_draining;
            match self.instance_at(workspace, one) {
                Ok(agent) => {
                    let agent = Arc::new(agent);
                    alive.push(Instance { agent, is_draining });
                    if first.is_none_or(|first| first.row.is_draining && !is_draining) {
                        first = Some(one);
                    }
                }
                Err(why) => refused = Some(why),
            }
        }
        let Some(first) = first else {
            let message = "no instance of the workspace has sent a heartbeat";
            return Err(refused.unwrap_or_else(|| self.reject_silent(workspace, message)));
        };
        let mut agent = self.instance_at(workspace, first)?;
        let is_same = |one: &&Instance| one.agent.instance == agent.instance;
        if let Some(same) = alive.iter().find(is_same) {
            agent.address_decision = Arc::clone(&same.agent.address_decision);
        }
        agent.instances = alive.into();
        Ok(Arc::new(agent))
    }

    fn instance_at(
        &self,
        workspace: &Workspace,
        instance: &CachedInstance,
    ) -> Result<Agent, Rejection> {
        let row = &instance.row;
        let mut endpoint = self.resolver.parse(&row.url).at(Stage::Url)?;
        // It cannot be reached once the name does not have that address any more.
        endpoint.only = instance.address;
        self.build_agent(workspace, endpoint, Some(&row.id), row.has_auth)
    }

    /// Result by status: a rejection, the inbox, or `None` if its agent may be called.
    fn by_state(
        &self,
        workspace: &Workspace,
        urls: &AgentUrls,
    ) -> Result<Option<Destination>, Rejection> {
        let polls = workspace.delivery_mode == DeliveryMode::Poll;
        let why = match workspace.status {
            Status::Removed => return Err(workspace_removed()),
            Status::Provisioning | Status::Restarting | Status::Hibernated => {
                return Err(reject_restarting(workspace));
            }
            Status::Paused => "the workspace is paused",
            Status::Failed => "the workspace failed to start",
            // An inbox accepts messages also while its agent is offline.
            Status::Offline | Status::Online | Status::Degraded if polls => {
                let options = AgentOptions::from_workspace(workspace, &self.config.get());
                return Ok(Some(Destination::Inbox(AgentOptions {
                    // No agent would call the URL of the caller.
                    push_notifications: false,
                    ..options
                })));
            }
            Status::Offline if workspace.active_probe().is_some() => {
                "the workspace is offline: its probe fails; it is called again when its agent answers the probe"
            }
            Status::Offline if workspace.liveness == Liveness::Assumed => {
                "the workspace is offline until an operator resumes it (POST /workspaces/{id}/resume)"
            }
            // Deregistered: heartbeats, which the agent may still send, do not bring it back.
            Status::Offline if urls.host.is_none() => {
                "the workspace is offline: it has no URL until its agent registers again"
            }
            Status::Offline => "the workspace is offline: it sends no heartbeat",
            Status::Online | Status::Degraded => return Ok(None),
        };
        Err(self.reject_offline(workspace, why))
    }

    fn reject_silent(&self, workspace: &Workspace, message: &str) -> Rejection {
        let ttl = self.presence.leases.ttl().as_secs();
        let refusal = self.reject_offline(workspace, format!("{message} for {ttl} s"));
        refusal.at(Stage::Liveness)
    }

    fn reject_offline(
        &self,
        workspace: &Workspace,
        message: impl Into<Cow<'static, str>>,
    ) -> Rejection {
        let refusal =
            Rejection::new(Reason::WorkspaceOffline, message).with_retry_after(RETRY_AFTER);
        match self.heartbeats.last_sign_of(workspace) {
            Some(last_seen) => refusal.with_fact("last_seen", last_seen),
            None => refusal,
        }
    }

    /// `is_vouched`: the credential goes to this endpoint, whatever the place for which it was set.
    fn build_agent(
        &self,
        workspace: &Workspace,
        endpoint: Endpoint,
        instance: Option<&InstanceId>,
        is_vouched: bool,
    ) -> Result<Agent, Rejection> {
        let upstream_auth = UpstreamAuth::open(&self.seal, workspace, &endpoint, is_vouched);
        let upstream_auth = upstream_auth.at(Stage::Upstream)?;
        // The private key of a client certificate is never sent, so the certificates go along.
        let upstream_tls = UpstreamTls::open(&self.seal, workspace).at(Stage::Upstream)?;
        if upstream_tls.is_some() && !endpoint.tls {
            let message = "the workspace has certificates for its agent (upstream_tls), and its URL does not begin with \
                https://";
            return Err(Rejection::new(Reason::AddressForbidden, message).at(Stage::Upstream));
        }
        let config = self.config.get();
        let seconds = workspace.idle_timeout_seconds.filter(|s| *s > 0);
        let own_max = workspace.max_concurrent.filter(|max| *max > 0);
        let limit = own_max.map_or(config.limits.target_concurrency, |max| {
            usize::try_from(max).unwrap_or(usize::MAX)
        });
        Ok(Agent {
            id: workspace.id.clone(),
            json_rpc: JsonRpc::from_card(card_text(workspace), &endpoint),
            endpoint,
            options: AgentOptions::from_workspace(workspace, &config),
            idle_timeout: seconds.map(|s| Duration::from_secs(s.into())),
            proof: workspace.proof.unwrap_or_default(),
            chain: workspace.chain.unwrap_or(ChainMode::Person),
            upstream_auth,
            upstream_tls,
            address_decision: AddressDecision::new(&workspace.id),
            slots: self
                .slots
                .for_target((&workspace.id, instance), limit, &config),
            instance: instance.cloned(),
            instances: Box::default(),
        })
    }
}

/// Returns the text of the registered card.
pub(crate) fn card_text(workspace: &Workspace) -> Option<&str> {
    workspace.agent_card.as_deref().map(RawValue::get)
}

/// Returns the URL for calls to the agent. An agent with assumed liveness may have a card URL only.
pub(crate) fn called_at<'u>(
    url: &'u Option<String>,
    card_url: &'u Option<String>,
    liveness: Liveness,
) -> Option<&'u str> {
    let card_url = card_url.as_deref();
    let by_card = card_url.filter(|_| liveness == Liveness::Assumed);
    url.as_deref().or(by_card)
}

fn reject_restarting(workspace: &Workspace) -> Rejection {
    let placed = workspace.url.is_some() || workspace.card_url.is_some();
    let has_registered = workspace.agent_card.is_some();
    let message = match workspace.status {
        Status::Hibernated => "the workspace is hibernated: wake it, then try again",
        Status::Provisioning if has_registered => {
            "the workspace is being provisioned; try again once its agent has registered again"
        }
        Status::Provisioning if placed => {
            "the workspace has not registered yet; try again shortly. If its agent knows nothing of this gateway, an \
             operator sets liveness to assumed (PATCH /workspaces/{id})"
        }
        Status::Provisioning => "the workspace has not registered yet; try again shortly",
        _ => "the workspace is restarting; try again shortly",
    };
    Rejection::new(Reason::WorkspaceRestarting, message).with_retry_after(RETRY_AFTER)
}

/// JSON-RPC interfaces of a registered card, relative to the registered URL.
#[derive(Clone, Debug, Default)]
pub struct JsonRpc {
    /// Paths on the registered server, for calls by generation.
    paths: Vec<(Generation, String)>,
    /// Mismatch between card and URL.
    mismatch: Option<&'static str>,
}

impl JsonRpc {
    /// Reads the interfaces of the agent at `endpoint`.
    pub(crate) fn from_card(card: Option<&str>, endpoint: &Endpoint) -> Self {
        let Some(card) = card.and_then(|card| Card::parse(card.as_bytes()).ok()) else {
            return Self::default();
        };
        // An unreadable URL is ignored.
        let interfaces = card.interfaces(Binding::JsonRpc);
        let interfaces: Vec<_> = interfaces.filter(|one| one.path().is_some()).collect();
        let is_here = |url: &str| is_same_server(url, endpoint);
        let mut paths = Vec::new();
        for interface in interfaces.iter().filter(|one| is_here(&one.url)) {
            paths.extend(interface.path().map(|path| (interface.generation, path)));
        }
        let has_path = endpoint.path_and_query != "/";
        let registered = endpoint.path_and_query.split('?').next().unwrap_or("/");
        let is_registered = |path: &str| {
            let path = path.split('?').next().unwrap_or_default();
            path.trim_end_matches('/') == registered.trim_end_matches('/')
        };
        let fits = interfaces
            .iter()
            .any(|one| one.path().is_some_and(|path| is_registered(&path)));
        let mismatch = match (has_path, paths.is_empty()) {
            _ if fits || interfaces.is_empty() => None,
            (false, false) => None,
            (false, true) => Some(
                "the card has JSON-RPC at another host or port and below a path, and the registered url has no path: \
                 calls go to the registered url; register the url at which the agent takes JSON-RPC",
            ),
            (true, _) => Some(
                "the card has JSON-RPC at another path than the registered url: calls go to the registered url",
            ),
        };
        let counts = !has_path && paths.iter().any(|(_, path)| path != "/");
        Self {
            paths: if counts { paths } else { Vec::new() },
            mismatch,
        }
    }

    /// Returns the path for a call of this generation, if it differs from the registered URL's.
    pub fn path(&self, generation: Generation) -> Option<&str> {
        let same = self.paths.iter().find(|(of, _)| *of == generation);
        let found = same.or_else(|| self.paths.first());
        found.map(|(_, path)| path.as_str())
    }

    /// Returns the path for a call of this method.
    pub fn path_of_method(&self, method: Option<&str>) -> Option<&str> {
        if self.paths.is_empty() {
            return None;
        }
        self.path(method.map_or_else(Generation::default, Generation::of_method))
    }

    /// Returns the mismatch between card and URL, as a sentence.
    pub fn mismatch(&self) -> Option<&'static str> {
        self.mismatch
    }
}

/// True if an interface is on the registered server. Agents on this machine may use any of its names in their
/// card.
fn is_same_server(url: &str, endpoint: &Endpoint) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let is_tls = url.scheme() == "https";
    let Some(host) = url.host() else {
        return false;
    };
    if is_tls != endpoint.tls || url.port_or_known_default() != Some(endpoint.port) {
        return false;
    }
    let written = match &host {
        Host::Domain(name) => name.trim_end_matches('.').to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    written == endpoint.sni || (is_local(&written) && is_local(&endpoint.sni))
}

fn is_local(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|a| a.is_loopback() || a.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Policy;

    /// The policy of the shipped configuration.
    fn shipped() -> Policy {
        Policy::new(&toml::from_str(kernel::config::load::DEFAULT).unwrap())
    }

    fn of(url: &str, card_url: &str) -> JsonRpc {
        let endpoint = Endpoint::parse(url, &shipped()).unwrap();
        let card = format!(r#"{{"name":"a","protocolVersion":"0.3.0","url":"{card_url}"}}"#);
        JsonRpc::from_card(Some(&card), &endpoint)
    }

    #[test]
    fn the_card_says_the_path_where_the_url_has_none() {
        for (url, card_url, path, fits) in [
            (
                "http://a.test:9000",
                "http://a.test:9000/rpc",
                Some("/rpc"),
                true,
            ),
            (
                "http://127.0.0.1:9000/",
                "http://localhost:9000/rpc",
                Some("/rpc"),
                true,
            ),
            (
                "http://127.0.0.1:9000/",
                "http://0.0.0.0:9000/rpc/",
                Some("/rpc/"),
                true,
            ),
            (
                "http://a.test:9000/",
                "http://a.test:9000/rpc?code=KEY",
                Some("/rpc?code=KEY"),
                true,
            ),
            ("http://a.test:9000/", "http://a.test:9000/", None, true),
            ("http://a.test:9000/", "http://b.test/", None, true),
            ("http://a.test:9000/", "http://b.test:9000/rpc", None, false),
            ("http://a.test:9000/", "http://a.test:9001/rpc", None, false),
            (
                "http://a.test:9000/",
                "https://a.test:9000/rpc",
                None,
                false,
            ),
            (
                "http://a.test:9000/x",
                "http://a.test:9000/rpc",
                None,
                false,
            ),
            (
                "http://a.test:9000/rpc",
                "http://a.test:9000/rpc/",
                None,
                true,
            ),
            ("http://a.test:9000/", "no url", None, true),
        ] {
            let found = of(url, card_url);
            assert_eq!(found.path(Generation::V0), path, "{url} {card_url}");
            assert_eq!(found.mismatch().is_none(), fits, "{url} {card_url}");
        }
    }

    #[test]
    fn a_method_goes_to_the_interface_of_its_generation() {
        let card = r#"{"name":"a","protocolVersion":"0.3.0","url":"http://a.test/old","supportedInterfaces":[
            {"url":"http://a.test/new","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}"#;
        let endpoint = Endpoint::parse("http://a.test", &shipped()).unwrap();
        let found = JsonRpc::from_card(Some(card), &endpoint);
        assert_eq!(found.path_of_method(Some("message/send")), Some("/old"));
        assert_eq!(found.path_of_method(Some("SendMessage")), Some("/new"));
    }
}
