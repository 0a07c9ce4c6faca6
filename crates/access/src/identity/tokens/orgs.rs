//! The table `org_tokens`: tokens that act in an org, and those that act in a subtree of one.

use sqlx::any::AnyRow;

use super::{IssuedToken, LIVE_TOKENS_MAX, Tokens, too_many};
use crate::identity::credential::{CredentialHash, Form};
use crate::identity::proof::{CredentialKind, Principal, Proof, ResolvedCredential};
use crate::rows::{execute, fetch_optional, fetch_with, from_row, read, sql};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use stores::store::{Run, Unavailable};

// The join excludes tokens of a root that was removed, also if its id has a new life, whether or not they were revoked.
const FIND: &str = "SELECT t.org, t.prefix, t.workspace_id, t.born_at \
    FROM org_tokens t LEFT JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND (t.workspace_id IS NULL \
      OR (w.status <> 'removed' AND w.born_at = t.born_at))";
pub(super) const LIVE: &str = "SELECT prefix, token_hash FROM org_tokens \
    WHERE org = $1 AND COALESCE(workspace_id, '') = $2 AND COALESCE(born_at, 0) = $3 \
      AND revoked_at IS NULL ORDER BY id";

const INSERT: &str = "INSERT INTO org_tokens \
    (id, org, token_hash, prefix, note, created_at, workspace_id, born_at) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8 \
    WHERE (SELECT COUNT(*) FROM org_tokens WHERE org = $2 AND revoked_at IS NULL) < $9";

// Changes nothing, but locks the row until the transaction ends: the token is serialized with the root's removal.
const HOLD_ROOT: &str = "UPDATE workspaces SET updated_at = updated_at \
    WHERE id = $1 RETURNING org, status, born_at";

const LIST: &str = "SELECT id, prefix, note, created_at, workspace_id FROM org_tokens \
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

from_row!(OrgTokenRow: token_id = "id", prefix, note, created_at, subtree = "workspace_id");

impl Tokens {
    /// Returns the org token with this hash.
    pub(in crate::identity) async fn find_org(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        let read = |row: &AnyRow| {
            let within = match read(row, "workspace_id")? {
                Some(id) => Some(WorkspaceIncarnation {
                    id,
                    born_at: read(row, "born_at")?,
                }),
                None => None,
            };
            let org = read(row, "org")?;
            let principal = Principal::Org { org, within };
            let proof = Proof {
                prefix: read(row, "prefix")?,
                ..Proof::by_credential(principal, CredentialKind::Org, hash)
            };
            Ok(ResolvedCredential::from(proof))
        };
        let query = sql!(FIND, hash.to_hex());
        let found = fetch_with(&self.db, "find_org_token", query, read);
        Ok(found.await?.into_iter().next())
    }

    /// Issues a token for `org`, or for the subtree of `root` in it, with a note of its purpose.
    ///
    /// # Errors
    /// `conflict` when the org has [`LIVE_TOKENS_MAX`] already, or the root is in another org; `workspace_not_found` and
    /// `workspace_removed` of the root.
    pub async fn issue_org(
        &self,
        (org, root): (&str, Option<&WorkspaceId>),
        note: Option<&str>,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let token = IssuedToken::generate(Form::Org);
        let refuse = |reason, message| Ok(Err(Rejection::new(reason, message)));
        let work = async {
            // Two at once would count the same tokens.
            let mut tx = self.db.begin_alone().await?;
            let mut born_at: Option<i64> = None;
            if let Some(root) = root {
                let hold = sql!(HOLD_ROOT, root.as_str());
                let held: Option<(Option<String>, String, i64)> =
                    fetch_optional(&mut tx, hold).await?;
                match held {
                    None => {
                        return refuse(
                            Reason::WorkspaceNotFound,
                            "there is no workspace of the id in `subtree`: create it first",
                        );
                    }
                    Some((_, status, _)) if status == "removed" => {
                        return refuse(
                            Reason::WorkspaceRemoved,
                            "the workspace in `subtree` was removed: name another",
                        );
                    }
                    Some((of, ..)) if of.as_deref() != Some(org) => {
                        return refuse(
                            Reason::Conflict,
                            "the workspace in `subtree` is not in the org of the path: name one of that org",
                        );
                    }
                    Some((.., began)) => born_at = Some(began),
                }
            }
            let insert = sql!(
                INSERT,
                &token.token_id,
                org,
                token.hash.to_hex(),
                &token.prefix,
                note,
                token.created_at,
                root.map(WorkspaceId::as_str),
                born_at,
                LIVE_TOKENS_MAX,
            );
            if execute(&mut tx, insert).await? == 0 {
                return Ok(Err(too_many("the org has")));
            }
            tx.end(run).await?;
            Ok(Ok(()))
        };
        self.db.run("issue_org_token", work).await??;
        Ok(token)
    }

    /// Returns live tokens of `org`, those of its subtrees included, after the token id `after` (empty: from the first),
    /// oldest first.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list_org(
        &self,
        org: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<OrgTokenRow>, Unavailable> {
        let query = sql!(LIST, org, after, i64::from(limit));
        self.db.fetch_all("list_tokens", query).await
    }
}
