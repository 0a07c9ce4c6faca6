//! Tokens of operators: `operator_tokens`, which have a role, and `admin_tokens`, which holds the one that the first start
//! made. Sessions of people who signed in at the console have a token, too, which is never shown.

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{IssuedToken, LIVE_TOKENS_MAX, TokenTerms};
use crate::identity::credential::CredentialHash;
use crate::identity::role::{Operator, Person, Role};
use stores::db::Db;
use stores::store::{Run, Unavailable};

/// The row that serializes the first starts of several replicas. It does not have the form of a hash, so it
/// is no token's.
const FIRST_START: &str = "first-start";

/// Age after its end at which the row of a session is deleted.
const SESSION_KEPT_MS: i64 = 24 * 3600 * 1000;

const FIND: &str = "SELECT CAST('admin' AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS TEXT), \
      CAST(NULL AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS TEXT), CAST(NULL AS BIGINT) \
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
pub(super) const LIST: &str = "SELECT role, id, label, issuer, subject, name, expires_at, prefix, created_at \
    FROM operator_tokens WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2) \
      AND role IN ('read', 'operate', 'admin') AND id > $1 ORDER BY id LIMIT $3";

/// Live tokens as an explanation shows them: prefix and hash.
pub(super) const LIVE: &str = "SELECT CAST(NULL AS TEXT), token_hash, created_at \
    FROM admin_tokens WHERE token_hash <> $1 \
    UNION ALL SELECT prefix, token_hash, created_at FROM operator_tokens \
    WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2) ORDER BY 3 LIMIT 200";
/// The first parameter of [`LIVE`].
pub(super) const LIVE_BUT: &str = FIRST_START;

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

/// The tables.
#[derive(Clone)]
pub(in crate::identity) struct OperatorTokens {
    pub(super) db: Db,
}

impl OperatorTokens {
    /// Returns the operator of the token with this hash, and the time at which the token ends, in milliseconds since 1970.
    pub(in crate::identity) async fn find_operator(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<(Operator, Option<i64>)>, Unavailable> {
        let work = async {
            let query = sqlx::query(FIND).bind(hash.to_hex());
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map(|row| Ok((read_operator(&row)?, row.try_get(6)?)))
                .transpose()
        };
        self.db.run("find_operator_token", work).await
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
            let hold = sqlx::query(HOLD_FIRST_START).bind(FIRST_START).bind(now);
            hold.execute(&mut *tx).await?;
            let count = sqlx::query_scalar(COUNT_FIRST)
                .bind(FIRST_START)
                .bind(&hash);
            let others: i64 = count.fetch_one(&mut *tx).await?;
            if others == 0 {
                let insert = sqlx::query(INSERT_FIRST).bind(&hash).bind(now);
                insert.execute(&mut *tx).await?;
            }
            tx.commit().await?;
            Ok(others == 0)
        };
        self.db.run("first_admin_token", work).await
    }

    /// Inserts a token with a role. True if there was room for it.
    pub(in crate::identity) async fn insert_operator(
        &self,
        role: Role,
        terms: &TokenTerms,
        (token, hash): (&IssuedToken, CredentialHash),
        run: Run,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(INSERT)
            .bind(token.token_id.as_str())
            .bind(hash.to_hex())
            .bind(token.prefix.as_str())
            .bind(role.as_str())
            .bind(terms.label.as_deref())
            .bind(token.created_at)
            .bind(terms.expires_at)
            .bind(LIVE_TOKENS_MAX);
        let work = async { self.db.fetch_changed_alone(run, query).await };
        let inserted = self.db.run("issue_operator_token", work).await?;
        Ok(inserted.is_some())
    }

    /// Inserts the token of a person's session, and deletes those of sessions that are long over.
    pub(in crate::identity) async fn insert_session(
        &self,
        (role, person): (Role, &Person),
        expires_at: i64,
        (token, hash): (&IssuedToken, CredentialHash),
    ) -> Result<(), Unavailable> {
        let work = async {
            let old = sqlx::query(DELETE_SESSIONS).bind(token.created_at - SESSION_KEPT_MS);
            old.execute(self.db.pool()).await?;
            sqlx::query(INSERT_SESSION)
                .bind(token.token_id.as_str())
                .bind(hash.to_hex())
                .bind(token.prefix.as_str())
                .bind(role.as_str())
                .bind(person.issuer.as_str())
                .bind(person.subject.as_str())
                .bind(person.name.as_deref())
                .bind(token.created_at)
                .bind(expires_at)
                .execute(self.db.pool())
                .await
        };
        self.db.run("issue_session", work).await.map(|_| ())
    }
}

pub(super) fn read_operator_row(row: &AnyRow) -> Result<OperatorRow, sqlx::Error> {
    Ok(OperatorRow {
        token_id: row.try_get(1)?,
        prefix: row.try_get(7)?,
        operator: read_operator(row)?,
        created_at: row.try_get(8)?,
        expires_at: row.try_get(6)?,
    })
}

/// Reads role, id, label, issuer, subject and name.
fn read_operator(row: &AnyRow) -> Result<Operator, sqlx::Error> {
    let role: String = row.try_get(0)?;
    // Roles of a later release, which are not known to cover anything, are in no result.
    let role = Role::parse(&role)
        .ok_or_else(|| sqlx::Error::Decode(format!("the role {role:?} is not known").into()))?;
    let person = match (row.try_get(3)?, row.try_get(4)?) {
        (Some(issuer), Some(subject)) => Some(Person {
            issuer,
            subject,
            name: row.try_get(5)?,
        }),
        _ => None,
    };
    Ok(Operator {
        role,
        token_id: row.try_get(1)?,
        label: row.try_get(2)?,
        person,
    })
}
