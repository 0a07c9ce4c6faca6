//! The address of the agent behind a sidecar. The operator configured it, so no address policy
//! applies.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use url::{Host, Url};

use kernel::rejection::{Delivery, Reason, Rejection};

/// Timeout of a look-up.
const LOOKUP_MAX: Duration = Duration::from_secs(2);

/// Time for which an address is cached: short, since agents move with their containers.
const ANSWER_TTL: Duration = Duration::from_secs(5);

/// Time for which a failed look-up is cached, to shield the resolver from retrying callers.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// The agent's location.
#[derive(Debug)]
pub struct Agent {
    /// True if the agent uses TLS.
    pub tls: bool,
    /// The name that the agent's certificate must have.
    pub sni: String,
    /// The value of `Host`.
    pub host: String,
    port: u16,
    name: Host<String>,
    /// The last result of a look-up and its time; an inner `None`: no address.
    answer: Mutex<Option<(Instant, Option<IpAddr>)>>,
}

/// `--upstream` is not the base URL of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--upstream takes scheme, host and port of the agent, such as http://127.0.0.1:8000: paths and queries pass as they come"
)]
pub struct InvalidUpstream;

impl Agent {
    /// Parses `--upstream`.
    ///
    /// # Errors
    /// If it is not `http(s)://HOST[:PORT]`.
    pub fn parse(url: &Url) -> Result<Self, InvalidUpstream> {
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(InvalidUpstream),
        };
        let bare = url.username().is_empty() && url.password().is_none() && url.path() == "/";
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(InvalidUpstream);
        };
        if !bare || url.query().is_some() || url.fragment().is_some() || port == 0 {
            return Err(InvalidUpstream);
        }
        let name = host.to_owned();
        let sni = match &name {
            Host::Domain(name) => name.trim_end_matches('.').to_owned(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        // With an empty name, no certificate would be verified.
        if sni.is_empty() {
            return Err(InvalidUpstream);
        }
        Ok(Self {
            tls,
            sni,
            host: url[url::Position::BeforeHost..url::Position::AfterPort].to_owned(),
            port,
            name,
            answer: Mutex::default(),
        })
    }

    /// Returns the address to connect to.
    ///
    /// # Errors
    /// `agent_unreachable` if the agent's name has no address.
    pub async fn resolve_address(&self) -> Result<SocketAddr, Rejection> {
        let ip = match &self.name {
            Host::Ipv4(address) => (*address).into(),
            Host::Ipv6(address) => (*address).into(),
            Host::Domain(name) => self.look_up(name).await?,
        };
        Ok(SocketAddr::new(ip, self.port))
    }

    async fn look_up(&self, name: &str) -> Result<IpAddr, Rejection> {
        let cached = *self.answer.lock();
        if let Some((asked_at, ip)) = cached {
            let ttl = ip.map_or(FAILURE_TTL, |_| ANSWER_TTL);
            if asked_at.elapsed() < ttl {
                return ip.ok_or_else(unknown_name);
            }
        }
        let answer = self.query_resolver(name).await;
        let ip = answer.as_ref().ok().copied();
        let mut cached = self.answer.lock();
        *cached = Some((Instant::now(), ip));
        answer
    }

    async fn query_resolver(&self, name: &str) -> Result<IpAddr, Rejection> {
        let asked = timeout(LOOKUP_MAX, tokio::net::lookup_host((name, self.port)));
        let answers: Vec<IpAddr> = match asked.await {
            Ok(Ok(answers)) => answers.map(|address| address.ip()).collect(),
            Ok(Err(error)) => return Err(unknown_name().with_cause(error)),
            Err(late) => return Err(unknown_name().with_cause(late)),
        };
        // IPv4 is preferred: an agent that listens on "localhost" usually uses it.
        let first = answers.iter().find(|address| address.is_ipv4());
        first.or(answers.first()).copied().ok_or_else(unknown_name)
    }
}

fn unknown_name() -> Rejection {
    let message = "the name of the agent in --upstream has no address";
    Rejection::new(Reason::AgentUnreachable, message).with_delivery(Delivery::NotSent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Agent, InvalidUpstream> {
        Agent::parse(&text.parse().unwrap())
    }

    #[test]
    fn an_upstream_is_scheme_host_and_port() {
        let agent = parse("http://127.0.0.1:8000").unwrap();
        assert_eq!(
            (agent.tls, agent.host.as_str(), agent.port),
            (false, "127.0.0.1:8000", 8000)
        );
        let agent = parse("https://Agent.test./").unwrap();
        assert_eq!((agent.sni.as_str(), agent.port), ("agent.test", 443));
        assert_eq!(parse("http://[::1]:80/").unwrap().sni, "::1");
        for bad in [
            "http://127.0.0.1:8000/a2a",
            "http://127.0.0.1:8000/?a=b",
            "http://127.0.0.1:8000/#a",
            "http://ada@127.0.0.1:8000",
            "http://127.0.0.1:0",
            "ftp://127.0.0.1",
            "https://./",
            "unix:/run/agent.sock",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_remembered() {
        let agent = parse("http://localhost:81").unwrap();
        let address = agent.resolve_address().await.unwrap();
        assert!(address.ip().is_loopback() && address.port() == 81);
        assert!(agent.answer.lock().is_some());
        let nobody = parse("http://agent.invalid:81").unwrap();
        let refusal = nobody.resolve_address().await.unwrap_err();
        assert_eq!(refusal.reason, Reason::AgentUnreachable);
        assert!(matches!(*nobody.answer.lock(), Some((_, None))));
    }

    #[tokio::test]
    async fn a_failure_is_remembered_for_a_second() {
        let agent = parse("http://localhost:81").unwrap();
        let now = Instant::now();
        *agent.answer.lock() = Some((now + Duration::from_secs(60), None));
        let refusal = agent.resolve_address().await.unwrap_err();
        assert_eq!(refusal.reason, Reason::AgentUnreachable);
        *agent.answer.lock() = Some((now.checked_sub(FAILURE_TTL).unwrap(), None));
        agent.resolve_address().await.unwrap();
    }
}
