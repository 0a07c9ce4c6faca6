//! From name to address: one look-up, every answer judged, and the judged address is the one dialled.
//!
//! Answers are kept for a few seconds so that a busy agent costs no look-up a message; look-ups of
//! one name are shared, and their number is bounded, since the system's resolver cannot be cancelled.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::address::Policy;
use super::endpoint::{Endpoint, Target, refused_by_policy};
use crate::config::Derived;
use crate::config::live::Present;
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

#[derive(Clone)]
struct Answer {
    addresses: Result<Arc<[IpAddr]>, Rejection>,
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

/// Looks names up and judges the answers.
pub(super) struct Resolver {
    policy: Derived<Policy>,
    answers: Cache<Arc<str>, Answer>,
    lookups: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(policy: Derived<Policy>) -> Self {
        Self {
            policy,
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
    pub(super) async fn address(&self, endpoint: &Endpoint) -> Result<SocketAddr, Rejection> {
        let address = match &endpoint.target {
            Target::Literal(address) => choose(&self.policy(), &[*address])?,
            Target::Name(name) => {
                let answers = self.name(name).await?;
                choose(&self.policy(), &answers)?
            }
        };
        Ok(SocketAddr::new(address, endpoint.port))
    }

    async fn name(&self, name: &Arc<str>) -> Result<Arc<[IpAddr]>, Rejection> {
        if let Some(answer) = self.answers.get(name).await.filter(|a| !a.is_old()) {
            return answer.addresses;
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
        entry.into_value().addresses
    }

    async fn ask(&self, name: &Arc<str>) -> Result<Arc<[IpAddr]>, Rejection> {
        let name = Arc::clone(name);
        let lookups = Arc::clone(&self.lookups);
        let lookup = async move {
            let slot = lookups
                .acquire_owned()
                .await
                .map_err(std::io::Error::other)?;
            // A task of its own keeps its slot until the system's resolver comes back, waited for or not.
            let task = tokio::spawn(async move {
                let answers = tokio::net::lookup_host((&*name, 0)).await;
                drop(slot);
                answers.map(|all| all.map(|a| a.ip()).collect::<Vec<_>>())
            });
            task.await.map_err(std::io::Error::other)?
        };
        match timeout(LOOKUP_MAX, lookup).await {
            Ok(Ok(answers)) if answers.is_empty() => Err(unknown_name()),
            Ok(Ok(answers)) => Ok(answers.into()),
            Ok(Err(error)) => Err(unknown_name().cause(error)),
            Err(late) => Err(unknown_name().cause(late)),
        }
    }
}

/// One refused answer refuses all: a name that means something forbidden half of the time is an attack.
/// IPv4 goes first, since an agent that listens on "localhost" is usually there.
fn choose(policy: &Policy, answers: &[IpAddr]) -> Result<IpAddr, Rejection> {
    if !answers.iter().all(|address| policy.permits(*address)) {
        return Err(refused_by_policy());
    }
    let first = answers.iter().find(|address| address.is_ipv4());
    first.or(answers.first()).copied().ok_or_else(unknown_name)
}

fn unknown_name() -> Rejection {
    Rejection::new(
        Reason::AgentUnreachable,
        "the name in the agent's URL has no address: check the URL it registered, and the DNS",
    )
    .fact("delivered", false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn policy(allow: &[&str]) -> Policy {
        Policy::new(&address(allow))
    }

    fn address(allow: &[&str]) -> config::Address {
        config::Address {
            profile: config::AddressProfile::Default,
            allow: allow.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    fn resolver(allow: &[&str]) -> Resolver {
        let mut config: config::Config = toml::from_str(config::load::DEFAULT).unwrap();
        config.address = address(allow);
        Resolver::new(Derived::new(&config.into(), |config, _| {
            Policy::new(&config.address)
        }))
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_refused_answer_refuses_the_name() {
        let policy = policy(&["127.0.0.0/8"]);
        let mixed = addresses(&["8.8.8.8", "169.254.169.254"]);
        let refusal = choose(&policy, &mixed).unwrap_err();
        assert_eq!(refusal.reason, Reason::AddressForbidden);
        let none = choose(&policy, &[]).unwrap_err();
        assert_eq!(none.reason, Reason::AgentUnreachable);
    }

    #[test]
    fn the_first_address_of_ipv4_is_dialled() {
        let both = addresses(&["2606:4700::1111", "8.8.8.8", "8.8.4.4"]);
        assert_eq!(choose(&policy(&[]), &both).unwrap(), both[1]);
        let six = addresses(&["2606:4700::1111"]);
        assert_eq!(choose(&policy(&[]), &six).unwrap(), six[0]);
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_means_not_by_how_it_reads() {
        let endpoint = |policy: &Policy| Endpoint::parse("http://localhost:81/", policy).unwrap();
        let open = resolver(&["127.0.0.0/8", "::1/128"]);
        let address = open.address(&endpoint(&open.policy())).await.unwrap();
        assert!(address.ip().is_loopback());
        assert_eq!(address.port(), 81);
        let strict = resolver(&[]);
        let refusal = strict
            .address(&endpoint(&strict.policy()))
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
        assert_eq!(*resolver.name(&name).await.unwrap(), [kept]);
        tokio::time::pause();
        tokio::time::advance(ANSWER_TTL).await;
        assert!(resolver.name(&name).await.is_err());
    }
}
