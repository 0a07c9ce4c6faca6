//! Revocation of opaque tokens.

use sqlx::{AssertSqlSafe, Row as _};

use super::Tokens;
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::db::Connection;
use stores::store::Unavailable;

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

/// The owner of a token.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    Workspace(&'a WorkspaceId),
    /// An org, with its subtrees.
    Org(&'a str),
    Operators,
}

impl<'a> Owner<'a> {
    /// Returns the table of its tokens, the condition that one is its own, and its name, the parameter `$1`.
    fn place(self) -> (&'static str, &'static str, &'a str) {
        match self {
            Self::Workspace(id) => ("workspace_auth_tokens", "workspace_id = $1", id.as_str()),
            Self::Org(org) => ("org_tokens", "org = $1", org),
            Self::Operators => ("operator_tokens", "CAST($1 AS TEXT) = ''", ""),
        }
    }
}

impl Tokens {
    /// Returns the hash of a token, revoked or not; `None`: its owner never had it.
    pub(crate) async fn find_hash(
        &self,
        owner: Owner<'_>,
        token_id: &str,
    ) -> Result<Option<String>, Unavailable> {
        let (table, is_own, name) = owner.place();
        let text = format!("SELECT token_hash FROM {table} WHERE {is_own} AND id = $2");
        let query = sqlx::query_scalar(AssertSqlSafe(text));
        let query = query.bind(name).bind(token_id);
        let work = query.fetch_optional(self.db.pool());
        self.db.run("token_hash", work).await
    }

    /// Revokes a token and returns its hash. Idempotent: a caller that lost the first response repeats the request, and the
    /// replicas are notified again.
    pub(crate) async fn revoke(
        &self,
        owner: Owner<'_>,
        token_id: &str,
    ) -> Result<Option<String>, Unavailable> {
        let (table, is_own, name) = owner.place();
        let text = format!(
            "UPDATE {table} SET revoked_at = COALESCE(revoked_at, $3) WHERE {is_own} AND id = $2 RETURNING token_hash"
        );
        let query = sqlx::query(AssertSqlSafe(text)).bind(name);
        let query = query.bind(token_id).bind(Timestamp::now().0);
        let work = async {
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map(|row| row.try_get(0)).transpose()
        };
        self.db.run("revoke_token", work).await
    }

    /// Returns the hashes of the tokens of `workspace`, its enrolment tokens and those of its subtree included, that are
    /// live or ended after `since`.
    pub(crate) async fn list_hashes(
        &self,
        workspace: &WorkspaceId,
        since: i64,
    ) -> Result<Vec<String>, Unavailable> {
        let query = sqlx::query_scalar(HASHES_OF_ALL)
            .bind(workspace.as_str())
            .bind(since);
        let work = query.fetch_all(self.db.pool());
        self.db.run("token_hashes", work).await
    }

    /// Revokes these tokens and returns their hashes.
    pub(crate) async fn revoke_all(
        &self,
        workspace: &WorkspaceId,
        since: i64,
    ) -> Result<Vec<String>, Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            let hashes = revoke_all_since(&mut tx, workspace, since).await?;
            tx.commit().await?;
            Ok(hashes)
        };
        self.db.run("revoke_all_tokens", work).await
    }
}

/// Revokes the tokens of a workspace that are live or ended after `since`, and returns their hashes.
pub(super) async fn revoke_all_since(
    tx: &mut Connection,
    workspace: &WorkspaceId,
    since: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let mut hashes = Vec::new();
    for text in REVOKE_ALL {
        let query = sqlx::query_scalar::<_, String>(text)
            .bind(workspace.as_str())
            .bind(since)
            .bind(Timestamp::now().0);
        hashes.extend(query.fetch_all(&mut *tx).await?);
    }
    Ok(hashes)
}
