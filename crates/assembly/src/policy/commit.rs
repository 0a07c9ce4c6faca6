//! Makes the changes of a plan in one transaction, and publishes them as the single routes do.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::await_end_of_requests;
use super::desired::DesiredWorkspace;
use super::document::{Problems, other_org_below, too_deep, too_many};
use super::plan::{Plan, PlannedChange};
use super::state::{CurrentWorkspace, State};
use crate::gateway::Gateway;
use access::hierarchy::BulkGrants;
use access::identity::Tokens;
use access::workspace::{
    CreateOutcome, LINE_MAX, NewWorkspace, Status, StoredInstance, Workspace, WorkspaceChange, bulk,
};
use directory::stops::{self, Stop, Stops};
use directory::tasks::OpenTasks;
use directory::{Creation, Registrations, VettedUpdate, id_taken, org_of_new};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use mailbox::inbox::empty_inbox;
use mailbox::jobs::end_jobs_of;
use stores::coherence::Invalidation;
use stores::db::Connection;
use stores::store::Run;

/// Longest transaction of a policy. Each of its statements has `stores.timeout`.
pub(super) const COMMIT_MAX: Duration = Duration::from_secs(60);

/// URLs that are checked at once.
const VETTED_AT_ONCE: usize = 16;

/// Changes of workspaces of which each is told to the caches of all replicas. With more, they drop everything once.
const INVALIDATIONS_MAX: usize = 256;

/// Names of changed objects that a conflict tells.
pub(super) const LISTED_MAX: usize = 100;

/// A plan with checked URLs.
pub(super) struct VettedPlan<'p> {
    plan: &'p Plan,
    births: Vec<NewWorkspace>,
    edits: Vec<VettedUpdate<'p>>,
}

/// Changes of a transaction.
#[derive(Default)]
struct CommittedChanges {
    created: Vec<Workspace>,
    changed: Vec<WorkspaceChange>,
    hashes: Vec<String>,
    pairs: Vec<(WorkspaceId, WorkspaceId)>,
    made: Vec<Stop>,
    released: Vec<Stop>,
}

/// Checks what needs more than the state: URLs, and the rules of changed settings. A dry run keeps none of it.
pub(super) async fn vet_plan<'p>(
    gateway: &Gateway,
    (plan, is_dry): (&'p Plan, bool),
    problems: &mut Problems,
) -> Result<VettedPlan<'p>, Rejection> {
    let registrations = &gateway.directory.registrations;
    let vet_birth = |birth: &'p DesiredWorkspace| async move {
        let creation = birth.to_creation()?;
        let mut new = registrations.vet_creation(&creation).await?;
        if birth.entry.paused == Some(true) {
            new.settings.status = Status::Paused;
        }
        Ok(new)
    };
    let vet_edit = |edit: &'p PlannedChange| async move {
        let row = &edit.held.row;
        let vetted = registrations.vet_update(row, &edit.update).await?;
        let instances = match row.instances {
            0 => Vec::new(),
            _ => gateway.workspaces.instances.find_all(&row.id).await?,
        };
        let around = plan.after.surroundings_of(&row.id, Vec::new(), instances);
        vetted.apply_to(row, &around).map(|_| vetted)
    };
    let births = vet_each(&plan.births, is_dry, vet_birth, |birth, why| {
        problems.add(&birth.path, why);
    });
    let births = births.await?;
    let edits = vet_each(&plan.edits, is_dry, vet_edit, |edit, why| {
        problems.add(&edit.path, why);
    });
    let edits = edits.await?;
    Ok(VettedPlan {
        plan,
        births,
        edits,
    })
}

/// Checks entries, some at once.
async fn vet_each<'p, T, V, F>(
    entries: &'p [T],
    is_dry: bool,
    vet: impl Fn(&'p T) -> F,
    mut refuse: impl FnMut(&T, &Rejection),
) -> Result<Vec<V>, Rejection>
where
    F: Future<Output = Result<V, Rejection>>,
{
    let mut all = Vec::new();
    for chunk in entries.chunks(VETTED_AT_ONCE) {
        for (entry, vetted) in chunk.iter().zip(join_all(chunk.iter().map(&vet)).await) {
            match vetted {
                Ok(vetted) => all.extend((!is_dry).then_some(vetted)),
                Err(why) if why.reason == Reason::StoreUnavailable => return Err(why),
                Err(why) => refuse(entry, &why),
            }
        }
    }
    Ok(all)
}

/// The transaction did not change anything.
enum CommitError {
    Refused(Rejection),
    Store(sqlx::Error),
}

impl CommitError {
    /// Returns the result of a transaction, with the failures of the store apart.
    fn split<T>(done: Result<T, Self>) -> Result<Result<T, Rejection>, sqlx::Error> {
        match done {
            Ok(done) => Ok(Ok(done)),
            Err(Self::Refused(why)) => Ok(Err(why)),
            Err(Self::Store(error)) => Err(error),
        }
    }
}

impl From<Rejection> for CommitError {
    fn from(why: Rejection) -> Self {
        Self::Refused(why)
    }
}

impl From<sqlx::Error> for CommitError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error)
    }
}

/// Makes the changes of a plan that was computed from `state`, all or none.
///
/// Returns the error if it was committed, and not all of it reached the shared state.
///
/// # Errors
/// `conflict`, with what was changed meanwhile; `store_unavailable`.
pub(super) async fn commit_plan(
    gateway: &Gateway,
    vetted: &VettedPlan<'_>,
    (state, max): (&State, usize),
) -> Result<Result<(), Rejection>, Rejection> {
    let ids = || {
        let removed = state.removed.keys();
        let new = vetted.plan.births.iter().map(|birth| &birth.id);
        removed.chain(new).cloned()
    };
    let work = async {
        let mut tx = gateway.db.begin_alone().await?;
        BulkGrants::lock_all(&gateway.db, &mut tx).await?;
        let now = State::read(&mut tx, ids(), max).await?;
        let now = now.ok_or_else(|| too_many(max))?;
        if !now.is_as(state) {
            return Err(conflict_rejection(state.differing_names(&now)).into());
        }
        let done = write_plan(&mut tx, vetted, state).await?;
        tx.commit().await?;
        Ok(done)
    };
    let work = async { CommitError::split(work.await) };
    let done = gateway
        .db
        .run_within("policy_apply", COMMIT_MAX, work)
        .await;
    if done.is_err() {
        // It may have been committed.
        gateway
            .coherence
            .invalidate_after(&done, Invalidation::Everything)
            .await;
    }
    Ok(publish_changes(gateway, vetted, done??).await)
}

/// Returns the rejection of a policy after a change of its state.
pub(super) fn conflict_rejection(mut changed: Vec<Value>) -> Rejection {
    changed.truncate(LISTED_MAX);
    Rejection::new(
        Reason::Conflict,
        "the state was changed meanwhile, and nothing of the policy was applied: look at the difference again \
         (?dry_run=true)",
    )
    .with_list("changed", changed)
}

async fn write_plan(
    tx: &mut Connection,
    vetted: &VettedPlan<'_>,
    state: &State,
) -> Result<CommittedChanges, CommitError> {
    let (plan, now, mut done) = (vetted.plan, Timestamp::now(), CommittedChanges::default());
    for id in &plan.removals {
        let held = state.workspaces.get(id);
        lock_as_planned(tx, held.ok_or_else(|| differing_workspace(id))?).await?;
        bulk::mark_removed(tx, id, now).await?;
        done.hashes.extend(Tokens::revoke_all_in(tx, id).await?);
    }
    for (edit, update) in plan.edits.iter().zip(&vetted.edits) {
        let changed = change_workspace(tx, plan, &edit.held, update, now).await?;
        done.changed.push(changed);
    }
    for (birth, new) in plan.births.iter().zip(&vetted.births) {
        let created = match state.removed.get(&new.id) {
            Some(gone) => {
                end_of(tx, &new.id, now, &mut done).await?;
                bulk::revive(tx, new, gone.at, now).await?
            }
            None => bulk::insert(tx, new, now).await?,
        };
        match created {
            CreateOutcome::Done(workspace) => done.created.push(*workspace),
            CreateOutcome::OriginTaken(taken) => {
                return Err(conflict_at(&birth.path, taken.into()).into());
            }
            CreateOutcome::Taken => return Err(differing_workspace(&new.id).into()),
        }
    }
    for (id, pair) in &plan.ungranted {
        BulkGrants::remove(tx, id, now).await?;
        done.pairs.push(pair.clone());
    }
    for new in &plan.grants {
        BulkGrants::put(tx, new, now).await?;
        done.pairs.push((new.caller.clone(), new.target.clone()));
    }
    for id in &plan.released {
        done.released.extend(Stops::release_in(tx, id).await?);
    }
    for new in &plan.stops {
        let made = Stops::stop_in(tx, new, now).await?;
        done.made.push(made.ok_or_else(stops::too_many)?);
    }
    Ok(done)
}

fn differing_workspace(id: &WorkspaceId) -> Rejection {
    conflict_rejection(vec![json!({"kind": "workspace", "name": id.as_str()})])
}

/// Locks the row of a workspace, and reads its instances. Refused unless they say the same as those of the plan.
async fn lock_as_planned(
    tx: &mut Connection,
    held: &CurrentWorkspace,
) -> Result<(Workspace, Vec<StoredInstance>), CommitError> {
    let id = &held.row.id;
    let differs = || differing_workspace(id);
    let row = bulk::lock_row(tx, id).await?.ok_or_else(differs)?;
    let instances = match row.instances {
        0 => Vec::new(),
        _ => bulk::load_instances(tx, id).await?,
    };
    match held.is_as(&row, &instances) {
        true => Ok((row, instances)),
        false => Err(differs().into()),
    }
}

fn conflict_at(path: &str, why: Rejection) -> Rejection {
    let mut problems = Problems::default();
    problems.add(path, &why);
    Rejection {
        reason: Reason::Conflict,
        ..problems.into_result().err().unwrap_or(why)
    }
}

/// Changes one workspace, by the rules as they hold for its present row.
async fn change_workspace(
    tx: &mut Connection,
    plan: &Plan,
    held: &CurrentWorkspace,
    update: &VettedUpdate<'_>,
    now: Timestamp,
) -> Result<WorkspaceChange, CommitError> {
    let id = &held.row.id;
    let (before, instances) = lock_as_planned(tx, held).await?;
    let (place, origins) = update.move_and_origins();
    let line = match place.is_empty() {
        true => Vec::new(),
        false => plan.before.line_of(id),
    };
    let around = plan.after.surroundings_of(id, line, instances);
    let settings = update.apply_to(&before, &around)?;
    let change = (&settings, origins);
    let applied = bulk::apply_settings(tx, before, around.line, change, now).await?;
    let changed = applied.map_err(Rejection::from)?;
    Ok(changed.ok_or_else(|| differing_workspace(id))?)
}

/// Ends what is kept of the life of a removed id, before its next life begins.
async fn end_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
    done: &mut CommittedChanges,
) -> Result<(), sqlx::Error> {
    done.hashes.extend(Tokens::revoke_all_in(tx, id).await?);
    done.pairs
        .extend(BulkGrants::remove_for_workspace(tx, id, now).await?);
    empty_inbox(tx, id).await?;
    end_jobs_of(tx, id, now).await?;
    OpenTasks::forget_workspace(tx, id).await
}

async fn publish_changes(
    gateway: &Gateway,
    vetted: &VettedPlan<'_>,
    done: CommittedChanges,
) -> Result<(), Rejection> {
    let plan = vetted.plan;
    let registrations = &gateway.directory.registrations;
    let count = done.created.len() + done.changed.len() + plan.removals.len();
    let each = count <= INVALIDATIONS_MAX;
    if !each {
        gateway.coherence.invalidate(Invalidation::Everything).await;
    }
    gateway.identity.tokens.forget_revoked(done.hashes).await;
    gateway.hierarchy.forget_pairs(done.pairs).await;
    gateway.stops.publish(&done.made, &done.released).await;
    for workspace in &done.created {
        registrations.publish_created(workspace, each).await;
    }
    let published = publish_keys(registrations, vetted, &done.changed, each).await;
    if published.is_err() && each {
        // The caches were not told of those behind the first failure.
        gateway.coherence.invalidate(Invalidation::Everything).await;
    }
    published.map_err(unpublished_rejection)
}

/// Publishes changes and removals, up to the first failure: a shared state that is away holds up each of them. Its keys
/// lapse, and agents write theirs again.
async fn publish_keys(
    registrations: &Registrations,
    vetted: &VettedPlan<'_>,
    changed: &[WorkspaceChange],
    each: bool,
) -> Result<(), Rejection> {
    let plan = vetted.plan;
    for (changed, update) in changed.iter().zip(&vetted.edits) {
        registrations.publish_update(update, changed, each).await?;
    }
    for id in &plan.removals {
        let line = plan.before.line_of(id);
        registrations.publish_removal(id, &line, each).await?;
    }
    Ok(())
}

/// Returns the rejection of a policy that was committed, and of which not all reached the shared state. To repeat it
/// publishes nothing.
fn unpublished_rejection(why: Rejection) -> Rejection {
    let mut why = why.after_commit(false);
    if why.reason == Reason::StoreUnavailable {
        why.message = "the policy is applied, but the shared state (stores.shared) did not take all that follows from it: a \
                       URL that was changed is used 5 min later at the latest, and nothing is to be repeated"
            .into();
    }
    why
}

/// Creates a workspace with a removed id: a new life of the id, without anything of the earlier one.
///
/// # Errors
/// As `Registrations::create`; `conflict` if no removed workspace has the id, or workspaces below it are in another
/// org.
pub async fn recreate_workspace(
    gateway: &Gateway,
    creation: &Creation,
    run: Run,
) -> Result<Workspace, Rejection> {
    let found = gateway.workspaces.find(&creation.id).await?;
    let removed = found.filter(|found| found.status == Status::Removed);
    let removed_at = removed.ok_or_else(id_taken)?.updated_at;
    if !run.is_dry() {
        await_end_of_requests(removed_at).await;
    }
    let mut new = gateway
        .directory
        .registrations
        .vet_creation(creation)
        .await?;
    let work = async {
        let (now, mut done) = (Timestamp::now(), CommittedChanges::default());
        let mut tx = gateway.db.begin_alone().await?;
        settle_org(&mut tx, &mut new).await?;
        end_of(&mut tx, &new.id, now, &mut done).await?;
        match bulk::revive(&mut tx, &new, removed_at, now).await? {
            CreateOutcome::Done(workspace) => {
                tx.end(run).await?;
                done.created.push(*workspace);
                Ok(done)
            }
            CreateOutcome::OriginTaken(taken) => Err(Rejection::from(taken).into()),
            CreateOutcome::Taken => Err(id_taken().into()),
        }
    };
    let work = async { CommitError::split(work.await) };
    let done = gateway.db.run("workspace_recreate", work).await;
    if done.is_err() && !run.is_dry() {
        gateway
            .coherence
            .invalidate_after(&done, Invalidation::Everything)
            .await;
    }
    let mut done = done??;
    let created = done.created.pop().ok_or_else(id_taken)?;
    if run.is_dry() {
        return Ok(created);
    }
    gateway.identity.tokens.forget_revoked(done.hashes).await;
    gateway.hierarchy.forget_pairs(done.pairs).await;
    let registrations = &gateway.directory.registrations;
    registrations.publish_created(&created, true).await;
    Ok(created)
}

/// Settles the org of a recreated workspace, if its place is a possible one.
async fn settle_org(tx: &mut Connection, new: &mut NewWorkspace) -> Result<(), CommitError> {
    let (height, orgs) = bulk::measure_below(tx, &new.id).await?;
    let mut levels = 1 + height;
    if let Some(parent) = &new.settings.parent_id {
        let line = bulk::read_line(tx, parent).await?;
        levels += line.len();
        new.settings.org = org_of_new(&new.id, &line, new.settings.org.as_deref())?;
        if bulk::is_above(tx, &new.id, parent).await? {
            let message = "the parent is below the workspace, which would be its own ancestor: move the parent elsewhere first";
            return Err(Rejection::new(Reason::Conflict, message).into());
        }
    }
    if levels > LINE_MAX {
        return Err(too_deep().into());
    }
    if orgs.iter().any(|org| *org != new.settings.org) {
        return Err(other_org_below().into());
    }
    Ok(())
}
