//! Makes the changes of a plan in one transaction, and publishes them as the single routes do.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::document::too_many;
use super::plan::{Plan, PlannedChange, PlannedCreation};
use super::problems::{Problems, other_org_below, too_deep};
use super::state::State;
use crate::gateway::Gateway;
use access::hierarchy::BulkGrants;
use access::identity::Issuance;
use access::workspace::{
    CreateOutcome, LINE_MAX, NewWorkspace, Status, Workspace, WorkspaceChange, bulk,
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
    let (mut births, mut edits) = (Vec::new(), Vec::new());
    for chunk in plan.births.chunks(VETTED_AT_ONCE) {
        let each = chunk.iter().map(|birth| async move {
            let creation = birth.wanted.to_creation()?;
            registrations.vet_creation(&creation).await
        });
        for (birth, vetted) in chunk.iter().zip(join_all(each).await) {
            match vetted {
                Ok(_) if is_dry => {}
                Ok(mut new) => {
                    if birth.wanted.entry.paused == Some(true) {
                        new.settings.status = Status::Paused;
                    }
                    births.push(new);
                }
                Err(why) if why.reason == Reason::StoreUnavailable => return Err(why),
                Err(why) => problems.add(&birth.wanted.path, &why),
            }
        }
    }
    for chunk in plan.edits.chunks(VETTED_AT_ONCE) {
        let each = chunk
            .iter()
            .map(|edit| registrations.vet_update(&edit.held.row, &edit.update));
        for (edit, vetted) in chunk.iter().zip(join_all(each).await) {
            let judged = match vetted {
                Ok(vetted) => check_change(gateway, plan, edit, &vetted)
                    .await
                    .map(|()| vetted),
                Err(why) => Err(why),
            };
            match judged {
                Ok(_) if is_dry => {}
                Ok(vetted) => edits.push(vetted),
                Err(why) if why.reason == Reason::StoreUnavailable => return Err(why),
                Err(why) => problems.add(&edit.path, &why),
            }
        }
    }
    Ok(VettedPlan {
        plan,
        births,
        edits,
    })
}

async fn check_change(
    gateway: &Gateway,
    plan: &Plan,
    edit: &PlannedChange,
    vetted: &VettedUpdate<'_>,
) -> Result<(), Rejection> {
    let row = &edit.held.row;
    let instances = match row.instances {
        0 => Vec::new(),
        _ => gateway.workspaces.instances.find_all(&row.id).await?,
    };
    let around = plan.after.surroundings_of(&row.id, Vec::new(), instances);
    vetted.apply_to(row, &around).map(drop)
}

/// The transaction did not change anything.
enum CommitError {
    /// Objects differ from the plan.
    Differs(Vec<Value>),
    Refused(Rejection),
}

impl From<Rejection> for CommitError {
    fn from(why: Rejection) -> Self {
        Self::Refused(why)
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
        let new = vetted.plan.births.iter().map(|birth| &birth.wanted.id);
        removed.chain(new).cloned()
    };
    let work = async {
        let mut tx = gateway.db.begin_alone().await?;
        BulkGrants::lock_all(&gateway.db, &mut tx).await?;
        let Some(now) = State::read(&mut tx, ids(), max).await? else {
            return Ok(Err(CommitError::Refused(too_many(max))));
        };
        if !now.is_as(state) {
            return Ok(Err(CommitError::Differs(state.differing_names(&now))));
        }
        let done = write_plan(&mut tx, vetted, state).await?;
        if done.is_ok() {
            tx.commit().await?;
        }
        Ok(done)
    };
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
    match done? {
        Ok(done) => Ok(publish_changes(gateway, vetted, done).await),
        Err(CommitError::Refused(why)) => Err(why),
        Err(CommitError::Differs(changed)) => Err(conflict_rejection(changed)),
    }
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
) -> Result<Result<CommittedChanges, CommitError>, sqlx::Error> {
    let (plan, now, mut done) = (vetted.plan, Timestamp::now(), CommittedChanges::default());
    for id in &plan.removals {
        if !is_as_planned(tx, state, id).await? {
            return Ok(Err(differing_workspace(id)));
        }
        bulk::mark_removed(tx, id, now).await?;
        done.hashes.extend(Issuance::revoke_all_in(tx, id).await?);
    }
    for (edit, update) in plan.edits.iter().zip(&vetted.edits) {
        match change_workspace(tx, plan, edit, update, now).await? {
            Ok(changed) => done.changed.push(changed),
            Err(refusal) => return Ok(Err(refusal)),
        }
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
            CreateOutcome::OriginTaken(taken) => return Ok(Err(conflict_at(birth, taken.into()))),
            CreateOutcome::Taken => {
                let one = json!({"kind": "workspace", "name": new.id.as_str()});
                return Ok(Err(CommitError::Differs(vec![one])));
            }
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
        match Stops::stop_in(tx, new, now).await? {
            Some(stop) => done.made.push(stop),
            None => return Ok(Err(stops::too_many().into())),
        }
    }
    Ok(Ok(done))
}

fn differing_workspace(id: &WorkspaceId) -> CommitError {
    CommitError::Differs(vec![json!({"kind": "workspace", "name": id.as_str()})])
}

/// Locks the row of a workspace to remove. True if it says the same as the one that the plan removes.
async fn is_as_planned(
    tx: &mut Connection,
    state: &State,
    id: &WorkspaceId,
) -> Result<bool, sqlx::Error> {
    let (Some(held), Some(row)) = (state.workspaces.get(id), bulk::lock_row(tx, id).await?) else {
        return Ok(false);
    };
    let instances = match row.instances {
        0 => Vec::new(),
        _ => bulk::load_instances(tx, id).await?,
    };
    Ok(held.is_as(&row, &instances))
}

fn conflict_at(birth: &PlannedCreation, why: Rejection) -> CommitError {
    let mut problems = Problems::default();
    problems.add(&birth.wanted.path, &why);
    let told = problems.into_result().err().unwrap_or(why);
    CommitError::Refused(Rejection {
        reason: Reason::Conflict,
        ..told
    })
}

/// Changes one workspace, by the rules as they hold for its present row.
async fn change_workspace(
    tx: &mut Connection,
    plan: &Plan,
    edit: &PlannedChange,
    update: &VettedUpdate<'_>,
    now: Timestamp,
) -> Result<Result<WorkspaceChange, CommitError>, sqlx::Error> {
    let id = &edit.held.row.id;
    let Some(before) = bulk::lock_row(tx, id).await? else {
        return Ok(Err(differing_workspace(id)));
    };
    let instances = match before.instances {
        0 => Vec::new(),
        _ => bulk::load_instances(tx, id).await?,
    };
    if !edit.held.is_as(&before, &instances) {
        return Ok(Err(differing_workspace(id)));
    }
    let (place, origins) = update.move_and_origins();
    let line = match place.is_empty() {
        true => Vec::new(),
        false => plan.before.line_of(id),
    };
    let around = plan.after.surroundings_of(id, line, instances);
    let settings = match update.apply_to(&before, &around) {
        Ok(settings) => settings,
        Err(why) => return Ok(Err(why.into())),
    };
    let change = (&settings, origins);
    let applied = bulk::apply_settings(tx, before, around.line, change, now).await?;
    Ok(match applied {
        Ok(Some(changed)) => Ok(changed),
        Ok(None) => Err(differing_workspace(id)),
        Err(taken) => Err(Rejection::from(taken).into()),
    })
}

/// Ends what is kept of the life of a removed id, before its next life begins.
async fn end_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
    done: &mut CommittedChanges,
) -> Result<(), sqlx::Error> {
    done.hashes.extend(Issuance::revoke_all_in(tx, id).await?);
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
/// As `Registrations::create`; `conflict` also if workspaces below it are in another org.
pub(super) async fn recreate_workspace(
    gateway: &Gateway,
    creation: &Creation,
    removed_at: Timestamp,
    run: Run,
) -> Result<Workspace, Rejection> {
    let mut new = gateway
        .directory
        .registrations
        .vet_creation(creation)
        .await?;
    let work = async {
        let (now, mut done) = (Timestamp::now(), CommittedChanges::default());
        let mut tx = gateway.db.begin_alone().await?;
        if let Err(why) = settle_org(&mut tx, &mut new).await? {
            return Ok(Err(why));
        }
        end_of(&mut tx, &new.id, now, &mut done).await?;
        match bulk::revive(&mut tx, &new, removed_at, now).await? {
            CreateOutcome::Done(workspace) => {
                tx.end(run).await?;
                done.created.push(*workspace);
                Ok(Ok(done))
            }
            CreateOutcome::OriginTaken(taken) => Ok(Err(taken.into())),
            CreateOutcome::Taken => Ok(Err(id_taken())),
        }
    };
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
async fn settle_org(
    tx: &mut Connection,
    new: &mut NewWorkspace,
) -> Result<Result<(), Rejection>, sqlx::Error> {
    let (height, orgs) = bulk::measure_below(tx, &new.id).await?;
    let mut levels = 1 + height;
    if let Some(parent) = &new.settings.parent_id {
        let line = bulk::read_line(tx, parent).await?;
        levels += line.len();
        match org_of_new(&new.id, &line, new.settings.org.as_deref()) {
            Ok(org) => new.settings.org = org,
            Err(why) => return Ok(Err(why)),
        }
        if bulk::is_above(tx, &new.id, parent).await? {
            return Ok(Err(Rejection::new(
                Reason::Conflict,
                "the parent is below the workspace, which would be its own ancestor: move the parent elsewhere first",
            )));
        }
    }
    Ok(match () {
        () if levels > LINE_MAX => Err(too_deep()),
        () if orgs.iter().any(|org| *org != new.settings.org) => Err(other_org_below()),
        () => Ok(()),
    })
}
