//! Tokens of operators: `operator_tokens`, which have a role, and `admin_tokens`, which holds the one that the first start
//! made. Sessions of people who signed in at the console have a token, too, which is never shown.

use sqlx::FromRow;
use sqlx::any::AnyRow;

use super::{IssuedToken, LIVE_TOKENS_MAX, TokenTerms, Tokens, too_many};
use crate::identity::credential::{CredentialHash, Form};
use crate::identity::role::{Operator, Person, Role};
use crate::rows::{execute, fetch_with, read, sql};
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::store::{Run, Unavailable};

/// The row that serializes the first starts of several replicas. It does not have the form of a hash, so it
/// is no token's.
pub(super) const FIRST_START: &str = "first-start";

/// Age after its end at which the row of a session is deleted.
const SESSION_KEPT_MS: i64 = 24 * 3600 * 1000;

const FIND: &str = "SELECT CAST('admin' AS TEXT) AS role, CAST(NULL AS TEXT) AS id, CAST(NULL AS TEXT) AS label, \
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
const INSERT: &str = "INSERT INTO operator_tokens \
      (id, token_hash, prefix, role, label, created_at, expires_at) \
    SELECT $1, $2, $3, $4, $5, $6, $7 \
    WHERE (SELECT COUNT(*) FROM operator_tokens WHERE subject IS NULL AND revoked_at IS NULL \
      AND (expires_at IS NULL OR expires_at > $6)) < $8 RETURNING id";
const INSERT_SESSION: &str = "INSERT INTO operator_tokens \
      (id, token_hash, prefix, role, issuer, subject, name, created_at, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const DELETE_SESSIONS: &str =
    "DELETE FROM operator_tokens WHERE subject IS NOT NULL AND expires_at < $1";
const LIST: &str = "SELECT role, id, label, issuer, subject, name, expires_at, prefix, created_at \
    FROM operator_tokens WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2) \
      AND role IN ('read', 'operate', 'admin') AND id > $1 ORDER BY id LIMIT $3";

/// Live tokens as an explanation shows them: prefix and hash.
pub(super) const LIVE: &str = "SELECT CAST(NULL AS TEXT), token_hash, created_at \
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
    /// Returns the operator of the token with this hash, and the time at which the token ends.
    pub(in crate::identity) async fn find_operator(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<(Operator, Option<i64>)>, Unavailable> {
        let read = |row: &AnyRow| Ok((Operator::from_row(row)?, read(row, "expires_at")?));
        let query = sql!(FIND, hash.to_hex());
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
            INSERT,
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

    /// Issues the token of the session of a person, who signed in at the console, and deletes those of sessions that are
    /// long over. `expires_at`: milliseconds since 1970.
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
        let query = sql!(LIST, after, Timestamp::now().0, i64::from(limit));
        self.db.fetch_all("list_operator_tokens", query).await
    }
}
