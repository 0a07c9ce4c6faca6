//! Canvas tokens of foreign issuers (`auth.issuers`). Each issuer's keys are fetched in the background, so a
//! token is verified from memory; only a token that names an unknown key waits for a fetch, which concurrent
//! requests share.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use serde::Deserialize;
use tokio::sync::Notify;

use super::proof::{CredentialKind, KeyName, Principal, Signed, Signer, is_name};
use crate::config;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::rejection::{Reason, Rejection};
use crate::time::Timestamp;
use crate::trust::{
    Crowded, FETCH_PAUSE, LEEWAY_SECONDS, Patience, PublicKey, Published, TokenError, TokenHead,
    claimed_issuer,
};

/// Retries and staleness of issuers' keys.
const PATIENCE: Patience = Patience {
    first_pause: FETCH_PAUSE,
    stale_max: Duration::from_secs(3600),
};

/// Workspaces in one token at most.
const WORKSPACES_MAX: usize = 200;

/// The reason why a foreign token proves nothing.
pub(super) enum NotForeign {
    /// The token is invalid.
    Refused(TokenError),
    /// The keys of its issuer are unavailable.
    Unavailable(Rejection),
}

impl From<TokenError> for NotForeign {
    fn from(error: TokenError) -> Self {
        Self::Refused(error)
    }
}

/// The configured issuers.
pub(super) struct Issuers {
    all: ArcSwap<Vec<Arc<Issuer>>>,
    changed: Notify,
    metrics: Arc<Metrics>,
}

impl Issuers {
    /// Does not fetch keys: [`Issuers::run`] does.
    pub(super) fn new(settings: &[config::Issuer], metrics: Arc<Metrics>) -> Self {
        let issuers = Self {
            all: ArcSwap::default(),
            changed: Notify::new(),
            metrics,
        };
        issuers.set(settings);
        issuers
    }

    /// Replaces the issuers. An unchanged issuer keeps its keys; tokens of a removed one are invalid at once.
    pub(super) fn set(&self, settings: &[config::Issuer]) {
        let earlier = self.all.load_full();
        let same =
            |wanted: &config::Issuer| earlier.iter().find(|issuer| issuer.settings == *wanted);
        let all: Vec<_> = settings
            .iter()
            .map(|wanted| {
                same(wanted).map_or_else(|| Arc::new(Issuer::new(wanted.clone())), Arc::clone)
            })
            .collect();
        self.all.store(Arc::new(all));
        for gone in earlier.iter().filter(|i| !settings.contains(&i.settings)) {
            gone.published.end();
        }
        self.changed.notify_one();
    }

    /// Keeps the keys of all issuers fresh. A background task; runs until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            let all = self.all.load_full();
            let keeping = join_all(
                all.iter()
                    .map(|issuer| issuer.published.keep(&self.metrics)),
            );
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = async { keeping.await; std::future::pending().await } => {}
            }
        }
    }

    /// Verifies `token`. `None`: it does not name one of these issuers.
    pub(super) async fn verify(&self, token: &str) -> Result<Option<Signed>, NotForeign> {
        let all = self.all.load();
        if all.is_empty() {
            return Ok(None);
        }
        let Some(claimed) = claimed_issuer(token) else {
            return Ok(None);
        };
        drop(all);
        match self.of(&claimed) {
            Some(issuer) => issuer.verify(token).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the foreign key of that name, if its issuer still publishes it. `None`: the issuer was
    /// removed.
    pub(super) async fn signer(&self, named: KeyName) -> Result<Option<Signer>, NotForeign> {
        let issuer = named.issuer.as_deref().and_then(|name| self.of(name));
        let Some(issuer) = issuer else {
            return Ok(None);
        };
        let key = issuer.key(&named.head).await?;
        Ok(Some(Signer { named, key }))
    }

    fn of(&self, name: &str) -> Option<Arc<Issuer>> {
        let all = self.all.load();
        let found = all.iter().find(|issuer| issuer.settings.issuer == name);
        found.map(Arc::clone)
    }
}

/// One issuer and its keys.
struct Issuer {
    settings: config::Issuer,
    published: Published,
}

impl Issuer {
    fn new(settings: config::Issuer) -> Self {
        let (name, url) = (settings.issuer.clone(), settings.jwks_url.clone());
        Self {
            published: Published::new(name, url, PATIENCE),
            settings,
        }
    }

    async fn verify(&self, token: &str) -> Result<Signed, NotForeign> {
        let head = TokenHead::foreign(token)?;
        let key = self.key(&head).await?;
        let (issuer, audience) = (&self.settings.issuer, &self.settings.audience);
        let claims: Claims = key.verify(token, &head, issuer, audience)?;
        let expires_at = claims.exp.saturating_mul(1000);
        let principal = claims.principal()?;
        let issuer = Some(issuer.clone());
        let named = KeyName { issuer, head };
        Ok(Signed {
            principal,
            kind: CredentialKind::Canvas,
            expires_at,
            signer: Signer { named, key },
            maker: None,
            only_to: None,
        })
    }

    async fn key(&self, head: &TokenHead) -> Result<Arc<PublicKey>, NotForeign> {
        if let Some(Some(key)) = self.find(head) {
            return Ok(key);
        }
        let refreshed = self.published.refresh().await;
        refreshed.map_err(|Crowded| NotForeign::Unavailable(self.unavailable()))?;
        match self.find(head) {
            Some(Some(key)) => Ok(key),
            Some(None) => Err(TokenError::UnknownKey.into()),
            None => Err(NotForeign::Unavailable(self.unavailable())),
        }
    }

    /// Finds the key of a token. The outer `None`: no valid keys are known.
    fn find(&self, head: &TokenHead) -> Option<Option<Arc<PublicKey>>> {
        let keys = self.published.keys()?;
        Some(keys.find(head).map(Arc::clone))
    }

    fn unavailable(&self) -> Rejection {
        let issuer = &self.settings.issuer;
        let why = self.published.last_fetch();
        Rejection::new(
            Reason::StoreUnavailable,
            format!(
                "the keys of the issuer `{issuer}` cannot be fetched ({why}), so its tokens cannot be verified; \
                 the operator should check its `jwks_url` in auth.issuers, and that the gateway reaches it"
            ),
        )
        .retry_after(FETCH_PAUSE)
    }
}

/// The claims that are read besides `iss`, `aud` and `nbf`. Times are whole seconds since 1970.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: i64,
    iat: Option<i64>,
    org: Option<String>,
    workspaces: Option<Vec<String>>,
}

impl Claims {
    fn principal(self) -> Result<Principal, TokenError> {
        let leeway = i64::try_from(LEEWAY_SECONDS).unwrap_or(0);
        if self
            .iat
            .is_some_and(|iat| iat > Timestamp::now().0 / 1000 + leeway)
        {
            return Err(TokenError::Immature);
        }
        let names = [Some(&self.sub), self.org.as_ref()];
        let named = names.into_iter().flatten().all(|name| is_name(name));
        let listed = self.workspaces.as_ref().map_or(0, Vec::len);
        if !named || listed > WORKSPACES_MAX {
            return Err(TokenError::Claims);
        }
        let parse = |ids: Vec<String>| ids.iter().map(|id| WorkspaceId::parse(id)).collect();
        let workspaces = self.workspaces.map(parse).transpose();
        Ok(Principal::Canvas {
            user: self.sub,
            org: self.org,
            workspaces: workspaces.map_err(|_| TokenError::Claims)?,
            confined: false,
        })
    }
}

#[cfg(test)]
mod tests;
