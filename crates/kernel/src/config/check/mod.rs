//! Checks of the merged configuration: the allowed values of each key, and combinations that are refused.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;
use url::Url;

use super::forward::{refuse_request_field, refuse_response_field};
use super::issuers::check_url;
use super::load::{Problem, Source};
use super::value::{has_user, is_http, is_loopback, is_text};
use super::{
    AddressProfile, AuthMode, Config, OtlpProtocol, ServingTls, cap, exposure, guard, require,
};
use super::{issuers, layer, store_url, tls_pair};
use crate::ids::{REPLICA_NAME_MAX, is_name};

/// Maximum prefixes in `trusted_agents`: each is compared at each connect.
const TRUSTED_AGENTS_MAX: usize = 256;

/// Maximum servers in `address.nameservers`: a look-up has 2 s for all of them.
const NAMESERVERS_MAX: usize = 8;

/// Longest duration of any key. A longer one is a mistake, and adding it to an instant could
/// overflow.
const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Lifetimes of chains: as long as revocations are kept at most.
const CHAIN_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(7 * 24);

/// Allowed lifetimes of a pair token: at most a day, for which a retired key still verifies.
const PAIR_TTL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(24 * 3600);

/// Longest tolerated clock difference to an issuer: clocks that differ more are to be set.
const LEEWAY_MAX: Duration = Duration::from_secs(5 * 60);

/// Shortest audit retention without a note.
const AUDIT_RETENTION_SHORT: Duration = Duration::from_secs(24 * 3600);

/// Maximum worker threads: far more than the cores of any machine.
const THREADS_MAX: usize = 1024;

/// Maximum streams of one HTTP/2 connection.
const HTTP2_STREAMS_MAX: u32 = 100_000;

/// Largest body of one request to the control plane, in bytes.
const CONTROL_BODY_BYTES: u64 = 1024 * 1024;

/// Allowed lifetimes of a session.
const SESSION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(8 * 3600);

/// Maximum scopes of a sign-in, and maximum values of one role.
const LIST_MAX: usize = 64;

/// The scope that makes a request one of `OpenID Connect`.
const OPENID: &str = "openid";

/// Returns keys with their values.
macro_rules! values_of {
    ($config:ident; $($section:ident.$key:ident),* $(,)?) => {
        [$((concat!(stringify!($section), ".", stringify!($key)), $config.$section.$key)),*]
    };
}

/// Checks the configuration, and refuses unsafe or meaningless values. Returns warnings about values that are allowed
/// but probably not intended, and the TLS setup of the public listener, if `server.tls` is set.
///
/// # Errors
/// Returns every problem found.
pub(super) fn check(
    config: &Config,
    source: &dyn Fn(&str) -> Source,
) -> Result<(Vec<String>, Option<ServingTls>), Vec<Problem>> {
    let mut checks = Checks {
        config,
        source,
        problems: Vec::new(),
        notes: Vec::new(),
    };
    checks.check_server();
    // A reload checks twice; the files were read the first time.
    let read = config.server.tls.serving.clone();
    let serving = read.or_else(|| checks.check_tls());
    checks.check_stores();
    checks.check_spans();
    checks.check_counts();
    checks.check_names();
    checks.check_keys();
    let own = config.issuer();
    let auth = &config.auth;
    checks.add_problems("auth.issuers", issuers::find_problems(&auth.issuers, &own));
    let platforms =
        issuers::workspaces::find_problems(&auth.workspace_issuers, &auth.issuers, &own);
    checks.add_problems("auth.workspace_issuers", platforms);
    checks.check_sign_in();
    checks.add_problems("cap", cap::find_problems(&config.cap));
    let required = &config.access.require;
    checks.add_problems("access.require", require::find_problems(required));
    checks.check_guards();
    checks.check_telemetry();
    match checks.problems.is_empty() {
        true => Ok((checks.notes, serving)),
        false => Err(checks.problems),
    }
}

struct Checks<'a> {
    config: &'a Config,
    source: &'a dyn Fn(&str) -> Source,
    problems: Vec<Problem>,
    notes: Vec<String>,
}

impl Checks<'_> {
    fn add_problem(&mut self, key: &str, reason: impl Into<String>) {
        self.problems.push(Problem {
            key: Some(key.to_owned()),
            source: Some((self.source)(key)),
            reason: reason.into(),
        });
    }

    fn add_problems(&mut self, key: &str, reasons: impl IntoIterator<Item = String>) {
        for reason in reasons {
            self.add_problem(key, reason);
        }
    }

    /// Returns the value; its error is a problem of the key.
    fn accept_value<T>(&mut self, key: &str, checked: Result<T, impl Into<String>>) -> Option<T> {
        checked.map_err(|reason| self.add_problem(key, reason)).ok()
    }

    fn check_server(&mut self) {
        let c = self.config;
        let (server, public, admin) = (&c.server, c.server.listen, c.admin.listen);
        let is_remote = !public.ip().is_loopback();
        refuse! { self;
            auth.mode if c.auth.mode == AuthMode::Open && is_remote
                => "\"open\" lets everybody act as the canvas, so it needs a loopback listener, and server.listen is {public}";
            admin.listen if share_port(public, admin) => "{admin} is taken by server.listen ({public})";
            server.replica if server.replica.as_ref().is_some_and(|name| !is_name(name, REPLICA_NAME_MAX))
                => "write 1 to {REPLICA_NAME_MAX} letters, digits, `.`, `_` or `-`, such as \"gateway-1\"";
        }
        for host in server.hosts.iter().filter(|host| !is_host(host)) {
            let form = "write \"gateway.internal\" or \"gateway.internal:8080\"";
            self.add_problem("server.hosts", format!("`{host}` is not a host: {form}"));
        }
        if let Some(url) = &server.public_url {
            refuse! { self;
                server.public_url if !is_http(url)
                    => "must begin with http:// or https:// and name a host";
                server.public_url if has_user(url)
                    => "must not hold a user or a password: it stands in public cards";
                server.public_url if url.query().is_some() || url.fragment().is_some()
                    => "must end before `?` and `#`: paths are added to it";
            }
        }
        let publisher = c.catalog.publisher.as_ref();
        refuse! { self;
            catalog.publisher if publisher.is_some_and(|domain| !is_publisher(domain))
                => "write a domain in lower case without a port, such as \"gw.example.com\"";
        }
        let is_unnamed = server.public_url.is_none();
        list! { self.notes;
            !admin.ip().is_loopback()
                => "admin.listen is {admin} and asks for no credential, but for what tells of callers (admin.auth): let \
                    only monitoring reach it";
            is_remote && server.tls.cert.is_none()
                => "server.listen is {public} without server.tls: tokens travel in the clear unless something in front \
                    ends TLS";
            public.ip().is_unspecified() && is_unnamed
                => "server.public_url is not set and server.listen is {public}: proxy_url, the tokens' issuer and \
                    jwks_uri name an address that nobody can call";
            is_remote && is_unnamed && server.hosts.is_empty()
                => "server.listen is {public}, and neither server.public_url nor server.hosts names it: callers from \
                    elsewhere get 421 until server.hosts lists the names and addresses that they use";
        }
    }

    /// Reads the TLS files once, so that the checked content is the served content.
    fn check_tls(&mut self) -> Option<ServingTls> {
        let tls = &self.config.server.tls;
        let both = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => Ok((cert, key)),
            (Some(_), None) => Err(("server.tls.cert", "needs server.tls.key as well")),
            (None, Some(_)) => Err(("server.tls.key", "needs server.tls.cert as well")),
            (None, None) if tls.client_ca.is_none() => return None,
            (None, None) => Err(("server.tls.client_ca", "needs server.tls.cert and .key")),
        };
        let (cert, key) = both
            .map_err(|(name, why)| self.add_problem(name, why))
            .ok()?;
        let mut pem = |name: &str, path: &Path, marker| {
            self.accept_value(name, tls_pair::read_pem(path, marker))
        };
        let chain = pem("server.tls.cert", cert, "CERTIFICATE-----");
        let secret = pem("server.tls.key", key, "PRIVATE KEY-----");
        let callers = tls.client_ca.as_deref();
        let callers = callers.map(|ca| pem("server.tls.client_ca", ca, "CERTIFICATE-----"));
        self.accept_value("server.tls.key", exposure::refuse_exposed_at(key));
        let callers = callers.map_or(Some(None), |read| read.map(Some))?;
        ServingTls::from_pem(&chain?, &secret?, callers.as_deref())
            .map_err(|(name, reason)| self.add_problem(name, reason))
            .ok()
    }

    fn check_stores(&mut self) {
        let stores = &self.config.stores;
        let (sql, shared) = (stores.sql.expose_secret(), stores.shared.expose_secret());
        self.accept_value("stores.sql", store_url::check_sql(sql));
        self.accept_value("stores.shared", store_url::check_shared(shared));
        let headers = self.config.telemetry.otlp_headers.expose_secret();
        for (key, url) in [
            ("stores.sql", sql),
            ("stores.shared", shared),
            ("telemetry.otlp_headers", headers),
        ] {
            let may_hold = !url.is_empty() && layer::mask_passwords(url) != url;
            self.note_exposed(key, may_hold, &format!("{key} may hold a password"));
        }
        list! { self.notes;
            shared == "memory" && !sql.starts_with("sqlite:")
                => "stores.shared is \"memory\" beside PostgreSQL: one gateway only, since replicas would not hear of \
                    each other's changes";
        }
    }

    /// Notes that all users can read the file with the value of a key that may hold a secret.
    fn note_exposed(&mut self, key: &str, may_hold: bool, said: &str) {
        if let Source::File(path) = (self.source)(key)
            && may_hold
            && let Err(reason) = exposure::refuse_exposed_at(&path)
        {
            self.notes.push(format!("{said}, and {reason}"));
        }
    }

    fn check_spans(&mut self) {
        let c = self.config;
        let zero_is_senseless = values_of!(c;
            stores.timeout, a2a.task_ttl, timeouts.connect, timeouts.head, timeouts.idle, timeouts.total,
            timeouts.stream, timeouts.request_head, timeouts.request_body, timeouts.write, timeouts.max,
            stream.keepalive, stream.log_ttl, idempotency.ttl, upstream.idle, inbox.retention,
            delegation.deferred_ttl, delegation.retention, affinity.ttl, wake.max_wait, wake.cool_down,
            registry.heartbeat_ttl, telemetry.otlp_timeout, breaker.window, breaker.open, breaker.open_max,
            limits.target_queue_wait, chain.ttl,
        );
        let zero_is_fine = values_of!(c;
            server.drain, server.keepalive, stream.final_grace, stream.linger, directory.stale, upstream.hold,
        );
        for (key, span) in zero_is_senseless {
            if span.is_zero() {
                self.add_problem(
                    key,
                    "must be longer than nothing: every wait would end at once",
                );
            }
        }
        for (key, span) in zero_is_senseless.into_iter().chain(zero_is_fine) {
            if span > SPAN_MAX {
                self.add_problem(key, "must be at most a year");
            }
        }
        let (lease, leeway, retention) =
            (c.registry.heartbeat_ttl, c.auth.leeway, c.audit.retention);
        refuse! { self;
            registry.heartbeat_ttl if lease < Duration::from_secs(1) && !lease.is_zero()
                => "must be at least 1s: leases count in seconds";
            auth.leeway if leeway > LEEWAY_MAX || leeway.subsec_nanos() > 0
                => "must be whole seconds, and at most 5min: a token counts that much longer";
            tokens.pair_ttl if !PAIR_TTL.contains(&c.tokens.pair_ttl)
                => "must be 10s to 24h: shorter ones end on the way, and keys retire after a day";
            chain.ttl if !CHAIN_TTL.contains(&c.chain.ttl)
                => "must be 1s to 7days: revocations are kept for as long";
            breaker.open_max if c.breaker.open > c.breaker.open_max => "must be at least breaker.open";
        }
        list! { self.notes;
            c.stream.keepalive >= c.timeouts.idle
                => "stream.keepalive is not shorter than timeouts.idle: no keep-alive comment will be sent before a \
                    silent stream is ended";
            c.timeouts.total > c.timeouts.max
                => "timeouts.total is longer than timeouts.max, which bounds only X-Timeout";
            // Removed records cannot be restored.
            !retention.is_zero() && retention < AUDIT_RETENTION_SHORT
                => "audit.retention is {}: older audit records are removed for good (`m` are minutes, `M` months)",
                humantime::format_duration(retention);
        }
    }

    fn check_counts(&mut self) {
        let c = self.config;
        let limits = values_of!(c;
            limits.request_bytes, limits.bodies_bytes, limits.response_bytes, limits.stream_bytes,
            limits.event_bytes, limits.policy_bytes, limits.kept_bytes, limits.kept_bytes_total,
            stream.log_bytes, stream.logs_bytes,
        );
        let limits = limits.map(|(key, size)| (key, size.0 > 0));
        let counts = values_of!(c;
            limits.policy_workspaces, limits.target_concurrency, stream.readers, server.max_connections,
            server.max_exchanges, events.connections, events.connections_per_caller, inbox.connections,
            wake.max_parked, inbox.connections_per_caller,
        );
        let counts = counts.map(|(key, count)| (key, count > 0));
        let rows = values_of!(c; a2a.tasks_per_caller, inbox.max_messages, delegation.max_pending);
        let rows = rows.map(|(key, count)| (key, count > 0));
        let others = [
            ("stores.sql_connections", c.stores.sql_connections > 0),
            ("directory.cache_entries", c.directory.cache_entries > 0),
            ("server.http2_streams", c.server.http2_streams > 0),
        ];
        for (key, is_possible) in limits.into_iter().chain(counts).chain(rows).chain(others) {
            if !is_possible {
                self.add_problem(key, "must be at least 1: with 0 nothing could ever pass");
            }
        }
        let (limits, rate, body) = (&c.limits, &c.rate, c.limits.request_bytes);
        refuse! { self;
            limits.bodies_bytes if limits.bodies_bytes.0 > 0 && limits.bodies_bytes < body
                => "must be at least limits.request_bytes: it is the room for all bodies together";
            wake.max_parked_bytes if c.wake.max_parked_bytes < body
                => "must be at least limits.request_bytes: it is the room for the bodies of all parked calls together";
            limits.control_bodies_bytes if limits.control_bodies_bytes.0 < CONTROL_BODY_BYTES
                => "must be at least 1MiB, which one body may have: it is the room for all bodies together";
            server.threads if c.server.threads > THREADS_MAX => "must be at most {THREADS_MAX}";
            server.http2_streams if c.server.http2_streams > HTTP2_STREAMS_MAX
                => "must be at most {HTTP2_STREAMS_MAX}";
            rate.org_users_burst if rate.org_users_per_second > 0 && rate.org_users_burst == 0
                => "must be at least 1 while rate.org_users_per_second is on: with 0 nothing could pass";
            rate.caller_burst if rate.caller_per_second > 0 && rate.caller_burst == 0
                => "must be at least 1 while rate.caller_per_second is on: with 0 nothing could pass";
        }
    }

    fn check_names(&mut self) {
        let c = self.config;
        let keys = [
            ("directory.url_key", &c.directory.url_key),
            ("directory.internal_url_key", &c.directory.internal_url_key),
            ("directory.heartbeat_key", &c.directory.heartbeat_key),
        ];
        for (i, (name, key)) in keys.iter().enumerate() {
            if !key.contains("{id}") {
                self.add_problem(name, "must hold {id}: all workspaces would share one key");
            }
            if let Some((other, _)) = keys[..i].iter().find(|(_, earlier)| earlier == key) {
                self.add_problem(name, format!("is the same as {other}"));
            }
        }
        let headers = c.forward.headers.iter();
        let refused = headers.filter_map(|name| refuse_request_field(name));
        self.add_problems("forward.headers", refused);
        let headers = c.forward.response_headers.iter();
        let refused = headers.filter_map(|name| refuse_response_field(name));
        self.add_problems("forward.response_headers", refused);
        for origin in c.cors.origins.iter().filter(|origin| !is_origin(origin)) {
            self.add_problem("cors.origins", format!("`{origin}` is not an origin: write \"https://canvas.example.com\", without a path or a slash at the end"));
        }
        refuse! { self;
            forward.max_hops if c.forward.max_hops == 0 => "must be at least 1: this gateway counts";
            tokens.issuer if c.tokens.issuer.as_ref().is_some_and(String::is_empty) => "must not be empty";
            trusted_agents if c.trusted_agents.len() > TRUSTED_AGENTS_MAX
                => "may have at most {TRUSTED_AGENTS_MAX} prefixes";
            address.nameservers if c.address.nameservers.len() > NAMESERVERS_MAX
                => "may have at most {NAMESERVERS_MAX} servers";
        }
        let set = (self.source)("address.allow") != Source::Default;
        list! { self.notes;
            c.address.profile == AddressProfile::Strict && set && !c.address.allow.is_empty()
                => "address.profile is \"strict\": address.allow is ignored";
        }
    }

    fn check_keys(&mut self) {
        let keys = &self.config.keys;
        let file = keys.seal_key.as_deref();
        let is_named = file.is_none_or(|file| !file.as_os_str().is_empty());
        refuse! { self;
            keys.dir if keys.dir.as_os_str().is_empty() => "must name a folder";
            keys.seal_key if !is_named => "must name a file";
        }
        self.add_problems("keys.dir", exposure::refuse_exposed_keys(&keys.dir));
        if let Some(file) = file.filter(|_| is_named) {
            self.accept_value("keys.seal_key", exposure::refuse_unusable_at(file));
        }
    }

    fn check_sign_in(&mut self) {
        let admin = &self.config.admin;
        let sign_in = &admin.sign_in;
        let Some(issuer) = &sign_in.issuer else {
            refuse! { self;
                admin.sign_in.issuer if sign_in.client_id.is_some() => "is missing: name the provider";
            }
            return;
        };
        let provider = Url::parse(issuer).map_err(|_| "is not a URL");
        let provider = provider.and_then(|url| check_url(&url));
        let has_query = provider.is_ok() && issuer.contains('?');
        self.accept_value("admin.sign_in.issuer", provider);
        if let Some(file) = &sign_in.client_secret_file {
            let refused = exposure::refuse_unusable_at(file);
            self.accept_value("admin.sign_in.client_secret_file", refused);
        }
        let url = sign_in.url.as_ref();
        let is_good = url.map(|url| {
            self.accept_value("admin.sign_in.url", check_url(url))
                .is_some()
        });
        let roles = &sign_in.roles;
        let lists = [&roles.read, &roles.operate, &roles.admin];
        refuse! { self;
            admin.sign_in.issuer if has_query => "must hold no query";
            admin.sign_in.client_id if !sign_in.client_id.as_deref().is_some_and(is_text)
                => "must be text of 1 to 512 bytes: the name of the gateway at the provider";
            admin.sign_in.url if is_good == Some(true) && url.is_some_and(|url| url.query().is_some())
                => "must end before `?`: paths are added to it";
            admin.sign_in.url if url.is_none() && !admin.listen.ip().is_loopback()
                => "is missing, and admin.listen is not on loopback: write the URL at which browsers reach it, \
                    \"https://operators.example.com\"";
            admin.sign_in.scopes if !are_good_scopes(&sign_in.scopes)
                => "are at most 64 names without spaces, and `openid` is one of them";
            admin.sign_in.role_claim if !is_text(&sign_in.role_claim)
                => "must be the name of a claim, of 1 to 512 bytes";
            admin.sign_in.name_claim if !is_text(&sign_in.name_claim)
                => "must be the name of a claim, of 1 to 512 bytes";
            admin.sign_in.session if !SESSION.contains(&sign_in.session)
                => "must be 1s to 8h: a working day, at the end of which one signs in again";
            admin.sign_in.roles.read if !are_texts(&roles.read) => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.operate if !are_texts(&roles.operate)
                => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.admin if !are_texts(&roles.admin) => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.admin if lists.iter().all(|values| values.is_empty())
                => "is empty like the other roles, so people could not sign in: list the values of admin.sign_in.role_claim \
                    that give the role";
        }
    }

    fn check_guards(&mut self) {
        let guards = &self.config.guard;
        self.add_problems("guard", guard::find_problems(guards));
        let secret = guards.iter().any(|guard| guard.header.is_some());
        let said = "guard has a `header` that may be a credential";
        self.note_exposed("guard", secret, said);
    }

    /// Checks the export of traces, and the log. Reasons never quote a value, which may hold a credential.
    fn check_telemetry(&mut self) {
        let telemetry = &self.config.telemetry;
        if let Some(url) = &telemetry.otlp_endpoint {
            refuse! { self;
                telemetry.otlp_endpoint if !is_http(url)
                    => "must begin with http:// or https:// and name a host";
                telemetry.otlp_endpoint if has_user(url)
                    => "must not hold a user or a password: write a field into telemetry.otlp_headers";
                telemetry.otlp_endpoint if url.query().is_some() || url.fragment().is_some()
                    => "must end before `?` and `#`";
                telemetry.otlp_endpoint if telemetry.otlp_protocol == OtlpProtocol::Grpc && url.path() != "/"
                    => "has a path, which gRPC does not: write scheme, host and port";
            }
        }
        let in_the_clear = telemetry.otlp_endpoint.as_ref();
        let in_the_clear =
            in_the_clear.is_some_and(|url| url.scheme() == "http" && !is_loopback(url));
        // EnvFilter reads a bare word as a target: it would show all lines of that target and none
        // of any other.
        let filter = tracing_subscriber::EnvFilter::try_new(&telemetry.log);
        let mut words = telemetry.log.split(',').map(str::trim);
        let bare = words.find(|d| is_bare_word(d)).filter(|_| filter.is_ok());
        refuse! { self;
            telemetry.otlp_headers if telemetry.otlp_fields().is_err()
                => "is not a list of fields: write name=value,name=value, with `,` and `%` in a value as %2C and %25";
            telemetry.service_name if telemetry.service_name.trim().is_empty() => "must not be empty";
        }
        if let Err(error) = filter {
            let form = "is not a log filter, such as \"info\" or \"warn,access=off\"";
            self.add_problem("telemetry.log", format!("{form}: {error}"));
        } else if let Some(word) = bare {
            let form = "write off, error, warn, info, debug or trace";
            self.add_problem("telemetry.log", format!("`{word}` is not a level: {form}, or `{word}=debug` if it is the name of a target"));
        }
        list! { self.notes;
            in_the_clear && !telemetry.otlp_headers.expose_secret().is_empty()
                => "telemetry.otlp_endpoint is plain http to another machine, and telemetry.otlp_headers goes there: \
                    whoever is on the way can read it";
        }
    }
}
fn are_good_scopes(scopes: &[String]) -> bool {
    let is_of_scope = |b: u8| matches!(b, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    are_texts(scopes)
        && scopes.iter().any(|scope| scope == OPENID)
        && scopes.iter().all(|scope| scope.bytes().all(is_of_scope))
}

fn are_texts(list: &[String]) -> bool {
    list.len() <= LIST_MAX && list.iter().all(|text| is_text(text))
}

/// True if a directive is neither a level nor has a level, path or span.
fn is_bare_word(directive: &str) -> bool {
    !directive.is_empty()
        && !directive.contains(['=', ':', '[', ']', '{', '}'])
        && directive
            .parse::<tracing_subscriber::filter::LevelFilter>()
            .is_err()
}

/// True if two listeners cannot both be bound. Port 0 is a different free port for each.
fn share_port(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}

/// True for `host` and `host:port`.
fn is_host(text: &str) -> bool {
    let parsed = Url::parse(&format!("http://{text}/"));
    !text.is_empty()
        && !text.contains(['/', '@', '?', '#', '*', '\\', ' '])
        && parsed.is_ok_and(|url| url.host().is_some())
}

/// True for `*`, and for `scheme://host[:port]`, exactly as a browser writes it.
/// True for a domain of two labels or more that is no address, as names of the catalogue have it.
fn is_publisher(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let ends_in_letter = text
        .rsplit('.')
        .next()
        .is_some_and(|last| !last.starts_with(|c: char| c.is_ascii_digit()));
    text.len() <= 253 && text.contains('.') && text.split('.').all(is_label) && ends_in_letter
}

fn is_origin(text: &str) -> bool {
    let is_one = |url: Url| is_http(&url) && url.origin().ascii_serialization() == text;
    text == "*" || Url::parse(text).is_ok_and(is_one)
}
