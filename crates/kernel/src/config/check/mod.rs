//! Checks of the merged configuration: the allowed values of each key, and combinations that are
//! refused. Bounds of durations and numbers are in [`bounds`].

mod bounds;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use secrecy::ExposeSecret;

use super::issuers::{self, workspaces};
use super::load::{Problem, Source};
use super::{AddressProfile, AuthMode, Config, ServingTls, cap, exposure, guard, layer};
use super::{store_url, tls_pair};
use crate::ids::REPLICA_NAME_MAX;

/// Maximum prefixes in `trusted_agents`: each is compared at each connect.
const TRUSTED_AGENTS_MAX: usize = 256;

/// Maximum servers in `address.nameservers`: a look-up has 2 s for all of them.
const NAMESERVERS_MAX: usize = 8;

/// The result for a configuration that is allowed.
pub(super) struct CheckedConfig {
    /// Warnings about values that are allowed but probably not intended.
    pub(super) notes: Vec<String>,
    /// The TLS setup of the public listener, if `server.tls` is set.
    pub(super) serving: Option<ServingTls>,
}

/// Checks the configuration, and refuses unsafe or meaningless values.
///
/// # Errors
/// Returns every problem found.
pub(super) fn check(
    config: &Config,
    source: &dyn Fn(&str) -> Source,
) -> Result<CheckedConfig, Vec<Problem>> {
    let mut checks = Checks {
        config,
        source,
        problems: Vec::new(),
        notes: Vec::new(),
    };
    checks.check_listeners();
    checks.check_hosts();
    checks.check_replica();
    checks.check_public_url();
    // A reload checks twice; the files were read the first time.
    let read = config.server.tls.serving.clone();
    let serving = read.or_else(|| checks.check_tls());
    checks.check_stores();
    checks.check_spans();
    checks.check_capacity();
    checks.check_audit();
    checks.check_counts();
    checks.check_names();
    checks.check_addresses();
    checks.check_keys();
    checks.check_issuers();
    checks.check_sign_in();
    checks.add_problems("cap", cap::find_problems(&config.cap));
    checks.check_guards();
    checks.check_telemetry();
    if checks.problems.is_empty() {
        Ok(CheckedConfig {
            notes: checks.notes,
            serving,
        })
    } else {
        Err(checks.problems)
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

    fn add_note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    fn check_listeners(&mut self) {
        let (public, admin) = (self.config.server.listen, self.config.admin.listen);
        if self.config.auth.mode == AuthMode::Open && !public.ip().is_loopback() {
            self.add_problem(
                "auth.mode",
                format!(
                    "\"open\" lets everybody act as the canvas, so it needs a loopback listener, \
                     and server.listen is {public}"
                ),
            );
        }
        if share_port(public, admin) {
            self.add_problem(
                "admin.listen",
                format!("{admin} is taken by server.listen ({public})"),
            );
        }
        if !admin.ip().is_loopback() {
            self.add_note(format!(
                "admin.listen is {admin} and asks for no credential, but for what tells of callers \
                 (admin.auth): let only monitoring reach it"
            ));
        }
        if !public.ip().is_loopback() && self.config.server.tls.cert.is_none() {
            self.add_note(format!(
                "server.listen is {public} without server.tls: tokens travel in the clear unless \
                 something in front ends TLS"
            ));
        }
        if public.ip().is_unspecified() && self.config.server.public_url.is_none() {
            self.add_note(format!(
                "server.public_url is not set and server.listen is {public}: proxy_url, the tokens' \
                 issuer and jwks_uri name an address that nobody can call"
            ));
        }
        if !public.ip().is_loopback()
            && self.config.server.public_url.is_none()
            && self.config.server.hosts.is_empty()
        {
            self.add_note(format!(
                "server.listen is {public}, and neither server.public_url nor server.hosts names \
                 it: callers from elsewhere get 421 until server.hosts lists the names and \
                 addresses that they use"
            ));
        }
    }

    fn check_replica(&mut self) {
        let Some(name) = &self.config.server.replica else {
            return;
        };
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || REPLICA_NAME_MAX < name.len() || !name.chars().all(known) {
            self.add_problem(
                "server.replica",
                format!("write 1 to {REPLICA_NAME_MAX} letters, digits, `.`, `_` or `-`, such as \"gateway-1\""),
            );
        }
    }

    fn check_hosts(&mut self) {
        for host in &self.config.server.hosts {
            let parsed = url::Url::parse(&format!("http://{host}/"));
            let plain = !host.is_empty()
                && !host.contains(['/', '@', '?', '#', '*', '\\', ' '])
                && parsed.is_ok_and(|url| url.host().is_some());
            if !plain {
                self.add_problem(
                    "server.hosts",
                    format!("`{host}` is not a host: write \"gateway.internal\" or \"gateway.internal:8080\""),
                );
            }
        }
    }

    fn check_public_url(&mut self) {
        let Some(url) = &self.config.server.public_url else {
            return;
        };
        let key = "server.public_url";
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            self.add_problem(key, "must begin with http:// or https:// and name a host");
        } else if !url.username().is_empty() || url.password().is_some() {
            self.add_problem(
                key,
                "must not hold a user or a password: it stands in public cards",
            );
        } else if url.query().is_some() || url.fragment().is_some() {
            self.add_problem(key, "must end before `?` and `#`: paths are added to it");
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
            let read = tls_pair::read_pem(path, marker);
            read.map_err(|reason| self.add_problem(name, reason)).ok()
        };
        let chain = pem("server.tls.cert", cert, "CERTIFICATE-----");
        let secret = pem("server.tls.key", key, "PRIVATE KEY-----");
        let callers = tls.client_ca.as_deref();
        let callers = callers.map(|ca| pem("server.tls.client_ca", ca, "CERTIFICATE-----"));
        if let Err(reason) = exposure::refuse_exposed_at(key) {
            self.add_problem("server.tls.key", reason);
        }
        let callers = callers.map_or(Some(None), |read| read.map(Some))?;
        ServingTls::from_pem(&chain?, &secret?, callers.as_deref())
            .map_err(|(name, reason)| self.add_problem(name, reason))
            .ok()
    }

    fn check_stores(&mut self) {
        let stores = &self.config.stores;
        let (sql, shared) = (stores.sql.expose_secret(), stores.shared.expose_secret());
        for (key, checked) in [
            ("stores.sql", store_url::check_sql(sql)),
            ("stores.shared", store_url::check_shared(shared)),
        ] {
            if let Err(reason) = checked {
                self.add_problem(key, reason);
            }
        }
        let headers = self.config.telemetry.otlp_headers.expose_secret();
        for (key, url) in [
            ("stores.sql", sql),
            ("stores.shared", shared),
            ("telemetry.otlp_headers", headers),
        ] {
            if let Source::File(path) = (self.source)(key)
                && !url.is_empty()
                && layer::mask_passwords(url) != url
                && let Err(reason) = exposure::refuse_exposed_at(&path)
            {
                self.add_note(format!("{key} may hold a password, and {reason}"));
            }
        }
        if shared == "memory" && !sql.starts_with("sqlite:") {
            self.add_note(
                "stores.shared is \"memory\" beside PostgreSQL: one gateway only, since replicas \
                 would not hear of each other's changes",
            );
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
        if c.forward.max_hops == 0 {
            self.add_problem(
                "forward.max_hops",
                "must be at least 1: this gateway counts",
            );
        }
        for (key, reason) in c.forward.refused_names() {
            self.add_problem(key, reason);
        }
        for origin in &c.cors.origins {
            if origin != "*" && !is_origin(origin) {
                self.add_problem("cors.origins", format!("`{origin}` is not an origin: write \"https://canvas.example.com\", without a path or a slash at the end"));
            }
        }
        if c.tokens.issuer.as_ref().is_some_and(String::is_empty) {
            self.add_problem("tokens.issuer", "must not be empty");
        }
    }

    fn check_addresses(&mut self) {
        let c = self.config;
        let set = (self.source)("address.allow") != Source::Default;
        if c.address.profile == AddressProfile::Strict && set && !c.address.allow.is_empty() {
            self.add_note("address.profile is \"strict\": address.allow is ignored");
        }
        if c.trusted_agents.len() > TRUSTED_AGENTS_MAX {
            self.add_problem(
                "trusted_agents",
                format!("may have at most {TRUSTED_AGENTS_MAX} prefixes"),
            );
        }
        if c.address.nameservers.len() > NAMESERVERS_MAX {
            self.add_problem(
                "address.nameservers",
                format!("may have at most {NAMESERVERS_MAX} servers"),
            );
        }
    }

    fn check_keys(&mut self) {
        let keys = &self.config.keys;
        if keys.dir.as_os_str().is_empty() {
            self.add_problem("keys.dir", "must name a folder");
        }
        self.add_problems("keys.dir", exposure::refuse_exposed_keys(&keys.dir));
        if let Some(file) = &keys.seal_key {
            if file.as_os_str().is_empty() {
                self.add_problem("keys.seal_key", "must name a file");
            } else if let Err(reason) = exposure::refuse_unusable_at(file) {
                self.add_problem("keys.seal_key", reason);
            }
        }
    }

    fn check_issuers(&mut self) {
        let auth = &self.config.auth;
        let own = self.config.issuer();
        let users = issuers::find_problems(&auth.issuers, &own);
        let platforms = workspaces::find_problems(&auth.workspace_issuers, &auth.issuers, &own);
        self.add_problems("auth.issuers", users);
        self.add_problems("auth.workspace_issuers", platforms);
    }

    fn check_sign_in(&mut self) {
        let admin = &self.config.admin;
        let beyond_loopback = !admin.listen.ip().is_loopback();
        for (key, problem) in admin.sign_in.find_problems(beyond_loopback) {
            self.add_problem(key, problem);
        }
    }

    fn check_guards(&mut self) {
        self.add_problems("guard", guard::find_problems(&self.config.guard));
        let secret = self.config.guard.iter().any(|guard| guard.header.is_some());
        if let Source::File(path) = (self.source)("guard")
            && secret
            && let Err(reason) = exposure::refuse_exposed_at(&path)
        {
            self.add_note(format!(
                "guard has a `header` that may be a credential, and {reason}"
            ));
        }
    }

    fn check_telemetry(&mut self) {
        for (key, reason) in self.config.telemetry.otlp_problems() {
            self.add_problem(key, reason);
        }
        if self.config.telemetry.otlp_credential_in_the_clear() {
            self.add_note(
                "telemetry.otlp_endpoint is plain http to another machine, and telemetry.otlp_headers goes there: \
                 whoever is on the way can read it",
            );
        }
        let log = &self.config.telemetry.log;
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(log) {
            self.add_problem(
                "telemetry.log",
                format!("is not a log filter, such as \"info\" or \"warn,access=off\": {error}"),
            );
            return;
        }
        // EnvFilter reads a bare word as a target: it would show all lines of that target and none
        // of any other.
        if let Some(word) = log.split(',').map(str::trim).find(|d| is_bare_word(d)) {
            self.add_problem(
                "telemetry.log",
                format!(
                    "`{word}` is not a level: write off, error, warn, info, debug or trace, or \
                     `{word}=debug` if it is the name of a target"
                ),
            );
        }
    }
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

/// True for `scheme://host[:port]`, exactly as a browser writes it.
fn is_origin(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.origin().ascii_serialization() == text
    })
}
