//! Enrolment tokens. Each is valid for one registration of its workspace. It ends with the first registration
//! by any credential, when it or the workspace's last token is revoked, and after a day; one that an org token made also
//! when the workspace, or one above it, moves or is removed. A move that commits while such a token is made is found when
//! the token is used: it has the access generation in which the org token reached the workspace.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::{IssuedToken, LIVE_TOKENS_MAX, Tokens, is_before_its_end, read_workspace_id};
use crate::identity::credential::CredentialHash;
use kernel::ids::WorkspaceId;
use stores::db::Connection;
use stores::store::{Run, Unavailable};

/// Time after which a registration that holds an enrolment token counts as interrupted: longer than all of
/// its timeouts together.
pub(super) const REDEEMING_MS: i64 = 120_000;

/// The condition that the enrolment token `t` is unused: it was not revoked, and no registration with it
/// completed. The parameter is the time before which a registration that holds it counts as interrupted. A
/// completed registration leaves a token of the workspace behind; if there is none, a store failed or the process
/// crashed.
macro_rules! is_unused {
    ($broken_off:literal) => {
        concat!(
            "(t.revoked_at IS NULL AND (t.redeemed_at IS NULL OR (t.redeemed_at <= ",
            $broken_off,
            " AND NOT EXISTS (SELECT 1 FROM workspace_auth_tokens g \
                WHERE g.workspace_id = t.workspace_id AND g.created_at >= t.redeemed_at))))"
        )
    };
}

/// The access generation of a workspace: that of the last move in its line.
macro_rules! line_generation {
    ($id:literal) => {
        concat!(
            "(WITH RECURSIVE line (id, parent_id, generation, depth) AS ( \
                SELECT id, parent_id, access_generation, 0 FROM workspaces WHERE id = ",
            $id,
            " UNION ALL SELECT w.id, w.parent_id, w.access_generation, line.depth + 1 \
                FROM workspaces w JOIN line ON w.id = line.parent_id WHERE line.depth < 64) \
              SELECT MAX(generation) FROM line)"
        )
    };
}

/// The condition that no move ended the enrolment token `t`, of an org token.
macro_rules! is_in_its_place {
    () => {
        concat!(
            "(t.line_generation IS NULL OR t.line_generation >= ",
            $crate::identity::token::enrolment::line_generation!("t.workspace_id"),
            ")"
        )
    };
}

/// Selects the live ones of workspace `$1` after id `$2`, at `$3`, as lists show tokens; `$4` as in
/// `is_unused`.
macro_rules! live {
    () => {
        concat!(
            "SELECT t.id, t.prefix, CAST(NULL AS TEXT), t.created_at, CAST(NULL AS BIGINT), t.expires_at \
             FROM enrolment_tokens t WHERE t.workspace_id = $1 AND t.id > $2 AND t.expires_at > $3 AND ",
            $crate::identity::token::enrolment::is_in_its_place!(),
            " AND ",
            $crate::identity::token::enrolment::is_unused!("$4")
        )
    };
}
pub(super) use is_in_its_place;
pub(super) use is_unused;
pub(super) use line_generation;
pub(super) use live;

const FIND: &str = concat!(
    "SELECT t.workspace_id FROM enrolment_tokens t JOIN workspaces w ON w.id = t.workspace_id \
     WHERE t.token_hash = $1 AND w.status <> 'removed' AND t.expires_at > $2 AND ",
    is_in_its_place!(),
    " AND ",
    is_unused!("$3")
);

// Run alone where the limit counts: two at once would count the same tokens.
const INSERT: &str = concat!(
    "INSERT INTO enrolment_tokens \
     (token_hash, workspace_id, created_at, expires_at, id, prefix, by_org, line_generation) \
     SELECT $1, $2, $3, $4, $5, $6, $8, CASE WHEN $8 = 0 THEN NULL ELSE COALESCE($9, ",
    line_generation!("$2"),
    ") END \
     WHERE (SELECT COUNT(*) FROM enrolment_tokens WHERE workspace_id = $2 AND revoked_at IS NULL \
       AND redeemed_at IS NULL AND expires_at > $3) < $7 RETURNING id"
);
const REDEEM: &str = concat!(
    "UPDATE enrolment_tokens AS t SET redeemed_at = $2 \
     WHERE t.token_hash = $1 AND t.expires_at > $2 AND ",
    is_in_its_place!(),
    " AND ",
    is_unused!("$3")
);
pub(super) const RESTORE: &str =
    "UPDATE enrolment_tokens SET redeemed_at = NULL WHERE token_hash = $1";

// Idempotent, as are revocations of other tokens.
const REVOKE: &str = "UPDATE enrolment_tokens SET revoked_at = COALESCE(revoked_at, $3) \
    WHERE workspace_id = $1 AND id = $2 RETURNING token_hash";
pub(super) const END_ALL: &str = "UPDATE enrolment_tokens SET revoked_at = $2 \
    WHERE workspace_id = $1 AND revoked_at IS NULL AND token_hash <> $3";
const END_WITH_LAST: &str = concat!(
    "UPDATE enrolment_tokens AS t SET revoked_at = $2 \
     WHERE t.workspace_id = $1 AND t.expires_at > $2 AND ",
    is_unused!("$2"),
    " AND NOT EXISTS \
       (SELECT 1 FROM workspace_auth_tokens WHERE workspace_id = $1 AND id <> $3 AND revoked_at IS NULL AND ",
    is_before_its_end!("$2"),
    ") RETURNING id"
);

// Below a removed workspace there is none. A set, so that a cycle ends.
pub(super) const END_BELOW: &str = "UPDATE enrolment_tokens SET revoked_at = $2 \
    WHERE by_org = 1 AND revoked_at IS NULL AND expires_at > $2 AND workspace_id IN ( \
      WITH RECURSIVE below (id, status) AS ( \
        SELECT id, status FROM workspaces WHERE id = $1 \
        UNION SELECT w.id, w.status FROM workspaces w JOIN below ON w.parent_id = below.id \
          WHERE below.status <> 'removed') \
      SELECT id FROM below)";

/// The credential that makes an enrolment token.
#[derive(Clone, Copy, Debug)]
pub enum EnrolmentMaker {
    /// An operator's.
    Operator,
    /// An org token, with the access generation in which it reaches the workspace. `None`: it creates the workspace.
    Org(Option<i64>),
}

/// An enrolment token to be stored.
#[derive(Clone, Debug)]
pub struct NewEnrolment {
    workspace: WorkspaceId,
    hash: CredentialHash,
    token_id: String,
    prefix: String,
    /// Milliseconds since 1970.
    created_at: i64,
    /// Milliseconds since 1970.
    expires_at: i64,
    maker: EnrolmentMaker,
}

impl NewEnrolment {
    pub(crate) fn new(
        workspace: &WorkspaceId,
        (token, hash): (&IssuedToken, CredentialHash),
        expires_at: i64,
        maker: EnrolmentMaker,
    ) -> Self {
        Self {
            workspace: workspace.clone(),
            hash,
            token_id: token.token_id.clone(),
            prefix: token.prefix.clone(),
            created_at: token.created_at,
            expires_at,
            maker,
        }
    }

    /// Inserts the token of a workspace that is created, in the transaction of its creation.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) async fn insert_first(&self, tx: &mut Connection) -> Result<(), sqlx::Error> {
        // No bound: the workspace has no other live token.
        self.insert_query(i64::MAX).fetch_all(tx).await.map(drop)
    }

    fn insert_query(&self, live_max: i64) -> Query<'_, Any, AnyArguments> {
        let (by_org, generation) = match self.maker {
            EnrolmentMaker::Operator => (0_i64, None),
            EnrolmentMaker::Org(generation) => (1, generation),
        };
        sqlx::query(INSERT)
            .bind(self.hash.to_hex())
            .bind(self.workspace.as_str())
            .bind(self.created_at)
            .bind(self.expires_at)
            .bind(self.token_id.as_str())
            .bind(self.prefix.as_str())
            .bind(live_max)
            .bind(by_org)
            .bind(generation)
    }
}

impl Tokens {
    pub(crate) async fn find_enrolment(
        &self,
        hash: CredentialHash,
        now: i64,
    ) -> Result<Option<WorkspaceId>, Unavailable> {
        let work = async {
            let query = sqlx::query(FIND)
                .bind(hash.to_hex())
                .bind(now)
                .bind(now - REDEEMING_MS);
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map(|row| read_workspace_id(&row, 0)).transpose()
        };
        self.db.run("find_enrolment", work).await
    }

    /// Inserts an enrolment token. True if there was room for it: a workspace has at most
    /// [`LIVE_TOKENS_MAX`].
    pub(crate) async fn insert_enrolment(
        &self,
        new: &NewEnrolment,
        run: Run,
    ) -> Result<bool, Unavailable> {
        let query = new.insert_query(LIVE_TOKENS_MAX);
        let work = async { self.db.fetch_changed_alone(run, query).await };
        let inserted = self.db.run("issue_enrolment", work).await?;
        Ok(inserted.is_some())
    }

    /// Redeems a token. True if this call used it up.
    pub(crate) async fn redeem(&self, hash: CredentialHash, now: i64) -> Result<bool, Unavailable> {
        let query = sqlx::query(REDEEM)
            .bind(hash.to_hex())
            .bind(now)
            .bind(now - REDEEMING_MS);
        Ok(self.db.execute("redeem_enrolment", query).await? == 1)
    }

    /// Revokes a token and returns its hash; `None`: the workspace never had it.
    pub(crate) async fn revoke_enrolment(
        &self,
        workspace: &WorkspaceId,
        token_id: &str,
        now: i64,
        run: Run,
    ) -> Result<Option<String>, Unavailable> {
        let query = sqlx::query(REVOKE)
            .bind(workspace.as_str())
            .bind(token_id)
            .bind(now);
        let work = async {
            let row = self.db.fetch_changed_in(run, query).await?;
            row.map(|row| row.try_get(0)).transpose()
        };
        self.db.run("revoke_enrolment", work).await
    }

    /// Ends the enrolment tokens of a workspace that has no live token but `last`, and returns their ids.
    pub(crate) async fn end_enrolments_with_last(
        &self,
        (workspace, last): (&WorkspaceId, &str),
        now: i64,
        run: Run,
    ) -> Result<Vec<String>, Unavailable> {
        let query = sqlx::query_scalar(END_WITH_LAST).bind(workspace.as_str());
        let query = query.bind(now).bind(last);
        let work = async {
            let mut tx = self.db.begin().await?;
            let ended = query.fetch_all(&mut *tx).await?;
            tx.end(run).await?;
            Ok(ended)
        };
        self.db.run("end_enrolments", work).await
    }
}
