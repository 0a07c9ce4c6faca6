//! Which servers the URLs of a registration or a change mean, by name and by every address, so that the agent of
//! another workspace is found under each spelling.

use std::net::IpAddr;

use super::Directory;
use super::endpoint::{Endpoint, Target};
use super::intake::conflict;
use super::own::is_of_this_machine;
use crate::rejection::Rejection;
use crate::workspace::{Origin, OriginTaken, Origins, base};

impl Directory {
    /// The servers of `urls`, which were vetted. `may_share`: whether other workspaces may be there, too, by the word of
    /// whoever changes the workspace; without it, by `registry.shared_origins`.
    pub(super) async fn origins_of(
        &self,
        urls: impl IntoIterator<Item = Option<&str>>,
        may_share: bool,
    ) -> Result<Origins, Rejection> {
        let config = self.config.get();
        let shared = &config.registry.shared_origins;
        let mut origins = Vec::new();
        for url in urls.into_iter().flatten() {
            let endpoint = Endpoint::parse(url, &self.resolver.policy())?;
            let scheme = if endpoint.tls { "https" } else { "http" };
            let places = self.places_of(&endpoint).await;
            let is_listed = |host: &str| {
                let mut listed = shared.iter();
                listed.any(|one| one.covers(endpoint.tls, host, "/"))
            };
            let is_shared = may_share
                || is_listed(&endpoint.host)
                || places.iter().any(|place| is_listed(&place.url_host));
            origins.extend(places.into_iter().map(|place| Origin {
                origin: format!("{scheme} {}", place.place),
                base: base(url).to_owned(),
                is_shared,
            }));
        }
        Ok(Origins::new(origins))
    }

    async fn places_of(&self, endpoint: &Endpoint) -> Vec<Place> {
        let port = endpoint.port;
        let mut places = Vec::new();
        if let Target::Name(name) = &endpoint.target {
            let name = name.strip_suffix('.').unwrap_or(name);
            places.push(Place {
                place: format!("{name}:{port}"),
                url_host: endpoint.host.clone(),
            });
        }
        for address in self.resolver.addresses(endpoint).await {
            // One server has all of these addresses. Behind several gateways each has its own, and only loopback
            // addresses are the same everywhere.
            let is_here =
                address.is_loopback() || (self.shared.is_embedded() && is_of_this_machine(address));
            let place = match (is_here, address) {
                (true, _) => format!("loopback:{port}"),
                (false, IpAddr::V4(address)) => format!("{address}:{port}"),
                (false, IpAddr::V6(address)) => format!("[{address}]:{port}"),
            };
            places.push(Place {
                place,
                url_host: url_host(address, endpoint),
            });
        }
        places
    }
}

/// One way to say where a server is.
struct Place {
    /// For comparison.
    place: String,
    /// As URLs have it.
    url_host: String,
}

/// The host, with the port where it is not the scheme's own.
fn url_host(address: IpAddr, endpoint: &Endpoint) -> String {
    let host = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let default = if endpoint.tls { 443 } else { 80 };
    if endpoint.port == default {
        host
    } else {
        format!("{host}:{}", endpoint.port)
    }
}

impl From<OriginTaken> for Rejection {
    fn from(taken: OriginTaken) -> Self {
        conflict(
            "another workspace's agent is registered at this scheme, host and port: register the agent's own address. \
             The other one can deregister, and an operator can remove it, register this one, or list the origin in \
             registry.shared_origins",
        )
        .cause(taken)
    }
}
