//! Revocation of opaque tokens.

use sqlx::{AssertSqlSafe, Row as _};

use super::Tokens;
use crate::rows::{fetch_all, fetch_with, sql};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::time::Timestamp;
use stores::coherence::Invalidation;
use stores::db::Connection;
use stores::store::{Run, Unavailable};

// Tokens that ended a moment ago are included, since the notification may not have reached every replica. A token of the
// workspace's subtree ends with it.
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
pub(in crate::identity) enum Owner<'a> {
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

impl Tokens {
    /// Revokes a token of `workspace`, or one of its enrolment tokens: here at once, and on every replica
    /// within a second. Revoking the last token ends the enrolment tokens as well; returns their ids. Idempotent. `None`:
    /// the workspace never had such a token.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_workspace(
        &self,
        workspace: &WorkspaceId,
        token_id: &str,
        run: Run,
    ) -> Result<Option<Vec<String>>, Unavailable> {
        let (owner, now) = (Owner::Workspace(workspace), Timestamp::now().0);
        if self.revoke(owner, token_id, run).await? {
            let last = (workspace, token_id);
            return self
                .end_enrolments_with_last(last, now, run)
                .await
                .map(Some);
        }
        // Enrolment tokens are never cached, so there is nothing to invalidate.
        let revoked = self.revoke_enrolment(workspace, token_id, now, run);
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
    pub(super) async fn revoke_row(
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

    /// Revokes every token of a removed workspace before its id begins a new life, in a transaction. Returns the hashes that
    /// [`Tokens::forget_revoked`] takes after its commit.
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
