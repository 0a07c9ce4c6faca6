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
use sqlx::{AssertSqlSafe, Row};

pub use self::enrolment::{EnrolmentMaker, NewEnrolment};
pub use self::operators::OperatorRow;
use self::operators::OperatorTokens;
pub(super) use self::orgs::OrgIssueOutcome;
pub use self::orgs::OrgTokenRow;
use self::orgs::OrgTokens;
pub(super) use self::revoke::Owner;
pub(super) use self::uses::UseQueue;
use super::credential::{CredentialHash, Form, NewCredential};
use crate::db::Db;
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::store::{Run, Unavailable};
use crate::time::Timestamp;

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

/// A live token of a workspace, as authentication needs it.
pub(super) struct WorkspaceTokenRecord {
    pub(super) token_id: String,
    pub(super) workspace: WorkspaceId,
    pub(super) last_used_at: Option<i64>,
    pub(super) expires_at: Option<i64>,
    /// Time at which the life of the workspace began; 0: the first.
    pub(super) born_at: i64,
}

impl WorkspaceTokenRecord {
    /// True from the end of the token on.
    pub(super) fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= Timestamp::now().0)
    }
}

/// A live token: its first 8 characters, where they are stored, and its hash.
pub(super) type LiveToken = (Option<String>, CredentialHash);

/// The holder of live tokens.
#[derive(Clone, Copy)]
pub(super) enum TokenHolder<'a> {
    Workspace(&'a WorkspaceId),
    Org(&'a str),
    /// Of the subtree of a workspace in an org.
    Subtree(&'a str, &'a WorkspaceIncarnation),
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
}

impl Tokens {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Returns those of operators.
    pub(super) fn operators(&self) -> OperatorTokens<'_> {
        OperatorTokens::new(&self.db)
    }

    /// Returns those of orgs.
    pub(super) fn orgs(&self) -> OrgTokens<'_> {
        OrgTokens::new(&self.db)
    }

    pub(super) async fn find_workspace(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<WorkspaceTokenRecord>, Unavailable> {
        let work = async {
            let query = sqlx::query(FIND_WORKSPACE).bind(hash.to_hex());
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map(|row| {
                Ok(WorkspaceTokenRecord {
                    token_id: row.try_get(0)?,
                    workspace: read_workspace_id(&row, 1)?,
                    last_used_at: row.try_get(2)?,
                    expires_at: row.try_get(3)?,
                    born_at: row.try_get(4)?,
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
        let work = async { query.fetch_optional(self.db.pool()).await };
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
        let work = async { query.fetch_one(self.db.pool()).await };
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
        let work = async { query.execute(self.db.pool()).await };
        self.db.run("note_use", work).await.map(|_| ())
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
        let work = async { query.fetch_one(self.db.pool()).await };
        self.db.run("count_tokens", work).await
    }

    pub(super) async fn list_workspace(
        &self,
        workspace: &WorkspaceId,
        after: &str,
        limit: u32,
    ) -> Result<Vec<TokenRow>, Unavailable> {
        let work = async {
            let query = sqlx::query(LIST_WORKSPACE)
                .bind(workspace.as_str())
                .bind(after)
                .bind(Timestamp::now().0)
                .bind(Timestamp::now().0 - enrolment::REDEEMING_MS)
                .bind(i64::from(limit));
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().map(read_token_row).collect()
        };
        self.db.run("list_tokens", work).await
    }

    /// Returns all live tokens of one holder: of a workspace or an org at most [`LIVE_TOKENS_MAX`].
    pub(super) async fn list_live(
        &self,
        of: TokenHolder<'_>,
    ) -> Result<Vec<LiveToken>, Unavailable> {
        let work = async {
            let (text, owner) = match of {
                TokenHolder::Workspace(id) => (LIVE_WORKSPACE, id.as_str()),
                TokenHolder::Org(_) | TokenHolder::Subtree(..) => {
                    return self.orgs().list_live(of).await;
                }
                TokenHolder::Operator => (operators::LIVE, operators::LIVE_BUT),
            };
            let query = sqlx::query(text).bind(owner).bind(Timestamp::now().0);
            read_live_tokens(&query.fetch_all(self.db.pool()).await?)
        };
        self.db.run("live_tokens", work).await
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

fn read_token_row(row: &AnyRow) -> Result<TokenRow, sqlx::Error> {
    Ok(TokenRow {
        token_id: row.try_get(0)?,
        prefix: row.try_get(1)?,
        label: row.try_get(2)?,
        created_at: row.try_get(3)?,
        last_used_at: row.try_get(4)?,
        expires_at: row.try_get(5)?,
    })
}

fn read_workspace_id(row: &AnyRow, column: usize) -> Result<WorkspaceId, sqlx::Error> {
    let text: String = row.try_get(column)?;
    WorkspaceId::parse(&text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
