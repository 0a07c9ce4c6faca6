//! Proofs: the principal that a credential proves, and the state of that credential.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::chain_token::Chain;
use super::credential::CredentialHash;
use super::role::{Operator, Role};
use crate::identity::revocations::Revocable;
use kernel::closed_set::words;
use kernel::config::ChainMode;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::time::Timestamp;
use trust::{PublicKey, TokenHead};

/// Account of all callers without a credential, in open mode: they cannot be told apart.
pub(super) const OPEN: Account = Account::without_group(0);

/// Characters of the longest name of a user or an org.
pub(super) const NAME_CHARS_MAX: usize = 256;

/// The address of the client: that of its connection, or the one that a trusted proxy sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub IpAddr);

/// The identity that a credential proves. As JSON it is stored with a deferred call, and signed in a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
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
        /// The subtree of that org token, if it has one: the user reaches nothing outside of it.
        within: Option<WorkspaceIncarnation>,
    },
    /// An integration that acts in one org, or in a subtree of it.
    Org {
        /// Its name.
        org: String,
        /// The root of the subtree: it looks after this workspace and those below it. `None`: after all of the org.
        within: Option<WorkspaceIncarnation>,
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

    /// Returns the org of a principal that is no workspace.
    pub fn org(&self) -> Option<&str> {
        match self {
            Self::Canvas { org, .. } => org.as_deref(),
            Self::Org { org, .. } => Some(org),
            Self::Workspace { .. } | Self::Operator => None,
        }
    }

    /// Returns the root of the subtree that it is confined to. `None`: it is confined to none.
    pub fn within(&self) -> Option<&WorkspaceIncarnation> {
        match self {
            Self::Canvas { within, .. } | Self::Org { within, .. } => within.as_ref(),
            Self::Workspace { .. } | Self::Operator => None,
        }
    }

    /// Returns its name in records.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Workspace { id } => id.as_str().into(),
            other => other.to_string().into(),
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
            Self::Org { org, within: None } => write!(f, "org:{org}"),
            Self::Org {
                org,
                within: Some(root),
            } => write!(f, "subtree:{}:{org}", root.id),
            Self::Operator => f.write_str("operator:"),
        }
    }
}

words! {
    /// The kind of a credential.
    CredentialKind {
        /// `a2aa_…`.
        Admin => "admin",
        /// A canvas JWT.
        Canvas => "canvas",
        /// `a2ae_…`: valid for one registration only.
        Enrolment => "enrolment",
        /// No credential, in `auth.mode = "open"`.
        Open => "open",
        /// `a2ao_…`.
        Org => "org",
        /// A pair JWT: a workspace, to one target.
        Pair => "pair",
        /// No credential any more: a deferred request that is executed now.
        Stored => "stored",
        /// The token of a platform for a workload: a Kubernetes service account token, a SPIFFE JWT-SVID.
        Workload => "workload",
        /// `a2aw_…`, or a platform's token.
        Workspace => "workspace",
    }
}

/// A principal, with the credential that proved it. Only [`Identity`](super::Identity) creates one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Proof {
    /// The principal.
    pub principal: Principal,
    /// The kind of the credential.
    pub kind: CredentialKind,
    /// The role and the name of the operator; `None`: the principal is no operator.
    pub operator: Option<Arc<Operator>>,
    /// The first 8 characters of the credential; never more. Empty in open mode.
    pub prefix: String,
    /// Number under which rates and shares of memory, places and connections are counted: one for each principal,
    /// with any of its credentials, but one for each token of an operator. 0 in open mode, where callers cannot be
    /// told apart.
    pub account: Account,
    /// Time at which it expires: milliseconds since 1970.
    pub(super) expires_at: Option<i64>,
    /// The hash by which it is looked up again while a stream stays open, or redeemed. `None` in open mode.
    pub(super) credential: Option<CredentialHash>,
    /// The key that signed it.
    pub(super) signer: Option<Signer>,
    /// The org token with which it was made: it ends with that token.
    pub(super) maker: Option<CredentialHash>,
    /// The only target for which it is valid.
    pub(crate) only_to: Option<WorkspaceId>,
    /// The org in which the workspace must be: the token of a platform names it.
    pub(super) in_org: Option<String>,
    /// Time at which the life of the workspace began that it proves, in milliseconds since 1970; 0: the first.
    pub born_at: i64,
    /// The access generation that a pair token was issued in.
    pub(crate) pair_generation: Option<i64>,
    /// What revokes it, apart from its own end: of a person's signed token.
    pub(super) revocable: Option<Arc<Revocable>>,
    /// The key by which chains that pass through an opaque token are revoked.
    pub(super) link_key: Option<Box<str>>,
    /// The groups of a person that rules name.
    pub(super) groups: Box<[String]>,
    /// The chain on which it acts.
    pub(super) chain: Option<Arc<Chain>>,
}

impl Proof {
    /// Returns the proof of a principal by a credential of this hash. Its account is not set.
    pub(super) fn by_credential(
        principal: Principal,
        kind: CredentialKind,
        credential: CredentialHash,
    ) -> Self {
        Self {
            principal,
            kind,
            credential: Some(credential),
            ..open_proof()
        }
    }

    /// Returns the hash by which the enrolment token behind the proof is redeemed, if it is by one.
    pub(super) fn enrolment(&self) -> Option<CredentialHash> {
        let is_enrolment = self.kind == CredentialKind::Enrolment;
        self.credential.filter(|_| is_enrolment)
    }

    /// For tests of modules that need one.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_test(principal: Principal) -> Self {
        Self {
            principal,
            kind: CredentialKind::Workspace,
            ..open_proof()
        }
        .with_account()
    }

    /// Returns the owner of what the caller starts. It is the principal's name, except for canvas users:
    /// their names are unique only together with their org and the issuer, and with the subtree of the token that named
    /// them. `:` is in no workspace id. A later incarnation of a workspace id owns nothing of the
    /// earlier ones ([`WorkspaceIncarnation`]). What is started on behalf of one root is not that of another.
    pub fn owner(&self) -> String {
        let own = self.own_name();
        match self.chain.as_ref().filter(|chain| chain.depth() > 0) {
            Some(chain) => format!("{own} for {}", chain.root_key()),
            None => own,
        }
    }

    /// Returns the owner without the root of a chain.
    pub(super) fn own_name(&self) -> String {
        let (user, org, within) = match &self.principal {
            Principal::Canvas {
                user, org, within, ..
            } => (user, org, within),
            Principal::Workspace { id } => {
                let (id, born_at) = (id.clone(), self.born_at);
                return WorkspaceIncarnation { id, born_at }.to_string();
            }
            Principal::Org {
                org,
                within: Some(root),
            } => return format!("subtree:{root}:{org}"),
            // An operator who sees no content owns nothing of what others were answered.
            Principal::Operator if self.sees_no_content() => {
                let by =
                    serde_json::json!(self.operator.as_ref().map(|by| (&by.token_id, &by.person)));
                return format!("operator:{by}");
            }
            Principal::Org { .. } | Principal::Operator => return self.principal.to_string(),
        };
        let issuer = self.signer.as_ref().and_then(|by| by.named.issuer.as_ref());
        // Names are arbitrary text: JSON keeps them apart.
        let name = match within {
            None => serde_json::json!([issuer, org, user]),
            Some(root) => serde_json::json!([issuer, org, user, root.to_string()]),
        };
        format!("canvas:{name}")
    }

    /// Checks `claimed`, the value of `X-Workspace-ID`, against the principal. The field is a claim,
    /// never a proof (`docs/reference/credentials.md`, "Credentials").
    ///
    /// # Errors
    /// `caller_mismatch` when it names anything else, or when the credential proves no workspace.
    pub fn check_caller(&self, claimed: Option<&[u8]>) -> Result<(), Rejection> {
        let Some(claimed) = claimed else {
            return Ok(());
        };
        let proven = self.principal.workspace();
        if proven.is_some_and(|id| id.as_str().as_bytes() == claimed) {
            return Ok(());
        }
        Err(Rejection::new(
            Reason::CallerMismatch,
            "X-Workspace-ID names a workspace that the credential does not prove; leave it out, or send that workspace's token",
        ))
    }

    /// Returns the time at which the life began that it is of, its workspace's or that of the root of its subtree, in
    /// milliseconds since 1970; 0: the first, or it is of neither.
    pub fn began_at(&self) -> i64 {
        let root = self.principal.within();
        root.map_or(self.born_at, |root| root.born_at)
    }

    /// Returns the time at which the credential ends: milliseconds since 1970. `None`: when it is revoked.
    pub fn ends_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// Returns the time at which streams that it opened end. `None`: when it is revoked. Streams outlive a signed
    /// token.
    pub fn stream_end(&self) -> Option<Timestamp> {
        let ends_at = self.expires_at.map(Timestamp);
        ends_at.filter(|_| matches!(self.kind, CredentialKind::Workspace | CredentialKind::Admin))
    }

    /// Returns the keys by which a person's signed token can be revoked.
    pub fn revocable(&self) -> Option<&Revocable> {
        self.revocable.as_deref()
    }

    /// Returns the role; `None`: the principal is no operator.
    pub fn role(&self) -> Option<Role> {
        self.operator.as_ref().map(|operator| operator.role)
    }

    /// True for an operator below [`Role::Admin`], who never sees what was said.
    pub fn sees_no_content(&self) -> bool {
        self.role().is_some_and(|role| !role.covers(Role::Admin))
    }

    /// True for an operator who sees the content of every caller. Each such look is a record.
    pub fn sees_all_content(&self) -> bool {
        self.principal == Principal::Operator && !self.sees_no_content()
    }

    /// Checks that an operator has a role. Says nothing of other principals.
    ///
    /// # Errors
    /// `role_required`, with the needed role.
    pub fn require_at_least(&self, needed: Role) -> Result<(), Rejection> {
        match (&self.principal, self.role()) {
            (Principal::Operator, Some(role)) if role.covers(needed) => Ok(()),
            (Principal::Operator, role) => Err(Rejection::new(
                Reason::RoleRequired,
                format!(
                    "this needs an operator with the role `{}`, and yours is `{}`",
                    needed.as_str(),
                    role.map_or("none", Role::as_str),
                ),
            )
            .with_fact("needed_role", needed.as_str())),
            _ => Ok(()),
        }
    }

    /// Returns the chain on which the caller acts.
    pub fn chain(&self) -> Option<&Arc<Chain>> {
        self.chain.as_ref()
    }

    /// Returns the proof on a chain that was stored with its call.
    #[must_use]
    pub fn on_chain(self, chain: Option<Arc<Chain>>) -> Self {
        Self { chain, ..self }
    }

    /// Returns whether a call of the caller carries a chain: one that it has, or one that begins with it.
    pub fn sends_chain(&self, mode: ChainMode) -> bool {
        match mode {
            ChainMode::Never => false,
            ChainMode::Always => true,
            ChainMode::Person => self.chain.is_some() || self.is_person(),
        }
    }

    /// Returns the groups of a person that rules may name.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// True if a credential proves a person.
    pub fn is_person(&self) -> bool {
        matches!(self.principal, Principal::Canvas { .. }) && self.kind != CredentialKind::Open
    }

    /// True until it expires, or the key that signed it is withdrawn.
    pub(super) fn is_current(&self) -> bool {
        self.expires_at.is_none_or(|at| Timestamp::now().0 < at)
            && self.signer.as_ref().is_none_or(|by| !by.key.is_withdrawn())
    }
}

/// The key that signed a token.
#[derive(Clone, Debug)]
pub(super) struct Signer {
    pub(super) named: KeyName,
    /// Once it is withdrawn, the token is invalid.
    pub(super) key: Arc<PublicKey>,
}

impl Signer {
    /// Returns a key of this gateway as a signer.
    pub(super) fn from_own_key(head: TokenHead, key: Arc<PublicKey>) -> Self {
        let named = KeyName {
            issuer: None,
            rules: None,
            head,
        };
        Self { named, key }
    }
}

/// The name of a key, by which another replica can find it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeyName {
    /// `None`: this gateway.
    pub(super) issuer: Option<String>,
    /// Hash of the settings of the issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<String>,
    #[serde(flatten)]
    pub(super) head: TokenHead,
}

/// What an opaque credential proves.
pub(super) struct ResolvedCredential {
    /// Without the first characters of the credential, but for an org token.
    pub(super) proof: Proof,
    /// The id of the token and its last recorded use, if uses are recorded.
    pub(super) last_use: Option<(String, Option<i64>)>,
}

impl From<Proof> for ResolvedCredential {
    fn from(proof: Proof) -> Self {
        Self {
            proof: proof.with_account(),
            last_use: None,
        }
    }
}

/// Returns the proof of requests without a credential, in open mode.
pub(super) fn open_proof() -> Proof {
    Proof {
        principal: Principal::Canvas {
            user: "open".into(),
            org: None,
            workspaces: None,
            confined: false,
            within: None,
        },
        kind: CredentialKind::Open,
        operator: None,
        prefix: String::new(),
        account: OPEN,
        expires_at: None,
        credential: None,
        signer: None,
        maker: None,
        only_to: None,
        in_org: None,
        born_at: 0,
        pair_generation: None,
        revocable: None,
        link_key: None,
        groups: Box::default(),
        chain: None,
    }
}

/// True if `text` can be the name of a user or an org.
pub(super) fn is_valid_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= NAME_CHARS_MAX
        && !text.chars().any(char::is_control)
}
