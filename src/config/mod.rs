//! What an operator can set. One struct a section; the documentation of each key, with its
//! default, is `config/default.toml`, which is embedded and always the lowest layer.
//!
//! Loading (layers, overrides, checks across keys) is in [`load`]; forms of values in [`value`]; the
//! one in force in [`live`], and its replacement in [`reload`].

mod admin;
mod audit;
mod check;
mod delegation;
mod delivery;
pub(crate) mod exposure;
mod file;
mod forward;
mod issuers;
mod layer;
pub mod live;
pub mod load;
mod rate;
pub mod reload;
mod restart;
mod store_url;
mod telemetry;
pub mod tls_pair;
mod trusted;
pub mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

pub use self::admin::{Admin, AdminAuth};
pub use self::audit::{Audit, AuditAnchor, ClientAddress};
pub use self::delegation::Delegation;
pub use self::delivery::{Idempotency, Stream};
pub use self::exposure::refuse_exposed;
pub use self::file::open_regular;
pub use self::forward::{Forward, commands_proxy};
pub use self::issuers::Issuer;
pub use self::live::{Derived, Live};
pub use self::rate::Rate;
pub use self::restart::RESTART_KEYS;
pub use self::telemetry::{LogFormat, OtlpProtocol, Ratio, Telemetry};
pub use self::tls_pair::Serving;
pub use self::trusted::AgentPrefix;
use self::value::{ByteSize, duration, name_servers, secret_url};
use crate::ids::WorkspaceId;

/// The whole configuration, as one immutable value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Agents that may be anywhere but at metadata services, by prefixes of their URLs.
    pub trusted_agents: Vec<AgentPrefix>,
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
    /// Where callers connect.
    pub listen: SocketAddr,
    /// The base URL that callers use; `None`: from `listen`. Resolved by [`Config::public_url`].
    pub public_url: Option<url::Url>,
    /// `Host` values that are ours besides the loopback names and `public_url`'s.
    pub hosts: Vec<String>,
    /// What this gateway is called among its replicas; `None`: the machine's host name.
    pub replica: Option<String>,
    /// Certificate chain and key, both or neither.
    pub tls: Tls,
    /// Proxies whose `X-Forwarded-For` says who the client is.
    pub trusted_proxies: Vec<IpNet>,
    /// Worker threads; 0: one a core.
    pub threads: usize,
    /// Open caller connections at most.
    pub max_connections: usize,
    /// The same of one address; 0: no limit.
    pub connections_per_address: usize,
    /// Exchanges in progress at most.
    pub max_exchanges: usize,
    /// How long a connection may wait for its next request.
    #[serde(with = "duration")]
    pub keepalive: Duration,
    /// How long running exchanges may take to end after SIGTERM.
    #[serde(with = "duration")]
    pub drain: Duration,
}

/// `[server.tls]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM certificate chain.
    pub cert: Option<PathBuf>,
    /// PEM private key.
    pub key: Option<PathBuf>,
    /// PEM certificates of those who sign callers' certificates; `None`: callers need none.
    pub client_ca: Option<PathBuf>,
    /// What the files held when they were last read and found good.
    #[serde(skip)]
    pub serving: Option<Serving>,
}

impl Tls {
    /// The files that are set.
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
    /// `sqlite:PATH` or `postgres://…`. May carry a password, hence secret.
    #[serde(with = "secret_url")]
    pub sql: secrecy::SecretString,
    /// `memory`, `redis://…` or `rediss://…`. May carry a password, hence secret.
    #[serde(with = "secret_url")]
    pub shared: secrecy::SecretString,
    /// Longest wait for one answer of a store.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Pooled SQL connections at most.
    pub sql_connections: u32,
}

/// `[auth]`: who may prove themselves how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// Whether a request without a credential may act as the canvas.
    pub mode: AuthMode,
    /// SHA-256 of the admin tokens, in hexadecimal.
    pub admin_token_sha256: Vec<value::Sha256Hex>,
    /// The operator's token from the environment. No key: it stands in no file.
    #[serde(skip)]
    pub admin_token: Option<secrecy::SecretString>,
    /// Who else signs canvas tokens.
    pub issuers: Vec<Issuer>,
}

/// `auth.mode`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every request proves who it is from.
    Token,
    /// Development on loopback: no credential means the canvas.
    Open,
}

/// `[access]`: the hierarchy rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Whether ancestors beyond the parent count.
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

/// `[a2a]`: what the gateway does to a call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct A2a {
    /// How much of an incomplete call is filled in.
    pub complete: Complete,
    /// Whose card stands at `/.well-known/agent-card.json`.
    #[serde(default, deserialize_with = "value::workspace_id")]
    pub default_workspace: Option<WorkspaceId>,
    /// Whether callers may ask for push notifications, unless the workspace says otherwise.
    pub push_notifications: bool,
    /// How long a task's owner is remembered after the last use.
    #[serde(with = "duration")]
    pub task_ttl: Duration,
    /// Tasks of one caller whose owner is remembered.
    pub tasks_per_caller: i64,
}

/// `[card]`: what the gateway does to agents' cards.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Who may read the card of a workspace that says nothing of it.
    pub access: CardAccess,
    /// Whether the gateway signs the cards that it serves.
    pub sign: bool,
    /// Whether a card declares the gateway's bearer scheme in the place of the agent's.
    pub declare_security: bool,
}

/// `card.access`, also per workspace.
#[derive(Clone, Copy, Debug, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CardAccess {
    /// Anyone, without a credential.
    Public,
    /// Callers that may reach the workspace.
    Private,
}

/// `a2a.complete`, also per workspace.
#[derive(Clone, Copy, Debug, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Complete {
    /// Envelope and message.
    Full,
    /// Only bodies without `jsonrpc`.
    Bare,
    /// Nothing: bytes pass, or are refused.
    Off,
}

/// `[timeouts]`: one clock for each wait.
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

/// `[limits]`: one bound for each buffer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// A request body.
    pub request_bytes: ByteSize,
    /// All bodies of calls together, from their first byte until they are forwarded.
    pub bodies_bytes: ByteSize,
    /// All bodies of requests to the control plane together, from their first byte until they are answered.
    pub control_bodies_bytes: ByteSize,
    /// A unary response body.
    pub response_bytes: ByteSize,
    /// A stream as a whole.
    pub stream_bytes: ByteSize,
    /// Calls in progress at one target, unless the workspace says otherwise.
    pub target_concurrency: usize,
    /// What is kept in SQL for one workspace or other caller.
    pub kept_bytes: ByteSize,
    /// What is kept in SQL for all of them together.
    pub kept_bytes_total: ByteSize,
}

/// `[upstream]`: connections to agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// How long an unused connection is kept.
    #[serde(with = "duration")]
    pub idle: Duration,
}

/// `[registry]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    /// How long a heartbeat counts.
    #[serde(with = "duration")]
    pub heartbeat_ttl: Duration,
    /// Servers at which several workspaces may register their agents.
    pub shared_origins: Vec<AgentPrefix>,
}

/// `[directory]`: where addresses are found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// How long an entry may be served when no store answers.
    #[serde(with = "duration")]
    pub stale: Duration,
    /// Workspaces kept in memory at most, in each cache; of lineages twice as many.
    pub cache_entries: u64,
    /// Shared-state key of the host-mapped URL; `{id}` is the workspace.
    pub url_key: String,
    /// Shared-state key of the URL on the container network.
    pub internal_url_key: String,
    /// Shared-state key of the last heartbeat.
    pub heartbeat_key: String,
}

/// `[address]`: where the gateway may connect to (contract §7.4).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// `default` or `strict`.
    pub profile: AddressProfile,
    /// Loopback and private ranges that are allowed. Ignored by `strict`.
    pub allow: Vec<IpNet>,
    /// DNS servers that are asked for agents' names. Empty: the system's resolver is.
    #[serde(with = "name_servers")]
    pub nameservers: Vec<SocketAddr>,
}

/// `address.profile`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum AddressProfile {
    /// `address.allow` counts.
    Default,
    /// Public addresses only.
    Strict,
}

/// `[keys]`: trust keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Folder of the keys that are made at first start.
    pub dir: PathBuf,
    /// The file of the key that seals; `None`: `seal.key` in `dir`.
    pub seal_key: Option<PathBuf>,
}

/// `[tokens]`: signed tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// `iss` of what this gateway signs; `None`: the public URL. Resolved by [`Config::issuer`].
    pub issuer: Option<String>,
    /// How long a pair token from discovery lasts.
    #[serde(with = "duration")]
    pub pair_ttl: Duration,
}

/// `[canvas]`: the page that talks with agents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Canvas {
    /// Whether it is at `/canvas/` of the public listener.
    pub enabled: bool,
}

/// `[cors]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins whose pages may call, exactly as browsers send them.
    pub origins: Vec<String>,
}

/// `[events]`: who watches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// Open sockets and event streams at most.
    pub connections: usize,
    /// The same of one caller.
    pub connections_per_caller: usize,
}

/// `[inbox]`: messages that wait to be fetched.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inbox {
    /// Entries of one inbox that are not acknowledged at most, and as many that are.
    pub max_messages: i64,
    /// How long any entry is kept.
    #[serde(with = "duration")]
    pub retention: Duration,
    /// Feeds and waits at once at most.
    pub connections: usize,
    /// The same of one caller.
    pub connections_per_caller: usize,
}

impl Config {
    /// The base URL that callers use, without a trailing slash.
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

    /// Where callers reach the agent of a workspace: the base of its routes.
    pub fn base_of(&self, id: &WorkspaceId) -> String {
        format!("{}/workspaces/{id}/a2a", self.public_url())
    }

    /// `iss` of what this gateway signs.
    pub fn issuer(&self) -> String {
        self.tokens
            .issuer
            .clone()
            .unwrap_or_else(|| self.public_url())
    }
}
