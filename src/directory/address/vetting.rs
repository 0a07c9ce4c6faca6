//! Checks URLs of requests: those of a registration, and those for push notifications, which a caller names and
//! the agent calls. Neither the gateway nor an agent must be made to call an address that is forbidden to the
//! gateway (`docs/reference/a2a.md`, "Push notifications").

use std::net::SocketAddr;

use futures_util::future::try_join_all;

use super::addresses::Addresses;
use super::endpoint::{Endpoint, parse_url};
use super::resolver::LookupFor;
use crate::directory::rejections::invalid;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;
use crate::workspace::Origins;

/// Name of a URL for push notifications in rejections.
const WEBHOOK: &str = "the URL for push notifications";

/// Name of the URL of a waker in rejections.
const WAKER: &str = "the waker's URL (wake.url)";

/// Name of the URL of a guard in rejections.
const GUARD: &str = "the guard's URL (guard.url)";

/// The arguments are wrong, though the reason is that of the address policy.
const INVALID_PARAMS: i32 = -32_602;

/// Handling of a name that cannot be resolved from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    /// The gateway itself connects to it.
    Required,
    /// A name on the agents' own network, which the gateway may not be on.
    Optional,
}

/// URLs in a body.
pub(crate) struct NamedUrls<'a> {
    pub(crate) url: Option<&'a str>,
    pub(crate) internal_url: Option<&'a str>,
    pub(crate) card_url: Option<&'a str>,
    /// URLs of instances.
    pub(crate) urls: &'a [String],
}

/// Checked URLs, and their origins.
#[derive(Clone)]
pub(crate) struct VettedUrls {
    pub(crate) url: Option<String>,
    pub(crate) internal_url: Option<String>,
    pub(crate) card_url: Option<String>,
    pub(crate) urls: Vec<String>,
    pub(crate) origins: Origins,
}

impl Addresses {
    /// Checks the URL in `member` of a body by the address policy, as for each connection. Returns its
    /// normalized form.
    async fn vet_url(
        &self,
        member: &'static str,
        url: Option<&str>,
        lookup: Lookup,
    ) -> Result<Option<String>, Rejection> {
        let Some(url) = url else { return Ok(None) };
        parse_url(url).map_err(|wrong| invalid(format!("{member} {wrong}")))?;
        let endpoint = Endpoint::parse_as(member, url, &self.resolver.policy())?;
        let asker = LookupFor::for_registration();
        match self.resolver.resolve(&endpoint, asker, &mut ()).await {
            Err(refusal)
                if refusal.reason == Reason::AddressForbidden || lookup == Lookup::Required =>
            {
                Err(refusal)
            }
            Ok(_) | Err(_) => Ok(Some(endpoint.url())),
        }
    }

    /// Checks the URLs of a registration, a creation or a change of `id`; `may_share` as in [`Addresses::origins_of`].
    pub(crate) async fn vet_urls(
        &self,
        id: &WorkspaceId,
        named: NamedUrls<'_>,
        may_share: bool,
    ) -> Result<VettedUrls, Rejection> {
        let url = self.vet_url("url", named.url, Lookup::Required).await?;
        let internal_url = named.internal_url;
        let internal_url = self.vet_url("internal_url", internal_url, Lookup::Optional);
        let internal_url = internal_url.await?;
        let card_url = self.vet_url("card_url", named.card_url, Lookup::Required);
        let card_url = card_url.await?;
        let mut each = Vec::with_capacity(named.urls.len());
        for url in named.urls {
            each.push(self.vet_url("urls", Some(url), Lookup::Required));
        }
        let vetted: Vec<String> = try_join_all(each).await?.into_iter().flatten().collect();
        let mut urls = vec![url.as_deref(), internal_url.as_deref(), card_url.as_deref()];
        for url in &vetted {
            urls.push(Some(url));
        }
        let origins = self.origins_of(id, urls, may_share).await?;
        Ok(VettedUrls {
            url,
            internal_url,
            card_url,
            urls: vetted,
            origins,
        })
    }

    /// Checks the URL of a waker like that of an agent. Returns its normalized form.
    ///
    /// # Errors
    /// `invalid_params`, `address_forbidden`, `agent_unreachable` (its name has no address).
    pub(crate) async fn vet_waker(&self, url: &str) -> Result<String, Rejection> {
        let vetted = self
            .vet_url("wake.url", Some(url), Lookup::Required)
            .await?;
        Ok(vetted.unwrap_or_default())
    }

    /// Returns the URL of a waker as an endpoint, with the address to dial.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable` (its name has no address).
    pub(crate) async fn waker_address(
        &self,
        url: &str,
    ) -> Result<(Endpoint, SocketAddr), Rejection> {
        self.address_named(WAKER, url).await
    }

    /// Returns the URL of a guard as an endpoint, with the address to dial.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable` (its name has no address).
    pub async fn guard_address(&self, url: &str) -> Result<(Endpoint, SocketAddr), Rejection> {
        self.address_named(GUARD, url).await
    }

    async fn address_named(
        &self,
        title: &'static str,
        url: &str,
    ) -> Result<(Endpoint, SocketAddr), Rejection> {
        let endpoint = Endpoint::parse_as(title, url, &self.resolver.policy())?;
        let asker = LookupFor::for_call(Account::default());
        let resolved = self.resolver.resolve(&endpoint, asker, &mut ()).await?;
        Ok((endpoint, resolved.address))
    }

    /// Checks a URL for push notifications like the URL of an agent. A name without an address here is
    /// rejected, since its meaning at the agent is unknown.
    ///
    /// `account`: the account of the look-up.
    ///
    /// The agent resolves the name again when it calls, which the gateway cannot check.
    ///
    /// # Errors
    /// `address_forbidden`, with the code of invalid params.
    pub async fn vet_webhook(&self, url: &str, account: Account) -> Result<(), Rejection> {
        let judged = async {
            let endpoint = Endpoint::parse_as(WEBHOOK, url, &self.resolver.policy())?;
            let asker = LookupFor::for_url(account);
            self.resolver.resolve(&endpoint, asker, &mut ()).await
        };
        // Without its cause: callers could fill the log with it.
        judged.await.map(drop).map_err(|refusal| {
            Rejection::new(Reason::AddressForbidden, refusal.message).with_rpc_code(INVALID_PARAMS)
        })
    }
}
