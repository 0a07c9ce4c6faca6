//! Opaque tokens: they are issued, found, listed and revoked. The tables of them are `workspace_auth_tokens`,
//! `enrolment_tokens` ([`enrolment`]), those of orgs and of operators ([`orgs_and_operators`]); no other module
//! contains SQL for them. They store SHA-256 hashes; a token is shown once, when it is issued.

mod enrolment;
mod orgs_and_operators;
mod uses;

use std::sync::Arc;

use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row as _};

pub use self::enrolment::{EnrolmentMaker, NewEnrolment};
use self::orgs_and_operators::{FIRST_START, LIVE_OPERATORS, LIVE_ORG};
pub use self::orgs_and_operators::{OperatorRow, OrgTokenRow};
pub(super) use self::uses::UseQueue;
use super::credential::{CredentialHash, Form, IssuedToken};
use super::proof::{CredentialKind, Principal, Proof, ResolvedCredential};
use crate::identity::revocations::Subject;
use crate::rows::{Statement, execute, fetch_all, fetch_with, from_row, read, sql};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::db::{Connection, Db, Values};
use stores::store::{Run, Unavailable};

/// Live tokens of one workspace, or of one org, at most (`docs/reference/http-api.md`, "Tokens").
pub const LIVE_TOKENS_MAX: i64 = 50;

/// Attempts to revoke a token that was never returned to a caller.
const WITHDRAWALS_MAX: u32 = 5;

// The join excludes tokens of removed workspaces, whether or not they were revoked.
const FIND_WORKSPACE: &str = "SELECT t.id, t.workspace_id, t.last_used_at, t.expires_at, w.born_at \
    FROM workspace_auth_tokens t JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND w.status <> 'removed'";

/// Selects the state of the workspace `$1`, as far as a token that names it depends on it.
pub(super) const FIND_STATE: &str = "SELECT status, org, born_at FROM workspaces WHERE id = $1";

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

// Tokens that ended a moment ago are included, since the notification may not have reached every replica. A token of
// the workspace's subtree ends with it.
const HASHES_OF_ALL: &str = "SELECT token_hash FROM workspace_auth_tokens \
    WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2) \
    UNION ALL SELECT token_hash FROM enrolment_tokens \
    WHERE workspace_id = $1 AND (redeemed_at IS NULL OR redeemed_at > $2) \
    UNION ALL SELECT token_hash FROM org_tokens \
    WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2)";
const REVOKE_ALL: [&str; 3] = [
    "UPDATE workspace_auth_tokens SET revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2) RETURNING token_hash",
    "UPDATE enrolment_tokens SET redeemed_at = COALESCE(redeemed_at, $3), \
       revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (redeemed_at IS NULL OR redeemed_at > $2) RETURNING token_hash",
    "UPDATE org_tokens SET revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2) RETURNING token_hash",
];

/// Age up to which the end of a token is published again: longer than any replica trusts a cached proof.
const REPUBLISHED_MS: i64 = 1_000_000;

/// The owner of tokens.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    Workspace(&'a WorkspaceId),
    /// An org with its subtrees, or one of its subtrees.
    Org(&'a str, Option<&'a WorkspaceIncarnation>),
    Operators,
}

impl<'a> Owner<'a> {
    /// Returns the table of its tokens, the condition that one is its own, and its name, the first parameter.
    fn place(self) -> (&'static str, &'static str, &'a str) {
        match self {
            Self::Workspace(id) => ("workspace_auth_tokens", "workspace_id = $1", id.as_str()),
            Self::Org(org, _) => ("org_tokens", "org = $1", org),
            Self::Operators => ("operator_tokens", "CAST($1 AS TEXT) = ''", ""),
        }
    }
}

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
            let id: String = read(row, "id")?;
            let proof = Proof {
                expires_at: read(row, "expires_at")?,
                born_at: read(row, "born_at")?,
                link_key: Some(Subject::Credential(id.clone()).key().into()),
                ..Proof::by_credential(principal, CredentialKind::Workspace, hash)
            };
            Ok(ResolvedCredential {
                proof: proof.with_account(),
                last_use: Some((id, read(row, "last_used_at")?)),
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

    /// Revokes a token of `workspace`, or one of its enrolment tokens: here at once, and on every replica within a
    /// second. Revoking the last token ends the enrolment tokens as well; returns their ids. Idempotent. `None`: the
    /// workspace never had such a token.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_workspace(
        &self,
        workspace: &WorkspaceId,
        token_id: &str,
        run: Run,
    ) -> Result<Option<Vec<String>>, Unavailable> {
        if self
            .revoke(Owner::Workspace(workspace), token_id, run)
            .await?
        {
            let ended = self.end_enrolments_with_last((workspace, token_id), run);
            return ended.await.map(Some);
        }
        // Enrolment tokens are never cached, so there is nothing to invalidate.
        let revoked = self.revoke_enrolment(workspace, token_id, run);
        Ok(revoked.await?.then(Vec::new))
    }

    /// As [`Tokens::revoke_workspace`], for a token of `org`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_org(
        &self,
        org: &str,
        token_id: &str,
        run: Run,
    ) -> Result<bool, Unavailable> {
        self.revoke(Owner::Org(org, None), token_id, run).await
    }

    /// As [`Tokens::revoke_workspace`], for a token of an operator. Of a person it ends the session.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_operator(&self, token_id: &str, run: Run) -> Result<bool, Unavailable> {
        self.revoke(Owner::Operators, token_id, run).await
    }

    /// Revokes a token. True if there was one, revoked or not.
    async fn revoke(
        &self,
        owner: Owner<'_>,
        token_id: &str,
        run: Run,
    ) -> Result<bool, Unavailable> {
        // Read before the change: if the change is not confirmed, the hash must be known to invalidate
        // caches.
        let (table, is_own, name) = owner.place();
        let text = format!("SELECT token_hash FROM {table} WHERE {is_own} AND id = $2");
        let query = sql!(AssertSqlSafe(text), name, token_id);
        let found = self.db.fetch_optional::<(String,)>("token_hash", query);
        let Some((hash,)) = found.await? else {
            return Ok(false);
        };
        if run.is_dry() {
            return Ok(true);
        }
        let revoked = self.revoke_row(owner, token_id).await;
        self.invalidate_revoked(vec![hash], revoked).await?;
        Ok(true)
    }

    /// Revokes a token in its table and returns its hash. Idempotent: a caller that lost the first response repeats the
    /// request, and the replicas are notified again.
    async fn revoke_row(
        &self,
        owner: Owner<'_>,
        token_id: &str,
    ) -> Result<Vec<String>, Unavailable> {
        let (table, is_own, name) = owner.place();
        let text = format!(
            "UPDATE {table} SET revoked_at = COALESCE(revoked_at, $3) WHERE {is_own} AND id = $2 RETURNING token_hash"
        );
        let query = sql!(AssertSqlSafe(text), name, token_id, Timestamp::now().0);
        fetch_with(&self.db, "revoke_token", query, |row| row.try_get(0)).await
    }

    /// Revokes every token of `workspace`, its enrolment tokens and those of its subtree included: here at once, and on
    /// every replica within a second. Idempotent; a repetition invalidates the replicas' caches again.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_all(&self, workspace: &WorkspaceId) -> Result<(), Unavailable> {
        let since = Timestamp::now().0 - REPUBLISHED_MS;
        let query = sql!(HASHES_OF_ALL, workspace.as_str(), since);
        let known = fetch_with(&self.db, "token_hashes", query, |row| row.try_get(0)).await?;
        let work = async {
            let mut tx = self.db.begin().await?;
            let hashes = revoke_all_since(&mut tx, workspace, since).await?;
            tx.commit().await?;
            Ok(hashes)
        };
        let revoked = self.db.run("revoke_all_tokens", work).await;
        self.invalidate_revoked(known, revoked).await
    }

    /// Revokes every token of a removed workspace before its id begins a new life, in a transaction. Returns the hashes
    /// that [`Tokens::forget_revoked`] takes after its commit.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn revoke_all_in(
        tx: &mut Connection,
        workspace: &WorkspaceId,
    ) -> Result<Vec<String>, sqlx::Error> {
        revoke_all_since(tx, workspace, Timestamp::now().0).await
    }

    /// Drops what every replica knows of revoked tokens.
    pub async fn forget_revoked(&self, revoked: Vec<String>) {
        for hash in revoked {
            let what = Invalidation::Credential(hash);
            self.coherence.invalidate(what).await;
        }
    }

    /// Invalidates caches after the commit, before the response. `known`: the hashes to invalidate if the
    /// store did not confirm the change in time.
    async fn invalidate_revoked(
        &self,
        known: Vec<String>,
        revoked: Result<Vec<String>, Unavailable>,
    ) -> Result<(), Unavailable> {
        for hash in revoked.as_ref().unwrap_or(&known) {
            let what = Invalidation::Credential(hash.clone());
            self.coherence.invalidate_after(&revoked, what).await;
        }
        revoked.map(drop)
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
                sql!(LIVE_ORG, org, id, born_at)
            }
            Owner::Operators => sql!(LIVE_OPERATORS, FIRST_START, now),
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

/// Revokes the tokens of a workspace that are live or ended after `since`, and returns their hashes.
async fn revoke_all_since(
    tx: &mut Connection,
    workspace: &WorkspaceId,
    since: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let mut hashes = Vec::new();
    for text in REVOKE_ALL {
        let revoke = sql!(text, workspace.as_str(), since, Timestamp::now().0);
        let revoked = fetch_all::<(String,)>(tx, revoke).await?;
        hashes.extend(revoked.into_iter().map(|(hash,)| hash));
    }
    Ok(hashes)
}
