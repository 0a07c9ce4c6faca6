//! From name to address: one look-up, every answer judged, and the judged address is the one dialled.
//!
//! Answers are kept for a few seconds so that a busy agent costs no look-up a message; look-ups of
//! one name are shared, and their number is bounded, since the system's resolver cannot be cancelled.
//! The system's is asked, or the servers of `address.nameservers`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use moka::future::Cache;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::address::Policy;
use super::endpoint::{Endpoint, Target};
use super::own::Own;
use crate::config::live::Present;
use crate::config::{Config, Derived, Live};
use crate::explain::{Check, Fact, Source, Witness};
use crate::rejection::{Reason, Rejection};

/// Longest look-up.
const LOOKUP_MAX: Duration = Duration::from_secs(2);
/// How long an answer is used. Short: agents move with their containers.
const ANSWER_TTL: Duration = Duration::from_secs(5);
/// How long a failure is used: enough to shield the resolver from a caller that insists.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Names kept at most.
const NAMES_MAX: u64 = 10_000;
/// Look-ups under way at most, those that nobody waits for any more included.
const LOOKUPS_MAX: usize = 64;

/// Why a look-up gave nothing, if it is known.
type Failure = Option<Arc<dyn std::error::Error + Send + Sync>>;

#[derive(Clone)]
struct Answer {
    addresses: Result<Arc<[IpAddr]>, Failure>,
    asked_at: Instant,
}

impl Answer {
    fn is_old(&self) -> bool {
        let ttl = if self.addresses.is_ok() {
            ANSWER_TTL
        } else {
            FAILURE_TTL
        };
        self.asked_at.elapsed() >= ttl
    }
}

/// Who is asked for the addresses of a name.
struct Directions {
    /// The servers of `address.nameservers`; `None`: the system's resolver.
    asked: Option<TokioResolver>,
    /// Which those are.
    nameservers: Vec<SocketAddr>,
}

impl Directions {
    /// What was there for the same servers is kept, with its sockets.
    fn new(config: &Config, before: Option<&Self>) -> Self {
        let nameservers = config.address.nameservers.clone();
        let kept = before.filter(|before| before.nameservers == nameservers);
        Self {
            asked: match kept {
                Some(kept) => kept.asked.clone(),
                None if nameservers.is_empty() => None,
                None => asking(&nameservers),
            },
            nameservers,
        }
    }
}

/// A resolver that asks these servers and remembers nothing: we do.
fn asking(nameservers: &[SocketAddr]) -> Option<TokioResolver> {
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
    // It fails for a path of certificates only, and there is none.
    builder.build().ok()
}

/// Looks names up and judges the answers.
pub(super) struct Resolver {
    policy: Derived<Policy>,
    own: Derived<Own>,
    directions: Derived<Directions>,
    answers: Cache<Arc<str>, Answer>,
    lookups: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(config: &Live) -> Self {
        Self {
            policy: Derived::new(config, |config, _| Policy::new(config)),
            own: Derived::new(config, |config, _| Own::new(config)),
            directions: Derived::new(config, Directions::new),
            answers: Cache::new(NAMES_MAX),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
        }
    }

    /// As it is now.
    pub(super) fn policy(&self) -> Present<Policy> {
        self.policy.get()
    }

    /// The address to dial for `endpoint`. Judged each time, however long ago it was looked up: the
    /// policy may have become stricter.
    ///
    /// # Errors
    /// `address_forbidden` when any answer is; `agent_unreachable` when there is none in time.
    pub(super) async fn address(
        &self,
        endpoint: &Endpoint,
        witness: &mut impl Witness,
    ) -> Result<SocketAddr, Rejection> {
        let address = match &endpoint.target {
            Target::Literal(address) => {
                let chosen = self.choose(endpoint, &[*address]);
                witness.hear(|| told(endpoint, (&[*address], &chosen), Source::Memory));
                chosen?
            }
            Target::Name(name) => {
                let (answer, source) = self.name(name).await;
                let answers = answer.addresses;
                let chosen = match &answers {
                    Ok(answers) => self.choose(endpoint, answers),
                    Err(failure) => Err(unknown_name(endpoint, failure.clone())),
                };
                witness.hear(|| {
                    let known = answers.as_deref().unwrap_or_default();
                    told(endpoint, (known, &chosen), source).aged(answer.asked_at.elapsed())
                });
                chosen?
            }
        };
        Ok(SocketAddr::new(address, endpoint.port))
    }

    /// Every address of `endpoint`'s host, as they stand for themselves; none where it cannot be looked up.
    pub(super) async fn addresses(&self, endpoint: &Endpoint) -> Vec<IpAddr> {
        let addresses = match &endpoint.target {
            Target::Literal(address) => vec![*address],
            Target::Name(name) => {
                let (answer, _) = self.name(name).await;
                answer
                    .addresses
                    .map_or_else(|_| Vec::new(), |all| all.to_vec())
            }
        };
        addresses.iter().map(IpAddr::to_canonical).collect()
    }

    fn choose(&self, endpoint: &Endpoint, answers: &[IpAddr]) -> Result<IpAddr, Rejection> {
        let own = self.own.get();
        for address in answers {
            own.judge(endpoint, *address)?;
        }
        choose(endpoint, &self.policy(), answers)
    }

    async fn name(&self, name: &Arc<str>) -> (Answer, Source) {
        if let Some(answer) = self.answers.get(name).await.filter(|a| !a.is_old()) {
            return (answer, Source::Memory);
        }
        let ask = async {
            Answer {
                addresses: self.ask(name).await,
                asked_at: Instant::now(),
            }
        };
        let entry = self.answers.entry_by_ref(name);
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        let entry = Box::pin(entry.or_insert_with_if(ask, Answer::is_old)).await;
        (entry.into_value(), Source::Dns)
    }

    async fn ask(&self, name: &Arc<str>) -> Result<Arc<[IpAddr]>, Failure> {
        let name = Arc::clone(name);
        let lookups = Arc::clone(&self.lookups);
        let asked = self.directions.get().asked.clone();
        let lookup = async move {
            let slot = lookups
                .acquire_owned()
                .await
                .map_err(std::io::Error::other)?;
            // A task of its own keeps its slot until the system's resolver comes back, waited for or not.
            let task = tokio::spawn(async move {
                let answers = look_up(&name, asked).await;
                drop(slot);
                answers
            });
            task.await.map_err(std::io::Error::other)?
        };
        match timeout(LOOKUP_MAX, lookup).await {
            Ok(Ok(answers)) if answers.is_empty() => Err(None),
            Ok(Ok(answers)) => Ok(answers.into()),
            Ok(Err(error)) => Err(Some(Arc::new(error))),
            Err(late) => Err(Some(Arc::new(late))),
        }
    }
}

/// For whoever listens: what the host means, and which of it is dialled.
fn told(
    endpoint: &Endpoint,
    (addresses, chosen): (&[IpAddr], &Result<IpAddr, Rejection>),
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
    Fact::new(Check::Address, source, value)
}

async fn look_up(name: &str, asked: Option<TokioResolver>) -> std::io::Result<Vec<IpAddr>> {
    let Some(asked) = asked else {
        let answers = tokio::net::lookup_host((name, 0)).await?;
        return Ok(answers.map(|answer| answer.ip()).collect());
    };
    let answers = asked.lookup_ip(name).await;
    Ok(answers.map_err(std::io::Error::other)?.iter().collect())
}

/// One refused answer refuses all: a name that means something forbidden half of the time is an attack.
/// IPv4 goes first, since an agent that listens on "localhost" is usually there.
fn choose(endpoint: &Endpoint, policy: &Policy, answers: &[IpAddr]) -> Result<IpAddr, Rejection> {
    for address in answers {
        endpoint.judge(*address, policy)?;
    }
    let first = answers.iter().find(|address| address.is_ipv4());
    let first = first.or(answers.first()).copied();
    first.ok_or_else(|| unknown_name(endpoint, None))
}

fn unknown_name(endpoint: &Endpoint, failure: Failure) -> Rejection {
    let title = endpoint.title;
    let message =
        format!("the name in {title} has no address: check it, and the DNS that the gateway asks");
    let refusal = Rejection::new(Reason::AgentUnreachable, message).fact("delivered", false);
    Rejection {
        cause: failure,
        ..refusal
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::tests::{policy, trusting};
    use super::*;
    use crate::config;

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
        let refusal = choose(&named(&policy), &policy, &mixed).unwrap_err();
        assert_eq!(refusal.reason, Reason::AddressForbidden);
        let none = choose(&named(&policy), &policy, &[]).unwrap_err();
        assert_eq!(none.reason, Reason::AgentUnreachable);
    }

    #[test]
    fn the_first_address_of_ipv4_is_dialled() {
        let both = addresses(&["2606:4700::1111", "8.8.8.8", "8.8.4.4"]);
        let policy = policy(&[]);
        assert_eq!(choose(&named(&policy), &policy, &both).unwrap(), both[1]);
        let six = addresses(&["2606:4700::1111"]);
        assert_eq!(choose(&named(&policy), &policy, &six).unwrap(), six[0]);
    }

    #[test]
    fn the_name_of_a_trusted_agent_may_mean_anything_but_metadata() {
        let policy = trusting(&["http://agent.example:81"]);
        let private = addresses(&["10.0.0.1", "198.18.0.1"]);
        assert_eq!(
            choose(&named(&policy), &policy, &private).unwrap(),
            private[0]
        );
        let metadata = addresses(&["10.0.0.1", "fd00:ec2::254"]);
        assert!(choose(&named(&policy), &policy, &metadata).is_err());
    }

    #[test]
    fn the_same_servers_are_asked_on_after_a_reload() {
        let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
        assert!(Directions::new(&config, None).asked.is_none());
        config.address.nameservers = vec!["127.0.0.1:5353".parse().unwrap()];
        let first = Directions::new(&config, None);
        assert!(first.asked.is_some());
        assert!(Directions::new(&config, Some(&first)).asked.is_some());
        config.address.nameservers.clear();
        assert!(Directions::new(&config, Some(&first)).asked.is_none());
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_means_not_by_how_it_reads() {
        let endpoint = |policy: &Policy| Endpoint::parse("http://localhost:81/", policy).unwrap();
        let open = resolver(&["127.0.0.0/8", "::1/128"]);
        let address = open
            .address(&endpoint(&open.policy()), &mut ())
            .await
            .unwrap();
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 81);
        let strict = resolver(&[]);
        let refusal = strict
            .address(&endpoint(&strict.policy()), &mut ())
            .await
            .unwrap_err();
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
        resolver.answers.insert(Arc::clone(&name), answer).await;
        assert_eq!(*resolver.name(&name).await.0.addresses.unwrap(), [kept]);
        tokio::time::pause();
        tokio::time::advance(ANSWER_TTL).await;
        assert!(resolver.name(&name).await.0.addresses.is_err());
    }
}
