//! Resolves names to addresses: one look-up, each address checked by the policy, and the checked address is the
//! one dialled.
//!
//! Answers are cached for a few seconds, so that a busy agent does not cost a look-up for each message.
//! Look-ups of one name are shared, and bounded in number, since the system's resolver cannot be cancelled. A
//! caller has at most half of the look-ups that other callers leave; it takes its slot before it shares a
//! look-up. If no answer comes in time, an agent's last good address counts for a while. Names are resolved by
//! the system's resolver, or by the servers of `address.nameservers`.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use moka::future::Cache;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::endpoint::{Endpoint, Target};
use super::policy::Policy;
use access::explain::{Fact, Source, Witness};
use kernel::config::live::DerivedGuard;
use kernel::config::{Config, Derived, Live};
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, Shares};
use kernel::stage::Stage;

/// Lifetime of an answer. Short: agents move with their containers.
const ANSWER_TTL: Duration = Duration::from_secs(5);

/// Lifetime of a failure: shields the resolver from a caller that retries.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// Maximum names in the cache.
const NAMES_MAX: u64 = 10_000;

/// Maximum concurrent look-ups, including those that no request awaits any more.
const LOOKUPS_MAX: usize = 64;

/// Maximum wait for a fresh answer if there is an earlier address.
const FRESH_WITHIN: Duration = Duration::from_millis(100);

/// Lifetime of an agent's last good address while its name is resolved again.
const LAST_GOOD_MAX: Duration = Duration::from_secs(60);

/// Account for look-ups of registrations: together they have at most half of what calls leave.
pub(super) const REGISTRATIONS: Account = Account::without_group(u64::MAX);

/// Result of a look-up, and its time.
#[derive(Clone)]
struct Answer {
    addresses: Result<Arc<[IpAddr]>, LookupError>,
    asked_at: Instant,
}

/// Purpose and account of a look-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct LookupFor {
    /// Account of the caller.
    pub account: Account,
    /// True if the last good address counts when no answer comes in time.
    pub last_good: bool,
    /// True if only an answer counts that came after this look-up began.
    pub fresh: bool,
}

impl LookupFor {
    /// For a call of `account` to an agent.
    pub fn for_call(account: Account) -> Self {
        Self {
            last_good: true,
            ..Self::for_url(account)
        }
    }

    /// For a URL in a request of `account`, which must resolve now.
    pub fn for_url(account: Account) -> Self {
        Self {
            account,
            ..Self::default()
        }
    }

    /// For a registration: requires a fresh answer, since it decides which workspace holds the server.
    pub(super) fn for_registration() -> Self {
        Self {
            fresh: true,
            ..Self::for_url(REGISTRATIONS)
        }
    }
}

/// Address of an endpoint to dial, and all addresses of its host, if that is a name.
pub(super) type ResolvedAddress = (SocketAddr, Option<Arc<[IpAddr]>>);

impl Answer {
    fn is_old(&self) -> bool {
        let is_ok = self.addresses.is_ok();
        self.asked_at.elapsed() >= if is_ok { ANSWER_TTL } else { FAILURE_TTL }
    }

    fn is_no_answer(&self) -> bool {
        matches!(self.addresses, Err(LookupError::NoAnswer(_)))
    }
}

/// Resolves names and checks the addresses.
pub(crate) struct Resolver {
    policy: Derived<Policy>,
    own: Derived<OwnListeners>,
    names: Arc<NameCache>,
}

/// Cached answers.
struct NameCache {
    nameservers: Derived<Nameservers>,
    answers: Cache<Arc<str>, Answer>,
    /// Last good answers, for look-ups without an answer in time.
    good: Cache<Arc<str>, Answer>,
    /// Names with an expired good answer that are being resolved.
    asking: Mutex<HashSet<Arc<str>>>,
    places: Arc<Shares>,
    /// Notified when a slot is free.
    freed: Arc<Notify>,
}

/// Slot of a look-up. Dropping it wakes the requests that wait for one.
struct LookupSlot {
    share: Option<Share>,
    freed: Arc<Notify>,
}

impl Drop for LookupSlot {
    fn drop(&mut self) {
        self.share = None;
        self.freed.notify_waiters();
    }
}

impl Resolver {
    pub(crate) fn new(config: &Live) -> Self {
        Self {
            policy: Derived::new(config, |config, _| Policy::new(config)),
            own: Derived::new(config, |config, _| OwnListeners::new(config)),
            names: Arc::new(NameCache {
                nameservers: Derived::new(config, Nameservers::new),
                answers: Cache::new(NAMES_MAX),
                good: Cache::builder()
                    .max_capacity(NAMES_MAX)
                    .time_to_live(LAST_GOOD_MAX)
                    .build(),
                asking: Mutex::default(),
                places: Arc::default(),
                freed: Arc::default(),
            }),
        }
    }

    /// Policy in force.
    pub(crate) fn policy(&self) -> DerivedGuard<Policy> {
        self.policy.get()
    }

    /// Parses the URL of an agent by the policy in force.
    ///
    /// # Errors
    /// As [`Endpoint::parse`].
    pub(crate) fn parse(&self, url: &str) -> Result<Endpoint, Rejection> {
        Endpoint::parse(url, &self.policy())
    }

    /// Returns the address to dial for `endpoint`. A cached answer is checked, too: the policy may have become
    /// stricter.
    ///
    /// # Errors
    /// `address_forbidden` if any address is; `agent_unreachable` if no answer comes in time.
    pub(super) async fn resolve(
        &self,
        endpoint: &Endpoint,
        asker: LookupFor,
        witness: &mut impl Witness,
    ) -> Result<ResolvedAddress, Rejection> {
        let (address, of_name) = match &endpoint.target {
            Target::Literal(address) => {
                let chosen = self.choose_address(endpoint, &[*address]);
                witness.record(|| fact_of(endpoint, &[*address], &chosen, Source::Memory));
                (chosen?, None)
            }
            Target::Name(name) => {
                let (answer, source) = self.names.find(name, asker).await;
                let answers = answer.addresses;
                let chosen = match &answers {
                    Ok(answers) => self.choose_address(endpoint, answers),
                    Err(LookupError::NoAddress(why) | LookupError::NoAnswer(why)) => {
                        Err(unknown_name(endpoint, why.clone()))
                    }
                };
                witness.record(|| {
                    let known = answers.as_deref().unwrap_or_default();
                    fact_of(endpoint, known, &chosen, source).with_age(answer.asked_at.elapsed())
                });
                (chosen?, answers.ok())
            }
        };
        Ok((SocketAddr::new(address, endpoint.port), of_name))
    }

    /// Returns all addresses of `endpoint`'s host; none if the look-up fails.
    pub(crate) async fn lookup_all(&self, endpoint: &Endpoint, asker: LookupFor) -> Arc<[IpAddr]> {
        match &endpoint.target {
            Target::Literal(address) => [*address].into(),
            Target::Name(name) => {
                let (answer, _) = self.names.find(name, asker).await;
                answer.addresses.unwrap_or_else(|_| [].into())
            }
        }
    }

    fn choose_address(&self, endpoint: &Endpoint, answers: &[IpAddr]) -> Result<IpAddr, Rejection> {
        let own = self.own.get();
        for address in answers {
            own.check_endpoint(endpoint, *address)?;
        }
        pick_one(endpoint, &self.policy(), answers)
    }
}

impl NameCache {
    async fn find(self: &Arc<Self>, name: &Arc<str>, asker: LookupFor) -> (Answer, Source) {
        if asker.fresh {
            let answer = self.resolve(name, asker.account, Some(Instant::now()));
            return (Box::pin(answer).await, Source::Dns);
        }
        match self.answers.get(name).await.filter(|a| !a.is_old()) {
            // A timeout proves nothing if there is an earlier good answer.
            Some(silence) if asker.last_good && silence.is_no_answer() => {
                let good = self.good.get(name).await;
                (good.unwrap_or(silence), Source::Memory)
            }
            Some(answer) => (answer, Source::Memory),
            // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
            None => Box::pin(self.look_up(name, asker)).await,
        }
    }

    async fn look_up(self: &Arc<Self>, name: &Arc<str>, asker: LookupFor) -> (Answer, Source) {
        let good = match asker.last_good {
            true => self.good.get(name).await,
            false => None,
        };
        let Some(good) = good else {
            return (self.resolve(name, asker.account, None).await, Source::Dns);
        };
        // One request resolves the name again; the others use the earlier answer.
        if !self.asking.lock().insert(Arc::clone(name)) {
            return (good, Source::Memory);
        }
        let (names, asked) = (Arc::clone(self), Arc::clone(name));
        let asking = tokio::spawn(async move {
            let answer = names.resolve(&asked, asker.account, None).await;
            names.asking.lock().remove(&asked);
            answer
        });
        match timeout(FRESH_WITHIN, asking).await {
            Ok(Ok(answer)) if !answer.is_no_answer() => (answer, Source::Dns),
            Ok(_) | Err(_) => (good, Source::Memory),
        }
    }

    /// Resolves the name in the account of the caller, and joins a look-up in progress, except for an answer
    /// from before `since`.
    async fn resolve(&self, name: &Arc<str>, account: Account, since: Option<Instant>) -> Answer {
        let Ok(slot) = timeout(LOOKUP_MAX, self.take_slot(account)).await else {
            // No look-up was made: this is not an answer for other callers.
            return Answer {
                addresses: Err(LookupError::NoAnswer(None)),
                asked_at: Instant::now(),
            };
        };
        let ask = async {
            Answer {
                addresses: self.ask(name, slot).await,
                asked_at: Instant::now(),
            }
        };
        let is_old =
            |answer: &Answer| answer.is_old() || since.is_some_and(|since| answer.asked_at < since);
        let entry = self.answers.entry_by_ref(name);
        let entry = entry.or_insert_with_if(ask, is_old).await;
        let is_fresh = entry.is_fresh();
        let answer = entry.into_value();
        if is_fresh && answer.addresses.is_ok() {
            self.good.insert(Arc::clone(name), answer.clone()).await;
        } else if matches!(answer.addresses, Err(LookupError::NoAddress(_))) {
            self.good.invalidate(name).await;
        }
        answer
    }

    /// Waits for a slot of `account`.
    async fn take_slot(&self, account: Account) -> LookupSlot {
        loop {
            // Subscribe before the check, so that no wake-up is lost.
            let freed = self.freed.notified();
            let bound = Bound::with_places(LOOKUPS_MAX);
            if let Ok(share) = self.places.take(account, 1, bound) {
                return LookupSlot {
                    share: Some(share),
                    freed: Arc::clone(&self.freed),
                };
            }
            freed.await;
        }
    }

    async fn ask(&self, name: &Arc<str>, slot: LookupSlot) -> Result<Arc<[IpAddr]>, LookupError> {
        let name = Arc::clone(name);
        let asked = self.nameservers.get().resolver.clone();
        // A task of its own holds the slot until the system's resolver returns, even if no request waits for
        // it.
        let lookup = tokio::spawn(async move {
            let answers = look_up(&name, asked).await;
            drop(slot);
            answers
        });
        match timeout(LOOKUP_MAX, lookup).await {
            Ok(Ok(Ok(answers))) if answers.is_empty() => Err(LookupError::NoAddress(None)),
            Ok(Ok(Ok(answers))) => Ok(answers.into()),
            Ok(Ok(Err(none))) => Err(none),
            Ok(Err(error)) => Err(LookupError::NoAnswer(Some(Arc::new(error)))),
            Err(late) => Err(LookupError::NoAnswer(Some(Arc::new(late)))),
        }
    }
}

/// Reports the addresses of the host, and the one that is dialled, to the witness.
fn fact_of(
    endpoint: &Endpoint,
    addresses: &[IpAddr],
    chosen: &Result<IpAddr, Rejection>,
    source: Source,
) -> Fact {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let value = json!({
        "host": endpoint.host,
        "addresses": addresses,
        "dialled": chosen.as_ref().ok().map(ToString::to_string),
        "port": endpoint.port,
        "tls": endpoint.tls,
    });
    Fact::new(Stage::Address, source, value)
}

/// One forbidden address rejects all: a name with a forbidden address among others is an attack. IPv4 comes
/// first, since an agent that listens on "localhost" usually has that. An endpoint at one address of its name gets no
/// other.
fn pick_one(endpoint: &Endpoint, policy: &Policy, answers: &[IpAddr]) -> Result<IpAddr, Rejection> {
    for address in answers {
        endpoint.check_address(*address, policy)?;
    }
    if let Some(only) = endpoint.only {
        let known = answers.iter().find(|address| **address == only);
        let title = endpoint.title;
        let left = || {
            format!(
                "the name in {title} does not have the address of this instance any more: try again"
            )
        };
        return known.copied().ok_or_else(|| unreachable_name(left()));
    }
    let first = answers.iter().find(|address| address.is_ipv4());
    let first = first.or(answers.first()).copied();
    first.ok_or_else(|| unknown_name(endpoint, None))
}

fn unreachable_name(message: String) -> Rejection {
    Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent)
}

/// Rejects an endpoint whose name has no address. `failure`: of the look-up.
pub(super) fn unknown_name(endpoint: &Endpoint, failure: Failure) -> Rejection {
    let title = endpoint.title;
    let message =
        format!("the name in {title} has no address: check it, and the DNS that the gateway asks");
    Rejection {
        cause: failure,
        ..unreachable_name(message)
    }
}

/// Timeout of a look-up.
pub(super) const LOOKUP_MAX: Duration = Duration::from_secs(2);

/// Cause of a failed look-up, if it is known.
pub(super) type Failure = Option<Arc<dyn std::error::Error + Send + Sync>>;

/// Failed look-up of a name.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// The answer has no address.
    #[error("the name has no address")]
    NoAddress(Failure),
    /// No answer came in time.
    #[error("the look-up was not answered in time")]
    NoAnswer(Failure),
}

/// Resolver in use.
pub(super) struct Nameservers {
    /// Resolver for the servers of `address.nameservers`; `None`: the system's resolver.
    pub(super) resolver: Option<TokioResolver>,
    /// Addresses of these servers.
    nameservers: Vec<SocketAddr>,
}

impl Nameservers {
    /// Keeps the resolver of `before` with its sockets if the servers are the same.
    pub(super) fn new(config: &Config, before: Option<&Self>) -> Self {
        let nameservers = config.address.nameservers.clone();
        let kept = before.filter(|before| before.nameservers == nameservers);
        Self {
            resolver: match kept {
                Some(kept) => kept.resolver.clone(),
                None if nameservers.is_empty() => None,
                None => build_resolver(&nameservers),
            },
            nameservers,
        }
    }
}

/// Creates a resolver for these servers without a cache, since [`NameCache`] is one.
fn build_resolver(nameservers: &[SocketAddr]) -> Option<TokioResolver> {
    let servers = nameservers.iter().map(|server| {
        let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        connections.iter_mut().for_each(|c| c.port = server.port());
        NameServerConfig::new(server.ip(), true, connections.into())
    });
    let config = ResolverConfig::from_name_servers(servers.collect());
    let provider = TokioRuntimeProvider::default();
    let mut builder = TokioResolver::builder_with_config(config, provider);
    let options = builder.options_mut();
    options.cache_size = 0;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = LOOKUP_MAX / 2;
    options.attempts = 1;
    // Fails for a path of certificates only, and there is none.
    builder.build().ok()
}

/// Looks up the addresses of a name.
///
/// # Errors
/// [`LookupError`].
pub(super) async fn look_up(
    name: &str,
    resolver: Option<TokioResolver>,
) -> Result<Vec<IpAddr>, LookupError> {
    let Some(resolver) = resolver else {
        let answers = tokio::net::lookup_host((name, 0)).await;
        let answers = answers.map_err(|error| LookupError::NoAddress(Some(Arc::new(error))))?;
        return Ok(answers.map(|answer| answer.ip()).collect());
    };
    match resolver.lookup_ip(name).await {
        Ok(answers) => Ok(answers.iter().collect()),
        Err(error) if error.is_no_records_found() => {
            Err(LookupError::NoAddress(Some(Arc::new(error))))
        }
        Err(error) => Err(LookupError::NoAnswer(Some(Arc::new(error)))),
    }
}

/// Discard port. No packet is sent, so any port will do.
const DISCARD: u16 = 9;

/// Addresses at which this process listens.
pub(super) struct OwnListeners {
    listeners: [SocketAddr; 2],
    /// Scheme (true: https) and host of the public URL.
    public: Option<(bool, String)>,
}

impl OwnListeners {
    pub(super) fn new(config: &Config) -> Self {
        let public = config.server.public_url.as_ref().map(|url| {
            let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
            (url.scheme() == "https", host.to_owned())
        });
        Self {
            listeners: [config.server.listen, config.admin.listen],
            public,
        }
    }

    /// Checks that `endpoint`, with `address` of its host, is not this process.
    ///
    /// # Errors
    /// `address_forbidden`.
    pub(super) fn check_endpoint(
        &self,
        endpoint: &Endpoint,
        address: IpAddr,
    ) -> Result<(), Rejection> {
        let address = address.to_canonical();
        let is_listener = |listener: &SocketAddr| {
            let ip = listener.ip().to_canonical();
            listener.port() == endpoint.port
                && (ip == address || (ip.is_unspecified() && is_of_this_machine(address)))
        };
        let is_public = self
            .public
            .as_ref()
            .is_some_and(|(tls, host)| (*tls, host) == (endpoint.tls, &endpoint.host));
        if !is_public && !self.listeners.iter().any(is_listener) {
            return Ok(());
        }
        let title = endpoint.title;
        let message = format!(
            "{title} is an address of this gateway: name the one at which the agent listens"
        );
        Err(Rejection::new(Reason::AddressForbidden, message))
    }
}

/// True if a connection to `address` stays on this machine: then the system uses that address as the source,
/// too. Reads the system's routes and sends no packet.
pub(super) fn is_of_this_machine(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(address) if address.is_loopback() => return true,
        IpAddr::V6(address) if address.is_loopback() => return true,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::super::policy::tests::{policy, trusting};
    use super::*;
    use kernel::config::{self, Config};
    use kernel::rejection::Reason;

    fn resolver(allow: &[&str]) -> Resolver {
        let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
        config.address.allow = allow.iter().map(|net| net.parse().unwrap()).collect();
        Resolver::new(&config.into())
    }

    fn named(policy: &Policy) -> Endpoint {
        Endpoint::parse("http://agent.example:81/", policy).unwrap()
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_refused_answer_refuses_the_name() {
        let policy = policy(&["127.0.0.0/8"]);
        let mixed = addresses(&["8.8.8.8", "169.254.169.254"]);
        let refusal = pick_one(&named(&policy), &policy, &mixed).unwrap_err();
        assert_eq!(refusal.reason, Reason::AddressForbidden);
        let none = pick_one(&named(&policy), &policy, &[]).unwrap_err();
        assert_eq!(none.reason, Reason::AgentUnreachable);
    }

    #[test]
    fn the_first_address_of_ipv4_is_dialled() {
        let both = addresses(&["2606:4700::1111", "8.8.8.8", "8.8.4.4"]);
        let policy = policy(&[]);
        assert_eq!(pick_one(&named(&policy), &policy, &both).unwrap(), both[1]);
        let six = addresses(&["2606:4700::1111"]);
        assert_eq!(pick_one(&named(&policy), &policy, &six).unwrap(), six[0]);
    }

    #[test]
    fn the_name_of_a_trusted_agent_may_mean_anything_but_metadata() {
        let policy = trusting(&["http://agent.example:81"]);
        let private = addresses(&["10.0.0.1", "198.18.0.1"]);
        assert_eq!(
            pick_one(&named(&policy), &policy, &private).unwrap(),
            private[0]
        );
        let metadata = addresses(&["10.0.0.1", "fd00:ec2::254"]);
        assert!(pick_one(&named(&policy), &policy, &metadata).is_err());
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_means_not_by_how_it_reads() {
        let endpoint = |policy: &Policy| Endpoint::parse("http://localhost:81/", policy).unwrap();
        let open = resolver(&["127.0.0.0/8", "::1/128"]);
        let resolved = open
            .resolve(&endpoint(&open.policy()), LookupFor::default(), &mut ())
            .await
            .unwrap();
        let address = resolved.0;
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 81);
        let strict = resolver(&[]);
        let refused = strict
            .resolve(&endpoint(&strict.policy()), LookupFor::default(), &mut ())
            .await;
        let refusal = refused.err().unwrap();
        assert_eq!(refusal.reason, Reason::AddressForbidden);
    }

    #[tokio::test]
    async fn an_answer_is_kept_while_it_is_fresh() {
        let resolver = resolver(&[]);
        let name: Arc<str> = "agent.invalid".into();
        let kept: IpAddr = "8.8.8.8".parse().unwrap();
        let answer = Answer {
            addresses: Ok([kept].into()),
            asked_at: Instant::now(),
        };
        let names = &resolver.names;
        names.answers.insert(Arc::clone(&name), answer).await;
        let find = async || names.find(&name, LookupFor::default()).await.0.addresses;
        assert_eq!(*find().await.unwrap(), [kept]);
        tokio::time::pause();
        tokio::time::advance(ANSWER_TTL).await;
        assert!(find().await.is_err());
    }

    #[tokio::test]
    async fn one_caller_cannot_take_all_look_ups() {
        let names = resolver(&[]).names;
        let mut held = Vec::new();
        for _ in 0..LOOKUPS_MAX / 2 {
            held.push(names.take_slot(Account::without_group(7)).await);
        }
        let short = Duration::from_millis(20);
        let more = timeout(short, names.take_slot(Account::without_group(7))).await;
        assert!(more.is_err(), "it has its half");
        held.push(names.take_slot(Account::without_group(8)).await);
        // Its half is smaller by now: of 63.
        let (freed, ()) = tokio::join!(names.take_slot(Account::without_group(7)), async {
            held.drain(..2);
        });
        drop((freed, held));
        assert_eq!(names.places.total(), 0);
    }
}

#[cfg(test)]
mod nameservers_tests {
    use super::*;
    use kernel::config;

    #[test]
    fn the_same_servers_are_asked_on_after_a_reload() {
        let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
        assert!(Nameservers::new(&config, None).resolver.is_none());
        config.address.nameservers = vec!["127.0.0.1:5353".parse().unwrap()];
        let first = Nameservers::new(&config, None);
        assert!(first.resolver.is_some());
        assert!(Nameservers::new(&config, Some(&first)).resolver.is_some());
        config.address.nameservers.clear();
        assert!(Nameservers::new(&config, Some(&first)).resolver.is_none());
    }
}

#[cfg(test)]
mod own_listeners_tests {
    use super::super::policy::tests::shipped;
    use super::*;

    fn own(listen: &str, admin: &str, public: Option<&str>) -> OwnListeners {
        let mut config: Config = toml::from_str(kernel::config::load::DEFAULT).unwrap();
        config.server.listen = listen.parse().unwrap();
        config.admin.listen = admin.parse().unwrap();
        config.server.public_url = public.map(|url| url.parse().unwrap());
        OwnListeners::new(&config)
    }

    fn refuses(own: &OwnListeners, url: &str, address: &str) -> bool {
        let endpoint = Endpoint::parse(url, &shipped()).unwrap();
        own.check_endpoint(&endpoint, address.parse().unwrap())
            .is_err()
    }

    #[test]
    fn a_listener_is_known_by_every_address_that_reaches_it() {
        let narrow = own("127.0.0.1:8080", "127.0.0.1:9090", None);
        assert!(refuses(&narrow, "http://127.0.0.1:8080/", "127.0.0.1"));
        assert!(refuses(&narrow, "http://a.test:9090/", "::ffff:127.0.0.1"));
        assert!(!refuses(&narrow, "http://127.0.0.1:8081/", "127.0.0.1"));
        assert!(!refuses(&narrow, "http://127.0.0.2:8080/", "127.0.0.2"));
        let wide = own("0.0.0.0:8080", "[::]:9090", Some("https://gw.example/x"));
        for (url, address) in [
            ("http://127.0.0.2:8080/", "127.0.0.2"),
            ("http://a.test:9090/", "::1"),
            ("http://a.test:9090/", "127.8.0.1"),
            ("https://gw.example/workspaces/a/a2a", "192.0.2.1"),
        ] {
            assert!(refuses(&wide, url, address), "{url}");
        }
        assert!(!refuses(&wide, "http://a.test:8080/", "8.8.8.8"));
        assert!(!refuses(&wide, "http://gw.example/", "192.0.2.1"));
    }
}
