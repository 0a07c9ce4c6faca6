//! Opaque tokens: they are issued, found, listed and revoked. The tables of them are `workspace_auth_tokens`,
//! `enrolment_tokens` ([`enrolment`]), those of orgs ([`orgs`]) and of operators ([`operators`]); no other module contains
//! SQL for them. They store SHA-256 hashes; a token is shown once, when it is issued.

mod enrolment;
mod operators;
mod orgs;
mod revoke;
mod uses;

use std::sync::Arc;

use sqlx::any::AnyRow;

pub use self::enrolment::{EnrolmentMaker, NewEnrolment};
pub use self::operators::OperatorRow;
pub use self::orgs::OrgTokenRow;
pub(super) use self::revoke::Owner;
pub(super) use self::uses::UseQueue;
use super::credential::{CredentialHash, Form, IssuedToken};
use super::proof::{CredentialKind, Principal, Proof, ResolvedCredential};
use crate::rows::{Statement, execute, fetch_with, from_row, read, sql};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::coherence::Coherence;
use stores::db::{Db, Values};
use stores::store::{Run, Unavailable};

/// Live tokens of one workspace, or of one org, at most (`docs/reference/http-api.md`, "Tokens").
pub const LIVE_TOKENS_MAX: i64 = 50;

/// Attempts to revoke a token that was never returned to a caller.
const WITHDRAWALS_MAX: u32 = 5;

// The join excludes tokens of removed workspaces, whether or not they were revoked.
const FIND_WORKSPACE: &str = "SELECT t.id, t.workspace_id, t.last_used_at, t.expires_at, w.born_at \
    FROM workspace_auth_tokens t JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND w.status <> 'removed'";

/// The condition that a workspace token has not reached its end at the time `$now`.
macro_rules! is_before_its_end {
    ($now:literal) => {
        concat!("(expires_at IS NULL OR expires_at > ", $now, ")")
    };
}
pub(super) use is_before_its_end;

// Changes nothing, but locks the row until the transaction ends: concurrent issues of tokens for one
// workspace are serialized, also with its removal.
const HOLD_WORKSPACE: &str =
    "UPDATE workspaces SET updated_at = updated_at WHERE id = $1 AND status <> 'removed'";

const COUNT_WORKSPACE: &str = concat!(
    "SELECT COUNT(*) FROM workspace_auth_tokens WHERE workspace_id = $1 AND revoked_at IS NULL AND ",
    is_before_its_end!("$2")
);

const INSERT_WORKSPACE: &str = concat!(
    "INSERT INTO workspace_auth_tokens \
     (id, workspace_id, token_hash, prefix, created_at, label, expires_at) \
     SELECT $1, $2, $3, $4, $5, $6, $7 WHERE (SELECT COUNT(*) FROM workspace_auth_tokens \
       WHERE workspace_id = $2 AND revoked_at IS NULL AND ",
    is_before_its_end!("$5"),
    ") < $8"
);

const LIST_WORKSPACE: &str = concat!(
    "SELECT id, prefix, label, created_at, last_used_at, expires_at \
     FROM workspace_auth_tokens WHERE workspace_id = $1 AND revoked_at IS NULL AND id > $2 AND ",
    is_before_its_end!("$3"),
    " UNION ALL ",
    enrolment::live!(),
    " ORDER BY 1 LIMIT $5"
);

const LIVE_WORKSPACE: &str = concat!(
    "SELECT prefix, token_hash FROM workspace_auth_tokens \
     WHERE workspace_id = $1 AND revoked_at IS NULL AND ",
    is_before_its_end!("$2"),
    " ORDER BY id"
);

const IS_OVER: &str = "SELECT COUNT(*) FROM workspace_auth_tokens \
    WHERE workspace_id = $1 AND revoked_at IS NULL AND expires_at <= $2";

/// The terms on which a token is made.
#[derive(Clone, Debug, Default)]
pub struct TokenTerms {
    /// The name that its maker gives it.
    pub label: Option<String>,
    /// The time at which it ends: milliseconds since 1970. `None`: when it is revoked.
    pub expires_at: Option<i64>,
}

/// A live token of a workspace, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its id. Ordered by time.
    pub token_id: String,
    /// Its first 8 characters.
    pub prefix: String,
    /// The name that its maker gave it.
    pub label: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: i64,
    /// Milliseconds since 1970, accurate to some minutes.
    pub last_used_at: Option<i64>,
    /// Milliseconds since 1970. `None`: it is valid until it is revoked.
    pub expires_at: Option<i64>,
}

from_row!(TokenRow: token_id = "id", prefix, label, created_at, last_used_at, expires_at);

/// A live token: its first 8 characters, where they are stored, and its hash.
pub(super) type LiveToken = (Option<String>, CredentialHash);

/// Issues, finds, lists and revokes opaque tokens.
#[derive(Clone)]
pub struct Tokens {
    db: Db,
    coherence: Arc<Coherence>,
}

impl Tokens {
    pub(super) fn new(db: Db, coherence: Arc<Coherence>) -> Self {
        Self { db, coherence }
    }

    pub(super) async fn find_workspace(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        let read = |row: &AnyRow| {
            let principal = Principal::Workspace {
                id: read(row, "workspace_id")?,
            };
            let proof = Proof {
                expires_at: read(row, "expires_at")?,
                born_at: read(row, "born_at")?,
                ..Proof::by_credential(principal, CredentialKind::Workspace, hash)
            };
            Ok(ResolvedCredential {
                proof: proof.with_account(),
                last_use: Some((read(row, "id")?, read(row, "last_used_at")?)),
            })
        };
        let query = sql!(FIND_WORKSPACE, hash.to_hex());
        let found = fetch_with(&self.db, "find_token", query, read);
        Ok(found.await?.into_iter().next())
    }

    /// True if `workspace` has a token that has ended by itself.
    pub(super) async fn has_expired_token(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<bool, Unavailable> {
        let ended = self.count("ended_tokens", IS_OVER, workspace).await?;
        Ok(ended > 0)
    }

    /// Records the use of all `token_ids` in one statement.
    async fn record_uses(&self, token_ids: &[String], now: i64) -> Result<(), Unavailable> {
        let mut values = Values::default();
        let now = values.bind(now);
        let ids: Vec<String> = token_ids.iter().map(|id| values.bind(id)).collect();
        let ids = ids.join(", ");
        let text =
            format!("UPDATE workspace_auth_tokens SET last_used_at = {now} WHERE id IN ({ids})");
        // The text depends on the number of ids: not to be kept prepared.
        let query = values.into_query(text).persistent(false);
        self.db.execute("note_use", query).await.map(drop)
    }

    /// Issues a token for `workspace` on these terms.
    ///
    /// # Errors
    /// `conflict` when it has [`LIVE_TOKENS_MAX`] already; `workspace_not_found` when it does not exist or was
    /// removed.
    pub async fn issue_workspace(
        &self,
        workspace: &WorkspaceId,
        terms: &TokenTerms,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let issued = self.issue_below(workspace, terms, LIVE_TOKENS_MAX, run);
        issued.await?.ok_or_else(|| too_many("the workspace has"))
    }

    /// Issues the first token of `workspace`; `None` if it has a live one. Of several concurrent requests one
    /// succeeds.
    ///
    /// # Errors
    /// `workspace_not_found` when it does not exist or was removed.
    pub async fn issue_first(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<Option<IssuedToken>, Rejection> {
        self.issue_below(workspace, &TokenTerms::default(), 1, Run::Real)
            .await
    }

    /// Issues a token for `workspace`; `None` if it has `live_max` live ones.
    async fn issue_below(
        &self,
        workspace: &WorkspaceId,
        terms: &TokenTerms,
        live_max: i64,
        run: Run,
    ) -> Result<Option<IssuedToken>, Rejection> {
        let token = IssuedToken::generate(Form::Workspace);
        let insert = sql!(
            INSERT_WORKSPACE,
            &token.token_id,
            workspace.as_str(),
            token.hash.to_hex(),
            &token.prefix,
            token.created_at,
            terms.label.as_deref(),
            terms.expires_at,
            live_max,
        );
        let work = async {
            let mut tx = self.db.begin().await?;
            if execute(&mut tx, sql!(HOLD_WORKSPACE, workspace.as_str())).await? == 0 {
                return Ok(None);
            }
            let is_inserted = execute(&mut tx, insert).await? > 0;
            if is_inserted {
                tx.end(run).await?;
            }
            Ok(Some(is_inserted))
        };
        let issued = self.db.run("issue_token", work).await;
        let in_doubt = issued.as_ref().is_err_and(|error| !error.is_refusal());
        if in_doubt && !run.is_dry() {
            self.withdraw_later(workspace, &token.token_id);
        }
        let is_inserted = issued?.ok_or_else(|| {
            Rejection::new(
                Reason::WorkspaceNotFound,
                "there is no such workspace, or it was removed; create it with POST /workspaces",
            )
        })?;
        Ok(is_inserted.then_some(token))
    }

    /// Revokes a token that no caller got, in case the store committed it after its timeout: it would keep
    /// the workspace from a first token. Best effort, as long as the process lives.
    fn withdraw_later(&self, workspace: &WorkspaceId, token_id: &str) {
        let (tokens, doubt) = (self.clone(), self.coherence.write_uncertainty());
        let (workspace, token_id) = (workspace.clone(), token_id.to_owned());
        tokio::spawn(async move {
            for _ in 0..WITHDRAWALS_MAX {
                tokio::time::sleep(doubt).await;
                let revoked = tokens.revoke_row(Owner::Workspace(&workspace), &token_id);
                if revoked.await.is_ok() {
                    return;
                }
            }
        });
    }

    /// Returns the number of live tokens of `workspace`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn count_live(&self, workspace: &WorkspaceId) -> Result<u64, Unavailable> {
        let live = self.count("count_tokens", COUNT_WORKSPACE, workspace);
        Ok(u64::try_from(live.await?).unwrap_or(0))
    }

    /// Counts tokens of `workspace` by a statement that depends on the time.
    async fn count(
        &self,
        operation: &'static str,
        text: &'static str,
        workspace: &WorkspaceId,
    ) -> Result<i64, Unavailable> {
        let query = sql!(text, workspace.as_str(), Timestamp::now().0);
        let count = self.db.fetch_optional::<(i64,)>(operation, query).await?;
        Ok(count.map_or(0, |(count,)| count))
    }

    /// Inserts a token by a statement that counts those that are there, alone: two at once would count the same ones.
    /// True if there was room for it.
    async fn insert_alone(
        &self,
        operation: &'static str,
        insert: Statement<'_>,
        run: Run,
    ) -> Result<bool, Unavailable> {
        let work = async { self.db.fetch_changed_alone(run, insert).await };
        Ok(self.db.run(operation, work).await?.is_some())
    }

    /// Returns live tokens of `workspace` after the token id `after` (empty: from the first), oldest first.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list_workspace(
        &self,
        workspace: &WorkspaceId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<TokenRow>, Unavailable> {
        let now = Timestamp::now().0;
        let (id, broken_off) = (workspace.as_str(), now - enrolment::REDEEMING_MS);
        let query = sql!(LIST_WORKSPACE, id, after, now, broken_off, i64::from(limit));
        self.db.fetch_all("list_tokens", query).await
    }

    /// Returns all live tokens of one owner: of a workspace or an org at most [`LIVE_TOKENS_MAX`]. Those of an org are
    /// the ones of exactly this subtree, or of the whole org.
    pub(super) async fn list_live(&self, of: Owner<'_>) -> Result<Vec<LiveToken>, Unavailable> {
        let now = Timestamp::now().0;
        let query = match of {
            Owner::Workspace(id) => sql!(LIVE_WORKSPACE, id.as_str(), now),
            Owner::Org(org, root) => {
                let (id, born_at) = root.map_or(("", 0), |root| (root.id.as_str(), root.born_at));
                sql!(orgs::LIVE, org, id, born_at)
            }
            Owner::Operators => sql!(operators::LIVE, operators::FIRST_START, now),
        };
        let live = self.db.fetch_all("live_tokens", query);
        let live = live.await?.into_iter();
        let parse = |(prefix, hash): (_, String)| Some((prefix, CredentialHash::from_hex(&hash)?));
        Ok(live.filter_map(parse).collect())
    }
}

/// Returns the rejection of a token beyond the limit of those that `owners` have.
fn too_many(owners: &str) -> Rejection {
    Rejection::new(
        Reason::Conflict,
        format!("{owners} {LIVE_TOKENS_MAX} live tokens; revoke one that is no longer used"),
    )
    .with_fact("limit", LIVE_TOKENS_MAX)
}
