//! Changes of a workspace by operators: its settings, its parent and org, its removal. Each runs in one
//! transaction that locks the row and, if it reads the hierarchy, the hierarchy; so the facts that a decision
//! rests on hold until it is committed, also for concurrent changes.

use std::ops::{Deref, DerefMut};

use super::sql::{CHANGE, HEIGHT, IS_ABOVE, REMOVE, lock_row};
use super::table::read_line;
use super::{
    OriginTaken, Origins, Step, StoredInstance, Timestamp, Workspace, WorkspaceSettings,
    Workspaces, instances, origins,
};
use crate::identity::Tokens;
use crate::rows::{execute, fetch_optional, sql, to_bigint};
use kernel::ids::WorkspaceId;
use stores::db::Connection;
use stores::store::{Run, Unavailable};

/// New settings of a workspace, and its instances. The settings are read and set as members of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The settings.
    pub values: WorkspaceSettings,
    /// All of its named instances from now on; `None` leaves them as they are.
    pub instances: Option<Vec<StoredInstance>>,
}

impl Deref for Settings {
    type Target = WorkspaceSettings;

    fn deref(&self) -> &WorkspaceSettings {
        &self.values
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut WorkspaceSettings {
        &mut self.values
    }
}

impl Settings {
    /// Returns the settings of `workspace`.
    pub fn from_workspace(workspace: &Workspace) -> Self {
        Self {
            values: workspace.settings.clone(),
            instances: None,
        }
    }

    fn has_other_urls(&self, other: &Self) -> bool {
        let urls = |of: &Self| [of.url.clone(), of.internal_url.clone(), of.card_url.clone()];
        urls(self) != urls(other) || self.instances.is_some()
    }

    fn is_elsewhere(&self, other: &Self) -> bool {
        self.parent_id != other.parent_id || self.org != other.org
    }
}

/// Requested parent and org of a workspace. `None` leaves a value as it is, `Some(None)` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Move {
    /// Parent workspace.
    pub parent_id: Option<Option<WorkspaceId>>,
    /// Org that the workspace belongs to.
    pub org: Option<Option<String>>,
}

impl Move {
    /// True if it requests no change.
    pub fn is_empty(&self) -> bool {
        self.parent_id.is_none() && self.org.is_none()
    }
}

/// Instances of a workspace that is changed, and its relatives, which are empty if no move is requested.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The workspace and its ancestors, nearest first.
    pub line: Vec<Step>,
    /// The requested parent and its ancestors. Empty: it does not exist.
    pub above: Vec<Step>,
    /// True if that parent is the workspace itself or one of its descendants, with removed ones in between
    /// counted.
    pub is_circular: bool,
    /// Levels below the workspace; 0: all of its children are removed.
    pub height: usize,
    /// True if a workspace below it would be in another org than the workspace itself.
    pub leaves_children: bool,
    /// Its named instances, in order of id. Not empty only if it has some, also if no move is requested.
    pub instances: Vec<StoredInstance>,
}

/// A workspace before and after a change.
#[derive(Clone, Debug)]
pub struct WorkspaceChange {
    /// State before.
    pub before: Workspace,
    /// State after.
    pub after: Workspace,
    /// Workspace and ancestors before, if a move was requested.
    pub line: Vec<Step>,
}

/// Result of a removal.
#[derive(Clone, Debug)]
pub enum RemoveOutcome {
    /// It is removed now; with its former ancestors.
    Now(Vec<Step>),
    /// It was removed before.
    Before,
    /// It never existed.
    Unknown,
}

impl Workspaces {
    /// Changes the workspace to the settings that `judge` returns, or not at all; `origins` are those of its
    /// new URLs. `None` inside: it never existed. A removed workspace is passed to `judge`, too.
    ///
    /// # Errors
    /// When the store cannot be asked; then it may still have been changed. Inside, the error of `judge`.
    pub async fn change<R: From<OriginTaken>>(
        &self,
        id: &WorkspaceId,
        wanted: &Move,
        origins: &Origins,
        (now, run): (Timestamp, Run),
        judge: impl FnOnce(&Workspace, &Surroundings) -> Result<Settings, R>,
    ) -> Result<Result<Option<WorkspaceChange>, R>, Unavailable> {
        let work = async {
            let mut tx = if wanted.is_empty() {
                origins.begin_transaction(&self.db).await?
            } else {
                self.db.begin_alone().await?
            };
            let Some(before) = lock_row(&mut tx, id).await? else {
                return Ok(Ok(None));
            };
            let around = load_surroundings(&mut tx, &before, wanted).await?;
            let settings = match judge(&before, &around) {
                Ok(settings) => settings,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let change = (&settings, origins);
            let applied = apply_settings(&mut tx, before, around.line, change, now).await?;
            if applied.is_ok() {
                tx.end(run).await?;
            }
            Ok(applied.map_err(Into::into))
        };
        self.db.run("workspace_change", work).await
    }

    /// Removes the workspace. Its row stays, so that its id is never reused; children keep their parent.
    ///
    /// # Errors
    /// When the store cannot be asked; then it may still have been removed.
    pub async fn remove(
        &self,
        id: &WorkspaceId,
        now: Timestamp,
        run: Run,
    ) -> Result<RemoveOutcome, Unavailable> {
        let work = async {
            // An exclusive transaction, so that it gets no child at the same moment.
            let mut tx = self.db.begin_alone().await?;
            let line = read_line(&mut tx, id).await?;
            match line.first() {
                None => return Ok(RemoveOutcome::Unknown),
                Some(step) if step.removed => return Ok(RemoveOutcome::Before),
                Some(_) => {}
            }
            mark_removed(&mut tx, id, now).await?;
            tx.end(run).await?;
            Ok(RemoveOutcome::Now(line))
        };
        self.db.run("workspace_remove", work).await
    }
}

/// Changes a row that is held to new settings, with the instances and the origins that follow from them; a move ends
/// enrolment tokens. The caller rolls back if an origin is taken.
///
/// # Errors
/// The error of the driver.
pub async fn apply_settings(
    connection: &mut Connection,
    before: Workspace,
    line: Vec<Step>,
    (settings, origins): (&Settings, &Origins),
    now: Timestamp,
) -> Result<Result<Option<WorkspaceChange>, OriginTaken>, sqlx::Error> {
    let old = Settings::from_workspace(&before);
    if *settings == old {
        let after = before.clone();
        return Ok(Ok(Some(WorkspaceChange {
            before,
            after,
            line,
        })));
    }
    let (id, moves) = (&before.id, settings.is_elsewhere(&old));
    let instances = settings.instances.as_ref();
    let count = instances.map(|all| to_bigint(all.len()));
    let change = sql!(CHANGE.as_str(), id.as_str(), now.0, i64::from(moves), count);
    let after = fetch_optional(connection, settings.values.bind(change)?).await?;
    if moves {
        Tokens::end_enrolments_below_in(connection, id, now).await?;
    }
    if let Some(instances) = instances {
        instances::replace_all(connection, id, instances).await?;
    }
    let Some(after) = after else {
        return Ok(Ok(None));
    };
    if settings.has_other_urls(&old)
        && let Err(taken) = origins::write_origins(connection, &after, origins).await?
    {
        return Ok(Err(taken));
    }
    Ok(Ok(Some(WorkspaceChange {
        before,
        after,
        line,
    })))
}

/// Marks a workspace as removed, which also changes the place of those below it; true if it was not before.
///
/// # Errors
/// The error of the driver.
pub async fn mark_removed(
    connection: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    Tokens::end_enrolments_below_in(connection, id, now).await?;
    let removed = execute(connection, sql!(REMOVE, id.as_str(), now.0)).await? > 0;
    execute(connection, sql!(origins::LEAVE_ALL, id.as_str())).await?;
    instances::replace_all(connection, id, &[]).await?;
    Ok(removed)
}

async fn load_surroundings(
    connection: &mut Connection,
    workspace: &Workspace,
    wanted: &Move,
) -> Result<Surroundings, sqlx::Error> {
    let id = &workspace.id;
    let instances = match workspace.instances {
        0 => Vec::new(),
        _ => instances::load_instances(connection, id).await?,
    };
    if wanted.is_empty() {
        return Ok(Surroundings {
            instances,
            ..Surroundings::default()
        });
    }
    let parent = wanted.parent_id.as_ref().unwrap_or(&workspace.parent_id);
    let (mut above, mut is_circular) = (Vec::new(), false);
    if let Some(parent) = parent {
        above = read_line(connection, parent).await?;
        is_circular = is_above(connection, id, parent).await?;
    }
    let height = measure_height(connection, id).await?;
    let org = wanted.org.as_ref().unwrap_or(&workspace.org);
    Ok(Surroundings {
        // No move takes the workspaces below along.
        leaves_children: height > 0 && *org != workspace.org,
        line: read_line(connection, id).await?,
        above,
        is_circular,
        height,
        instances,
    })
}

/// True if `upper` is `lower` or above it, with removed ones in between counted.
///
/// # Errors
/// The error of the driver.
pub async fn is_above(
    connection: &mut Connection,
    upper: &WorkspaceId,
    lower: &WorkspaceId,
) -> Result<bool, sqlx::Error> {
    let up = sql!(IS_ABOVE, lower.as_str(), upper.as_str());
    Ok(up.fetch_optional(connection).await?.is_some())
}

/// Returns the number of levels below a workspace.
pub(super) async fn measure_height(
    connection: &mut Connection,
    id: &WorkspaceId,
) -> Result<usize, sqlx::Error> {
    let height = sqlx::query_scalar(HEIGHT).bind(id.as_str());
    let height: Option<i64> = height.fetch_one(connection).await?;
    Ok(usize::try_from(height.unwrap_or(0)).unwrap_or(usize::MAX))
}
