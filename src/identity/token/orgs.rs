//! The tables `org_tokens` and `subtree_tokens`: tokens that act in an org, and those that act in a subtree of one. The
//! latter have a table of their own, so that a replica of the release before, which knows no subtrees, knows none of them.

use sqlx::Row as _;

use super::{IssuedToken, LIVE_TOKENS_MAX, LiveToken, TokenHolder, read_workspace_id};
use crate::db::{Connection, Db};
use crate::identity::credential::CredentialHash;
use crate::identity::proof::Principal;
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::store::{Run, Unavailable};

// The join excludes tokens of a root that was removed, also if its id has a new life, whether or not they were revoked.
const FIND: &str = "SELECT org, prefix, CAST(NULL AS TEXT), CAST(0 AS BIGINT) FROM org_tokens \
    WHERE token_hash = $1 AND revoked_at IS NULL \
    UNION ALL \
    SELECT t.org, t.prefix, t.workspace_id, t.born_at \
    FROM subtree_tokens t JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND w.status <> 'removed' AND w.born_at = t.born_at";

const LIVE_ORG: &str = "SELECT prefix, token_hash FROM org_tokens \
    WHERE org = $1 AND revoked_at IS NULL ORDER BY id";
const LIVE_SUBTREE: &str = "SELECT prefix, token_hash FROM subtree_tokens \
    WHERE org = $1 AND workspace_id = $2 AND born_at = $3 AND revoked_at IS NULL ORDER BY id";

const COUNT: &str = "SELECT \
    (SELECT COUNT(*) FROM org_tokens WHERE org = $1 AND revoked_at IS NULL) + \
    (SELECT COUNT(*) FROM subtree_tokens WHERE org = $1 AND revoked_at IS NULL)";

const INSERT: &str = "INSERT INTO org_tokens (id, org, token_hash, prefix, note, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const INSERT_SUBTREE: &str = "INSERT INTO subtree_tokens \
    (id, org, token_hash, prefix, note, created_at, workspace_id, born_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

// Changes nothing, but locks the row until the transaction ends: the token is serialized with the root's removal.
const HOLD_ROOT: &str = "UPDATE workspaces SET updated_at = updated_at \
    WHERE id = $1 RETURNING org, status, born_at";

const LIST: &str = "SELECT id, prefix, note, created_at, CAST(NULL AS TEXT) AS root FROM org_tokens \
    WHERE org = $1 AND revoked_at IS NULL AND id > $2 \
    UNION ALL \
    SELECT id, prefix, note, created_at, workspace_id FROM subtree_tokens \
    WHERE org = $1 AND revoked_at IS NULL AND id > $2 ORDER BY 1 LIMIT $3";

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

/// A live token of an org, as authentication needs it.
pub(in crate::identity) struct OrgTokenRecord {
    org: String,
    /// The root of its subtree, if it has one.
    within: Option<WorkspaceIncarnation>,
    pub(in crate::identity) prefix: String,
}

impl OrgTokenRecord {
    /// Returns the principal that it proves.
    pub(in crate::identity) fn principal(&self) -> Principal {
        Principal::Org {
            org: self.org.clone(),
            within: self.within.clone(),
        }
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

/// The tables.
pub(in crate::identity) struct OrgTokens<'a> {
    db: &'a Db,
}

impl<'a> OrgTokens<'a> {
    pub(super) fn new(db: &'a Db) -> Self {
        Self { db }
    }

    /// Returns the token with this hash.
    pub(in crate::identity) async fn find(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<OrgTokenRecord>, Unavailable> {
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
                Ok(OrgTokenRecord {
                    org: row.try_get(0)?,
                    prefix: row.try_get(1)?,
                    within,
                })
            });
            found.transpose()
        };
        self.db.run("find_org_token", work).await
    }

    /// Returns the live tokens of an org, or of a subtree.
    pub(super) async fn list_live(
        &self,
        of: TokenHolder<'_>,
    ) -> Result<Vec<LiveToken>, sqlx::Error> {
        let query = match of {
            TokenHolder::Subtree(org, root) => sqlx::query(LIVE_SUBTREE)
                .bind(org)
                .bind(root.id.as_str())
                .bind(root.born_at),
            TokenHolder::Org(org) => sqlx::query(LIVE_ORG).bind(org),
            TokenHolder::Workspace(_) | TokenHolder::Operator => return Ok(Vec::new()),
        };
        super::read_live_tokens(&query.fetch_all(self.db.pool()).await?)
    }

    /// Returns live tokens of an org, those of its subtrees included.
    pub(in crate::identity) async fn list(
        &self,
        org: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<OrgTokenRow>, Unavailable> {
        let query = sqlx::query(LIST).bind(org).bind(after);
        let query = query.bind(i64::from(limit));
        let work = async {
            let rows = query.fetch_all(self.db.pool()).await?;
            let rows = rows.iter().map(|row| {
                Ok(OrgTokenRow {
                    token_id: row.try_get(0)?,
                    prefix: row.try_get(1)?,
                    note: row.try_get(2)?,
                    created_at: row.try_get(3)?,
                    subtree: row.try_get(4)?,
                })
            });
            rows.collect()
        };
        self.db.run("list_tokens", work).await
    }

    /// Inserts a token for `org`, or for the subtree of `root` in it, if the org has fewer than [`LIVE_TOKENS_MAX`].
    pub(in crate::identity) async fn issue(
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
            let text = if within.is_some() {
                INSERT_SUBTREE
            } else {
                INSERT
            };
            let mut insert = sqlx::query(text)
                .bind(token.token_id.as_str())
                .bind(org)
                .bind(hash.to_hex())
                .bind(token.prefix.as_str())
                .bind(note)
                .bind(token.created_at);
            if let Some((root, born_at)) = within {
                insert = insert.bind(root.as_str()).bind(born_at);
            }
            insert.execute(&mut *tx).await?;
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
