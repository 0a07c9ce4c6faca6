//! Resolver of names: the system's, or the servers of `address.nameservers`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;

use crate::config::Config;

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

impl LookupError {
    /// Returns the cause, if it is known.
    pub(super) fn into_failure(self) -> Failure {
        let (Self::NoAddress(failure) | Self::NoAnswer(failure)) = self;
        failure
    }
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

/// Creates a resolver for these servers without a cache, since [`super::resolver`] has one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

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
