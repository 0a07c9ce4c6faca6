//! Identity: authenticates credentials into proven principals, issues and revokes the credentials, and limits
//! the rate of each principal.
//!
//! Invariants: a principal exists only with a proof; an unavailable store never widens access; a credential's
//! text is never stored, logged or compared except by its hash.

mod account;
mod authenticate;
mod canvas;
mod credential;
mod issue;
mod issuers;
mod named;
mod pair;
mod rate;
mod stored;
mod ticket;
mod token;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Mutex, mpsc};

pub use self::canvas::{
    CANVAS_TTL_DEFAULT, CANVAS_TTL_MAX, NewCanvas, SCOPE as CANVAS_SCOPE, TYP as CANVAS_TYP,
};
pub use self::credential::{CredentialHash, is_admin_token, may_be_credential};
pub use self::named::{Credentials, Named};
pub use self::pair::IssuedPair;
pub use self::rate::{Allowance, Rates};
pub use self::ticket::TICKET_TTL;
pub use self::token::{IssuedToken, LIVE_TOKENS_MAX, TokenRow};

use self::authenticate::Refusal;
use self::credential::{Form, Fresh};
use self::issuers::{Issuers, Signer};
use self::token::Tokens;
use crate::coherence::{Coherence, Coherent, Invalidation};
use crate::config::{self, AuthMode, Config, Derived, Live};
use crate::db::Db;
use crate::ids::WorkspaceId;
use crate::metrics::{self, Metrics};
use crate::shares::Account;
use crate::store::Unavailable;
use crate::trust::Keys;

/// Entries of the cache of rejected credentials. It is a cache of its own, so that guesses evict no valid
/// credential.
const REFUSALS_MAX: u64 = 10_000;

/// Lifetime of a rejected credential: it damps retry loops, and a token that another program writes into the
/// table works within a second.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// Uses that wait to be recorded. Further ones are dropped; the next use is recorded.
const USES_MAX: usize = 1024;

/// Interval of writes of token uses: one statement for all of them.
const USES_NOTED_EVERY: Duration = Duration::from_secs(1);

/// The address of the client: that of its connection, or the one that a trusted proxy sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub std::net::IpAddr);

/// The identity that a credential proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// An agent in its workspace.
    Workspace {
        /// Its id.
        id: WorkspaceId,
    },
    /// A browser user.
    Canvas {
        /// The user name, as the issuer of the token gives it.
        user: String,
        /// The org that the user can reach.
        org: Option<String>,
        /// If present, only these.
        workspaces: Option<Vec<WorkspaceId>>,
        /// True if these count only while they are in `org`: the token was made with an org token.
        confined: bool,
    },
    /// An integration that acts in one org.
    Org {
        /// Its name.
        org: String,
    },
    /// The holder of an admin token.
    Operator,
}

impl Principal {
    /// Returns the workspace, if the principal is one.
    pub fn workspace(&self) -> Option<&WorkspaceId> {
        match self {
            Self::Workspace { id } => Some(id),
            Self::Canvas { .. } | Self::Org { .. } | Self::Operator => None,
        }
    }
}

/// The caller's name in records: a workspace by its id, other principals with their kind as a prefix. `:` is
/// in no workspace id, so the names cannot collide.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workspace { id } => f.write_str(id.as_str()),
            Self::Canvas { user, .. } => write!(f, "canvas:{user}"),
            Self::Org { org } => write!(f, "org:{org}"),
            Self::Operator => f.write_str("operator:"),
        }
    }
}

/// The kind of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// `a2aa_…`.
    Admin,
    /// A canvas JWT.
    Canvas,
    /// `a2ae_…`: valid for one registration only.
    Enrolment,
    /// No credential, in `auth.mode = "open"`.
    Open,
    /// `a2ao_…`.
    Org,
    /// A pair JWT: a workspace, to one target.
    Pair,
    /// No credential any more: a deferred request that is executed now.
    Stored,
    /// `a2aw_…`, or a platform's token.
    Workspace,
}

impl CredentialKind {
    /// Returns the name in logs and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Canvas => "canvas",
            Self::Enrolment => "enrolment",
            Self::Open => "open",
            Self::Org => "org",
            Self::Pair => "pair",
            Self::Stored => "stored",
            Self::Workspace => "workspace",
        }
    }
}

/// A principal, with the credential that proved it. Only [`Identity`] creates one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// The principal.
    pub principal: Principal,
    /// The kind of the credential.
    pub kind: CredentialKind,
    /// The first 8 characters of the credential; never more. Empty in open mode.
    pub prefix: String,
    /// Number under which rates and shares of memory, places and connections are counted: one for each principal,
    /// with any of its credentials, but one for each token of an operator. 0 in open mode, where callers cannot be
    /// told apart.
    pub account: Account,
    /// Time at which it expires: milliseconds since 1970.
    expires_at: Option<i64>,
    /// The hash by which an enrolment token is redeemed.
    hash: Option<CredentialHash>,
    /// The hash that is looked up again while a stream stays open. `None` in open mode.
    credential: Option<CredentialHash>,
    /// The key that signed it.
    signer: Option<Signer>,
    /// The org token with which it was made: it ends with that token.
    maker: Option<CredentialHash>,
    /// The only target for which it is valid.
    pub(crate) only_to: Option<WorkspaceId>,
}

impl Proof {
    /// For tests of modules that need one.
    #[cfg(test)]
    pub(crate) fn of(principal: Principal) -> Self {
        Self {
            principal,
            kind: CredentialKind::Workspace,
            ..open_proof()
        }
        .with_account()
    }

    /// Returns the owner of what the caller starts. It is the principal's name, except for canvas users:
    /// their names are unique only together with their org and the issuer. `:` is in no workspace id.
    pub fn owner(&self) -> String {
        let Principal::Canvas { user, org, .. } = &self.principal else {
            return self.principal.to_string();
        };
        let issuer = self.signer.as_ref().and_then(|by| by.named.issuer.as_ref());
        // Names are arbitrary text: JSON keeps them apart.
        format!("canvas:{}", serde_json::json!([issuer, org, user]))
    }

    fn is_current(&self) -> bool {
        self.expires_at.is_none_or(|at| now_ms() < at)
            && self.signer.as_ref().is_none_or(|by| !by.key.is_withdrawn())
    }
}

/// Authenticates credentials, and issues and revokes tokens.
pub struct Identity {
    config: Live,
    keys: Arc<Keys>,
    issuers: Issuers,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    tokens: Tokens,
    /// Hashes from the configuration and the environment.
    admins: Derived<Vec<CredentialHash>>,
    proofs: Coherent<CredentialHash, Arc<Proof>>,
    refusals: Cache<CredentialHash, Refusal>,
    /// The proof of requests without a credential, in open mode.
    open: Arc<Proof>,
    uses: mpsc::Sender<String>,
    uses_to_note: Mutex<mpsc::Receiver<String>>,
}

impl Identity {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        db: Db,
        keys: Arc<Keys>,
        coherence: Arc<Coherence>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let proofs = Coherent::new(
            Arc::clone(&coherence),
            Arc::clone(&metrics),
            metrics::Cache::Credentials,
            (config.get().directory.cache_entries, None),
            |proof: &Arc<Proof>| proof.is_current(),
        );
        forget_what_changes(&coherence, &proofs);
        let (uses, uses_to_note) = mpsc::channel(USES_MAX);
        Self {
            issuers: Issuers::new(&config.get().auth.issuers, Arc::clone(&metrics)),
            metrics,
            keys,
            coherence,
            tokens: Tokens::new(db),
            admins: Derived::new(&config, |config, _| admins(config)),
            config,
            proofs,
            refusals: Cache::builder()
                .max_capacity(REFUSALS_MAX)
                .time_to_live(REFUSAL_TTL)
                .build(),
            open: Arc::new(open_proof()),
            uses,
            uses_to_note: Mutex::new(uses_to_note),
        }
    }

    /// Returns the proof of a request without a credential: none, except in open mode.
    fn open(&self) -> Option<Arc<Proof>> {
        let open = self.config.get().auth.mode == AuthMode::Open;
        open.then(|| Arc::clone(&self.open))
    }

    /// Records uses of tokens, and keeps the keys of foreign issuers fresh, outside of requests. A background
    /// task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.note_uses(), self.issuers.run());
    }

    /// Replaces `auth.issuers`. Tokens of an issuer that is removed are invalid at once.
    pub fn set_issuers(&self, issuers: &[config::Issuer]) {
        self.issuers.set(issuers);
    }

    async fn note_uses(&self) {
        let mut uses = self.uses_to_note.lock().await;
        let mut batch = Vec::new();
        while uses.recv_many(&mut batch, USES_MAX).await > 0 {
            // Sorted, so that statements of several replicas do not deadlock.
            batch.sort_unstable();
            batch.dedup();
            if let Err(error) = self.tokens.note_uses(&batch, now_ms()).await {
                tracing::debug!(%error, "failed to record the last use of tokens");
            }
            batch.clear();
            tokio::time::sleep(USES_NOTED_EVERY).await;
        }
    }

    /// Creates an admin token if there is none, neither configured nor stored. The caller prints it once. Of
    /// several replicas that start at the same time, all but one get `None`. A retry must pass the same
    /// `candidate`: if the store timed out, it may be stored already.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn ensure_admin_token(
        &self,
        candidate: &FirstAdmin,
    ) -> Result<Option<SecretString>, Unavailable> {
        if !self.admins.get().is_empty() {
            return Ok(None);
        }
        let Fresh { hash, text, .. } = &candidate.0;
        let made = self.tokens.create_first_admin(*hash, now_ms()).await?;
        Ok(made.then(|| text.clone()))
    }
}

/// The admin token to be stored by a first start.
pub struct FirstAdmin(Fresh);

impl Default for FirstAdmin {
    /// Generates a new one.
    fn default() -> Self {
        Self(Fresh::new(Form::Admin))
    }
}

/// Returns the hashes of the admin tokens in the configuration and the environment.
fn admins(config: &Config) -> Vec<CredentialHash> {
    let listed = config.auth.admin_token_sha256.iter().copied();
    let token = config.auth.admin_token.as_ref();
    listed
        .map(CredentialHash::from)
        .chain(token.map(|token| CredentialHash::of(token.expose_secret())))
        .collect()
}

fn forget_what_changes(coherence: &Coherence, proofs: &Coherent<CredentialHash, Arc<Proof>>) {
    let proofs = proofs.clone();
    coherence.on_invalidation(move |what| {
        let proofs = proofs.clone();
        async move {
            match what {
                Invalidation::Credential(hex) => match CredentialHash::from_hex(&hex) {
                    Some(hash) => proofs.forget(&hash).await,
                    None => proofs.forget_all(),
                },
                Invalidation::Everything => proofs.forget_all(),
                // A proof contains only the workspace's id; other modules cache its other facts.
                Invalidation::Address(_)
                | Invalidation::Grant(..)
                | Invalidation::Lineage(_)
                | Invalidation::Workspace(_) => {}
            }
        }
    });
}

fn open_proof() -> Proof {
    Proof {
        principal: Principal::Canvas {
            user: "open".into(),
            org: None,
            workspaces: None,
            confined: false,
        },
        kind: CredentialKind::Open,
        prefix: String::new(),
        account: account::OPEN,
        expires_at: None,
        hash: None,
        credential: None,
        signer: None,
        maker: None,
        only_to: None,
    }
}

/// Returns the time in milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
