//! Tokens of foreign issuers: canvas tokens (`auth.issuers`), and tokens of platforms for their workloads
//! (`auth.workspace_issuers`). Each issuer's keys are fetched in the background, so a token is verified from memory;
//! only a token that names an unknown key waits for a fetch, which concurrent requests share.
//!
//! Invariants: no issuer is in both lists, so a token proves either a user or a workspace; a changed issuer is a new
//! one, and what the old one proved ends.

pub(super) mod logout;
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::proof::{CredentialKind, KeyName, Principal, Proof, Signer, is_valid_name, open_proof};
use super::refusal::{AuthError, Refusal};
use super::signed_tokens::GROUPS_MAX;
use crate::identity::revocations::Revocable;
use kernel::config;
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{
    FETCH_PAUSE, FetchTiming, PublicKey, RemoteKeySet, TokenError, TokenHead, TooManyWaiters,
    body_hash, claimed_issuer, whole_seconds,
};

/// Retries and staleness of issuers' keys.
const FETCH_TIMING: FetchTiming = FetchTiming {
    first_pause: FETCH_PAUSE,
    stale_max: Duration::from_secs(3600),
};

/// Workspaces in one token at most.
const WORKSPACES_MAX: usize = 200;

impl From<TokenError> for AuthError {
    fn from(error: TokenError) -> Self {
        Self::Refused(Refusal::Foreign(error))
    }
}

/// One entry of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IssuerSettings {
    named: config::Issuer,
    /// The rules of a platform: its tokens are of workloads, each of which is a workspace. `None`: they are of browser
    /// users.
    platform: Option<config::WorkspaceIssuer>,
}

impl IssuerSettings {
    fn from_config(auth: &config::Auth) -> Vec<Self> {
        let users = auth.issuers.iter().map(|named| (named.clone(), None));
        let platforms = auth.workspace_issuers.iter();
        let platforms = platforms.map(|one| (one.to_issuer(), Some(one.clone())));
        let all = users.chain(platforms);
        all.map(|(named, platform)| Self { named, platform })
            .collect()
    }

    /// Returns the kind of the credentials that its tokens are.
    fn kind(&self) -> CredentialKind {
        match self.platform {
            None => CredentialKind::Canvas,
            Some(_) => CredentialKind::Workload,
        }
    }
}

/// The configured issuers.
pub(super) struct Issuers {
    all: ArcSwap<Vec<Arc<Issuer>>>,
    /// `auth.leeway`, in seconds.
    leeway: AtomicU64,
    changed: Notify,
    metrics: Arc<Metrics>,
}

impl Issuers {
    /// Does not fetch keys: [`Issuers::run`] does.
    pub(super) fn new(auth: &config::Auth, metrics: Arc<Metrics>) -> Self {
        let issuers = Self {
            all: ArcSwap::default(),
            leeway: AtomicU64::default(),
            changed: Notify::new(),
            metrics,
        };
        issuers.set(auth);
        issuers
    }

    /// Replaces the issuers. An unchanged issuer keeps its keys; tokens of a removed one are invalid at once.
    pub(super) fn set(&self, auth: &config::Auth) {
        let settings = IssuerSettings::from_config(auth);
        self.leeway.store(auth.leeway.as_secs(), Ordering::Relaxed);
        let earlier = self.all.load_full();
        let same =
            |wanted: &IssuerSettings| earlier.iter().find(|issuer| issuer.settings == *wanted);
        let all: Vec<_> = settings
            .iter()
            .map(|wanted| {
                same(wanted).map_or_else(|| Arc::new(Issuer::new(wanted.clone())), Arc::clone)
            })
            .collect();
        self.all.store(Arc::new(all));
        for gone in earlier.iter().filter(|i| !settings.contains(&i.settings)) {
            gone.published.withdraw();
        }
        self.changed.notify_one();
    }

    /// Returns the names of the platforms whose tokens are credentials of workspaces.
    pub(super) fn list_platforms(&self) -> Vec<String> {
        let all = self.all.load();
        let settings = all.iter().map(|issuer| &issuer.settings);
        let platforms = settings.filter(|settings| settings.platform.is_some());
        platforms
            .map(|settings| settings.named.issuer.clone())
            .collect()
    }

    /// Keeps the keys of all issuers fresh. A background task; runs until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            let all = self.all.load_full();
            let keeping = join_all(
                all.iter()
                    .map(|issuer| issuer.published.keep_fresh(&self.metrics)),
            );
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = async { keeping.await; std::future::pending().await } => {}
            }
        }
    }

    /// Verifies `token`. `None`: it does not name one of these issuers.
    pub(super) async fn verify(&self, token: &str) -> Result<Option<Proof>, AuthError> {
        if self.all.load().is_empty() {
            return Ok(None);
        }
        let claimed = claimed_issuer(token);
        let Some(issuer) = claimed.and_then(|name| self.find_issuer(&name)) else {
            return Ok(None);
        };
        let leeway = self.leeway.load(Ordering::Relaxed);
        issuer.verify(token, leeway).await.map(Some)
    }

    /// Returns the foreign key of that name, if its issuer still publishes it. `None`: no issuer of this name makes
    /// credentials of this kind by these rules now.
    pub(super) async fn find_signer(
        &self,
        named: KeyName,
        kind: CredentialKind,
    ) -> Result<Option<Signer>, AuthError> {
        let issuer = named.issuer.as_deref();
        let issuer = issuer.and_then(|name| self.find_issuer(name));
        let issuer = issuer.filter(|issuer| {
            issuer.settings.kind() == kind && named.rules.as_ref() == Some(&issuer.rules)
        });
        let Some(issuer) = issuer else {
            return Ok(None);
        };
        let key = issuer.fetch_key(&named.head).await?;
        Ok(Some(Signer { named, key }))
    }

    fn find_issuer(&self, name: &str) -> Option<Arc<Issuer>> {
        let all = self.all.load();
        let found = all
            .iter()
            .find(|issuer| issuer.settings.named.issuer == name);
        found.map(Arc::clone)
    }
}

/// One issuer and its keys.
struct Issuer {
    settings: IssuerSettings,
    /// Hash of the settings, the same on all replicas.
    rules: String,
    published: RemoteKeySet,
}

impl Issuer {
    fn new(settings: IssuerSettings) -> Self {
        let config::Issuer {
            issuer, jwks_url, ..
        } = settings.named.clone();
        Self {
            published: RemoteKeySet::new(issuer, jwks_url, FETCH_TIMING),
            rules: body_hash(format!("{settings:?}").as_bytes()),
            settings,
        }
    }

    async fn verify(&self, token: &str, leeway: u64) -> Result<Proof, AuthError> {
        let head = TokenHead::parse_foreign(token)?;
        let key = self.fetch_key(&head).await?;
        let config::Issuer {
            issuer, audience, ..
        } = &self.settings.named;
        let mut groups = Box::default();
        let (principal, expires_at, in_org, revocable) = match &self.settings.platform {
            None => {
                let claims: Claims = key.verify(token, &head, leeway, issuer, audience)?;
                check_issued_at(claims.iat, leeway)?;
                let expires_at = claims.exp;
                let revocable = claims.to_revocable(issuer);
                groups = claims.groups(self.settings.named.groups.as_deref());
                (
                    claims.into_principal()?,
                    expires_at,
                    None,
                    Some(Arc::new(revocable)),
                )
            }
            Some(platform) => {
                let claims: workload::Claims =
                    key.verify(token, &head, leeway, issuer, audience)?;
                check_issued_at(claims.iat, leeway)?;
                let (id, org) = workload::identify_workload(platform, &claims)?;
                (Principal::Workspace { id }, claims.exp, org, None)
            }
        };
        let named = KeyName {
            issuer: Some(issuer.clone()),
            rules: Some(self.rules.clone()),
            head: TokenHead {
                kid: Some(key.kid().to_owned()),
                ..head
            },
        };
        // It counts until the end of its leeway.
        let expires_at = whole_seconds(expires_at).saturating_add_unsigned(leeway);
        Ok(Proof {
            principal,
            kind: self.settings.kind(),
            expires_at: Some(expires_at.saturating_mul(1000)),
            signer: Some(Signer { named, key }),
            in_org,
            revocable,
            groups,
            ..open_proof()
        })
    }

    async fn fetch_key(&self, head: &TokenHead) -> Result<Arc<PublicKey>, AuthError> {
        if let Some(Some(key)) = self.find_key(head) {
            return Ok(key);
        }
        let refreshed = self.published.refresh().await;
        refreshed.map_err(|TooManyWaiters| AuthError::Unavailable(self.keys_unavailable()))?;
        match self.find_key(head) {
            Some(Some(key)) => Ok(key),
            Some(None) => Err(TokenError::UnknownKey.into()),
            None => Err(AuthError::Unavailable(self.keys_unavailable())),
        }
    }

    /// Finds the key of a token. The outer `None`: no valid keys are known.
    fn find_key(&self, head: &TokenHead) -> Option<Option<Arc<PublicKey>>> {
        let keys = self.published.valid_keys()?;
        Some(keys.find(head).map(Arc::clone))
    }

    fn keys_unavailable(&self) -> Rejection {
        let issuer = &self.settings.named.issuer;
        let key = match self.settings.platform {
            None => "auth.issuers",
            Some(_) => "auth.workspace_issuers",
        };
        let why = self.published.last_fetch();
        Rejection::new(
            Reason::StoreUnavailable,
            format!(
                "the keys of the issuer `{issuer}` cannot be fetched ({why}), so its tokens cannot be verified; \
                 the operator should check its `jwks_url` in {key}, and that the gateway reaches it"
            ),
        )
        .with_retry_after(FETCH_PAUSE)
    }
}

/// Refuses a token that was issued in the future.
fn check_issued_at(iat: Option<f64>, leeway: u64) -> Result<(), TokenError> {
    let latest = (Timestamp::now().0 / 1000).saturating_add_unsigned(leeway);
    match iat.map(whole_seconds) {
        Some(iat) if iat > latest => Err(TokenError::Immature),
        _ => Ok(()),
    }
}

/// The claims of a user that are read besides `iss`, `aud` and `nbf`. Times are seconds since 1970.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    iat: Option<f64>,
    sid: Option<Value>,
    jti: Option<Value>,
    org: Option<String>,
    workspaces: Option<Vec<WorkspaceId>>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Claims {
    /// Returns the names in a claim: one, or a list. More than are kept are cut off.
    fn groups(&self, claim: Option<&str>) -> Box<[String]> {
        let named = match claim.and_then(|claim| self.others.get(claim)) {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(list)) => list
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => Vec::new(),
        };
        let named = named.into_iter().filter(|name| is_valid_name(name));
        named.take(GROUPS_MAX).collect()
    }

    /// Returns what revokes the token. One that does not say when it was issued is older than any revocation.
    fn to_revocable(&self, issuer: &str) -> Revocable {
        let issued_at = self.iat.map_or(0, whole_seconds).saturating_mul(1000);
        let text = |claim: &Option<Value>| claim.as_ref()?.as_str().map(str::to_owned);
        let (sid, jti) = (text(&self.sid), text(&self.jti));
        Revocable::of_person(
            (issuer, &self.sub),
            sid.as_deref(),
            jti.as_deref(),
            issued_at,
        )
    }

    fn into_principal(self) -> Result<Principal, TokenError> {
        let names = [Some(&self.sub), self.org.as_ref()];
        let named = names.into_iter().flatten().all(|name| is_valid_name(name));
        let listed = self.workspaces.as_ref().map_or(0, Vec::len);
        if !named || listed > WORKSPACES_MAX {
            return Err(TokenError::Claims);
        }
        Ok(Principal::Canvas {
            user: self.sub,
            org: self.org,
            workspaces: self.workspaces,
            confined: false,
            within: None,
        })
    }
}

#[cfg(test)]
mod tests;
