//! Explicit grants (`docs/reference/http-api.md`, "Grants"): the table `access_grants` and its cache. All SQL for it is
//! here, except one join that finds a page of peers (`workspace/candidates.rs`).
//!
//! The grant of a pair, or its absence, is cached until a change of that pair is announced. The expiry is
//! compared at each use, so entries need no other lifetime.

use std::future::ready;
use std::sync::Arc;

use serde_json::json;
use sqlx::FromRow as _;

use super::{Hierarchy, Permit, Rule, check_note};
use crate::explain::{Fact, Source, Witness};
use crate::rows::{Statement, execute, fetch_all, from_row, sql, to_bigint};
use kernel::ids::WorkspaceId;
use kernel::metrics::{self, Metrics};
use kernel::rejection::{Reason, Rejection};
use kernel::stage::Stage;
use kernel::time::Timestamp;
use stores::coherence::{Coherence, CoherentCache, Invalidation};
use stores::db::{Connection, Db};
use stores::store::{Run, Unavailable};

const FIND: &str = "SELECT id, expires_at FROM access_grants \
    WHERE caller_id = $1 AND target_id = $2 AND removed_at IS NULL";

// Takes over the pair's row. A grant that is in force keeps its id; one that was removed or has expired is
// replaced by a new one.
const PUT: &str = "INSERT INTO access_grants (id, caller_id, target_id, note, expires_at, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6) \
    ON CONFLICT (caller_id, target_id) DO UPDATE SET \
      id = CASE WHEN access_grants.removed_at IS NULL \
        AND (access_grants.expires_at IS NULL OR access_grants.expires_at > excluded.created_at) \
        THEN access_grants.id ELSE excluded.id END, \
      created_at = CASE WHEN access_grants.removed_at IS NULL \
        AND (access_grants.expires_at IS NULL OR access_grants.expires_at > excluded.created_at) \
        THEN access_grants.created_at ELSE excluded.created_at END, \
      note = excluded.note, expires_at = excluded.expires_at, removed_at = NULL \
    RETURNING id, caller_id, target_id, note, expires_at, created_at";

const LIST: &str = "SELECT id, caller_id, target_id, note, expires_at, created_at \
    FROM access_grants WHERE removed_at IS NULL AND id > $1 \
    AND ($2 = '' OR caller_id = $2) AND ($3 = '' OR target_id = $3) ORDER BY id LIMIT $4";

const FIND_ANY: &str = "SELECT id FROM access_grants WHERE caller_id = $1 AND removed_at IS NULL \
    AND (expires_at IS NULL OR expires_at > $2) LIMIT 1";

// Idempotent: a caller that lost the first response repeats the request, and the replicas are notified again.
const REMOVE: &str = "UPDATE access_grants SET removed_at = COALESCE(removed_at, $2) WHERE id = $1";

// A new life of an id has no grant of the earlier one.
const REMOVE_ALL: &str = "UPDATE access_grants SET removed_at = $2 \
    WHERE removed_at IS NULL AND (caller_id = $1 OR target_id = $1) RETURNING caller_id, target_id";

const ALL: &str = "SELECT id, caller_id, target_id, note, expires_at, created_at \
    FROM access_grants WHERE removed_at IS NULL ORDER BY caller_id, target_id LIMIT $1";

const PAIR: &str = "SELECT caller_id, target_id FROM access_grants WHERE id = $1";

/// A grant to be made.
#[derive(Clone, Debug)]
pub struct NewGrant {
    /// The workspace that may then message the target.
    pub caller: WorkspaceId,
    /// The target.
    pub target: WorkspaceId,
    /// The note of its maker.
    pub note: Option<String>,
    /// The expiry; `None`: until it is removed.
    pub expires_at: Option<Timestamp>,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its id. Ordered by time.
    pub id: String,
    /// The workspace that may message the target.
    pub caller: WorkspaceId,
    /// The target.
    pub target: WorkspaceId,
    /// The note of its maker.
    pub note: Option<String>,
    /// The time from which it is no longer in force.
    pub expires_at: Option<Timestamp>,
    /// Time of its creation.
    pub created_at: Timestamp,
}

from_row! {
    Grant: id, caller = "caller_id", target = "target_id", note, expires_at, created_at
}

/// The cached grant of one ordered pair: its id, and the time from which it is no longer in force.
type CachedGrant = (Arc<str>, Option<Timestamp>);

/// An ordered pair: the caller, and the target.
struct GrantPair {
    caller: WorkspaceId,
    target: WorkspaceId,
}

from_row!(GrantPair: caller = "caller_id", target = "target_id");

/// The table, and a cache of pairs.
pub(super) struct Grants {
    db: Db,
    coherence: Arc<Coherence>,
    pairs: CoherentCache<(WorkspaceId, WorkspaceId), Option<CachedGrant>>,
}

impl Grants {
    pub(super) fn new(
        db: Db,
        coherence: &Arc<Coherence>,
        metrics: Arc<Metrics>,
        entries_max: u64,
    ) -> Self {
        let pairs = CoherentCache::new(
            Arc::clone(coherence),
            metrics,
            metrics::Cache::Grants,
            (entries_max, None),
            |_| true,
        );
        let cache = pairs.clone();
        coherence.on_invalidation(move |what| {
            match what {
                Invalidation::Grant(caller, target) => cache.forget(&(caller, target)),
                Invalidation::Everything => cache.forget_all(),
                _ => {}
            }
            ready(())
        });
        Self {
            db,
            coherence: Arc::clone(coherence),
            pairs,
        }
    }

    /// True if `caller` may message `target` by a grant, now.
    pub(super) async fn has_grant(
        &self,
        caller: &WorkspaceId,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<bool, Unavailable> {
        let pair = (caller.clone(), target.clone());
        let (cached, loaded_at) = self.pairs.get_or_read(&pair, || self.find(&pair)).await?;
        let now = Timestamp::now();
        let in_force = matches!(&cached, Some((_, end)) if end.is_none_or(|end| now < end));
        witness.record(|| {
            let source = loaded_at.map_or(Source::Sql, |_| Source::Memory);
            let age = loaded_at.map(|at| at.elapsed()).unwrap_or_default();
            let value = match &cached {
                None => json!({"granted": false}),
                Some((id, expires_at)) => {
                    json!({"granted": in_force, "grant": &**id, "expires_at": expires_at})
                }
            };
            Fact::new(Stage::Grant, source, value).with_age(age)
        });
        Ok(in_force)
    }

    async fn find(
        &self,
        (caller, target): &(WorkspaceId, WorkspaceId),
    ) -> Result<Option<CachedGrant>, Unavailable> {
        let query = sql!(FIND, caller.as_str(), target.as_str());
        let found: Option<(String, Option<i64>)> =
            self.db.fetch_optional("grant_find", query).await?;
        Ok(found.map(|(id, expires_at)| (id.into(), expires_at.map(Timestamp))))
    }
}

impl Hierarchy {
    /// Returns the time at which a permit ends by itself: the end of the grant that it is by. From memory in steady
    /// state.
    pub async fn permit_expiry(&self, permit: &Permit) -> Option<Timestamp> {
        let caller = permit.caller().filter(|_| permit.rule() == Rule::Grant)?;
        let pair = (caller.clone(), permit.target().clone());
        let grants = &self.grants;
        let cached = grants.pairs.get_or_read(&pair, || grants.find(&pair)).await;
        cached.ok()?.0?.1
    }

    /// True if `caller` holds a grant that is in force.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn holds_grant(&self, caller: &WorkspaceId) -> Result<bool, Unavailable> {
        let query = sql!(FIND_ANY, caller.as_str(), Timestamp::now().0);
        let held = self
            .grants
            .db
            .fetch_optional::<(String,)>("grants_held", query);
        Ok(held.await?.is_some())
    }

    /// Rejects a workspace that holds a grant, since only operators issue credentials for it. With such a
    /// credential an org token could use a grant that was made for the agent, and reach another org.
    ///
    /// # Errors
    /// `not_permitted`; `store_unavailable`.
    pub async fn require_no_grant(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        if self.holds_grant(id).await? {
            return Err(Rejection::new(
                Reason::NotPermitted,
                "the workspace holds a grant, so only an operator gives out credentials of it: ask with an admin token",
            ));
        }
        Ok(())
    }

    /// Lets the caller message the target, whatever the hierarchy. A pair has at most one grant: an existing
    /// one keeps its id and gets the new note and expiry.
    ///
    /// # Errors
    /// `invalid_params` for a pair of one, or an expiry that has passed; `workspace_not_found`,
    /// `workspace_removed`; `store_unavailable`.
    pub async fn put_grant(&self, new: &NewGrant, run: Run) -> Result<Grant, Rejection> {
        let now = Timestamp::now();
        new.check(now)?;
        for (member, id) in [("caller_id", &new.caller), ("target_id", &new.target)] {
            let found = self.load_lineage(id).await?;
            check_grant_party(member, found.map(|place| place.removed))?;
        }
        let db = &self.grants.db;
        let work = async {
            let row = db.fetch_changed_in(run, upsert_query(new, now)).await?;
            Grant::from_row(&row.ok_or(sqlx::Error::RowNotFound)?)
        };
        let granted = db.run("grant_put", work).await;
        if run.is_dry() {
            return Ok(granted?);
        }
        let pair = (new.caller.clone(), new.target.clone());
        Ok(self.forget_grant(pair, granted).await?)
    }

    /// Returns grants that were not removed, expired ones included, oldest first, beyond the id `after`, at
    /// most `limit`; optionally of one caller or to one target.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn list_grants(
        &self,
        caller: Option<&WorkspaceId>,
        target: Option<&WorkspaceId>,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Grant>, Rejection> {
        let [caller, target] = [caller, target].map(|id| id.map_or("", WorkspaceId::as_str));
        let query = sql!(LIST, after, caller, target, i64::from(limit));
        Ok(self.grants.db.fetch_all("grant_list", query).await?)
    }

    /// Removes a grant, in force on every replica within 1 s; false if there never was one of this id.
    /// Idempotent.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn remove_grant(&self, id: &str, run: Run) -> Result<bool, Rejection> {
        // Read before the change: if the change is not confirmed, the pair must be known to invalidate
        // caches.
        let db = &self.grants.db;
        let pair = db.fetch_optional("grant_pair", sql!(PAIR, id)).await?;
        let Some(GrantPair { caller, target }) = pair else {
            return Ok(false);
        };
        if run.is_dry() {
            return Ok(true);
        }
        let remove = sql!(REMOVE, id, Timestamp::now().0);
        let removed = db.execute("grant_remove", remove).await;
        self.forget_grant((caller, target), removed).await?;
        Ok(true)
    }

    /// Invalidates caches after the change, before the response.
    async fn forget_grant<T>(
        &self,
        (caller, target): (WorkspaceId, WorkspaceId),
        changed: Result<T, Unavailable>,
    ) -> Result<T, Unavailable> {
        let what = Invalidation::Grant(caller, target);
        let coherence = &self.grants.coherence;
        coherence.invalidate_after(&changed, what).await;
        changed
    }
}

impl NewGrant {
    /// Checks what can be checked without its workspaces.
    ///
    /// # Errors
    /// `invalid_params`.
    pub fn check(&self, now: Timestamp) -> Result<(), Rejection> {
        let wrong = |message| Err(Rejection::new(Reason::InvalidParams, message));
        if self.caller == self.target {
            return wrong("`caller_id` and `target_id` are one: a workspace may message itself");
        }
        if self.expires_at.is_some_and(|end| end <= now) {
            return wrong("`expires_at` has passed; name a time in the future, or leave it out");
        }
        check_note(self.note.as_deref())
    }
}

/// Checks that the workspace that `member` of a grant names exists. `removed`: whether it was removed; `None`: there
/// never was one.
///
/// # Errors
/// `workspace_not_found`, `workspace_removed`.
pub fn check_grant_party(member: &str, removed: Option<bool>) -> Result<(), Rejection> {
    let (reason, message) = match removed {
        Some(false) => return Ok(()),
        Some(true) => (
            Reason::WorkspaceRemoved,
            format!("the workspace that `{member}` names was removed; it can be granted nothing"),
        ),
        None => (
            Reason::WorkspaceNotFound,
            format!("`{member}` names no workspace: create it first"),
        ),
    };
    Err(Rejection::new(reason, message))
}

/// Grants in a transaction of the caller (`assembly::policy`), which invalidates the pairs afterwards
/// ([`Hierarchy::forget_pairs`]).
pub struct BulkGrants;

impl BulkGrants {
    /// Locks the grants until the transaction ends: those of the single routes wait.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn lock_all(db: &Db, tx: &mut Connection) -> Result<(), sqlx::Error> {
        let lock = "LOCK TABLE access_grants IN SHARE ROW EXCLUSIVE MODE";
        db.execute_on_postgres(tx, lock).await
    }

    /// Returns all grants that were not removed, at most `limit`, in order of their pairs.
    ///
    /// # Errors
    /// The error of the driver, as all of these.
    pub async fn list_all(tx: &mut Connection, limit: usize) -> Result<Vec<Grant>, sqlx::Error> {
        fetch_all(tx, sql!(ALL, to_bigint(limit))).await
    }

    /// Makes a grant that was checked, or changes it.
    ///
    /// # Errors
    /// As [`BulkGrants::list_all`].
    pub async fn put(
        tx: &mut Connection,
        new: &NewGrant,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        upsert_query(new, now).fetch_all(tx).await.map(drop)
    }

    /// Removes a grant.
    ///
    /// # Errors
    /// As [`BulkGrants::list_all`].
    pub async fn remove(tx: &mut Connection, id: &str, now: Timestamp) -> Result<(), sqlx::Error> {
        execute(tx, sql!(REMOVE, id, now.0)).await.map(drop)
    }

    /// Removes the grants of a workspace before its id begins a new life, and returns their pairs.
    ///
    /// # Errors
    /// As [`BulkGrants::list_all`].
    pub async fn remove_for_workspace(
        tx: &mut Connection,
        workspace: &WorkspaceId,
        now: Timestamp,
    ) -> Result<Vec<(WorkspaceId, WorkspaceId)>, sqlx::Error> {
        let removed = fetch_all(tx, sql!(REMOVE_ALL, workspace.as_str(), now.0)).await?;
        let pairs = removed.into_iter();
        Ok(pairs
            .map(|GrantPair { caller, target }| (caller, target))
            .collect())
    }
}

impl Hierarchy {
    /// Drops what every replica knows of the grants of these pairs.
    pub async fn forget_pairs(&self, pairs: Vec<(WorkspaceId, WorkspaceId)>) {
        for (caller, target) in pairs {
            let what = Invalidation::Grant(caller, target);
            self.grants.coherence.invalidate(what).await;
        }
    }
}

fn upsert_query(new: &NewGrant, now: Timestamp) -> Statement<'_> {
    let (id, note) = (uuid::Uuid::now_v7().to_string(), new.note.as_deref());
    let (caller, target) = (new.caller.as_str(), new.target.as_str());
    let expires_at = new.expires_at.map(|end| end.0);
    sql!(PUT, id, caller, target, note, expires_at, now.0)
}
