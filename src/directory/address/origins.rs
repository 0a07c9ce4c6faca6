//! Origins of the URLs of a registration or a change: by name and by each address, so that the agent of another
//! workspace is found under each spelling.

use std::net::IpAddr;

use super::addresses::Addresses;
use super::endpoint::{Endpoint, Target};
use super::own_listeners::is_of_this_machine;
use super::policy::canonical_address;
use super::resolver::LookupFor;
use crate::directory::rejections::conflict;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::workspace::{HeldOrigin, Origin, OriginTaken, Origins, url_base};

/// Maximum addresses of one name: each is a server that no other workspace can register.
const ADDRESSES_MAX: usize = 64;

/// Look-ups of a name before one of its addresses is taken for released.
const LOOKUPS: usize = 4;

/// Maximum holders of servers that are looked up for one claim. Each look-up has a timeout, and they run one
/// after another.
const HOLDERS_MAX: usize = 4;

impl Addresses {
    /// Returns the origins of the checked `urls` of `id`, with what the change is to release of other workspaces.
    /// `may_share`: true if the editor of the workspace allows other workspaces on the server; otherwise
    /// `registry.shared_origins` decides.
    ///
    /// # Errors
    /// `address_forbidden`: the policy forbids one, or a name has more than [`ADDRESSES_MAX`] addresses;
    /// `store_unavailable`.
    pub(crate) async fn origins_of(
        &self,
        id: &WorkspaceId,
        urls: impl IntoIterator<Item = Option<&str>>,
        may_share: bool,
    ) -> Result<Origins, Rejection> {
        let mut origins = Vec::new();
        for url in urls.into_iter().flatten() {
            let endpoint = self.resolver.parse(url)?;
            let asker = LookupFor::for_claim();
            let addresses = self.resolver.lookup_all(&endpoint, asker).await;
            origins.extend(self.origins_at(&endpoint, &addresses, may_share)?);
        }
        let origins = Origins::new(origins);
        let left = self.left_by_others(id, &origins).await?;
        Ok(origins.with_releases(left))
    }

    /// Returns those of `origins` that another workspace than `id` holds by a name that has other addresses
    /// now: containers swap addresses when they restart. A name without an answer keeps its origins.
    ///
    /// # Errors
    /// When SQL cannot be asked.
    pub(super) async fn left_by_others(
        &self,
        id: &WorkspaceId,
        origins: &Origins,
    ) -> Result<Vec<HeldOrigin>, Unavailable> {
        let held = self.workspaces.held_by_others(id, origins).await?;
        let mut left = Vec::new();
        for held in held.into_iter().take(HOLDERS_MAX) {
            if !self.still_means(&held).await {
                tracing::info!(workspace.id = %held.by, origin = held.origin, "The name in an agent's URL has other \
                    addresses now; the origin of the former one is free for another workspace");
                left.push(held);
            }
        }
        Ok(left)
    }

    async fn still_means(&self, held: &HeldOrigin) -> bool {
        let Ok(endpoint) = self.resolver.parse(&held.base) else {
            return true;
        };
        if matches!(endpoint.target, Target::Literal(_)) {
            return true;
        }
        // A name of many addresses may answer with some of them at a time.
        for _ in 0..LOOKUPS {
            let asker = LookupFor::for_registration();
            let addresses = self.resolver.lookup_all(&endpoint, asker).await;
            let meant = self.origins_at(&endpoint, &addresses, false);
            let is_meant = addresses.is_empty()
                || meant.map_or(true, |meant| {
                    meant.iter().any(|one| one.origin == held.origin)
                });
            if is_meant {
                return true;
            }
        }
        false
    }

    /// Returns the origins of `endpoint`, for these addresses of its host.
    ///
    /// # Errors
    /// `address_forbidden`: there are more than [`ADDRESSES_MAX`].
    pub(super) fn origins_at(
        &self,
        endpoint: &Endpoint,
        addresses: &[IpAddr],
        may_share: bool,
    ) -> Result<Vec<Origin>, Rejection> {
        if addresses.len() > ADDRESSES_MAX {
            return Err(too_many_addresses(endpoint, addresses.len()));
        }
        let config = self.config.get();
        let shared = &config.registry.shared_origins;
        let scheme = if endpoint.tls { "https" } else { "http" };
        let places = self.host_forms(endpoint, addresses);
        let is_listed = |host: &str| {
            let mut listed = shared.iter();
            listed.any(|one| one.covers(endpoint.tls, host, "/"))
        };
        let is_shared = may_share
            || is_listed(&endpoint.host)
            || places.iter().any(|place| is_listed(&place.url_host));
        let url = endpoint.url();
        let origins = places.into_iter().map(|place| Origin {
            origin: format!("{scheme} {}", place.place),
            base: url_base(&url).to_owned(),
            is_shared,
        });
        Ok(origins.collect())
    }

    fn host_forms(&self, endpoint: &Endpoint, addresses: &[IpAddr]) -> Vec<HostForm> {
        let port = endpoint.port;
        let mut places = Vec::new();
        if let Target::Name(name) = &endpoint.target {
            let name = name.strip_suffix('.').unwrap_or(name);
            places.push(HostForm {
                place: format!("{name}:{port}"),
                url_host: endpoint.host.clone(),
            });
        }
        for address in addresses.iter().map(|address| canonical_address(*address)) {
            // All of these addresses belong to one server. Each gateway has its own addresses, and only
            // loopback addresses are the same on all of them.
            let is_here =
                address.is_loopback() || (self.is_only_replica && is_of_this_machine(address));
            let place = match (is_here, address) {
                (true, _) => format!("loopback:{port}"),
                (false, IpAddr::V4(address)) => format!("{address}:{port}"),
                (false, IpAddr::V6(address)) => format!("[{address}]:{port}"),
            };
            places.push(HostForm {
                place,
                url_host: url_host(address, endpoint),
            });
        }
        places
    }
}

/// One form of the location of a server.
struct HostForm {
    /// Canonical form, for comparison.
    place: String,
    /// Form in URLs.
    url_host: String,
}

/// Returns the host, with the port unless it is the scheme's default.
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

fn too_many_addresses(endpoint: &Endpoint, count: usize) -> Rejection {
    let title = endpoint.title;
    let message = format!(
        "the name in {title} has {count} addresses, and an agent has at most {ADDRESSES_MAX}: name a host with fewer"
    );
    Rejection::new(Reason::AddressForbidden, message)
}

impl From<OriginTaken> for Rejection {
    fn from(taken: OriginTaken) -> Self {
        conflict(
            "another workspace's agent is registered at this scheme, host and port: register the agent's own address. \
             The other one can deregister, and an operator can remove it, register this one, or list the origin in \
             registry.shared_origins",
        )
        .with_cause(taken)
    }
}
