//! The tables of opaque tokens: `workspace_auth_tokens`, `enrolment_tokens` ([`enrolment`]), those of orgs ([`orgs`]) and of
//! operators ([`operators`]). No other module contains SQL for them. The tables store SHA-256 hashes; a token is shown
//! once, when it is issued.

mod enrolment;
mod operators;
mod orgs;
mod revoke;
mod uses;

use secrecy::SecretString;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, FromRow, Row};

pub use self::enrolment::{EnrolmentMaker, NewEnrolment};
pub use self::operators::OperatorRow;
use self::operators::OperatorTokens;
pub(super) use self::orgs::OrgIssueOutcome;
pub use self::orgs::OrgTokenRow;
use self::orgs::OrgTokens;
pub(super) use self::revoke::Owner;
pub(super) use self::uses::UseQueue;
use super::Issuance;
use super::credential::{CredentialHash, Form, NewCredential};
use super::proof::{Principal, Proof, ResolvedCredential};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::time::Timestamp;
use stores::db::{Connection, Db};
use stores::store::{Run, Unavailable};

/// Live tokens of one workspace, or of one org, at most (`docs/reference/http-api.md`, "Tokens").
pub const LIVE_TOKENS_MAX: i64 = 50;

// The join excludes tokens of removed workspaces, whether or not they were revoked.
const FIND_WORKSPACE: &str = "SELECT t.id, t.workspace_id, t.last_used_at, t.expires_at, w.born_at \
    FROM workspace_auth_tokens t JOIN workspaces w ON w.id = t.workspace_id \
    WHERE t.token_hash = $1 AND t.revoked_at IS NULL AND w.status <> 'removed'";
const FIND_WORKSPACE_STATE: &str = "SELECT status, org, born_at FROM workspaces WHERE id = $1";

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
const INSERT_WORKSPACE: &str = "INSERT INTO workspace_auth_tokens \
    (id, workspace_id, token_hash, prefix, created_at, label, expires_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const LIST_WORKSPACE: &str = concat!(
    "SELECT id, prefix, label, created_at, last_used_at, expires_at \
     FROM workspace_auth_tokens WHERE workspace_id = $1 AND revoked_at IS NULL AND id > $2 AND ",
    is_before_its_end!("$3"),
    " UNION ALL ",
    enrolment::live!(),
    " ORDER BY 1 LIMIT $5"
);
const NOTE_USES: &str = "UPDATE workspace_auth_tokens SET last_used_at = $1 WHERE id IN";

const LIVE_WORKSPACE: &str = concat!(
    "SELECT prefix, token_hash FROM workspace_auth_tokens \
     WHERE workspace_id = $1 AND revoked_at IS NULL AND ",
    is_before_its_end!("$2"),
    " ORDER BY id"
);
const IS_OVER: &str = "SELECT COUNT(*) FROM workspace_auth_tokens \
    WHERE workspace_id = $1 AND revoked_at IS NULL AND expires_at <= $2";

/// A token that was just made. Its text is stored nowhere else.
#[derive(Debug)]
pub struct IssuedToken {
    /// The token, to be shown once.
    pub token: SecretString,
    /// Its id, by which it is revoked.
    pub token_id: String,
    /// Its first 8 characters.
    pub prefix: String,
    /// Milliseconds since 1970.
    pub created_at: i64,
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

impl FromRow<'_, AnyRow> for TokenRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            token_id: row.try_get(0)?,
            prefix: row.try_get(1)?,
            label: row.try_get(2)?,
            created_at: row.try_get(3)?,
            last_used_at: row.try_get(4)?,
            expires_at: row.try_get(5)?,
        })
    }
}

/// A live token: its first 8 characters, where they are stored, and its hash.
pub(super) type LiveToken = (Option<String>, CredentialHash);

/// The holder of live tokens.
#[derive(Clone, Copy)]
pub(super) enum TokenHolder<'a> {
    Workspace(&'a WorkspaceId),
    /// An org, or the subtree of a workspace in it.
    Org(&'a str, Option<&'a WorkspaceIncarnation>),
    Operator,
}

/// The state of a workspace, as far as a token that names it depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkspaceState {
    /// It was never created.
    Absent,
    Removed,
    /// It exists, in this org; its life began at this time, 0: the first.
    Live(Option<String>, i64),
}

/// The outcome of a request for a token.
pub(super) enum IssueOutcome {
    Done,
    NoWorkspace,
    Full,
}

/// The tables.
#[derive(Clone)]
pub(super) struct Tokens {
    db: Db,
    /// Those of orgs.
    pub(super) orgs: OrgTokens,
    /// Those of operators.
    pub(super) operators: OperatorTokens,
}

impl Tokens {
    pub(super) fn new(db: Db) -> Self {
        Self {
            orgs: OrgTokens { db: db.clone() },
            operators: OperatorTokens { db: db.clone() },
            db,
        }
    }

    pub(super) async fn find_workspace(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        let work = async {
            let query = sqlx::query(FIND_WORKSPACE).bind(hash.to_hex());
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map(|row| {
                let id = read_workspace_id(&row, 1)?;
                Ok(ResolvedCredential {
                    last_use: Some((row.try_get(0)?, row.try_get(2)?)),
                    expires_at: row.try_get(3)?,
                    born_at: row.try_get(4)?,
                    ..ResolvedCredential::new(Principal::Workspace { id })
                })
            })
            .transpose()
        };
        self.db.run("find_token", work).await
    }

    /// Returns the state of a workspace that the token of a platform names.
    pub(super) async fn find_workspace_state(
        &self,
        id: &WorkspaceId,
    ) -> Result<WorkspaceState, Unavailable> {
        let query = sqlx::query_as(FIND_WORKSPACE_STATE).bind(id.as_str());
        let work = query.fetch_optional(self.db.pool());
        let row: Option<(String, Option<String>, i64)> = self.db.run("find_place", work).await?;
        Ok(match row {
            None => WorkspaceState::Absent,
            Some((status, ..)) if status == "removed" => WorkspaceState::Removed,
            Some((_, org, born_at)) => WorkspaceState::Live(org, born_at),
        })
    }

    /// True if `workspace` has a token that has ended by itself.
    pub(super) async fn has_expired_token(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query_scalar(IS_OVER)
            .bind(workspace.as_str())
            .bind(Timestamp::now().0);
        let work = query.fetch_one(self.db.pool());
        let ended: i64 = self.db.run("ended_tokens", work).await?;
        Ok(ended > 0)
    }

    /// Records the use of all `token_ids` in one statement.
    pub(super) async fn record_uses(
        &self,
        token_ids: &[String],
        now: i64,
    ) -> Result<(), Unavailable> {
        let markers: Vec<String> = (2..token_ids.len() + 2).map(|n| format!("${n}")).collect();
        let text = format!("{NOTE_USES} ({})", markers.join(", "));
        // The text depends on the number of ids: not to be kept prepared.
        let query = sqlx::query(AssertSqlSafe(text)).persistent(false);
        let mut query = query.bind(now);
        for id in token_ids {
            query = query.bind(id);
        }
        self.db.execute("note_use", query).await.map(drop)
    }

    /// Inserts a token for `workspace`, if it has fewer than `live_max` live ones.
    pub(super) async fn issue_workspace(
        &self,
        workspace: &WorkspaceId,
        (token, hash): (&IssuedToken, CredentialHash),
        terms: &TokenTerms,
        live_max: i64,
        run: Run,
    ) -> Result<IssueOutcome, Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            let hold = sqlx::query(HOLD_WORKSPACE).bind(workspace.as_str());
            if hold.execute(&mut *tx).await?.rows_affected() == 0 {
                return Ok(IssueOutcome::NoWorkspace);
            }
            let count = sqlx::query_scalar(COUNT_WORKSPACE)
                .bind(workspace.as_str())
                .bind(token.created_at);
            let live: i64 = count.fetch_one(&mut *tx).await?;
            if live >= live_max {
                return Ok(IssueOutcome::Full);
            }
            sqlx::query(INSERT_WORKSPACE)
                .bind(token.token_id.as_str())
                .bind(workspace.as_str())
                .bind(hash.to_hex())
                .bind(token.prefix.as_str())
                .bind(token.created_at)
                .bind(terms.label.as_deref())
                .bind(terms.expires_at)
                .execute(&mut *tx)
                .await?;
            tx.end(run).await?;
            Ok(IssueOutcome::Done)
        };
        self.db.run("issue_token", work).await
    }

    pub(super) async fn count_workspace(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<i64, Unavailable> {
        let query = sqlx::query_scalar(COUNT_WORKSPACE)
            .bind(workspace.as_str())
            .bind(Timestamp::now().0);
        let work = query.fetch_one(self.db.pool());
        self.db.run("count_tokens", work).await
    }

    /// Returns all live tokens of one holder: of a workspace or an org at most [`LIVE_TOKENS_MAX`].
    pub(super) async fn list_live(
        &self,
        of: TokenHolder<'_>,
    ) -> Result<Vec<LiveToken>, Unavailable> {
        let work = async {
            let (text, owner) = match of {
                TokenHolder::Workspace(id) => (LIVE_WORKSPACE, id.as_str()),
                TokenHolder::Org(org, root) => return self.orgs.list_live_of_org(org, root).await,
                TokenHolder::Operator => (operators::LIVE, operators::LIVE_BUT),
            };
            let query = sqlx::query(text).bind(owner).bind(Timestamp::now().0);
            read_live_tokens(&query.fetch_all(self.db.pool()).await?)
        };
        self.db.run("live_tokens", work).await
    }
}

impl Issuance {
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
        let query = sqlx::query_as(LIST_WORKSPACE)
            .bind(workspace.as_str())
            .bind(after)
            .bind(Timestamp::now().0)
            .bind(Timestamp::now().0 - enrolment::REDEEMING_MS)
            .bind(i64::from(limit));
        let work = query.fetch_all(self.tokens.db.pool());
        self.tokens.db.run("list_tokens", work).await
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
        let query = sqlx::query_as(orgs::LIST).bind(org).bind(after);
        let work = query.bind(i64::from(limit));
        let work = work.fetch_all(self.tokens.db.pool());
        self.tokens.db.run("list_tokens", work).await
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
        let work = async {
            let query = sqlx::query(operators::LIST)
                .bind(after)
                .bind(Timestamp::now().0)
                .bind(i64::from(limit));
            let rows = query.fetch_all(self.tokens.db.pool()).await?;
            rows.iter().map(operators::read_operator_row).collect()
        };
        self.tokens.db.run("list_operator_tokens", work).await
    }

    /// Makes an enrolment token valid again after its registration failed.
    ///
    /// # Errors
    /// When the store cannot be asked; an operator then has to issue a workspace token.
    pub async fn restore_enrolment(&self, proof: &Proof) -> Result<(), Unavailable> {
        let Some(hash) = proof.hash else {
            return Ok(());
        };
        let query = sqlx::query(enrolment::RESTORE).bind(hash.to_hex());
        self.tokens
            .db
            .execute("restore_enrolment", query)
            .await
            .map(drop)
    }

    /// Ends the enrolment tokens of `workspace`, which has registered, except the one behind `proof`, which
    /// is used up already.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn end_enrolments(
        &self,
        workspace: &WorkspaceId,
        proof: &Proof,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(enrolment::END_ALL)
            .bind(workspace.as_str())
            .bind(Timestamp::now().0)
            .bind(proof.hash.map(CredentialHash::to_hex).unwrap_or_default());
        self.tokens
            .db
            .execute("end_enrolments", query)
            .await
            .map(drop)
    }

    /// Ends the enrolment tokens that org tokens made of a workspace that leaves its place, and of those below it, in the
    /// transaction of the change: their makers need not look after the new place. No replica keeps them in a cache.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn end_enrolments_below_in(
        tx: &mut Connection,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        let query = sqlx::query(enrolment::END_BELOW)
            .bind(workspace.as_str())
            .bind(now.0);
        query.execute(tx).await.map(drop)
    }

    /// Revokes every token of a removed workspace before its id begins a new life, in a transaction of the caller. Returns what
    /// [`Issuance::forget_revoked`] takes after its commit.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn revoke_all_in(
        tx: &mut Connection,
        workspace: &WorkspaceId,
    ) -> Result<Vec<String>, sqlx::Error> {
        revoke::revoke_all_since(tx, workspace, Timestamp::now().0).await
    }
}

/// Generates a token of `form`, without storing it.
pub(super) fn new_token(form: Form) -> (IssuedToken, CredentialHash) {
    let fresh = NewCredential::new(form);
    let token = IssuedToken {
        token: fresh.text,
        token_id: uuid::Uuid::now_v7().to_string(),
        prefix: fresh.prefix,
        created_at: Timestamp::now().0,
    };
    (token, fresh.hash)
}

/// Reads rows of a prefix and a hash.
fn read_live_tokens(rows: &[AnyRow]) -> Result<Vec<LiveToken>, sqlx::Error> {
    let mut live = Vec::with_capacity(rows.len());
    for row in rows {
        let hex: String = row.try_get(1)?;
        if let Some(hash) = CredentialHash::from_hex(&hex) {
            live.push((row.try_get(0)?, hash));
        }
    }
    Ok(live)
}

fn read_workspace_id(row: &AnyRow, column: usize) -> Result<WorkspaceId, sqlx::Error> {
    let text: String = row.try_get(column)?;
    WorkspaceId::parse(&text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
