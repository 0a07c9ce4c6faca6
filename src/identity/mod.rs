//! WHO ASKS: from a credential to a proven principal, the credentials themselves, and how often
//! each may ask.
//!
//! Invariants: a principal exists only with a proof; nothing here widens access when a store is
//! away; a credential's text is never kept, logged or compared outside of its hash.

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

/// Credentials remembered as wrong: in a cache of their own, so that guesses evict no good one.
const REFUSALS_MAX: u64 = 10_000;

/// How long a wrong credential is remembered: it takes the edge off a loop, and a token that another
/// program writes into the table works within a second.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// Uses waiting to be written down. Beyond it a use is forgotten; the next one is noted.
const USES_MAX: usize = 1024;

/// Between two writes of what was used: one statement for all of them.
const USES_NOTED_EVERY: Duration = Duration::from_secs(1);

/// Where a request came from, by its connection or by what a trusted proxy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub std::net::IpAddr);

/// Who a credential proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// An agent in its workspace.
    Workspace {
        /// Which.
        id: WorkspaceId,
    },
    /// A browser user.
    Canvas {
        /// As the issuer of the token named them.
        user: String,
        /// The org whose workspaces may be reached.
        org: Option<String>,
        /// If present, only these.
        workspaces: Option<Vec<WorkspaceId>>,
        /// Whether these count only while they are in `org`: the token was made with an org token.
        confined: bool,
    },
    /// An integration that acts in one org.
    Org {
        /// Which.
        org: String,
    },
    /// The holder of an admin token.
    Operator,
}

impl Principal {
    /// The workspace, if it is one.
    pub fn workspace(&self) -> Option<&WorkspaceId> {
        match self {
            Self::Workspace { id } => Some(id),
            Self::Canvas { .. } | Self::Org { .. } | Self::Operator => None,
        }
    }
}

/// As records name a caller: a workspace by its id, others with their kind in front. `:` is in no
/// workspace id, so none can pass for another.
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

/// By which kind of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// `a2aa_…`.
    Admin,
    /// A canvas JWT.
    Canvas,
    /// `a2ae_…`: good for one registration, and for nothing else.
    Enrolment,
    /// None, in `auth.mode = "open"`.
    Open,
    /// `a2ao_…`.
    Org,
    /// A pair JWT: a workspace, to one target.
    Pair,
    /// None any more: what was asked for then is done now.
    Stored,
    /// `a2aw_…`, or a platform's token.
    Workspace,
}

impl CredentialKind {
    /// The word in logs and records.
    pub const fn word(self) -> &'static str {
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

/// A principal, and what proved it. Only [`Identity`] makes one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// Who asks.
    pub principal: Principal,
    /// What they showed.
    pub kind: CredentialKind,
    /// Its first 8 characters; never more. Empty in open mode.
    pub prefix: String,
    /// The number under which rates, and shares of memory, places and connections are counted: one a principal, whatever
    /// it presents, but one a token of an operator. 0 in open mode, where callers cannot be told apart.
    pub account: Account,
    /// When it ends by itself: milliseconds since 1970.
    expires_at: Option<i64>,
    /// What an enrolment is redeemed by.
    hash: Option<CredentialHash>,
    /// What is looked up again while something stays open. `None` in open mode.
    credential: Option<CredentialHash>,
    /// What it is signed with.
    signer: Option<Signer>,
    /// The org token by which it was made: it ends with that one.
    maker: Option<CredentialHash>,
    /// The one target that it proves anything to.
    pub(crate) only_to: Option<WorkspaceId>,
}

impl Proof {
    /// For tests of the rooms that demand one.
    #[cfg(test)]
    pub(crate) fn of(principal: Principal) -> Self {
        Self {
            principal,
            kind: CredentialKind::Workspace,
            ..open_proof()
        }
        .with_account()
    }

    /// Who owns what the caller starts. Like the principal's name, but for canvas users, whose names only
    /// say who they are together with their org and whoever vouches for them. `:` is in no workspace id.
    pub fn owner(&self) -> String {
        let Principal::Canvas { user, org, .. } = &self.principal else {
            return self.principal.to_string();
        };
        let issuer = self.signer.as_ref().and_then(|by| by.named.issuer.as_ref());
        // Names are anybody's text: JSON keeps them apart.
        format!("canvas:{}", serde_json::json!([issuer, org, user]))
    }

    fn is_current(&self) -> bool {
        self.expires_at.is_none_or(|at| now_ms() < at)
            && self.signer.as_ref().is_none_or(|by| !by.key.is_withdrawn())
    }
}

/// The credentials and who they prove.
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
    /// Of whoever shows nothing, in open mode.
    open: Arc<Proof>,
    uses: mpsc::Sender<String>,
    uses_to_note: Mutex<mpsc::Receiver<String>>,
}

impl Identity {
    /// Assembles the room; asks nothing.
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

    /// What proves a request without a credential: nothing, but in open mode.
    fn open(&self) -> Option<Arc<Proof>> {
        let open = self.config.get().auth.mode == AuthMode::Open;
        open.then(|| Arc::clone(&self.open))
    }

    /// Writes down when tokens were used, and keeps the keys of foreign issuers fresh, off the way of
    /// the requests. A background task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.note_uses(), self.issuers.run());
    }

    /// Other `auth.issuers` from now on. What one signed that is gone proves nothing any more.
    pub fn set_issuers(&self, issuers: &[config::Issuer]) {
        self.issuers.set(issuers);
    }

    async fn note_uses(&self) {
        let mut uses = self.uses_to_note.lock().await;
        let mut batch = Vec::new();
        while uses.recv_many(&mut batch, USES_MAX).await > 0 {
            // In one order on all replicas, so that they do not wait for each other's rows in a circle.
            batch.sort_unstable();
            batch.dedup();
            if let Err(error) = self.tokens.note_uses(&batch, now_ms()).await {
                tracing::debug!(%error, "the last use of tokens was not noted");
            }
            batch.clear();
            tokio::time::sleep(USES_NOTED_EVERY).await;
        }
    }

    /// Makes an admin token if there is none at all: neither configured nor stored. To be printed
    /// once by the caller; every replica that starts at the same time gets `None` but one. Whoever tries
    /// again does so with the same `candidate`: where the store did not answer in time it may be there.
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

/// The admin token that a first start is to have.
pub struct FirstAdmin(Fresh);

impl Default for FirstAdmin {
    /// A new one.
    fn default() -> Self {
        Self(Fresh::new(Form::Admin))
    }
}

/// Hashes of the operators' tokens that the configuration and the environment name.
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
                // A token says which workspace; what may be done with it is other rooms' matter.
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

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
