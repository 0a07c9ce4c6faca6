//! Policy as a file (`docs/guide/policy-in-git.md`): what operators set of workspaces, grants and stops as one
//! document, which is exported, compared with the present state and applied. And the return of a removed id, alone or
//! by a policy.
//!
//! Owns no table. A document is judged by the rules of the single routes, on the tree as it will be ([`mod@plan`]),
//! then all changes are made in one transaction under the lock of the hierarchy, which first checks that the state is
//! the one that the difference was computed from ([`mod@commit`]).

mod commit;
mod desired;
mod document;
mod matrix;
mod plan;
mod prove;
mod replay;
mod state;
mod tree;
mod world;

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub use self::document::RawDocument;
pub use self::matrix::AccessRow;
pub use self::plan::ApplyOptions;
pub use self::prove::{BrokenStatement, PathStep};
pub use self::replay::Replay;

pub use self::commit::recreate_workspace;
use self::commit::{LISTED_MAX, commit_plan, conflict_rejection, vet_plan};
use self::desired::DesiredWorkspace;
use self::document::{Document, Problems, too_many};
use self::plan::{Plan, compute_plan};
use self::prove::{Statement, prove_statements, read_statements};
use self::state::State;
use self::world::World;
use crate::gateway::Gateway;
use access::hierarchy::Lineage;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

/// Time from a removal to the next life of its id, at least: a body that comes within `SLOW_BODY` (0.5 s), look-ups of
/// names (2 s), and a statement (`stores.timeout`, 2 s by default).
const LIFE_GAP: Duration = Duration::from_secs(5);

/// The result of a policy.
#[derive(Debug, Serialize)]
pub struct ApplyOutcome {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// True if what the document does not have is removed.
    pub prune: bool,
    /// `store_unavailable`: all was committed, and not all of it reached the shared state.
    #[serde(skip)]
    pub published: Result<(), Rejection>,
    /// The revision of the state that the difference was computed from.
    pub revision: String,
    /// The changes: each has `action`, `kind` and `name`.
    pub changes: Vec<Box<RawValue>>,
    /// Objects that the document does not have, and that were left.
    pub unmanaged: Vec<Box<RawValue>>,
    /// Entries of the document that have expired, and are passed over.
    pub expired: Vec<Box<RawValue>>,
    /// The number of entries that are as the document says.
    pub unchanged: usize,
}

/// Returns the present state as a document in JSON, with its revision.
///
/// # Errors
/// `conflict` if there is more than a policy may have; `store_unavailable`.
pub async fn export_document(gateway: &Gateway) -> Result<String, Rejection> {
    let max = gateway.config().limits.policy_workspaces;
    let state = read_state(gateway, Vec::new(), max).await?;
    Ok(state.to_document())
}

/// Compares a document with the present state and, unless it is a dry run, makes all changes or none.
///
/// # Errors
/// `invalid_params`, with all that is wrong with the document; `conflict` if the state was changed meanwhile;
/// `store_unavailable`.
pub async fn apply_document(
    gateway: &Gateway,
    raw: RawDocument,
    options: &ApplyOptions,
) -> Result<ApplyOutcome, Rejection> {
    let max = gateway.config().limits.policy_workspaces;
    let mut problems = Problems::default();
    raw.refuse_configuration()?;
    let statements = read_statements(&raw.statements, &mut problems);
    let document = Document::read(raw, max, &mut problems)?;
    let state = read_state(gateway, named_ids(&document), max).await?;
    let revision = state.revision();
    let is_other = |said: &String| *said != revision;
    let stale = document.revision.as_ref().is_some_and(is_other);
    let registrations = &gateway.directory.registrations;
    let plan = compute_plan(registrations, document, &state, options, &mut problems);
    if stale && !options.dry_run {
        return Err(stale_revision(&plan, &revision));
    }
    plan.check_stops(&state)?;
    if !statements.is_empty() {
        let world = World::planned(&state, &plan, gateway.config().access.lineage);
        let found = prove_aside(world, statements, None).await?;
        problems = found.note_in(problems, options.force);
    }
    let vetted = vet_plan(gateway, (&plan, options.dry_run), &mut problems).await?;
    problems.into_result()?;
    let mut published = Ok(());
    if !options.dry_run && !plan.changes.is_empty() {
        let removed = |birth: &DesiredWorkspace| state.removed.get(&birth.id);
        let gone = plan.births.iter().filter_map(removed);
        if let Some(last) = gone.map(|gone| gone.at).max() {
            await_end_of_requests(last).await;
        }
        published = commit_plan(gateway, &vetted, (&state, max)).await?;
    }
    drop(vetted);
    Ok(ApplyOutcome {
        dry_run: options.dry_run,
        prune: options.prune,
        published,
        revision,
        changes: plan.changes,
        unmanaged: plan.unmanaged,
        expired: plan.expired,
        unchanged: plan.unchanged,
    })
}

/// The result of a proof.
#[derive(Debug, Serialize)]
pub struct Proof {
    /// True if all statements hold.
    pub holds: bool,
    /// Those that do not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<BrokenStatement>,
}

/// Proves the statements of a document for the state that it leads to. Changes nothing. `org`: only workspaces of this
/// org, or of this subtree of it, count; the document then has statements alone.
///
/// # Errors
/// `invalid_params`, with all that is wrong with the document; `not_permitted`; `store_unavailable`.
pub async fn prove_document(
    gateway: &Gateway,
    raw: RawDocument,
    options: &ApplyOptions,
    org: Option<OrgScope>,
) -> Result<Proof, Rejection> {
    if org.is_some() && raw.has_sections() {
        let message = "an org token proves statements about its org as it is: leave workspaces, grants and stops out";
        return Err(Rejection::new(Reason::NotPermitted, message));
    }
    let max = gateway.config().limits.policy_workspaces;
    let mut problems = Problems::default();
    let statements = read_statements(&raw.statements, &mut problems);
    let lineage = raw.access.and_then(|access| access.lineage);
    let reach = lineage.unwrap_or(gateway.config().access.lineage);
    let document = Document::read(raw, max, &mut problems)?;
    let state = read_state(gateway, named_ids(&document), max).await?;
    let registrations = &gateway.directory.registrations;
    let plan = compute_plan(registrations, document, &state, options, &mut problems);
    problems.into_result()?;
    let world = World::planned(&state, &plan, reach);
    let found = prove_aside(world, statements, org).await?;
    found.problems.into_result()?;
    let broken: Vec<_> = found.broken.into_iter().map(|(_, broken)| broken).collect();
    Ok(Proof {
        holds: broken.is_empty(),
        broken,
    })
}

/// Returns who reaches whom as it is, in the order of the keys.
///
/// # Errors
/// `conflict` if there is more than a policy may have; `store_unavailable`.
pub async fn list_access(gateway: &Gateway) -> Result<Vec<AccessRow>, Rejection> {
    let config = gateway.config();
    let max = config.limits.policy_workspaces;
    let state = read_state(gateway, Vec::new(), max).await?;
    let world = World::present(&state, config.access.lineage);
    let listed = tokio::task::spawn_blocking(move || matrix::list_rows(&world)).await;
    listed
        .map_err(|error| Rejection::new(Reason::Internal, "the matrix was ended").with_cause(error))
}

/// An org, or a subtree of it.
#[derive(Clone, Debug)]
pub struct OrgScope {
    /// The org.
    pub org: String,
    /// The root of the subtree.
    pub within: Option<WorkspaceId>,
}

impl OrgScope {
    fn sees(&self, place: &Lineage) -> bool {
        let below = |root: &WorkspaceId| place.id == *root || place.ancestors.contains(root);
        place.org.as_ref() == Some(&self.org) && self.within.as_ref().is_none_or(below)
    }
}

/// What a proof found: statements that do not hold, and those that cannot be proven.
struct Findings {
    broken: Vec<(usize, BrokenStatement)>,
    problems: Problems,
}

impl Findings {
    /// Adds all of it to the problems of a document; with `force` only what cannot be proven.
    fn note_in(self, mut problems: Problems, force: bool) -> Problems {
        problems.absorb(self.problems);
        for (n, broken) in self.broken.into_iter().filter(|_| !force) {
            let why = Rejection::new(Reason::Conflict, broken.to_string());
            problems.add(&format!("statements[{n}]"), &why);
        }
        problems
    }
}

/// Proves statements on a thread of its own, since it takes up to seconds.
async fn prove_aside(
    world: World,
    statements: Vec<(usize, Statement)>,
    org: Option<OrgScope>,
) -> Result<Findings, Rejection> {
    let work = move || {
        let mut problems = Problems::default();
        let sees = |place: &Lineage| org.as_ref().is_none_or(|org| org.sees(place));
        let broken = prove_statements(&world, &statements, sees, &mut problems);
        Findings { broken, problems }
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Rejection::new(Reason::Internal, "the proof was ended").with_cause(error))
}

/// Waits until requests that were proven before a removal have ended, so that none of them acts on the next life of the
/// id: each has less than [`LIFE_GAP`] from the last check of its credential to its last write.
async fn await_end_of_requests(removed_at: Timestamp) {
    let age = Timestamp::now().0.saturating_sub(removed_at.0);
    let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
    tokio::time::sleep(LIFE_GAP.saturating_sub(age)).await;
}

async fn read_state(
    gateway: &Gateway,
    ids: Vec<WorkspaceId>,
    max: usize,
) -> Result<State, Rejection> {
    let work = async {
        let mut connection = gateway.db.begin_reading().await?;
        State::read(&mut connection, ids.into_iter(), max).await
    };
    let limit = commit::COMMIT_MAX;
    let state = gateway.db.run_within("policy_read", limit, work).await?;
    state.ok_or_else(|| too_many(max))
}

/// Returns the ids that a document names as workspaces and as parents.
fn named_ids(document: &Document) -> Vec<WorkspaceId> {
    let workspaces = document.workspaces.iter().flatten().flat_map(|located| {
        let entry = &located.entry;
        [Some(&entry.id), entry.parent_id.as_ref()]
    });
    let grants = document.grants.iter().flatten().flat_map(|located| {
        let entry = &located.entry;
        [Some(&entry.caller_id), Some(&entry.target_id)]
    });
    let stops = document.stops.iter().flatten().flat_map(|located| {
        let names = ["workspace", "subtree", "caller", "target"];
        let scope = &located.entry.scope;
        names.map(|name| scope.get(name).and_then(Value::as_str))
    });
    let named = workspaces.chain(grants).flatten().map(String::as_str);
    let named = named.chain(stops.flatten());
    named.filter_map(|id| WorkspaceId::parse(id).ok()).collect()
}

/// Returns the rejection of a document with another revision than the present one, with what it would change now.
fn stale_revision(plan: &Plan, revision: &str) -> Rejection {
    let name = |row: &RawValue| {
        let row: Value = serde_json::from_str(row.get()).unwrap_or_default();
        json!({"kind": row["kind"], "name": row["name"]})
    };
    let now = plan.changes.iter().chain(&plan.unmanaged).take(LISTED_MAX);
    let mut rejection = conflict_rejection(now.map(|row| name(row)).collect());
    rejection.message = "the state is not the one of the `revision` that the policy says, and nothing was applied: \
                         `changed` has what differs from the policy now; look at the difference again (?dry_run=true)"
        .into();
    rejection.with_fact("revision", revision)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_next_life_waits_for_what_is_left_of_the_gap() {
        for (age, left) in [
            (0, 5_000),
            (3_000, 2_000),
            (5_000, 0),
            (60_000, 0),
            (-60_000, 5_000),
        ] {
            let (began, now) = (Instant::now(), Timestamp::now());
            await_end_of_requests(Timestamp(now.0 - age)).await;
            let waited = i128::try_from(began.elapsed().as_millis()).unwrap();
            // The age grows by the time that the case takes, which the paused clock does not show.
            let took = i128::from(Timestamp::now().0 - now.0);
            assert!(
                (left - took - 1..=left + 1).contains(&waited),
                "{age}: {waited}"
            );
        }
    }
}
