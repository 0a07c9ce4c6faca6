//! Tokens of orgs and of operators. `org_tokens`: tokens that act in an org, and those that act in a subtree of one.
//! `operator_tokens`, which have a role, and `admin_tokens`, which holds the one that the first start made. Sessions of
//! people who signed in at the console have a token, too, which is never shown.

use sqlx::FromRow;
use sqlx::any::AnyRow;

use super::{IssuedToken, LIVE_TOKENS_MAX, TokenTerms, Tokens, too_many};
use crate::identity::credential::{CredentialHash, Form};
use crate::identity::proof::{CredentialKind, Principal, Proof, ResolvedCredential};
use crate::identity::role::{Operator, Person, Role};
use crate::rows::{execute, fetch_optional, fetch_with, from_row, read, sql};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::store::{Run, Unavailable};

// The join excludes tokens of a root that was removed, also if its id has a new life, whether or not they were revoked.
const FIND_ORG: &str = "SELECT t.org, t.prefix, t.workspace_id, t.born_at \
    FROM org_tokens t LEFT JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND (t.workspace_id IS NULL \
      OR (w.status <> 'removed' AND w.born_at = t.born_at))";
pub(super) const LIVE_ORG: &str = "SELECT prefix, token_hash FROM org_tokens \
    WHERE org = $1 AND COALESCE(workspace_id, '') = $2 AND COALESCE(born_at, 0) = $3 \
      AND revoked_at IS NULL ORDER BY id";

const INSERT_ORG: &str = "INSERT INTO org_tokens \
    (id, org, token_hash, prefix, note, created_at, workspace_id, born_at) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8 \
    WHERE (SELECT COUNT(*) FROM org_tokens WHERE org = $2 AND revoked_at IS NULL) < $9";

// Changes nothing, but locks the row until the transaction ends: the token is serialized with the root's removal.
const HOLD_ROOT: &str = "UPDATE workspaces SET updated_at = updated_at \
    WHERE id = $1 RETURNING org, status, born_at";

const LIST_ORG: &str = "SELECT id, prefix, note, created_at, workspace_id FROM org_tokens \
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

/// The row that serializes the first starts of several replicas. It does not have the form of a hash, so it
/// is no token's.
pub(super) const FIRST_START: &str = "first-start";

/// Age after its end at which the row of a session is deleted.
const SESSION_KEPT_MS: i64 = 24 * 3600 * 1000;

const FIND_OPERATOR: &str = "SELECT CAST('admin' AS TEXT) AS role, CAST(NULL AS TEXT) AS id, CAST(NULL AS TEXT) AS label, \
      CAST(NULL AS TEXT) AS issuer, CAST(NULL AS TEXT) AS subject, CAST(NULL AS TEXT) AS name, \
      CAST(NULL AS BIGINT) AS expires_at \
    FROM admin_tokens WHERE token_hash = $1 \
    UNION ALL SELECT role, id, label, issuer, subject, name, expires_at \
    FROM operator_tokens WHERE token_hash = $1 AND revoked_at IS NULL \
      AND role IN ('read', 'operate', 'admin')";
const HOLD_FIRST_START: &str = "INSERT INTO admin_tokens (token_hash, created_at) VALUES ($1, $2) \
    ON CONFLICT (token_hash) DO UPDATE SET created_at = excluded.created_at";
const COUNT_FIRST: &str = "SELECT COUNT(*) FROM admin_tokens WHERE token_hash NOT IN ($1, $2)";
const INSERT_FIRST: &str = "INSERT INTO admin_tokens (token_hash, created_at) VALUES ($1, $2) \
    ON CONFLICT (token_hash) DO NOTHING";

// Run alone: two at once would count the same tokens. Sessions have a bound of their own.
const INSERT_OPERATOR: &str = "INSERT INTO operator_tokens \
      (id, token_hash, prefix, role, label, created_at, expires_at) \
    SELECT $1, $2, $3, $4, $5, $6, $7 \
    WHERE (SELECT COUNT(*) FROM operator_tokens WHERE subject IS NULL AND revoked_at IS NULL \
      AND (expires_at IS NULL OR expires_at > $6)) < $8 RETURNING id";
const INSERT_SESSION: &str = "INSERT INTO operator_tokens \
      (id, token_hash, prefix, role, issuer, subject, name, created_at, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const DELETE_SESSIONS: &str =
    "DELETE FROM operator_tokens WHERE subject IS NOT NULL AND expires_at < $1";
const LIST_OPERATORS: &str = "SELECT role, id, label, issuer, subject, name, expires_at, prefix, created_at \
    FROM operator_tokens WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2) \
      AND role IN ('read', 'operate', 'admin') AND id > $1 ORDER BY id LIMIT $3";

/// Live tokens as an explanation shows them: prefix and hash.
pub(super) const LIVE_OPERATORS: &str = "SELECT CAST(NULL AS TEXT), token_hash, created_at \
    FROM admin_tokens WHERE token_hash <> $1 \
    UNION ALL SELECT prefix, token_hash, created_at FROM operator_tokens \
    WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2) ORDER BY 3 LIMIT 200";
/// A live token of an operator, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorRow {
    /// Its id. Ordered by time.
    pub token_id: String,
    /// Its first 8 characters.
    pub prefix: String,
    /// Its role, and its holder.
    pub operator: Operator,
    /// Milliseconds since 1970.
    pub created_at: i64,
    /// Milliseconds since 1970. `None`: it is valid until it is revoked.
    pub expires_at: Option<i64>,
}

impl FromRow<'_, AnyRow> for OperatorRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            token_id: read(row, "id")?,
            prefix: read(row, "prefix")?,
            operator: Operator::from_row(row)?,
            created_at: read(row, "created_at")?,
            expires_at: read(row, "expires_at")?,
        })
    }
}

impl FromRow<'_, AnyRow> for Operator {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let person = match (read(row, "issuer")?, read(row, "subject")?) {
            (Some(issuer), Some(subject)) => Some(Person {
                issuer,
                subject,
                name: read(row, "name")?,
            }),
            _ => None,
        };
        Ok(Self {
            // Roles of a later release, which are not known to cover anything, are in no result.
            role: read(row, "role")?,
            token_id: read(row, "id")?,
            label: read(row, "label")?,
            person,
        })
    }
}

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
        let query = sql!(FIND_ORG, hash.to_hex());
        let found = fetch_with(&self.db, "find_org_token", query, read);
        Ok(found.await?.into_iter().next())
    }

    /// Issues a token for `org`, or for the subtree of `root` in it, with a note of its purpose.
    ///
    /// # Errors
    /// `conflict` when the org has [`LIVE_TOKENS_MAX`] already, or the root is in another org; `workspace_not_found`
    /// and `workspace_removed` of the root.
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
                INSERT_ORG,
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

    /// Returns live tokens of `org`, those of its subtrees included, after the token id `after` (empty: from the
    /// first), oldest first.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list_org(
        &self,
        org: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<OrgTokenRow>, Unavailable> {
        let query = sql!(LIST_ORG, org, after, i64::from(limit));
        self.db.fetch_all("list_tokens", query).await
    }

    /// Returns the operator of the token with this hash, and the time at which the token ends.
    pub(in crate::identity) async fn find_operator(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<(Operator, Option<i64>)>, Unavailable> {
        let read = |row: &AnyRow| Ok((Operator::from_row(row)?, read(row, "expires_at")?));
        let query = sql!(FIND_OPERATOR, hash.to_hex());
        let found = fetch_with(&self.db, "find_operator_token", query, read);
        Ok(found.await?.into_iter().next())
    }

    /// Stores the admin token of `hash`, if there is no other one; concurrent first starts are serialized by
    /// the first-start row. True if it is stored.
    pub(in crate::identity) async fn insert_first_admin(
        &self,
        hash: CredentialHash,
        now: i64,
    ) -> Result<bool, Unavailable> {
        let hash = hash.to_hex();
        let work = async {
            let mut tx = self.db.begin().await?;
            execute(&mut tx, sql!(HOLD_FIRST_START, FIRST_START, now)).await?;
            let count = sqlx::query_scalar(COUNT_FIRST).bind(FIRST_START);
            let others: i64 = count.bind(&hash).fetch_one(&mut *tx).await?;
            if others == 0 {
                execute(&mut tx, sql!(INSERT_FIRST, &hash, now)).await?;
            }
            tx.commit().await?;
            Ok(others == 0)
        };
        self.db.run("first_admin_token", work).await
    }

    /// Issues a token of an operator with this role.
    ///
    /// # Errors
    /// `conflict` when there are [`LIVE_TOKENS_MAX`] already, not counting sessions.
    pub async fn issue_operator(
        &self,
        role: Role,
        terms: &TokenTerms,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let token = IssuedToken::generate(Form::Admin);
        let insert = sql!(
            INSERT_OPERATOR,
            &token.token_id,
            token.hash.to_hex(),
            &token.prefix,
            role.as_str(),
            terms.label.as_deref(),
            token.created_at,
            terms.expires_at,
            LIVE_TOKENS_MAX,
        );
        if !self
            .insert_alone("issue_operator_token", insert, run)
            .await?
        {
            return Err(too_many("operators have"));
        }
        Ok(token)
    }

    /// Issues the token of the session of a person, who signed in at the console, and deletes those of sessions that
    /// are long over. `expires_at`: milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn issue_session(
        &self,
        role: Role,
        person: &Person,
        expires_at: i64,
    ) -> Result<IssuedToken, Unavailable> {
        let token = IssuedToken::generate(Form::Admin);
        let insert = sql!(
            INSERT_SESSION,
            &token.token_id,
            token.hash.to_hex(),
            &token.prefix,
            role.as_str(),
            &person.issuer,
            &person.subject,
            person.name.as_deref(),
            token.created_at,
            expires_at,
        );
        let work = async {
            let old = sql!(DELETE_SESSIONS, token.created_at - SESSION_KEPT_MS);
            old.execute(self.db.pool()).await?;
            insert.execute(self.db.pool()).await
        };
        self.db.run("issue_session", work).await?;
        Ok(token)
    }

    /// Returns live tokens of operators after the token id `after` (empty: from the first), oldest first.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list_operators(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<OperatorRow>, Unavailable> {
        let query = sql!(LIST_OPERATORS, after, Timestamp::now().0, i64::from(limit));
        self.db.fetch_all("list_operator_tokens", query).await
    }
}
