//! Makes the changes of a plan in one transaction, and publishes them as the single routes do.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::document::too_many;
use super::plan::{Birth, Edit, Plan, other_org_below, too_deep};
use super::problems::Problems;
use super::state::State;
use crate::coherence::Invalidation;
use crate::db::Connection;
use crate::delivery::inbox::empty_inbox;
use crate::delivery::jobs::end_jobs_of;
use crate::directory::{Creation, RegistrationsInBulk, VettedUpdate, id_taken, org_of_new};
use crate::gateway::Gateway;
use crate::hierarchy::GrantsInBulk;
use crate::identity::Issuance;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::stops::{self, Stop, Stops};
use crate::store::Run;
use crate::tasks::OpenTasks;
use crate::time::Timestamp;
use crate::workspace::{
    Changed, Created, InBulk, LINE_MAX, NewWorkspace, Settings, Status, Workspace,
};

/// Longest transaction of a policy. Each of its statements has `stores.timeout`.
pub(super) const COMMIT_MAX: Duration = Duration::from_secs(60);

/// URLs that are checked at once.
const VETTED_AT_ONCE: usize = 16;

/// Changes of workspaces of which each is told to the caches of all replicas. With more, they drop everything once.
const INVALIDATIONS_MAX: usize = 256;

/// Names of changed objects that a conflict tells.
pub(super) const TOLD_MAX: usize = 100;

/// A plan with checked URLs.
pub(super) struct Vetted<'p> {
    plan: &'p Plan,
    births: Vec<NewWorkspace>,
    edits: Vec<VettedUpdate<'p>>,
}

/// Changes of a transaction.
#[derive(Default)]
struct Done {
    created: Vec<Workspace>,
    changed: Vec<Changed>,
    hashes: Vec<String>,
    pairs: Vec<(WorkspaceId, WorkspaceId)>,
    made: Vec<Stop>,
    released: Vec<Stop>,
}

/// Checks what needs more than the state: URLs, and the rules of changed settings. A dry run keeps none of it.
pub(super) async fn vet<'p>(
    gateway: &Gateway,
    (plan, is_dry): (&'p Plan, bool),
    problems: &mut Problems,
) -> Result<Vetted<'p>, Rejection> {
    let registrations = RegistrationsInBulk::of(&gateway.directory.registrations);
    let (mut births, mut edits) = (Vec::new(), Vec::new());
    for chunk in plan.births.chunks(VETTED_AT_ONCE) {
        let each = chunk.iter().map(|birth| async move {
            let creation = birth.wanted.creation();
            registrations.vet_creation(&creation).await
        });
        for (birth, vetted) in chunk.iter().zip(join_all(each).await) {
            match vetted {
                Ok(_) if is_dry => {}
                Ok(mut new) => {
                    if birth.wanted.entry.paused == Some(true) {
                        new.status = Status::Paused;
                    }
                    births.push(new);
                }
                Err(why) if why.reason == Reason::StoreUnavailable => return Err(why),
                Err(why) => problems.note(&birth.wanted.path, &why),
            }
        }
    }
    for chunk in plan.edits.chunks(VETTED_AT_ONCE) {
        let each = chunk
            .iter()
            .map(|edit| registrations.vet_update(&edit.held.row, &edit.update));
        for (edit, vetted) in chunk.iter().zip(join_all(each).await) {
            let judged = match vetted {
                Ok(vetted) => judge(gateway, plan, edit, &vetted).await.map(|()| vetted),
                Err(why) => Err(why),
            };
            match judged {
                Ok(_) if is_dry => {}
                Ok(vetted) => edits.push(vetted),
                Err(why) if why.reason == Reason::StoreUnavailable => return Err(why),
                Err(why) => problems.note(&edit.path, &why),
            }
        }
    }
    Ok(Vetted {
        plan,
        births,
        edits,
    })
}

async fn judge(
    gateway: &Gateway,
    plan: &Plan,
    edit: &Edit,
    vetted: &VettedUpdate<'_>,
) -> Result<(), Rejection> {
    let row = &edit.held.row;
    let instances = match row.instances {
        0 => Vec::new(),
        _ => gateway.workspaces.instances.all_of(&row.id).await?,
    };
    let around = plan.after.around(&row.id, Vec::new(), instances);
    vetted.judge(row, &around).map(drop)
}

/// The transaction did not change anything.
enum Refusal {
    /// Objects differ from the plan.
    Differs(Vec<Value>),
    Refused(Rejection),
}

impl From<Rejection> for Refusal {
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
pub(super) async fn commit(
    gateway: &Gateway,
    vetted: &Vetted<'_>,
    (state, max): (&State, usize),
) -> Result<Result<(), Rejection>, Rejection> {
    let ids = || {
        let removed = state.removed.keys();
        let new = vetted.plan.births.iter().map(|birth| &birth.wanted.id);
        removed.chain(new).cloned()
    };
    let work = async {
        let mut tx = gateway.db.begin_alone().await?;
        GrantsInBulk::lock_all(&gateway.db, &mut tx).await?;
        let Some(now) = State::read(&mut tx, ids(), max).await? else {
            return Ok(Err(Refusal::Refused(too_many(max))));
        };
        if !now.is_as(state) {
            return Ok(Err(Refusal::Differs(state.differing(&now))));
        }
        let done = write(&mut tx, vetted, state).await?;
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
        Ok(done) => Ok(publish(gateway, vetted, done).await),
        Err(Refusal::Refused(why)) => Err(why),
        Err(Refusal::Differs(changed)) => Err(differs(changed)),
    }
}

/// Returns the rejection of a policy after a change of its state.
pub(super) fn differs(mut changed: Vec<Value>) -> Rejection {
    changed.truncate(TOLD_MAX);
    Rejection::new(
        Reason::Conflict,
        "the state was changed meanwhile, and nothing of the policy was applied: look at the difference again \
         (?dry_run=true)",
    )
    .list("changed", changed)
}

async fn write(
    tx: &mut Connection,
    vetted: &Vetted<'_>,
    state: &State,
) -> Result<Result<Done, Refusal>, sqlx::Error> {
    let (plan, now, mut done) = (vetted.plan, Timestamp::now(), Done::default());
    for id in &plan.removals {
        if !is_as_planned(tx, state, id).await? {
            return Ok(Err(differing_workspace(id)));
        }
        InBulk::remove(tx, id, now).await?;
        done.hashes.extend(Issuance::revoke_all_in(tx, id).await?);
    }
    for (edit, update) in plan.edits.iter().zip(&vetted.edits) {
        match change(tx, plan, edit, update, now).await? {
            Ok(changed) => done.changed.push(changed),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
    for (birth, new) in plan.births.iter().zip(&vetted.births) {
        let created = match state.removed.get(&new.id) {
            Some(gone) => {
                end_of(tx, &new.id, now, &mut done).await?;
                InBulk::revive(tx, new, gone.at, now).await?
            }
            None => InBulk::insert(tx, new, now).await?,
        };
        match created {
            Created::Done(workspace) => done.created.push(*workspace),
            Created::OriginTaken(taken) => return Ok(Err(at(birth, taken.into()))),
            Created::Taken => {
                let one = json!({"kind": "workspace", "name": new.id.as_str()});
                return Ok(Err(Refusal::Differs(vec![one])));
            }
        }
    }
    for (id, pair) in &plan.ungranted {
        GrantsInBulk::remove(tx, id, now).await?;
        done.pairs.push(pair.clone());
    }
    for new in &plan.grants {
        GrantsInBulk::put(tx, new, now).await?;
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

fn differing_workspace(id: &WorkspaceId) -> Refusal {
    Refusal::Differs(vec![json!({"kind": "workspace", "name": id.as_str()})])
}

/// Locks the row of a workspace to remove. True if it says the same as the one that the plan removes.
async fn is_as_planned(
    tx: &mut Connection,
    state: &State,
    id: &WorkspaceId,
) -> Result<bool, sqlx::Error> {
    let (Some(held), Some(row)) = (state.workspaces.get(id), InBulk::hold(tx, id).await?) else {
        return Ok(false);
    };
    let instances = match row.instances {
        0 => Vec::new(),
        _ => InBulk::instances(tx, id).await?,
    };
    Ok(held.is_as(&row, &instances))
}

fn at(birth: &Birth, why: Rejection) -> Refusal {
    let mut problems = Problems::default();
    problems.note(&birth.wanted.path, &why);
    let told = problems.check().err().unwrap_or(why);
    Refusal::Refused(Rejection {
        reason: Reason::Conflict,
        ..told
    })
}

/// Changes one workspace, by the rules as they hold for its present row.
async fn change(
    tx: &mut Connection,
    plan: &Plan,
    edit: &Edit,
    update: &VettedUpdate<'_>,
    now: Timestamp,
) -> Result<Result<Changed, Refusal>, sqlx::Error> {
    let id = &edit.held.row.id;
    let Some(before) = InBulk::hold(tx, id).await? else {
        return Ok(Err(differing_workspace(id)));
    };
    let instances = match before.instances {
        0 => Vec::new(),
        _ => InBulk::instances(tx, id).await?,
    };
    if !edit.held.is_as(&before, &instances) {
        return Ok(Err(differing_workspace(id)));
    }
    let line = match update.place().is_empty() {
        true => Vec::new(),
        false => plan.before.line(id),
    };
    let around = plan.after.around(id, line, instances);
    let settings = match update.judge(&before, &around) {
        Ok(settings) => settings,
        Err(why) => return Ok(Err(why.into())),
    };
    let line = around.line;
    if settings == Settings::of(&before) {
        let after = before.clone();
        return Ok(Ok(Changed {
            before,
            after,
            line,
        }));
    }
    let written = InBulk::put(tx, &before, (&settings, update.origins()), now).await?;
    Ok(match written {
        Ok(Some(after)) => Ok(Changed {
            before,
            after,
            line,
        }),
        Ok(None) => Err(differing_workspace(id)),
        Err(taken) => Err(Rejection::from(taken).into()),
    })
}

/// Ends what is kept of the life of a removed id, before its next life begins.
async fn end_of(
    tx: &mut Connection,
    id: &WorkspaceId,
    now: Timestamp,
    done: &mut Done,
) -> Result<(), sqlx::Error> {
    done.hashes.extend(Issuance::revoke_all_in(tx, id).await?);
    done.pairs
        .extend(GrantsInBulk::remove_of(tx, id, now).await?);
    empty_inbox(tx, id).await?;
    end_jobs_of(tx, id, now).await?;
    OpenTasks::end_of(tx, id).await
}

async fn publish(gateway: &Gateway, vetted: &Vetted<'_>, done: Done) -> Result<(), Rejection> {
    let plan = vetted.plan;
    let registrations = RegistrationsInBulk::of(&gateway.directory.registrations);
    let count = done.created.len() + done.changed.len() + plan.removals.len();
    let each = count <= INVALIDATIONS_MAX;
    if !each {
        gateway.coherence.invalidate(Invalidation::Everything).await;
    }
    gateway.identity.tokens.forget(done.hashes).await;
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
    published.map_err(unpublished)
}

/// Publishes changes and removals, up to the first failure: a shared state that is away holds up each of them. Its keys
/// lapse, and agents write theirs again.
async fn publish_keys(
    registrations: RegistrationsInBulk<'_>,
    vetted: &Vetted<'_>,
    changed: &[Changed],
    each: bool,
) -> Result<(), Rejection> {
    let plan = vetted.plan;
    for (changed, update) in changed.iter().zip(&vetted.edits) {
        registrations.publish_update(update, changed, each).await?;
    }
    for id in &plan.removals {
        let line = plan.before.line(id);
        registrations.publish_removal(id, &line, each).await?;
    }
    Ok(())
}

/// Returns the rejection of a policy that was committed, and of which not all reached the shared state. To repeat it
/// publishes nothing.
fn unpublished(why: Rejection) -> Rejection {
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
pub(super) async fn recreate(
    gateway: &Gateway,
    creation: &Creation,
    removed_at: Timestamp,
    run: Run,
) -> Result<Workspace, Rejection> {
    let mut new = RegistrationsInBulk::of(&gateway.directory.registrations)
        .vet_creation(creation)
        .await?;
    let work = async {
        let (now, mut done) = (Timestamp::now(), Done::default());
        let mut tx = gateway.db.begin_alone().await?;
        if let Err(why) = settle(&mut tx, &mut new).await? {
            return Ok(Err(why));
        }
        end_of(&mut tx, &new.id, now, &mut done).await?;
        match InBulk::revive(&mut tx, &new, removed_at, now).await? {
            Created::Done(workspace) => {
                tx.end(run).await?;
                done.created.push(*workspace);
                Ok(Ok(done))
            }
            Created::OriginTaken(taken) => Ok(Err(taken.into())),
            Created::Taken => Ok(Err(id_taken())),
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
    gateway.identity.tokens.forget(done.hashes).await;
    gateway.hierarchy.forget_pairs(done.pairs).await;
    let registrations = RegistrationsInBulk::of(&gateway.directory.registrations);
    registrations.publish_created(&created, true).await;
    Ok(created)
}

/// Settles the org of a recreated workspace, if its place is a possible one.
async fn settle(
    tx: &mut Connection,
    new: &mut NewWorkspace,
) -> Result<Result<(), Rejection>, sqlx::Error> {
    let (height, orgs) = InBulk::below(tx, &new.id).await?;
    let mut levels = 1 + height;
    if let Some(parent) = &new.parent_id {
        let line = InBulk::line(tx, parent).await?;
        levels += line.len();
        match org_of_new(&new.id, &line, new.org.as_deref()) {
            Ok(org) => new.org = org,
            Err(why) => return Ok(Err(why)),
        }
        if InBulk::is_above(tx, &new.id, parent).await? {
            return Ok(Err(Rejection::new(
                Reason::Conflict,
                "the parent is below the workspace, which would be its own ancestor: move the parent elsewhere first",
            )));
        }
    }
    Ok(match () {
        () if levels > LINE_MAX => Err(too_deep()),
        () if orgs.iter().any(|org| *org != new.org) => Err(other_org_below()),
        () => Ok(()),
    })
}
