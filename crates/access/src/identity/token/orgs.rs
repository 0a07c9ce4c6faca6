//! The table `org_tokens`: tokens that act in an org, and those that act in a subtree of one.

use sqlx::any::AnyRow;
use sqlx::{FromRow, Row as _};

use super::{IssuedToken, LIVE_TOKENS_MAX, LiveToken, read_workspace_id};
use crate::identity::credential::CredentialHash;
use crate::identity::proof::{Principal, ResolvedCredential};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use stores::db::{Connection, Db};
use stores::store::{Run, Unavailable};

// The join excludes tokens of a root that was removed, also if its id has a new life, whether or not they were revoked.
const FIND: &str = "SELECT t.org, t.prefix, t.workspace_id, t.born_at \
    FROM org_tokens t LEFT JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND (t.workspace_id IS NULL \
      OR (w.status <> 'removed' AND w.born_at = t.born_at))";
const LIVE: &str = "SELECT prefix, token_hash FROM org_tokens \
    WHERE org = $1 AND COALESCE(workspace_id, '') = $2 AND COALESCE(born_at, 0) = $3 \
      AND revoked_at IS NULL ORDER BY id";
const COUNT: &str = "SELECT COUNT(*) FROM org_tokens WHERE org = $1 AND revoked_at IS NULL";
const INSERT: &str = "INSERT INTO org_tokens \
    (id, org, token_hash, prefix, note, created_at, workspace_id, born_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

// Changes nothing, but locks the row until the transaction ends: the token is serialized with the root's removal.
const HOLD_ROOT: &str = "UPDATE workspaces SET updated_at = updated_at \
    WHERE id = $1 RETURNING org, status, born_at";

pub(super) const LIST: &str = "SELECT id, prefix, note, created_at, workspace_id FROM org_tokens \
    WHERE org = $1 AND revoked_at IS NULL AND id > $2 ORDER BY id LIMIT $3";

/// A live token of an org, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrgTokenRow {
    /// Its id. Ordered by time.
    pub token_id: String,
    /// Its first 8 characters.
    pub prefix: String,
    /// Its maker's note.
    pub note: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: i64,
    /// The root of its subtree, if it has one.
    pub subtree: Option<String>,
}

impl FromRow<'_, AnyRow> for OrgTokenRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            token_id: row.try_get(0)?,
            prefix: row.try_get(1)?,
            note: row.try_get(2)?,
            created_at: row.try_get(3)?,
            subtree: row.try_get(4)?,
        })
    }
}

/// The outcome of a request for a token of an org.
pub(in crate::identity) enum OrgIssueOutcome {
    Done,
    Full,
    /// There never was such a root.
    NoRoot,
    RootRemoved,
    /// The root is in another org.
    RootElsewhere,
}

/// The table.
#[derive(Clone)]
pub(in crate::identity) struct OrgTokens {
    pub(super) db: Db,
}

impl OrgTokens {
    /// Returns the token with this hash.
    pub(in crate::identity) async fn find_org(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        let query = sqlx::query(FIND).bind(hash.to_hex());
        let work = async {
            let row = query.fetch_optional(self.db.pool()).await?;
            let found = row.map(|row| {
                let root: Option<String> = row.try_get(2)?;
                let within = match root {
                    Some(_) => Some(WorkspaceIncarnation {
                        id: read_workspace_id(&row, 2)?,
                        born_at: row.try_get(3)?,
                    }),
                    None => None,
                };
                let org = row.try_get(0)?;
                Ok(ResolvedCredential {
                    prefix: row.try_get(1)?,
                    ..ResolvedCredential::new(Principal::Org { org, within })
                })
            });
            found.transpose()
        };
        self.db.run("find_org_token", work).await
    }

    /// Returns the live tokens of an org, or of a subtree.
    pub(super) async fn list_live_of_org(
        &self,
        org: &str,
        root: Option<&WorkspaceIncarnation>,
    ) -> Result<Vec<LiveToken>, sqlx::Error> {
        let query = sqlx::query(LIVE)
            .bind(org)
            .bind(root.map_or("", |root| root.id.as_str()))
            .bind(root.map_or(0, |root| root.born_at));
        super::read_live_tokens(&query.fetch_all(self.db.pool()).await?)
    }

    /// Inserts a token for `org`, or for the subtree of `root` in it, if the org has fewer than [`LIVE_TOKENS_MAX`].
    pub(in crate::identity) async fn insert_org(
        &self,
        (org, root): (&str, Option<&WorkspaceId>),
        note: Option<&str>,
        (token, hash): (&IssuedToken, CredentialHash),
        run: Run,
    ) -> Result<OrgIssueOutcome, Unavailable> {
        let work = async {
            // Two at once would count the same tokens.
            let mut tx = self.db.begin_alone().await?;
            let within = match root {
                Some(root) => match lock_root(&mut tx, org, root).await? {
                    Ok(born_at) => Some((root, born_at)),
                    Err(why) => return Ok(why),
                },
                None => None,
            };
            let count = sqlx::query_scalar(COUNT).bind(org);
            let live: i64 = count.fetch_one(&mut *tx).await?;
            if live >= LIVE_TOKENS_MAX {
                return Ok(OrgIssueOutcome::Full);
            }
            sqlx::query(INSERT)
                .bind(token.token_id.as_str())
                .bind(org)
                .bind(hash.to_hex())
                .bind(token.prefix.as_str())
                .bind(note)
                .bind(token.created_at)
                .bind(within.map(|(root, _)| root.as_str()))
                .bind(within.map(|(_, born_at)| born_at))
                .execute(&mut *tx)
                .await?;
            tx.end(run).await?;
            Ok(OrgIssueOutcome::Done)
        };
        self.db.run("issue_org_token", work).await
    }
}

/// Locks the root of a subtree of `org`, and returns the time at which its life began, or why it can be none.
async fn lock_root(
    tx: &mut Connection,
    org: &str,
    root: &WorkspaceId,
) -> Result<Result<i64, OrgIssueOutcome>, sqlx::Error> {
    let hold = sqlx::query(HOLD_ROOT).bind(root.as_str());
    let Some(row) = hold.fetch_optional(&mut *tx).await? else {
        return Ok(Err(OrgIssueOutcome::NoRoot));
    };
    if row.try_get::<String, _>(1)? == "removed" {
        return Ok(Err(OrgIssueOutcome::RootRemoved));
    }
    if row.try_get::<Option<String>, _>(0)?.as_deref() != Some(org) {
        return Ok(Err(OrgIssueOutcome::RootElsewhere));
    }
    Ok(Ok(row.try_get(2)?))
}
