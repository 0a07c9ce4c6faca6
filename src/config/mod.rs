//! The settings of an operator, one struct per section. `config/default.toml` documents each key
//! and its default; it is embedded and always the lowest layer.
//!
//! [`load`] merges the layers and checks the result; [`value`] parses values; [`live`] holds the
//! configuration in force, and [`reload`] replaces it.

mod admin;
mod audit;
mod auth;
mod calls;
mod cap;
mod capacity;
mod check;
mod delegation;
mod delivery;
pub(crate) mod exposure;
mod file;
mod forward;
mod guard;
mod issuers;
mod layer;
pub mod live;
pub mod load;
mod pattern;
mod rate;
pub mod reload;
mod restart;
mod scope;
mod sign_in;
pub mod store_url;
mod tables;
mod telemetry;
pub mod tls_pair;
mod trusted;
pub mod value;
mod wake;

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

pub use a2a::CompletionMode;
use ipnet::IpNet;
use serde::Deserialize;

pub use self::admin::{Admin, AdminAuth};
pub use self::audit::{Audit, AuditAnchor, ClientAddress};
pub use self::auth::{Auth, AuthMode};
pub use self::calls::{A2a, Bridging, RefusalStatus};
pub use self::cap::{Cap, CapCount, CapPer};
pub use self::capacity::{Affinity, Breaker, Concurrency, Upstream};
pub use self::delegation::Delegation;
pub use self::delivery::{Idempotency, Stream};
pub use self::exposure::refuse_exposed;
pub use self::file::open_regular;
pub use self::forward::{
    Forward, NEVER_TO_AGENTS, PASSED_FROM_AGENTS, PASSED_TO_AGENTS, commands_proxy,
};
pub use self::guard::{Builtin, Guard, GuardMode, GuardPhase, GuardStream, OnFailure};
pub use self::issuers::claims::Part;
pub use self::issuers::{Issuer, WorkspaceIssuer, check_url};
pub use self::live::{Derived, Live};
pub use self::pattern::{Pattern, PatternAction};
pub use self::rate::Rate;
pub use self::restart::RESTART_KEYS;
pub use self::scope::{InvalidScope, Scope};
pub use self::sign_in::{SignIn, SignInRoles};
pub use self::telemetry::{LogFormat, OtlpProtocol, Ratio, Telemetry};
pub use self::tls_pair::ServingTls;
pub use self::trusted::AgentPrefix;
use self::value::{ByteSize, duration, name_servers, secret_url};
pub use self::wake::{Wake, WakeTemplate};
use crate::closed_set::words;
use crate::ids::WorkspaceId;

/// The whole configuration, an immutable value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// URL prefixes of agents that may have any address except those of metadata services.
    pub trusted_agents: Vec<AgentPrefix>,
    /// `[[cap]]`
    #[serde(default)]
    pub cap: Vec<Cap>,
    /// `[[guard]]`, in the order in which they are asked.
    #[serde(default)]
    pub guard: Vec<Guard>,
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[stores]`
    pub stores: Stores,
    /// `[auth]`
    pub auth: Auth,
    /// `[access]`
    pub access: Access,
    /// `[a2a]`
    pub a2a: A2a,
    /// `[card]`
    pub card: Card,
    /// `[timeouts]`
    pub timeouts: Timeouts,
    /// `[limits]`
    pub limits: Limits,
    /// `[stream]`
    pub stream: Stream,
    /// `[idempotency]`
    pub idempotency: Idempotency,
    /// `[upstream]`
    pub upstream: Upstream,
    /// `[breaker]`
    pub breaker: Breaker,
    /// `[concurrency]`
    pub concurrency: Concurrency,
    /// `[forward]`
    pub forward: Forward,
    /// `[registry]`
    pub registry: Registry,
    /// `[directory]`
    pub directory: Directory,
    /// `[address]`
    pub address: Address,
    /// `[keys]`
    pub keys: Keys,
    /// `[tokens]`
    pub tokens: Tokens,
    /// `[cors]`
    pub cors: Cors,
    /// `[canvas]`
    pub canvas: Canvas,
    /// `[events]`
    pub events: Events,
    /// `[inbox]`
    pub inbox: Inbox,
    /// `[delegation]`
    pub delegation: Delegation,
    /// `[wake]`
    pub wake: Wake,
    /// `[affinity]`
    pub affinity: Affinity,
    /// `[rate]`
    pub rate: Rate,
    /// `[audit]`
    pub audit: Audit,
    /// `[telemetry]`
    pub telemetry: Telemetry,
}

/// `[server]`: the public listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Address for callers.
    pub listen: SocketAddr,
    /// The base URL for callers; `None`: from `listen`. Resolved by [`Config::public_url`].
    pub public_url: Option<url::Url>,
    /// Accepted `Host` values besides the loopback names and `public_url`'s.
    pub hosts: Vec<String>,
    /// The name of this gateway among its replicas; `None`: the machine's host name.
    pub replica: Option<String>,
    /// Certificate chain and key, both or neither.
    pub tls: Tls,
    /// Proxies from which `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Threads that serve callers; 0: one per core. Resolved by [`Server::threads`].
    pub threads: usize,
    /// Maximum open connections of callers.
    pub max_connections: usize,
    /// Maximum open connections of one address; 0: no limit.
    pub connections_per_address: usize,
    /// Maximum exchanges in progress.
    pub max_exchanges: usize,
    /// Longest wait of a connection for its next request.
    #[serde(with = "duration")]
    pub keepalive: Duration,
    /// Longest shutdown after SIGTERM: the time for running exchanges to end.
    #[serde(with = "duration")]
    pub drain: Duration,
}

impl Server {
    /// Returns the number of threads that serve callers.
    pub fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        }
    }
}

/// `[server.tls]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM certificate chain.
    pub cert: Option<PathBuf>,
    /// PEM private key.
    pub key: Option<PathBuf>,
    /// PEM certificates of the issuers of callers' certificates; `None`: callers need none.
    pub client_ca: Option<PathBuf>,
    /// The content of the files when they were last read and valid.
    #[serde(skip)]
    pub serving: Option<ServingTls>,
}

impl Tls {
    /// Returns the configured files.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert, &self.key, &self.client_ca]
            .into_iter()
            .flatten()
    }
}

/// `[stores]`: durable facts and shared state.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stores {
    /// `sqlite:PATH` or `postgres://…`. Secret, since it may contain a password.
    #[serde(with = "secret_url")]
    pub sql: secrecy::SecretString,
    /// `memory`, `redis://…` or `rediss://…`. Secret, since it may contain a password.
    #[serde(with = "secret_url")]
    pub shared: secrecy::SecretString,
    /// Longest wait for one response of a store.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Maximum pooled SQL connections.
    pub sql_connections: u32,
}

/// `[access]`: the hierarchy rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Reach of the rule between ancestors and descendants.
    pub lineage: LineageReach,
}

/// `access.lineage`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LineageReach {
    /// Parent and child only.
    Direct,
    /// Any ancestor and any descendant.
    Any,
}

/// `[card]`: processing of agents' cards.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Readers of a workspace's card; a workspace can override it.
    pub access: CardAccess,
    /// True if the gateway signs the cards that it serves.
    pub sign: bool,
    /// True if cards declare the gateway's bearer scheme instead of the agent's schemes.
    pub declare_security: bool,
}

words! {
    /// `card.access`, also per workspace.
    CardAccess {
        /// All clients, without a credential.
        Public => "public",
        /// Callers that may reach the workspace.
        Private => "private",
    }
}

/// `[timeouts]`: one timeout for each wait.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    /// TCP and TLS to the agent.
    #[serde(with = "duration")]
    pub connect: Duration,
    /// Request sent to response head.
    #[serde(with = "duration")]
    pub head: Duration,
    /// Silence between two pieces of a response.
    #[serde(with = "duration")]
    pub idle: Duration,
    /// A unary exchange as a whole.
    #[serde(with = "duration")]
    pub total: Duration,
    /// A stream as a whole.
    #[serde(with = "duration")]
    pub stream: Duration,
    /// A request head, from its first byte to its last.
    #[serde(with = "duration")]
    pub request_head: Duration,
    /// The caller's body, first byte to last.
    #[serde(with = "duration")]
    pub request_body: Duration,
    /// One write to a caller that does not read.
    #[serde(with = "duration")]
    pub write: Duration,
    /// Upper bound of `X-Timeout`.
    #[serde(with = "duration")]
    pub max: Duration,
}

/// `[limits]`: one limit for each buffer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// A request body.
    pub request_bytes: ByteSize,
    /// All bodies of calls together, from their first byte until they are forwarded.
    pub bodies_bytes: ByteSize,
    /// All bodies of requests to the control plane together, from their first byte until they are answered.
    pub control_bodies_bytes: ByteSize,
    /// A policy: the body of `POST /policy`.
    pub policy_bytes: ByteSize,
    /// Maximum workspaces, and grants, that a policy is made of.
    pub policy_workspaces: usize,
    /// A unary response body.
    pub response_bytes: ByteSize,
    /// A stream as a whole.
    pub stream_bytes: ByteSize,
    /// Maximum bytes of one event that is translated.
    pub event_bytes: ByteSize,
    /// Maximum calls in progress at one target; a workspace can override it.
    pub target_concurrency: usize,
    /// Maximum calls that wait for a place at one target. 0: none.
    pub target_queue: usize,
    /// Longest wait for a place.
    #[serde(with = "duration")]
    pub target_queue_wait: Duration,
    /// Maximum bytes kept in SQL for one workspace or other caller.
    pub kept_bytes: ByteSize,
    /// Maximum bytes kept in SQL for all callers together.
    pub kept_bytes_total: ByteSize,
}

/// `[registry]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// Lease of a heartbeat.
    #[serde(with = "duration")]
    pub heartbeat_ttl: Duration,
    /// Servers on which several workspaces may register agents.
    pub shared_origins: Vec<AgentPrefix>,
    /// True if an address that another program writes to the shared state moves the agent's credential along.
    pub shared_addresses_move_credentials: bool,
}

/// `[directory]`: look-up of agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Longest use of a cached entry while no store responds.
    #[serde(with = "duration")]
    pub stale: Duration,
    /// Maximum workspaces in each memory cache; lineages: twice as many.
    pub cache_entries: u64,
    /// Shared-state key of the host-mapped URL; `{id}` is the workspace.
    pub url_key: String,
    /// Shared-state key of the URL on the container network.
    pub internal_url_key: String,
    /// Shared-state key of the last heartbeat.
    pub heartbeat_key: String,
}

/// `[address]`: allowed addresses (`docs/design/security.md`, "Addresses that the gateway connects to (SSRF)").
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// `default` or `strict`.
    pub profile: AddressProfile,
    /// Loopback and private ranges that are allowed. Ignored by `strict`.
    pub allow: Vec<IpNet>,
    /// DNS servers for agents' names. Empty: the system's resolver.
    #[serde(with = "name_servers")]
    pub nameservers: Vec<SocketAddr>,
}

/// `address.profile`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AddressProfile {
    /// The ranges in `address.allow` are allowed.
    Default,
    /// Public addresses only.
    Strict,
}

/// `[keys]`: trust keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Folder of the keys, which are created at the first start.
    pub dir: PathBuf,
    /// File of the sealing key; `None`: `seal.key` in `dir`.
    pub seal_key: Option<PathBuf>,
}

/// `[tokens]`: signed tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// `iss` of the gateway's tokens; `None`: the public URL. Resolved by [`Config::issuer`].
    pub issuer: Option<String>,
    /// Lifetime of a pair token from discovery.
    #[serde(with = "duration")]
    pub pair_ttl: Duration,
}

/// `[canvas]`: the page that talks with agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canvas {
    /// True if it is served at `/canvas/` of the public listener.
    pub enabled: bool,
}

/// `[cors]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Allowed origins, exactly as browsers send them.
    pub origins: Vec<String>,
}

/// `[events]`: sockets and event streams for observers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Maximum open sockets and event streams.
    pub connections: usize,
    /// Maximum for one caller.
    pub connections_per_caller: usize,
}

/// `[inbox]`: messages that wait for their agent to fetch them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inbox {
    /// Maximum unacknowledged entries of one inbox, and as many acknowledged ones.
    pub max_messages: i64,
    /// Retention of entries.
    #[serde(with = "duration")]
    pub retention: Duration,
    /// Maximum feeds and waiting requests at once.
    pub connections: usize,
    /// Maximum for one caller.
    pub connections_per_caller: usize,
}

impl Config {
    /// Returns the base URL for callers, without a trailing slash.
    pub fn public_url(&self) -> String {
        let scheme = if self.server.tls.cert.is_some() {
            "https"
        } else {
            "http"
        };
        self.server
            .public_url
            .as_ref()
            .map_or_else(
                || format!("{scheme}://{}", self.server.listen),
                ToString::to_string,
            )
            .trim_end_matches('/')
            .to_owned()
    }

    /// Returns the base URL of a workspace's A2A routes.
    pub fn base_of(&self, id: &WorkspaceId) -> String {
        format!("{}/workspaces/{id}/a2a", self.public_url())
    }

    /// Returns `iss` of the gateway's tokens.
    pub fn issuer(&self) -> String {
        self.tokens
            .issuer
            .clone()
            .unwrap_or_else(|| self.public_url())
    }
}
