//! Explicit grants (`docs/reference/http-api.md`, "Grants"): the table `access_grants` and its cache. All SQL for it is
//! here, except one join that finds a page of peers (`workspace/candidates.rs`).
//!
//! The grant of a pair, or its absence, is cached until a change of that pair is announced. The expiry is
//! compared at each use, so entries need no other lifetime.

use std::sync::Arc;

use serde_json::{Value, json};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row as _};

use super::{Hierarchy, Permit, Rule, check_note};
use crate::explain::{Fact, Source, Witness};
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

/// The cached state of one ordered pair.
#[derive(Clone, Debug)]
enum CachedGrant {
    Nothing,
    Granted {
        id: Arc<str>,
        expires_at: Option<Timestamp>,
    },
}

impl CachedGrant {
    fn is_in_force(&self, now: Timestamp) -> bool {
        match self {
            Self::Nothing => false,
            Self::Granted { expires_at, .. } => expires_at.is_none_or(|end| now < end),
        }
    }

    /// Returns the state as JSON, for a witness.
    fn to_json(&self, now: Timestamp) -> Value {
        match self {
            Self::Nothing => json!({"granted": false}),
            Self::Granted { id, expires_at } => {
                json!({"granted": self.is_in_force(now), "grant": &**id, "expires_at": expires_at})
            }
        }
    }
}

/// The table, and a cache of pairs.
pub(super) struct Grants {
    db: Db,
    coherence: Arc<Coherence>,
    pairs: CoherentCache<(WorkspaceId, WorkspaceId), CachedGrant>,
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
            |_: &CachedGrant| true,
        );
        let cache = pairs.clone();
        coherence.on_invalidation(move |what| {
            let cache = cache.clone();
            async move {
                match what {
                    Invalidation::Grant(caller, target) => cache.forget(&(caller, target)),
                    Invalidation::Everything => cache.forget_all(),
                    _ => {}
                }
            }
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
        witness.record(|| {
            let source = loaded_at.map_or(Source::Sql, |_| Source::Memory);
            let age = loaded_at.map(|at| at.elapsed()).unwrap_or_default();
            Fact::new(Stage::Grant, source, cached.to_json(now)).with_age(age)
        });
        Ok(cached.is_in_force(now))
    }

    /// Returns the end of the grant of a pair, if it has one. `None` also while the store is away.
    async fn find_expiry(&self, pair: (WorkspaceId, WorkspaceId)) -> Option<Timestamp> {
        match self.pairs.get_or_read(&pair, || self.find(&pair)).await {
            Ok((CachedGrant::Granted { expires_at, .. }, _)) => expires_at,
            Ok((CachedGrant::Nothing, _)) | Err(_) => None,
        }
    }

    async fn find(&self, pair: &(WorkspaceId, WorkspaceId)) -> Result<CachedGrant, Unavailable> {
        let query = sqlx::query(FIND)
            .bind(pair.0.as_str())
            .bind(pair.1.as_str());
        let work = async {
            let row = query.fetch_optional(self.db.pool()).await?;
            row.map_or(Ok(CachedGrant::Nothing), |row| {
                let id: String = row.try_get("id")?;
                Ok(CachedGrant::Granted {
                    id: id.into(),
                    expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(Timestamp),
                })
            })
        };
        self.db.run("grant_find", work).await
    }
}

impl Hierarchy {
    /// Returns the time at which a permit ends by itself: the end of the grant that it is by. From memory in steady state.
    pub async fn permit_expiry(&self, permit: &Permit) -> Option<Timestamp> {
        let caller = permit.caller().filter(|_| permit.rule() == Rule::Grant)?;
        let pair = (caller.clone(), permit.target().clone());
        self.grants.find_expiry(pair).await
    }

    /// True if `caller` holds a grant that is in force.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn holds_grant(&self, caller: &WorkspaceId) -> Result<bool, Unavailable> {
        let query = sqlx::query(FIND_ANY)
            .bind(caller.as_str())
            .bind(Timestamp::now().0);
        let db = &self.grants.db;
        let work = async { query.fetch_optional(db.pool()).await };
        Ok(db.run("grants_held", work).await?.is_some())
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
            read_grant(&row.ok_or(sqlx::Error::RowNotFound)?)
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
        let query = sqlx::query(LIST)
            .bind(after)
            .bind(caller.map_or("", WorkspaceId::as_str))
            .bind(target.map_or("", WorkspaceId::as_str))
            .bind(i64::from(limit));
        let db = &self.grants.db;
        let work = async {
            let rows = query.fetch_all(db.pool()).await?;
            rows.iter().map(read_grant).collect()
        };
        Ok(db.run("grant_list", work).await?)
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
        let work = async {
            let row = sqlx::query(PAIR).bind(id).fetch_optional(db.pool()).await?;
            row.as_ref().map(read_pair).transpose()
        };
        let Some(pair) = db.run("grant_pair", work).await? else {
            return Ok(false);
        };
        if run.is_dry() {
            return Ok(true);
        }
        let remove = sqlx::query(REMOVE).bind(id).bind(Timestamp::now().0);
        let removed = db.execute("grant_remove", remove).await;
        self.forget_grant(pair, removed).await?;
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

/// Checks that the workspace that `member` of a grant names exists. `removed`: whether it was removed; `None`: there never
/// was one.
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
        let rows = sqlx::query(ALL).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = rows.fetch_all(tx).await?;
        rows.iter().map(read_grant).collect()
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
        let remove = sqlx::query(REMOVE).bind(id).bind(now.0);
        remove.execute(tx).await.map(drop)
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
        let remove = sqlx::query(REMOVE_ALL).bind(workspace.as_str()).bind(now.0);
        remove.fetch_all(tx).await?.iter().map(read_pair).collect()
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

fn upsert_query(new: &NewGrant, now: Timestamp) -> Query<'_, Any, AnyArguments> {
    sqlx::query(PUT)
        .bind(uuid::Uuid::now_v7().to_string())
        .bind(new.caller.as_str())
        .bind(new.target.as_str())
        .bind(new.note.as_deref())
        .bind(new.expires_at.map(|end| end.0))
        .bind(now.0)
}

fn read_grant(row: &AnyRow) -> Result<Grant, sqlx::Error> {
    Ok(Grant {
        id: row.try_get("id")?,
        caller: read_id(row, "caller_id")?,
        target: read_id(row, "target_id")?,
        note: row.try_get("note")?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(Timestamp),
        created_at: Timestamp(row.try_get("created_at")?),
    })
}

fn read_pair(row: &AnyRow) -> Result<(WorkspaceId, WorkspaceId), sqlx::Error> {
    Ok((read_id(row, "caller_id")?, read_id(row, "target_id")?))
}

fn read_id(row: &AnyRow, column: &'static str) -> Result<WorkspaceId, sqlx::Error> {
    let text: String = row.try_get(column)?;
    WorkspaceId::parse(&text).map_err(|error| sqlx::Error::Decode(Box::new(error)))
}
