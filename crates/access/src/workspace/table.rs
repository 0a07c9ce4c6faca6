//! Table `workspaces`: creation, reads, registrations and heartbeats. The SQL is in [`super::sql`]; changes by
//! operators are in [`super::change`].

use serde_json::value::RawValue;
use sqlx::FromRow;
use sqlx::any::AnyRow;

use super::instances::{self, Instances, RegistrationError};
use super::origins::{self, OriginTaken};
use super::probe::ProbedWorkspaces;
use super::registration::{self, RegistrationUpdate, StoredRegistration};
use super::sql::{
    CREATE, FIND, HAS_PUBLIC_CARD, LAPSE, LINE, OVERDUE, SET_CARD, SET_IDLE_TIMEOUT, SET_STATUS,
    change_status, news_text,
};
use super::{NewWorkspace, Status, Timestamp, Workspace};
use crate::rows::{fetch_all, fetch_with, read, sql, to_bigint};
use kernel::config::CardAccess;
use kernel::ids::WorkspaceId;
use stores::db::{Connection, Db, Values};
use stores::store::{Run, Unavailable};

/// Maximum workspaces in one line, itself included. A longer one is treated as a cycle.
pub const LINE_MAX: usize = 64;

/// Workspaces in the SQL store.
#[derive(Clone)]
pub struct Workspaces {
    pub(super) db: Db,
    /// Their named instances.
    pub instances: Instances,
    /// Those with a probe.
    pub probed: ProbedWorkspaces,
}

/// Result of a creation.
#[derive(Debug)]
pub enum CreateOutcome {
    /// It was created.
    Done(Box<Workspace>),
    /// It was not created: another workspace's agent is on its server.
    OriginTaken(OriginTaken),
    /// The id is taken, possibly by a removed workspace.
    Taken,
}

/// One step of a line: a workspace and its relation to the next.
#[derive(Clone, Debug)]
pub struct Step {
    /// The workspace.
    pub id: WorkspaceId,
    /// Parent workspace.
    pub parent_id: Option<WorkspaceId>,
    /// Org that the workspace belongs to.
    pub org: Option<String>,
    /// True if it was removed.
    pub removed: bool,
    /// True if it is paused.
    pub paused: bool,
    /// Time of its last move or removal, in milliseconds since 1970; 0: never.
    pub generation: i64,
    /// Time at which this generation of the id began, in milliseconds since 1970; 0: it is the first.
    pub born_at: i64,
}

impl FromRow<'_, AnyRow> for Step {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let status: Status = read(row, "status")?;
        Ok(Self {
            id: read(row, "id")?,
            parent_id: read(row, "parent_id")?,
            org: read(row, "org")?,
            removed: status == Status::Removed,
            paused: status == Status::Paused,
            generation: read(row, "access_generation")?,
            born_at: read(row, "born_at")?,
        })
    }
}

/// Values of the heartbeats of one workspace since the last flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatUpdate {
    /// The workspace.
    pub id: WorkspaceId,
    /// Time of the event.
    pub last_seen: Timestamp,
    /// Active tasks.
    pub active_tasks: u32,
    /// Description of its current task.
    pub current_task: Option<String>,
}

impl Workspaces {
    /// Creates the table's interface in `db`.
    pub fn new(db: Db) -> Self {
        Self {
            instances: Instances { db: db.clone() },
            probed: ProbedWorkspaces { db: db.clone() },
            db,
        }
    }

    /// Creates a workspace, unless its id was ever used.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn create(
        &self,
        new: &NewWorkspace,
        now: Timestamp,
        run: Run,
    ) -> Result<CreateOutcome, Unavailable> {
        let work = async {
            let mut tx = new.origins.begin_transaction(&self.db).await?;
            let created = insert(&mut tx, new, now).await?;
            if matches!(created, CreateOutcome::Done(_)) {
                tx.end(run).await?;
            }
            Ok(created)
        };
        self.db.run("workspace_create", work).await
    }

    /// Creates a workspace below `parent`, in the org that `judge` returns. The ancestors of `parent` that
    /// `judge` gets do not change until the workspace is committed.
    ///
    /// # Errors
    /// When the store cannot be asked; inside, the error of `judge`.
    pub async fn create_below<R>(
        &self,
        parent: &WorkspaceId,
        new: &NewWorkspace,
        (now, run): (Timestamp, Run),
        judge: impl FnOnce(&[Step]) -> Result<Option<String>, R>,
    ) -> Result<Result<CreateOutcome, R>, Unavailable> {
        let work = async {
            let mut tx = self.db.begin_alone().await?;
            let org = match judge(&read_line(&mut tx, parent).await?) {
                Ok(org) => org,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let mut new = new.clone();
            new.settings.org = org;
            let created = insert(&mut tx, &new, now).await?;
            if matches!(created, CreateOutcome::Done(_)) {
                tx.end(run).await?;
            }
            Ok(Ok(created))
        };
        self.db.run("workspace_create", work).await
    }

    /// Returns the workspace, removed or not; `None` if it never existed.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find(&self, id: &WorkspaceId) -> Result<Option<Workspace>, Unavailable> {
        let query = sql!(FIND.as_str(), id.as_str());
        self.db.fetch_optional("workspace_find", query).await
    }

    /// True if the workspace's card is public; `default` counts for a workspace without a setting of its own.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn has_public_card(
        &self,
        id: &WorkspaceId,
        default: CardAccess,
    ) -> Result<bool, Unavailable> {
        let query = sql!(HAS_PUBLIC_CARD, id.as_str(), default.as_str());
        let found = self
            .db
            .fetch_optional::<(String,)>("workspace_public_card", query);
        Ok(found.await?.is_some())
    }

    /// Returns the workspace and its ancestors, nearest first; empty if it does not exist. At most one more
    /// than [`LINE_MAX`], even if the data has a cycle; it ends at a removed ancestor.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn load_line(&self, id: &WorkspaceId) -> Result<Vec<Step>, Unavailable> {
        let work = async { read_line(&mut self.db.begin_reading().await?, id).await };
        self.db.run("workspace_line", work).await
    }

    /// Stores a registration and sets the workspace online, unless it is paused; `None` if it does not exist or
    /// is removed.
    ///
    /// # Errors
    /// When the store cannot be asked; inside, if another workspace's agent is on one of its servers, or the workspace
    /// has too many instances.
    pub async fn register(
        &self,
        id: &WorkspaceId,
        change: &RegistrationUpdate,
        now: Timestamp,
    ) -> Result<Result<Option<StoredRegistration>, RegistrationError>, Unavailable> {
        let work = async {
            let mut tx = change.origins.begin_transaction(&self.db).await?;
            let registered = registration::register(&mut tx, id, change, now).await?;
            if matches!(registered, Ok(Some(_))) {
                tx.commit().await?;
            }
            Ok(registered)
        };
        self.db.run("workspace_register", work).await
    }

    /// Changes the status from `from` to `to`; false if the status is not `from` any more.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_status(
        &self,
        id: &WorkspaceId,
        from: Status,
        to: Status,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        change_status(&self.db, SET_STATUS, id, (from, to), now).await
    }

    /// Stores the longest silence that the workspace requested.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_idle_timeout(
        &self,
        id: &WorkspaceId,
        seconds: Option<u32>,
        now: Timestamp,
    ) -> Result<(), Unavailable> {
        let change = sql!(SET_IDLE_TIMEOUT, id.as_str(), seconds.map(i64::from), now.0);
        let changed = self.db.execute("workspace_set_idle_timeout", change);
        changed.await.map(drop)
    }

    /// For tests: moves the workspace anywhere, also into a cycle.
    #[cfg(test)]
    pub(crate) async fn set_place(
        &self,
        id: &WorkspaceId,
        parent_id: Option<&WorkspaceId>,
        org: Option<&str>,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let parent_id = parent_id.map(WorkspaceId::as_str);
        let change = sql!(super::sql::SET_PLACE, id.as_str(), parent_id, org, now.0);
        Ok(self.db.execute("workspace_set_place", change).await? > 0)
    }

    /// Replaces the card; false if the workspace does not exist or is removed.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_card(
        &self,
        id: &WorkspaceId,
        card: &RawValue,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let change = sql!(SET_CARD, id.as_str(), card.get(), now.0);
        Ok(self.db.execute("workspace_set_card", change).await? > 0)
    }

    /// Records a lapsed heartbeat; false if another replica recorded it, if the status does not depend on it, or if
    /// the row changed since `missing`, when the lease was looked up.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn record_lapse(
        &self,
        id: &WorkspaceId,
        missing: Timestamp,
        now: Timestamp,
    ) -> Result<bool, Unavailable> {
        let change = sql!(LAPSE, id.as_str(), now.0, missing.0);
        Ok(self.db.execute("workspace_lapse", change).await? > 0)
    }

    /// Returns workspaces that are up but were last seen at `cutoff` or before, by this table, which runs
    /// behind the heartbeats: those with the oldest times, up to `limit` of each kind (online, degraded, never
    /// seen).
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_overdue(
        &self,
        cutoff: Timestamp,
        limit: usize,
    ) -> Result<Vec<(WorkspaceId, Option<Timestamp>)>, Unavailable> {
        let query = sql!(OVERDUE, cutoff.0, to_bigint(limit));
        let read = |row: &AnyRow| Ok((read(row, "id")?, read(row, "last_seen")?));
        fetch_with(&self.db, "workspace_overdue", query, read).await
    }

    /// Writes only the last heartbeats of workspaces, in one statement. An older time never replaces a newer
    /// one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn touch_many(&self, seen: &[(WorkspaceId, Timestamp)]) -> Result<(), Unavailable> {
        if seen.is_empty() {
            return Ok(());
        }
        let mut values = Values::default();
        let rows = seen.iter().map(|(id, last_seen)| {
            let id = values.bind(id.as_str());
            format!("({id}, {})", values.bind(last_seen.0))
        });
        let rows: Vec<_> = rows.collect();
        let query = values.into_query(news_text("last_seen = news.column2", &rows));
        self.db.execute("workspace_touch", query).await.map(drop)
    }

    /// Writes heartbeats in one statement. An older heartbeat never replaces a newer one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn set_last_seen_many(&self, seen: &[HeartbeatUpdate]) -> Result<(), Unavailable> {
        if seen.is_empty() {
            return Ok(());
        }
        let mut values = Values::default();
        let rows = seen.iter().map(|one| {
            let id = values.bind(one.id.as_str());
            let last_seen = values.bind(one.last_seen.0);
            let active_tasks = values.bind(i64::from(one.active_tasks));
            let current_task = values.bind(one.current_task.as_deref());
            format!("({id}, {last_seen}, {active_tasks}, {current_task})")
        });
        let rows: Vec<_> = rows.collect();
        let change =
            "last_seen = news.column2, active_tasks = news.column3, current_task = news.column4";
        let query = values.into_query(news_text(change, &rows));
        let written = self.db.execute("workspace_set_last_seen", query);
        written.await.map(drop)
    }
}

/// Inserts a workspace. The caller rolls back if an origin is taken.
///
/// # Errors
/// The error of the driver.
pub async fn insert(
    connection: &mut Connection,
    new: &NewWorkspace,
    now: Timestamp,
) -> Result<CreateOutcome, sqlx::Error> {
    let instances = to_bigint(new.instances.len());
    let create = sql!(CREATE.as_str(), new.id.as_str(), instances, now.0);
    let create = new.settings.bind(create)?;
    // All rows: SQLite commits after the last one, so a creation could otherwise still fail after its answer
    // (`Db::fetch_changed`).
    let created: Vec<Workspace> = fetch_all(connection, create).await?;
    let Some(created) = created.into_iter().next() else {
        return Ok(CreateOutcome::Taken);
    };
    if let Some(enrolment) = &new.enrolment {
        enrolment.insert_first(connection).await?;
    }
    if !new.instances.is_empty() {
        instances::replace_all(connection, &created.id, &new.instances).await?;
    }
    if !new.origins.all.is_empty()
        && let Err(taken) = origins::write_origins(connection, &created, &new.origins).await?
    {
        return Ok(CreateOutcome::OriginTaken(taken));
    }
    Ok(CreateOutcome::Done(Box::new(created)))
}

/// Returns the workspace and its ancestors, nearest first, as [`Workspaces::load_line`].
///
/// # Errors
/// The error of the driver.
pub async fn read_line(
    connection: &mut Connection,
    id: &WorkspaceId,
) -> Result<Vec<Step>, sqlx::Error> {
    fetch_all(connection, sql!(LINE, id.as_str())).await
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Row as _};

    use super::*;
    use crate::workspace::outline::SEEN;
    use crate::workspace::sql::PROBED;
    use kernel::config::Config;
    use kernel::metrics::Metrics;

    /// Returns SQLite's query plan.
    async fn plan(db: &Db, text: &str, values: &[i64]) -> String {
        let mut query = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}")));
        for value in values {
            query = query.bind(*value);
        }
        let rows = query.fetch_all(db.pool()).await;
        let steps = rows.unwrap();
        let steps = steps.iter().map(|row| row.get::<String, _>("detail"));
        steps.collect::<Vec<_>>().join("\n")
    }

    #[tokio::test]
    async fn looks_that_are_repeated_read_only_what_they_tell_of() {
        let folder = tempfile::tempdir().unwrap();
        let mut config: Config =
            toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
        config.stores.sql = format!("sqlite:{}/gateway.db", folder.path().display()).into();
        let db = Db::open(&config.stores, Metrics::new().into()).unwrap();
        db.migrate().await.unwrap();
        let along = "USING INDEX workspaces_status_liveness_last_seen (status=? AND liveness=? AND last_seen";
        for (text, looks) in [(OVERDUE, 3), (SEEN, 1)] {
            let plan = plan(&db, text, &[1, 500]).await;
            assert_eq!(plan.matches(along).count(), looks, "{plan}");
            assert!(!plan.contains("SCAN workspaces"), "{plan}");
        }
        let plan = plan(&db, PROBED, &[500]).await;
        assert!(plan.contains("workspaces_probe"), "{plan}");
    }
}
