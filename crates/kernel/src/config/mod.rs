//! The settings of an operator, one struct per section. `config/default.toml` documents each key
//! and its default; it is embedded and always the lowest layer.
//!
//! [`load`] merges the layers and checks the result; [`value`] parses values; [`live`] holds the
//! configuration in force, and [`reload`] replaces it.

/// Declares sections: structs of public fields without unknown keys. A type may name its parser in [`value`] after
/// `as`.
macro_rules! sections {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $key:ident: $kind:ty $(as $parser:literal)?,)*
    })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$doc])* $(#[serde(deserialize_with = $parser)])? pub $key: $kind,)*
        }
    )*};
}

/// Adds the reasons of the rows whose conditions are true to a list of texts.
macro_rules! list {
    ($list:expr; $($wrong:expr => $reason:literal $(, $value:expr)*;)*) => {$(
        if $wrong {
            $list.push(format!($reason $(, $value)*));
        }
    )*};
}

/// Adds a problem of the key of each row whose condition is true to the checks.
macro_rules! refuse {
    ($checks:expr; $($first:ident $(.$rest:ident)* if $wrong:expr => $reason:literal;)*) => {$(
        if $wrong {
            let _is_a_key = &$checks.config.$first $(.$rest)*;
            $checks.add_problem(concat!(stringify!($first) $(, ".", stringify!($rest))*), format!($reason));
        }
    )*};
}

mod audit;
mod cap;
mod check;
pub(crate) mod exposure;
mod forward;
mod guard;
mod issuers;
mod layer;
pub mod live;
pub mod load;
pub mod reload;
mod require;
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
use secrecy::SecretString;
use serde::Deserialize;
use url::Url;

pub use self::audit::{Audit, AuditAnchor, ClientAddress};
pub use self::cap::{Cap, CapCount, CapPer};
pub use self::exposure::{open_regular, refuse_exposed};
pub use self::forward::{
    Forward, NEVER_TO_AGENTS, PASSED_FROM_AGENTS, PASSED_TO_AGENTS, commands_proxy,
};
pub use self::guard::{
    Builtin, Guard, GuardMode, GuardPhase, GuardStream, OnFailure, Pattern, PatternAction,
};
pub use self::issuers::claims::Part;
pub use self::issuers::{Issuer, WorkspaceIssuer, check_url};
pub use self::live::{Derived, Live};
pub use self::require::{RequiredRoot, RootRule};
pub use self::restart::RESTART_KEYS;
pub use self::scope::Scope;
pub use self::sign_in::{SignIn, SignInRoles};
pub use self::telemetry::{LogFormat, OtlpProtocol, Ratio, Telemetry};
pub use self::tls_pair::ServingTls;
pub use self::trusted::AgentPrefix;
use self::value::{ByteSize, Sha256Hex, duration, name_servers, secret_url};
pub use self::wake::{Wake, WakeTemplate};
use crate::closed_set::words;
use crate::ids::WorkspaceId;

sections! {
    /// The whole configuration, an immutable value.
    Config {
        /// URL prefixes of agents that may have any address except those of metadata services.
        trusted_agents: Vec<AgentPrefix>,
        /// `[[cap]]`
        #[serde(default)]
        cap: Vec<Cap>,
        /// `[[guard]]`, in the order in which they are asked.
        #[serde(default)]
        guard: Vec<Guard>,
        /// `[server]`
        server: Server,
        /// `[admin]`
        admin: Admin,
        /// `[stores]`
        stores: Stores,
        /// `[auth]`
        auth: Auth,
        /// `[access]`
        access: Access,
        /// `[chain]`
        chain: Chain,
        /// `[a2a]`
        a2a: A2a,
        /// `[card]`
        card: Card,
        /// `[catalog]`
        catalog: Catalog,
        /// `[timeouts]`
        timeouts: Timeouts,
        /// `[limits]`
        limits: Limits,
        /// `[stream]`
        stream: Stream,
        /// `[idempotency]`
        idempotency: Idempotency,
        /// `[upstream]`
        upstream: Upstream,
        /// `[breaker]`
        breaker: Breaker,
        /// `[concurrency]`
        concurrency: Concurrency,
        /// `[forward]`
        forward: Forward,
        /// `[registry]`
        registry: Registry,
        /// `[directory]`
        directory: Directory,
        /// `[address]`
        address: Address,
        /// `[keys]`
        keys: Keys,
        /// `[tokens]`
        tokens: Tokens,
        /// `[cors]`
        cors: Cors,
        /// `[canvas]`
        canvas: Canvas,
        /// `[events]`
        events: Events,
        /// `[inbox]`
        inbox: Inbox,
        /// `[delegation]`
        delegation: Delegation,
        /// `[wake]`
        wake: Wake,
        /// `[affinity]`
        affinity: Affinity,
        /// `[rate]`
        rate: Rate,
        /// `[audit]`
        audit: Audit,
        /// `[telemetry]`
        telemetry: Telemetry,
    }
    /// `[server]`: the public listener.
    Server {
        /// Address for callers.
        listen: SocketAddr,
        /// The base URL for callers; `None`: from `listen`. Resolved by [`Config::public_url`].
        public_url: Option<Url>,
        /// Accepted `Host` values besides the loopback names and `public_url`'s.
        hosts: Vec<String>,
        /// The name of this gateway among its replicas; `None`: the machine's host name.
        replica: Option<String>,
        /// Certificate chain and key, both or neither.
        tls: Tls,
        /// Proxies from which `X-Forwarded-For` is trusted.
        trusted_proxies: Vec<IpNet>,
        /// Threads that serve callers; 0: one per core. Resolved by [`Server::threads`].
        threads: usize,
        /// Maximum open connections of callers.
        max_connections: usize,
        /// Maximum open connections of one address; 0: no limit.
        connections_per_address: usize,
        /// Maximum exchanges in progress.
        max_exchanges: usize,
        /// True if gRPC is served, and HTTP/2 without TLS.
        grpc: bool,
        /// Maximum concurrent streams of one connection of HTTP/2.
        http2_streams: u32,
        /// Longest wait of a connection for its next request.
        keepalive: Duration as "duration",
        /// Longest shutdown after SIGTERM: the time for running exchanges to end.
        drain: Duration as "duration",
    }
    /// `[server.tls]`.
    Tls {
        /// PEM certificate chain.
        cert: Option<PathBuf>,
        /// PEM private key.
        key: Option<PathBuf>,
        /// PEM certificates of the issuers of callers' certificates; `None`: callers need none.
        client_ca: Option<PathBuf>,
        /// The content of the files when they were last read and valid.
        #[serde(skip)]
        serving: Option<ServingTls>,
    }
    /// `[admin]`.
    Admin {
        /// Address of the listener.
        listen: SocketAddr,
        /// Authentication of routes that expose data of callers and workspaces.
        auth: AdminAuth,
        /// True if the console is served.
        console: bool,
        /// `[admin.sign_in]`
        sign_in: SignIn,
    }
    /// `[stores]`: durable facts and shared state.
    Stores {
        /// `sqlite:PATH` or `postgres://…`. Secret, since it may contain a password.
        sql: SecretString as "secret_url",
        /// `memory`, `redis://…` or `rediss://…`. Secret, since it may contain a password.
        shared: SecretString as "secret_url",
        /// Longest wait for one response of a store.
        timeout: Duration as "duration",
        /// Maximum pooled SQL connections.
        sql_connections: u32,
    }
    /// `[auth]`: accepted credentials.
    Auth {
        /// The treatment of requests without a credential.
        mode: AuthMode,
        /// SHA-256 of the admin tokens, in hexadecimal.
        admin_token_sha256: Vec<Sha256Hex>,
        /// The operator's token from the environment. Not a key, so that no file contains it.
        #[serde(skip)]
        admin_token: Option<SecretString>,
        /// Foreign issuers of canvas tokens.
        issuers: Vec<Issuer>,
        /// Platforms whose tokens are credentials of workspaces.
        workspace_issuers: Vec<WorkspaceIssuer>,
        /// Tolerated clock difference to the signers of foreign tokens, in whole seconds.
        leeway: Duration as "duration",
    }
    /// `[access]`: the hierarchy rule.
    Access {
        /// Reach of the rule between ancestors and descendants.
        lineage: LineageReach,
        /// Whether each hop of a chain must be permitted, or its root as well.
        chain: ChainReach,
        /// `[[access.require]]`
        #[serde(default)]
        require: Vec<RootRule>,
        /// `[access.observe]`
        observe: AccessObserve,
    }
    /// `[access.observe]`: members of `[access]` that shall come. They are judged and recorded, and refuse nothing.
    AccessObserve {
        /// As [`Access::lineage`].
        #[serde(default)]
        lineage: Option<LineageReach>,
    }
    /// `[chain]`: chains of delegation.
    Chain {
        /// Lifetime of a chain, from the call of its root.
        ttl: Duration as "duration",
        /// Whether a chain ends with the credential of its root.
        follow_exp: bool,
    }
    /// `[a2a]`: processing of calls.
    A2a {
        /// The parts of an incomplete call that the gateway adds.
        complete: CompletionMode,
        /// Translation of calls that the target does not speak; a workspace can override it.
        bridge: Bridging,
        /// The workspace with its card at `/.well-known/agent-card.json`.
        #[serde(default, deserialize_with = "value::workspace_id")]
        default_workspace: Option<WorkspaceId>,
        /// The HTTP status of refusals of JSON-RPC calls.
        refusal_status: RefusalStatus,
        /// True if callers may request push notifications; a workspace can override it.
        push_notifications: bool,
        /// Retention of a task's owner after the owner's last use of the task.
        task_ttl: Duration as "duration",
        /// Maximum tasks of one caller with a stored owner.
        tasks_per_caller: i64,
    }
    /// `[card]`: processing of agents' cards.
    Card {
        /// Readers of a workspace's card; a workspace can override it.
        access: CardAccess,
        /// True if the gateway signs the cards that it serves.
        sign: bool,
        /// True if cards declare the gateway's bearer scheme instead of the agent's schemes.
        declare_security: bool,
    }
    /// `[catalog]`: the list of agents for other registries.
    Catalog {
        /// Domain in the names of its entries; `None`: the host of the public URL.
        publisher: Option<String>,
    }
    /// `[timeouts]`: one timeout for each wait.
    Timeouts {
        /// TCP and TLS to the agent.
        connect: Duration as "duration",
        /// Request sent to response head.
        head: Duration as "duration",
        /// Silence between two pieces of a response.
        idle: Duration as "duration",
        /// A unary exchange as a whole.
        total: Duration as "duration",
        /// A stream as a whole.
        stream: Duration as "duration",
        /// A request head, from its first byte to its last.
        request_head: Duration as "duration",
        /// The caller's body, first byte to last.
        request_body: Duration as "duration",
        /// One write to a caller that does not read.
        write: Duration as "duration",
        /// Upper bound of `X-Timeout`.
        max: Duration as "duration",
    }
    /// `[limits]`: one limit for each buffer.
    Limits {
        /// A request body.
        request_bytes: ByteSize,
        /// All bodies of calls together, from their first byte until they are forwarded.
        bodies_bytes: ByteSize,
        /// All bodies of requests to the control plane together, from their first byte until they are answered.
        control_bodies_bytes: ByteSize,
        /// A policy: the body of `POST /policy`.
        policy_bytes: ByteSize,
        /// Maximum workspaces, and grants, that a policy is made of.
        policy_workspaces: usize,
        /// A unary response body.
        response_bytes: ByteSize,
        /// A stream as a whole.
        stream_bytes: ByteSize,
        /// Maximum bytes of one event that is translated.
        event_bytes: ByteSize,
        /// Maximum calls in progress at one target; a workspace can override it.
        target_concurrency: usize,
        /// Maximum calls that wait for a place at one target. 0: none.
        target_queue: usize,
        /// Longest wait for a place.
        target_queue_wait: Duration as "duration",
        /// Maximum bytes kept in SQL for one workspace or other caller.
        kept_bytes: ByteSize,
        /// Maximum bytes kept in SQL for all callers together.
        kept_bytes_total: ByteSize,
    }
    /// `[stream]`.
    Stream {
        /// Silence after which the gateway sends a comment.
        keepalive: Duration as "duration",
        /// Longest time that a stream stays open after its final event.
        final_grace: Duration as "duration",
        /// Maximum events kept of one stream; 0: none, and events get no ids.
        log_events: usize,
        /// Maximum bytes kept of one stream.
        log_bytes: ByteSize,
        /// Retention of the events after the end of the stream.
        log_ttl: Duration as "duration",
        /// Maximum bytes kept of all streams together.
        logs_bytes: ByteSize,
        /// Longest time that a stream continues without a reader.
        linger: Duration as "duration",
        /// Maximum streams that continue without a reader.
        lingering: usize,
        /// Maximum readers of resumed streams.
        readers: usize,
    }
    /// `[idempotency]`.
    Idempotency {
        /// Retention of a response for replays.
        ttl: Duration as "duration",
        /// True if a caller's message id is used as an idempotency key.
        message_id: bool,
    }
    /// `[upstream]`: connections to agents.
    Upstream {
        /// Longest time that an unused connection is kept.
        idle: Duration as "duration",
        /// Longest wait of a call for an agent that refuses connections. 0: none.
        hold: Duration as "duration",
        /// Maximum calls that wait so.
        hold_calls: usize,
        /// Maximum bytes of their bodies.
        hold_bytes: ByteSize,
    }
    /// `[breaker]`: circuit breakers of agents.
    Breaker {
        /// Failures in a row that open it. 0: any number may follow each other.
        failures: u32,
        /// Share of failed calls in the window that opens it. 0: any share may fail.
        ratio: Ratio,
        /// Time for which a call counts.
        window: Duration as "duration",
        /// Time for which it is open first.
        open: Duration as "duration",
        /// Longest time for which it is open.
        open_max: Duration as "duration",
    }
    /// `[concurrency]`.
    Concurrency {
        /// True if the gateway learns how many calls an agent takes at once.
        adaptive: bool,
    }
    /// `[registry]`.
    Registry {
        /// Lease of a heartbeat.
        heartbeat_ttl: Duration as "duration",
        /// Servers on which several workspaces may register agents.
        shared_origins: Vec<AgentPrefix>,
        /// True if an address that another program writes to the shared state moves the agent's credential along.
        shared_addresses_move_credentials: bool,
    }
    /// `[directory]`: look-up of agents.
    Directory {
        /// Longest use of a cached entry while no store responds.
        stale: Duration as "duration",
        /// Maximum workspaces in each memory cache; lineages: twice as many.
        cache_entries: u64,
        /// Shared-state key of the host-mapped URL; `{id}` is the workspace.
        url_key: String,
        /// Shared-state key of the URL on the container network.
        internal_url_key: String,
        /// Shared-state key of the last heartbeat.
        heartbeat_key: String,
    }
    /// `[address]`: allowed addresses (`docs/design/security.md`, "Addresses that the gateway connects to (SSRF)").
    Address {
        /// `default` or `strict`.
        profile: AddressProfile,
        /// Loopback and private ranges that are allowed. Ignored by `strict`.
        allow: Vec<IpNet>,
        /// DNS servers for agents' names. Empty: the system's resolver.
        nameservers: Vec<SocketAddr> as "name_servers",
    }
    /// `[keys]`: trust keys.
    Keys {
        /// Folder of the keys, which are created at the first start.
        dir: PathBuf,
        /// File of the sealing key; `None`: `seal.key` in `dir`.
        seal_key: Option<PathBuf>,
    }
    /// `[tokens]`: signed tokens.
    Tokens {
        /// `iss` of the gateway's tokens; `None`: the public URL. Resolved by [`Config::issuer`].
        issuer: Option<String>,
        /// Lifetime of a pair token from discovery.
        pair_ttl: Duration as "duration",
    }
    /// `[cors]`.
    Cors {
        /// Allowed origins, exactly as browsers send them.
        origins: Vec<String>,
    }
    /// `[canvas]`: the page that talks with agents.
    Canvas {
        /// True if it is served at `/canvas/` of the public listener.
        enabled: bool,
    }
    /// `[events]`: sockets and event streams for observers.
    Events {
        /// Maximum open sockets and event streams.
        connections: usize,
        /// Maximum for one caller.
        connections_per_caller: usize,
    }
    /// `[inbox]`: messages that wait for their agent to fetch them.
    Inbox {
        /// Maximum unacknowledged entries of one inbox, and as many acknowledged ones.
        max_messages: i64,
        /// Retention of entries.
        retention: Duration as "duration",
        /// Maximum feeds and waiting requests at once.
        connections: usize,
        /// Maximum for one caller.
        connections_per_caller: usize,
    }
    /// `[delegation]`: delegations and deferred calls.
    Delegation {
        /// Maximum unfinished ones of one caller, and for one target. Both kinds count together.
        max_pending: i64,
        /// Longest wait of a deferred call for its target. A delegation has a deadline of its own.
        deferred_ttl: Duration as "duration",
        /// Retention of finished ones, of both kinds.
        retention: Duration as "duration",
    }
    /// `[affinity]`: bindings of tasks and contexts to the instances of an agent.
    Affinity {
        /// Lifetime of a binding after its last use.
        ttl: Duration as "duration",
    }
    /// Section `[rate]`: 0 switches a limit off.
    #[derive(PartialEq, Eq)]
    Rate {
        /// Requests a second of one caller, over all of its credentials.
        caller_per_second: u32,
        /// Requests at once of one caller.
        caller_burst: u32,
        /// Requests a second of all canvas users that the tokens of one org name.
        org_users_per_second: u32,
        /// Requests at once of all these users.
        org_users_burst: u32,
        /// Answers 401 and 403 a second to one client address.
        failures_per_second: u32,
        /// Cards read without a credential, for each client address.
        cards_per_second: u32,
    }
}

words! {
    /// `admin.auth`.
    AdminAuth {
        /// An operator's token is needed, unless the listener is on loopback.
        Auto => "auto",
        /// An operator's token is always needed.
        Token => "token",
    }
    /// `auth.mode`.
    AuthMode {
        /// Every request needs a credential.
        Token => "token",
        /// For development on loopback: a request without a credential acts as the canvas.
        Open => "open",
    }
    /// `access.lineage`.
    LineageReach {
        /// Parent and child only.
        Direct => "direct",
        /// Any ancestor and any descendant.
        Any => "any",
    }
    /// `a2a.refusal_status`: the HTTP status of refusals of JSON-RPC calls.
    RefusalStatus {
        /// That of the reason.
        Http => "http",
        /// 200, as agents answer: the Python SDKs read no body of any other.
        Ok => "200",
    }
    /// `a2a.bridge`, also per workspace: translation of calls in a generation or binding that the target does not
    /// speak.
    Bridging {
        /// They are translated, with their answers.
        Auto => "auto",
        /// They are rejected.
        Off => "off",
    }
    /// `access.chain`: the permissions that a call on a chain needs.
    ChainReach {
        /// That of its caller for the target, as of each hop.
        Hop => "hop",
        /// That of the root as well.
        Ends => "ends",
    }
    /// `chain` of a workspace: the calls with which it gets a chain token.
    ChainMode {
        /// Those of persons, and those of a chain.
        Person => "person",
        /// All.
        Always => "always",
        /// None.
        Never => "never",
    }
    /// `transport` of a workspace: what carries calls, where the agent's card names several interfaces.
    Transport {
        /// What the caller uses, or else what changes a call least.
        Auto => "auto",
        /// JSON-RPC.
        JsonRpc => "jsonrpc",
        /// HTTP+JSON.
        HttpJson => "http+json",
        /// gRPC.
        Grpc => "grpc",
    }
    /// `card.access`, also per workspace.
    CardAccess {
        /// All clients, without a credential.
        Public => "public",
        /// Callers that may reach the workspace.
        Private => "private",
    }
    /// `address.profile`.
    AddressProfile {
        /// The ranges in `address.allow` are allowed.
        Default => "default",
        /// Public addresses only.
        Strict => "strict",
    }
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

impl Tls {
    /// Returns the configured files.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert, &self.key, &self.client_ca]
            .into_iter()
            .flatten()
    }
}

impl Config {
    /// Returns the base URL for callers, without a trailing slash.
    pub fn public_url(&self) -> String {
        let tls = self.server.tls.cert.as_ref().map_or("", |_| "s");
        let url = match &self.server.public_url {
            Some(url) => url.to_string(),
            None => format!("http{tls}://{}", self.server.listen),
        };
        url.trim_end_matches('/').to_owned()
    }

    /// Returns host and port at which clients of gRPC reach the public listener; `None` if it takes no gRPC.
    pub fn grpc_authority(&self) -> Option<String> {
        let url = Url::parse(&self.public_url()).ok();
        let url = url.filter(|_| self.server.grpc)?;
        Some(format!("{}:{}", url.host()?, url.port_or_known_default()?))
    }

    /// Returns the domain in the names of the catalogue's entries. An address cannot be in a name.
    pub fn catalog_publisher(&self) -> String {
        let own = || {
            let url = self.public_url();
            let url = Url::parse(&url).ok()?;
            let domain = url.domain()?.trim_end_matches('.').to_ascii_lowercase();
            domain.contains('.').then_some(domain)
        };
        let said = self.catalog.publisher.clone();
        said.or_else(own)
            .unwrap_or_else(|| "a2a-gateway.localhost".to_owned())
    }

    /// Returns the base URL of a workspace's A2A routes.
    pub fn base_of(&self, id: &WorkspaceId) -> String {
        format!("{}/workspaces/{id}/a2a", self.public_url())
    }

    /// Returns `iss` of the gateway's tokens.
    pub fn issuer(&self) -> String {
        let issuer = self.tokens.issuer.clone();
        issuer.unwrap_or_else(|| self.public_url())
    }
}

impl Admin {
    /// True if requests for data of callers and workspaces need an operator's token.
    pub fn needs_token(&self) -> bool {
        match self.auth {
            AdminAuth::Auto => !self.listen.ip().is_loopback(),
            AdminAuth::Token => true,
        }
    }
}

impl Breaker {
    /// True if nothing opens it.
    pub fn is_off(&self) -> bool {
        self.failures == 0 && self.ratio.0 <= 0.0
    }
}
