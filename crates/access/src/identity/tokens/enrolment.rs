//! Enrolment tokens. Each is valid for one registration of its workspace. It ends with the first registration by any
//! credential, when it or the workspace's last token is revoked, and after a day; one that an org token made also when
//! the workspace, or one above it, moves or is removed. A move that commits while such a token is made is found when
//! the token is used: it has the access generation in which the org token reached the workspace.

use sqlx::any::AnyRow;

use super::{IssuedToken, LIVE_TOKENS_MAX, Tokens, is_before_its_end, too_many};
use crate::identity::credential::{CredentialHash, Form};
use crate::identity::proof::Proof;
use crate::rows::{Statement, execute, fetch_all, fetch_with, read, sql};
use kernel::ids::WorkspaceId;
use kernel::rejection::Rejection;
use kernel::time::Timestamp;
use stores::db::Connection;
use stores::store::{Run, Unavailable};

/// Lifetime of an enrolment token.
const ENROLMENT_TTL_MS: i64 = 24 * 3600 * 1000;

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
            $crate::identity::tokens::enrolment::line_generation!("t.workspace_id"),
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
            $crate::identity::tokens::enrolment::is_in_its_place!(),
            " AND ",
            $crate::identity::tokens::enrolment::is_unused!("$4")
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
const RESTORE: &str = "UPDATE enrolment_tokens SET redeemed_at = NULL WHERE token_hash = $1";

// Idempotent, as are revocations of other tokens.
const REVOKE: &str = "UPDATE enrolment_tokens SET revoked_at = COALESCE(revoked_at, $3) \
    WHERE workspace_id = $1 AND id = $2 RETURNING token_hash";
const END_ALL: &str = "UPDATE enrolment_tokens SET revoked_at = $2 \
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
const END_BELOW: &str = "UPDATE enrolment_tokens SET revoked_at = $2 \
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
    /// The token, to be shown once.
    pub token: IssuedToken,
    /// Milliseconds since 1970.
    expires_at: i64,
    maker: EnrolmentMaker,
}

impl NewEnrolment {
    /// Makes an enrolment token. Of a workspace to be created it is stored with it
    /// ([`NewWorkspace`](crate::workspace::NewWorkspace)).
    pub fn new(workspace: &WorkspaceId, maker: EnrolmentMaker) -> Self {
        let token = IssuedToken::generate(Form::Enrolment);
        Self {
            workspace: workspace.clone(),
            expires_at: token.created_at + ENROLMENT_TTL_MS,
            token,
            maker,
        }
    }

    /// Inserts the token of a workspace that is created, in the transaction of its creation.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) async fn insert_first(&self, tx: &mut Connection) -> Result<(), sqlx::Error> {
        // No bound: the workspace has no other live token.
        execute(tx, self.insert_query(i64::MAX)).await.map(drop)
    }

    fn insert_query(&self, live_max: i64) -> Statement<'_> {
        let (by_org, generation) = match self.maker {
            EnrolmentMaker::Operator => (0_i64, None),
            EnrolmentMaker::Org(generation) => (1, generation),
        };
        sql!(
            INSERT,
            self.token.hash.to_hex(),
            self.workspace.as_str(),
            self.token.created_at,
            self.expires_at,
            &self.token.token_id,
            &self.token.prefix,
            live_max,
            by_org,
            generation,
        )
    }
}

impl Tokens {
    pub(crate) async fn find_enrolment(
        &self,
        hash: CredentialHash,
        now: i64,
    ) -> Result<Option<WorkspaceId>, Unavailable> {
        let query = sql!(FIND, hash.to_hex(), now, now - REDEEMING_MS);
        let read = |row: &AnyRow| read(row, "workspace_id");
        let found = fetch_with(&self.db, "find_enrolment", query, read);
        Ok(found.await?.into_iter().next())
    }

    /// Issues a token for one registration of `workspace`, valid for 24 h, and returns its expiry in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// `conflict` when it has [`LIVE_TOKENS_MAX`] already; `store_unavailable`.
    pub async fn issue_enrolment(
        &self,
        workspace: &WorkspaceId,
        maker: EnrolmentMaker,
        run: Run,
    ) -> Result<(IssuedToken, i64), Rejection> {
        let new = NewEnrolment::new(workspace, maker);
        let insert = new.insert_query(LIVE_TOKENS_MAX);
        if !self.insert_alone("issue_enrolment", insert, run).await? {
            return Err(too_many("the workspace has"));
        }
        Ok((new.token, new.expires_at))
    }

    /// Uses up the enrolment token behind `proof`. Of several concurrent requests one gets `true`. If the
    /// workspace gets no token within two minutes, the registration was interrupted, and the enrolment token
    /// is valid again. A proof by another credential has nothing to use up and is `true`.
    ///
    /// # Errors
    /// `conflict` when its workspace has [`LIVE_TOKENS_MAX`], so that the registration could not answer with another;
    /// `store_unavailable`.
    pub async fn redeem_enrolment(&self, proof: &Proof) -> Result<bool, Rejection> {
        let (Some(hash), Some(workspace)) = (proof.enrolment(), proof.principal.workspace()) else {
            return Ok(true);
        };
        if self.count_live(workspace).await? >= LIVE_TOKENS_MAX.unsigned_abs() {
            return Err(too_many("the workspace has"));
        }
        Ok(self.redeem(hash, Timestamp::now().0).await?)
    }

    /// Redeems a token. True if this call used it up.
    pub(crate) async fn redeem(&self, hash: CredentialHash, now: i64) -> Result<bool, Unavailable> {
        let query = sql!(REDEEM, hash.to_hex(), now, now - REDEEMING_MS);
        Ok(self.db.execute("redeem_enrolment", query).await? == 1)
    }

    /// Makes an enrolment token valid again after its registration failed.
    ///
    /// # Errors
    /// When the store cannot be asked; an operator then has to issue a workspace token.
    pub async fn restore_enrolment(&self, proof: &Proof) -> Result<(), Unavailable> {
        let Some(hash) = proof.enrolment() else {
            return Ok(());
        };
        let restored = self
            .db
            .execute("restore_enrolment", sql!(RESTORE, hash.to_hex()));
        restored.await.map(drop)
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
        let hash = proof
            .enrolment()
            .map(CredentialHash::to_hex)
            .unwrap_or_default();
        let end = sql!(END_ALL, workspace.as_str(), Timestamp::now().0, hash);
        self.db.execute("end_enrolments", end).await.map(drop)
    }

    /// Ends the enrolment tokens that org tokens made of a workspace that leaves its place, and of those below it, in
    /// the transaction of the change: their makers need not look after the new place. No replica keeps them in a cache.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn end_enrolments_below_in(
        tx: &mut Connection,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        execute(tx, sql!(END_BELOW, workspace.as_str(), now.0))
            .await
            .map(drop)
    }

    /// Revokes a token. True if the workspace ever had it.
    pub(super) async fn revoke_enrolment(
        &self,
        workspace: &WorkspaceId,
        token_id: &str,
        run: Run,
    ) -> Result<bool, Unavailable> {
        let query = sql!(REVOKE, workspace.as_str(), token_id, Timestamp::now().0);
        let work = async { self.db.fetch_changed_in(run, query).await };
        Ok(self.db.run("revoke_enrolment", work).await?.is_some())
    }

    /// Ends the enrolment tokens of a workspace that has no live token but `last`, and returns their ids.
    pub(super) async fn end_enrolments_with_last(
        &self,
        (workspace, last): (&WorkspaceId, &str),
        run: Run,
    ) -> Result<Vec<String>, Unavailable> {
        let end = sql!(END_WITH_LAST, workspace.as_str(), Timestamp::now().0, last);
        let work = async {
            let mut tx = self.db.begin().await?;
            let ended = fetch_all::<(String,)>(&mut tx, end).await?;
            tx.end(run).await?;
            Ok(ended.into_iter().map(|(id,)| id).collect())
        };
        self.db.run("end_enrolments", work).await
    }
}
