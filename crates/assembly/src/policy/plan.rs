//! The difference between a document and the present state, judged by the rules of the single routes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::desired::DesiredWorkspace;
use super::document::{
    Document, GrantEntry, LocatedEntry, Problems, StopEntry, id_removed, members_without,
    other_org_below, too_deep,
};
use super::state::{CurrentWorkspace, State, compared_members, grant_name, stop_entry, stop_name};
use super::tree::{Tree, TreeNode};
use access::hierarchy::{NewGrant, check_grant_party};
use access::identity::Operator;
use access::workspace::{LINE_MAX, PolicyEntry};
use directory::stops::{
    NewStop, STOPS_MAX, Scope, Stop, read_expiry, read_mode, read_reason, read_scope, too_many,
};
use directory::{Registrations, Update, org_of_new};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

/// The options of an apply.
#[derive(Clone, Debug)]
pub struct ApplyOptions {
    /// True: the difference is returned, and nothing is changed.
    pub dry_run: bool,
    /// True: what the document does not have is removed.
    pub prune: bool,
    /// True: also if a statement of the document does not hold.
    pub force: bool,
    /// The caller, as records name it.
    pub by: String,
    /// The operator.
    pub operator: Option<Arc<Operator>>,
}

/// A workspace to change.
#[derive(Debug)]
pub(super) struct PlannedChange {
    pub(super) path: String,
    pub(super) held: Arc<CurrentWorkspace>,
    pub(super) update: Update,
}

/// The difference.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) births: Vec<DesiredWorkspace>,
    pub(super) edits: Vec<PlannedChange>,
    pub(super) removals: Vec<WorkspaceId>,
    pub(super) grants: Vec<NewGrant>,
    /// Grants to remove: their ids and pairs.
    pub(super) ungranted: Vec<(String, (WorkspaceId, WorkspaceId))>,
    pub(super) stops: Vec<NewStop>,
    /// Ids of stops to release.
    pub(super) released: Vec<String>,
    /// The tree as it is, and as it will be.
    pub(super) before: Tree,
    pub(super) after: Tree,
    /// The changes, as answers and records show them. As values, not as text, they would take many times their bytes.
    pub(super) changes: Vec<Box<RawValue>>,
    /// Objects that the section of their kind does not have, and that are not removed.
    pub(super) unmanaged: Vec<Box<RawValue>>,
    /// Grants and stops of the document that have expired.
    pub(super) expired: Vec<Box<RawValue>>,
    pub(super) unchanged: usize,
}

/// Computes the difference. What is refused is noted in `problems`.
pub(super) fn compute_plan(
    registrations: &Registrations,
    document: Document,
    state: &State,
    options: &ApplyOptions,
    problems: &mut Problems,
) -> Plan {
    let before = Tree::from_state(state);
    let mut planner = Planner {
        registrations,
        state,
        options,
        problems,
        now: Timestamp::now(),
        plan: Plan {
            after: before.clone(),
            before,
            ..Plan::default()
        },
    };
    match document.workspaces {
        Some(entries) => planner.add_workspaces(entries, document.recreate),
        None => planner.plan.after.index_children(),
    }
    if let Some(entries) = document.grants {
        planner.add_grants(&entries);
    }
    if let Some(entries) = document.stops {
        planner.add_stops(&entries);
    }
    planner.plan
}

/// A difference that is being computed.
struct Planner<'a> {
    registrations: &'a Registrations,
    state: &'a State,
    options: &'a ApplyOptions,
    problems: &'a mut Problems,
    now: Timestamp,
    plan: Plan,
}

impl Planner<'_> {
    /// Notes the problem of an entry, if it has one.
    fn note_problem<T>(&mut self, path: &str, done: Result<T, Rejection>) -> Option<T> {
        done.map_err(|why| self.problems.add(path, &why)).ok()
    }

    fn add_workspaces(&mut self, entries: Vec<LocatedEntry<PolicyEntry>>, recreate: bool) {
        let mut wanted: Vec<DesiredWorkspace> = Vec::with_capacity(entries.len());
        let mut named: HashSet<WorkspaceId> = HashSet::with_capacity(entries.len());
        for located in entries {
            let path = located.path.clone();
            let read = DesiredWorkspace::read(self.registrations, located, self.state);
            let read = read.and_then(|one| match named.insert(one.id.clone()) {
                true => Ok(one),
                false => Err(duplicate_entry("workspace of this id")),
            });
            wanted.extend(self.note_problem(&path, read));
        }
        self.place_workspaces(&mut wanted, &named);
        for one in wanted {
            let path = one.path.clone();
            let done = match self.state.workspaces.get(&one.id) {
                Some(held) => self.add_change(one, held),
                None => self.add_creation(one, recreate),
            };
            self.note_problem(&path, done);
        }
    }

    /// Puts the workspaces of the document at their places, and removes the others with `prune`.
    fn place_workspaces(&mut self, wanted: &mut [DesiredWorkspace], named: &HashSet<WorkspaceId>) {
        let mut unsaid = HashSet::new();
        for one in &*wanted {
            if one.parent.is_some() && one.entry.org.is_none() {
                unsaid.insert(one.id.clone());
            }
            let place = TreeNode {
                parent: one.parent.clone(),
                org: one.entry.org.clone(),
                removed: false,
            };
            self.plan.after.insert(&one.id, place);
        }
        for id in self.state.workspaces.keys() {
            if !named.contains(id) && self.drop_other("workspace", id.as_str(), None) {
                self.plan.after.remove(id);
                self.plan.removals.push(id.clone());
            }
        }
        self.plan.after.inherit_orgs(&unsaid);
        self.plan.after.index_children();
        for one in wanted {
            let place = self.plan.after.get(&one.id);
            one.entry.org = place.and_then(|place| place.org.clone());
        }
    }

    fn add_change(
        &mut self,
        one: DesiredWorkspace,
        held: &Arc<CurrentWorkspace>,
    ) -> Result<(), Rejection> {
        if let Some(parent) = &one.parent {
            self.check_parent(parent)?;
        }
        let differences = one.differing_members(held);
        if differences.is_empty() {
            self.plan.unchanged += 1;
            return Ok(());
        }
        let update = one.to_update(held, &differences)?;
        let fields = differences.into_iter();
        let fields = fields.map(
            |(field, before, after)| json!({"field": field, "before": before, "after": after}),
        );
        let fields = Some(("fields", Value::from_iter(fields)));
        self.record_change("change", "workspace", one.id.as_str(), fields);
        self.plan.edits.push(PlannedChange {
            path: one.path,
            held: Arc::clone(held),
            update,
        });
        Ok(())
    }

    /// Fails unless a parent will be there.
    fn check_parent(&self, parent: &WorkspaceId) -> Result<(), Rejection> {
        let message = match self.plan.after.get(parent) {
            Some(_) if self.is_pruned(parent) => {
                format!(
                    "the parent `{parent}` is not in the policy, and is removed with prune: put it in, or name another"
                )
            }
            None => format!("the parent `{parent}` does not exist: put it in, or name another"),
            Some(_) => return Ok(()),
        };
        Err(Rejection::new(Reason::Conflict, message))
    }

    /// True if the policy removes the workspace. Not by its list, which would be searched for each entry.
    fn is_pruned(&self, id: &WorkspaceId) -> bool {
        let [was, is] = [&self.plan.before, &self.plan.after].map(|tree| tree.get(id));
        is.is_some_and(|place| place.removed) && was.is_some_and(|place| !place.removed)
    }

    fn add_creation(&mut self, one: DesiredWorkspace, recreate: bool) -> Result<(), Rejection> {
        let revives = self.plan.before.get(&one.id).is_some();
        if revives && !recreate {
            return Err(id_removed());
        }
        if let Some(parent) = &one.parent {
            self.check_parent(parent)?;
            let line = self.plan.after.line_of(parent);
            org_of_new(&one.id, &line, one.entry.org.as_deref())?;
            // A new one has a level below it only if other workspaces of the document, or of an earlier life, have it
            // as their parent, and they are judged, too.
            if line.len() + 1 + self.plan.after.height_of(&one.id) > LINE_MAX {
                return Err(too_deep());
            }
        }
        if self.plan.after.leaves_children(&one.id) {
            return Err(other_org_below());
        }
        let action = if revives { "recreate" } else { "create" };
        let after = Some(("after", compared_members(&one.entry).into()));
        self.record_change(action, "workspace", one.id.as_str(), after);
        self.plan.births.push(one);
        Ok(())
    }

    fn add_grants(&mut self, entries: &[LocatedEntry<GrantEntry>]) {
        let mut named = HashSet::new();
        for located in entries {
            let done = self.add_grant(&located.entry, &mut named);
            self.note_problem(&located.path, done);
        }
        for (pair, grant) in &self.state.grants {
            let name = grant_name(&pair.0, &pair.1);
            if !named.contains(pair) && self.drop_other("grant", &name, None) {
                self.plan.ungranted.push((grant.id.clone(), pair.clone()));
            }
        }
    }

    fn add_grant(
        &mut self,
        entry: &GrantEntry,
        named: &mut HashSet<(WorkspaceId, WorkspaceId)>,
    ) -> Result<(), Rejection> {
        let expires_at = entry.expires_at.as_deref().map(read_expiry).transpose()?;
        let caller = WorkspaceId::parse(&entry.caller_id)?;
        let target = WorkspaceId::parse(&entry.target_id)?;
        let name = grant_name(&caller, &target);
        let pair = (caller.clone(), target.clone());
        if !named.insert(pair.clone()) {
            return Err(duplicate_entry("grant of this pair"));
        }
        if expires_at.is_some_and(|end| end <= self.now) {
            self.plan.expired.extend(unchanged_row("grant", &name));
            return Ok(());
        }
        let new = NewGrant {
            caller,
            target,
            note: entry.note.clone(),
            expires_at,
        };
        new.check(self.now)?;
        for (member, id) in [("caller_id", &new.caller), ("target_id", &new.target)] {
            if self.is_pruned(id) {
                let message = format!(
                    "`{member}` names `{id}`, which is not in the policy, and is removed with prune: take the grant out, \
                     too, or put the workspace in"
                );
                return Err(Rejection::new(Reason::Conflict, message));
            }
            check_grant_party(member, self.plan.after.get(id).map(|place| place.removed))?;
        }
        let members = |note: &Option<String>, at: Option<Timestamp>| {
            let mut members = Map::new();
            members.extend(note.clone().map(|note| ("note".to_owned(), note.into())));
            members.extend(at.map(|at| ("expires_at".to_owned(), at.to_string().into())));
            members
        };
        let after = members(&new.note, new.expires_at);
        match self.state.grants.get(&pair) {
            Some(old) if old.note == new.note && old.expires_at == new.expires_at => {
                self.plan.unchanged += 1;
                return Ok(());
            }
            Some(old) => {
                let before = members(&old.note, old.expires_at);
                let fields = ["note", "expires_at"].into_iter();
                let fields = fields.filter(|name| before.get(*name) != after.get(*name));
                let fields = fields.map(|name| json!({"field": name, "before": before.get(name), "after": after.get(name)}));
                let fields = Some(("fields", Value::from_iter(fields)));
                self.record_change("change", "grant", &name, fields);
            }
            None => self.record_change("create", "grant", &name, Some(("after", after.into()))),
        }
        self.plan.grants.push(new);
        Ok(())
    }

    fn add_stops(&mut self, entries: &[LocatedEntry<StopEntry>]) {
        // A stop is never changed: one that differs is another one.
        let key = |scope: &Scope, mode: &'static str, reason: &str, end: Option<Timestamp>| {
            (scope.to_json().to_string(), mode, reason.to_owned(), end)
        };
        let mut present: HashMap<_, Vec<&Stop>> = HashMap::new();
        let (state, after) = (self.state, &self.plan.after);
        // Those of ids that come back are there, too.
        let comes_back = |stop: &&Stop| {
            let mut named = stop.scope.named_workspaces().map(|id| after.get(id));
            named.all(|place| place.is_some_and(|place| !place.removed))
        };
        let dormant = state.dormant.iter().filter(comes_back);
        for stop in state.stops.iter().chain(dormant) {
            let key = key(
                &stop.scope,
                stop.mode.as_str(),
                &stop.reason,
                stop.expires_at,
            );
            present.entry(key).or_default().push(stop);
        }
        for LocatedEntry { path, entry } in entries {
            let new = self.new_stop(entry);
            let Some(new) = self.note_problem(path, new) else {
                continue;
            };
            let key = key(&new.scope, new.mode.as_str(), &new.reason, new.expires_at);
            let name = stop_name(entry);
            if new.expires_at.is_some_and(|end| end <= self.now) {
                self.plan.expired.extend(unchanged_row("stop", &name));
            } else if present.get_mut(&key).and_then(Vec::pop).is_some() {
                self.plan.unchanged += 1;
            } else {
                let after = members_without(entry, &["scope", "mode"]);
                self.record_change("create", "stop", &name, Some(("after", after.into())));
                self.plan.stops.push(new);
            }
        }
        let mut others: Vec<&Stop> = present.into_values().flatten().collect();
        others.sort_by(|one, other| one.id.cmp(&other.id));
        for stop in others {
            let before = Some(("before", json!({"reason": stop.reason})));
            if self.drop_other("stop", &stop_name(&stop_entry(stop)), before) {
                self.plan.released.push(stop.id.clone());
            }
        }
    }

    fn new_stop(&self, entry: &StopEntry) -> Result<NewStop, Rejection> {
        let scope = read_scope(&entry.scope)?;
        let mut orgs = Vec::new();
        for id in scope.named_workspaces() {
            let place = self.plan.after.get(id);
            check_grant_party("scope", place.map(|place| place.removed))?;
            orgs.push(place.and_then(|place| place.org.clone()));
        }
        orgs.dedup();
        let org = match &scope {
            Scope::Org(org) => Some(org.clone()),
            _ if orgs.len() == 1 => orgs.pop().flatten(),
            _ => None,
        };
        Ok(NewStop {
            scope,
            org,
            by_org: None,
            by_subtree: None,
            mode: read_mode(&entry.mode)?,
            reason: read_reason(&entry.reason)?.to_owned(),
            created_by: self.options.by.clone(),
            operator: self.options.operator.clone(),
            expires_at: entry.expires_at.as_deref().map(read_expiry).transpose()?,
            cancel_tasks: false,
        })
    }

    /// Records an object that the document does not have. Returns true if it is removed, with `prune`.
    fn drop_other(&mut self, kind: &str, name: &str, more: Option<(&str, Value)>) -> bool {
        match self.options.prune {
            true => self.record_change("remove", kind, name, more),
            false => self.plan.unmanaged.extend(unchanged_row(kind, name)),
        }
        self.options.prune
    }

    fn record_change(&mut self, action: &str, kind: &str, name: &str, more: Option<(&str, Value)>) {
        let mut change = json!({"action": action, "kind": kind, "name": name});
        if let Some((member, value)) = more {
            change[member] = value;
        }
        self.plan.changes.extend(to_raw_value(&change));
    }
}

impl Plan {
    /// Refuses more stops than may be in force.
    ///
    /// # Errors
    /// `conflict`.
    pub(super) fn check_stops(&self, state: &State) -> Result<(), Rejection> {
        let kept = state.stop_count.saturating_sub(self.released.len());
        let wanted = i64::try_from(kept + self.stops.len()).unwrap_or(i64::MAX);
        match self.stops.is_empty() || wanted <= STOPS_MAX {
            true => Ok(()),
            false => Err(too_many()),
        }
    }
}

/// Returns an object that is not changed, as answers show it.
fn unchanged_row(kind: &str, name: &str) -> Option<Box<RawValue>> {
    to_raw_value(&json!({"kind": kind, "name": name})).ok()
}

fn duplicate_entry(what: &str) -> Rejection {
    let message = format!("the policy has another {what}: leave one out");
    Rejection::new(Reason::InvalidParams, message)
}
