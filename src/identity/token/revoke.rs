//! Revocation of opaque tokens.

use sqlx::Row as _;

use super::{Tokens, operators};
use crate::db::Connection;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::time::Timestamp;

const HASH_WORKSPACE: &str =
    "SELECT token_hash FROM workspace_auth_tokens WHERE workspace_id = $1 AND id = $2";
const HASH_ORG: &str = "SELECT token_hash FROM org_tokens WHERE org = $1 AND id = $2";
const HASH_SUBTREE: &str = "SELECT token_hash FROM subtree_tokens WHERE org = $1 AND id = $2";

// Idempotent: a caller that lost the first response repeats the request, and the replicas are notified again.
const REVOKE_WORKSPACE: &str = "UPDATE workspace_auth_tokens \
    SET revoked_at = COALESCE(revoked_at, $3) WHERE workspace_id = $1 AND id = $2 \
    RETURNING token_hash";
const REVOKE_ORG: &str = "UPDATE org_tokens SET revoked_at = COALESCE(revoked_at, $3) \
    WHERE org = $1 AND id = $2 RETURNING token_hash";
const REVOKE_SUBTREE: &str = "UPDATE subtree_tokens SET revoked_at = COALESCE(revoked_at, $3) \
    WHERE org = $1 AND id = $2 RETURNING token_hash";

// Includes tokens that ended a moment ago, since the notification may not have reached every replica.
// A token of the workspace's subtree ends with it.
const HASHES_OF_ALL: [&str; 3] = [
    "SELECT token_hash FROM workspace_auth_tokens \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2)",
    "SELECT token_hash FROM enrolment_tokens \
     WHERE workspace_id = $1 AND (redeemed_at IS NULL OR redeemed_at > $2)",
    "SELECT token_hash FROM subtree_tokens \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2)",
];
const REVOKE_ALL: [&str; 3] = [
    "UPDATE workspace_auth_tokens SET revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2) RETURNING token_hash",
    "UPDATE enrolment_tokens SET redeemed_at = COALESCE(redeemed_at, $3), \
       revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (redeemed_at IS NULL OR redeemed_at > $2) RETURNING token_hash",
    "UPDATE subtree_tokens SET revoked_at = COALESCE(revoked_at, $3) \
     WHERE workspace_id = $1 AND (revoked_at IS NULL OR revoked_at > $2) RETURNING token_hash",
];

/// The owner of a token.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    Workspace(&'a WorkspaceId),
    Org(&'a str),
    /// The subtrees of an org.
    Subtrees(&'a str),
    Operators,
}

impl<'a> Owner<'a> {
    fn name(self) -> &'a str {
        match self {
            Self::Workspace(id) => id.as_str(),
            Self::Org(org) | Self::Subtrees(org) => org,
            Self::Operators => "",
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
        let text = match owner {
            Owner::Workspace(_) => HASH_WORKSPACE,
            Owner::Org(_) => HASH_ORG,
            Owner::Subtrees(_) => HASH_SUBTREE,
            Owner::Operators => operators::HASH,
        };
        let query = sqlx::query_scalar(text).bind(owner.name()).bind(token_id);
        let work = query.fetch_optional(self.db.pool());
        self.db.run("token_hash", work).await
    }

    /// Revokes a token and returns its hash.
    pub(crate) async fn revoke(
        &self,
        owner: Owner<'_>,
        token_id: &str,
    ) -> Result<Option<String>, Unavailable> {
        let text = match owner {
            Owner::Workspace(_) => REVOKE_WORKSPACE,
            Owner::Org(_) => REVOKE_ORG,
            Owner::Subtrees(_) => REVOKE_SUBTREE,
            Owner::Operators => operators::REVOKE,
        };
        let query = sqlx::query(text).bind(owner.name());
        let query = query.bind(token_id).bind(Timestamp::now().0);
        let work = async {
            let row = self.db.fetch_changed(query).await?;
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
        let work = async {
            let mut hashes = Vec::new();
            for text in HASHES_OF_ALL {
                let query = sqlx::query_scalar::<_, String>(text)
                    .bind(workspace.as_str())
                    .bind(since);
                hashes.extend(query.fetch_all(self.db.pool()).await?);
            }
            Ok(hashes)
        };
        self.db.run("token_hashes", work).await
    }

    /// Revokes these tokens and returns their hashes.
    pub(crate) async fn revoke_all(
        &self,
        workspace: &WorkspaceId,
        since: i64,
    ) -> Result<Vec<String>, Unavailable> {
        let now = Timestamp::now().0;
        let work = async {
            let mut hashes = Vec::new();
            for text in REVOKE_ALL {
                let query = sqlx::query_scalar::<_, String>(text)
                    .bind(workspace.as_str())
                    .bind(since)
                    .bind(now);
                hashes.extend(query.fetch_all(self.db.pool()).await?);
            }
            Ok(hashes)
        };
        self.db.run("revoke_all_tokens", work).await
    }

    /// Revokes all tokens of a removed workspace before its id begins a new life, in a transaction of the caller. Returns the
    /// hashes of those that were not revoked.
    pub(crate) async fn revoke_all_in(
        tx: &mut Connection,
        workspace: &WorkspaceId,
    ) -> Result<Vec<String>, sqlx::Error> {
        let now = Timestamp::now().0;
        let mut hashes = Vec::new();
        for text in REVOKE_ALL {
            let query = sqlx::query(text).bind(workspace.as_str());
            let rows = query.bind(now).bind(now).fetch_all(&mut *tx).await?;
            for row in rows {
                hashes.push(row.try_get(0)?);
            }
        }
        Ok(hashes)
    }
}
