//! The difference between a document and the present state, judged by the rules of the single routes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::desired::DesiredWorkspace;
use super::document::{Document, StopEntry, members_without};
use super::problems::{Problems, id_removed, other_org_below, too_deep};
use super::state::{
    CurrentWorkspace, State, compared_members, grant_entry, grant_name, stop_entry, stop_name,
};
use super::tree::{Tree, TreeNode};
use access::hierarchy::{NewGrant, check_grant_party};
use access::identity::Operator;
use access::workspace::LINE_MAX;
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
    /// The caller, as records name it.
    pub by: String,
    /// The operator.
    pub operator: Option<Arc<Operator>>,
}

/// A workspace to create.
#[derive(Debug)]
pub(super) struct PlannedCreation {
    pub(super) wanted: DesiredWorkspace,
    /// True if it begins a new life of a removed id.
    pub(super) revives: bool,
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
    pub(super) births: Vec<PlannedCreation>,
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
    mut document: Document,
    state: &State,
    options: &ApplyOptions,
    problems: &mut Problems,
) -> Plan {
    let mut plan = Plan {
        before: Tree::from_state(state),
        ..Plan::default()
    };
    plan.add_workspaces(registrations, &mut document, state, options, problems);
    plan.add_grants(&document, state, options, problems);
    plan.add_stops(&document, state, options, problems);
    plan
}

impl Plan {
    fn add_workspaces(
        &mut self,
        registrations: &Registrations,
        document: &mut Document,
        state: &State,
        options: &ApplyOptions,
        problems: &mut Problems,
    ) {
        self.after = self.before.clone();
        let Some(entries) = document.workspaces.take() else {
            self.after.index_children();
            return;
        };
        let mut wanted: Vec<DesiredWorkspace> = Vec::with_capacity(entries.len());
        let mut named: HashSet<WorkspaceId> = HashSet::with_capacity(entries.len());
        for located in entries {
            let path = located.path.clone();
            match DesiredWorkspace::read(registrations, located, state) {
                Ok(one) if named.insert(one.id.clone()) => wanted.push(one),
                Ok(_) => problems.add(&path, &duplicate_entry("workspace of this id")),
                Err(why) => problems.add(&path, &why),
            }
        }
        self.place_workspaces(&mut wanted, &named, state, options);
        for one in wanted {
            let path = one.path.clone();
            let done = match state.workspaces.get(&one.id) {
                Some(held) => self.add_change(one, held),
                None => self.add_creation(one, document.recreate),
            };
            if let Err(why) = done {
                problems.add(&path, &why);
            }
        }
    }

    /// Puts the workspaces of the document at their places, and removes the others with `prune`.
    fn place_workspaces(
        &mut self,
        wanted: &mut [DesiredWorkspace],
        named: &HashSet<WorkspaceId>,
        state: &State,
        options: &ApplyOptions,
    ) {
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
            self.after.insert(&one.id, place);
        }
        for id in state.workspaces.keys().filter(|id| !named.contains(*id)) {
            if options.prune {
                self.after.remove(id);
                self.removals.push(id.clone());
                self.record_change("remove", "workspace", id.as_str(), None);
            } else {
                self.unmanaged
                    .extend(unchanged_row("workspace", id.as_str()));
            }
        }
        self.after.inherit_orgs(&unsaid);
        self.after.index_children();
        for one in wanted {
            let place = self.after.get(&one.id);
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
            self.unchanged += 1;
            return Ok(());
        }
        let update = one.to_update(held, &differences)?;
        let fields = differences.into_iter();
        let fields = fields.map(
            |(field, before, after)| json!({"field": field, "before": before, "after": after}),
        );
        let fields = Some(("fields", Value::from_iter(fields)));
        self.record_change("change", "workspace", one.id.as_str(), fields);
        self.edits.push(PlannedChange {
            path: one.path,
            held: Arc::clone(held),
            update,
        });
        Ok(())
    }

    /// Fails unless a parent will be there.
    fn check_parent(&self, parent: &WorkspaceId) -> Result<(), Rejection> {
        let message = match self.after.get(parent) {
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
        let [was, is] = [&self.before, &self.after].map(|tree| tree.get(id));
        is.is_some_and(|place| place.removed) && was.is_some_and(|place| !place.removed)
    }

    fn add_creation(&mut self, one: DesiredWorkspace, recreate: bool) -> Result<(), Rejection> {
        let revives = self.before.get(&one.id).is_some();
        if revives && !recreate {
            return Err(id_removed());
        }
        if let Some(parent) = &one.parent {
            self.check_parent(parent)?;
            let line = self.after.line_of(parent);
            org_of_new(&one.id, &line, one.entry.org.as_deref())?;
            // A new one has a level below it only if other workspaces of the document, or of an earlier life, have it as
            // their parent, and they are judged, too.
            if line.len() + 1 + self.after.height_of(&one.id) > LINE_MAX {
                return Err(too_deep());
            }
        }
        if self.after.leaves_children(&one.id) {
            return Err(other_org_below());
        }
        let action = if revives { "recreate" } else { "create" };
        let after = Some(("after", Value::Object(compared_members(&one.entry))));
        self.record_change(action, "workspace", one.id.as_str(), after);
        self.births.push(PlannedCreation {
            wanted: one,
            revives,
        });
        Ok(())
    }

    fn add_grants(
        &mut self,
        document: &Document,
        state: &State,
        options: &ApplyOptions,
        problems: &mut Problems,
    ) {
        let Some(entries) = &document.grants else {
            return;
        };
        let now = Timestamp::now();
        let mut named = HashSet::new();
        for located in entries {
            let entry = &located.entry;
            let expires_at = entry.expires_at.as_deref().map(read_expiry).transpose();
            let ends = [&entry.caller_id, &entry.target_id].map(|id| WorkspaceId::parse(id));
            let (expires_at, [caller, target]) = match (expires_at, ends) {
                (Ok(expires_at), [Ok(caller), Ok(target)]) => (expires_at, [caller, target]),
                (Err(why), _) => {
                    problems.add(&located.path, &why);
                    continue;
                }
                (_, [Err(why), _] | [_, Err(why)]) => {
                    problems.add(&located.path, &why.into());
                    continue;
                }
            };
            let name = grant_name(&caller, &target);
            if !named.insert((caller.clone(), target.clone())) {
                problems.add(&located.path, &duplicate_entry("grant of this pair"));
                continue;
            }
            if expires_at.is_some_and(|end| end <= now) {
                self.expired.extend(unchanged_row("grant", &name));
                continue;
            }
            let new = NewGrant {
                caller,
                target,
                note: entry.note.clone(),
                expires_at,
            };
            if let Err(why) = self.add_grant(new, state, now) {
                problems.add(&located.path, &why);
            }
        }
        for (pair, grant) in state
            .grants
            .iter()
            .filter(|(pair, _)| !named.contains(pair))
        {
            let name = grant_name(&pair.0, &pair.1);
            if options.prune {
                self.record_change("remove", "grant", &name, None);
                self.ungranted.push((grant.id.clone(), pair.clone()));
            } else {
                self.unmanaged.extend(unchanged_row("grant", &name));
            }
        }
    }

    fn add_grant(&mut self, new: NewGrant, state: &State, now: Timestamp) -> Result<(), Rejection> {
        new.check(now)?;
        for (member, id) in [("caller_id", &new.caller), ("target_id", &new.target)] {
            if self.is_pruned(id) {
                let message = format!(
                    "`{member}` names `{id}`, which is not in the policy, and is removed with prune: take the grant out, \
                     too, or put the workspace in"
                );
                return Err(Rejection::new(Reason::Conflict, message));
            }
            check_grant_party(member, self.after.get(id).map(|place| place.removed))?;
        }
        let name = grant_name(&new.caller, &new.target);
        let pair = (new.caller.clone(), new.target.clone());
        let of = |note: &Option<String>, at: Option<Timestamp>| {
            let mut members = Map::new();
            members.extend(note.clone().map(|note| ("note".to_owned(), note.into())));
            members.extend(at.map(|at| ("expires_at".to_owned(), at.to_string().into())));
            members
        };
        let after = of(&new.note, new.expires_at);
        match state.grants.get(&pair) {
            Some(old) if old.note == new.note && old.expires_at == new.expires_at => {
                self.unchanged += 1;
                return Ok(());
            }
            Some(old) => {
                let before = members_without(&grant_entry(old), &["caller_id", "target_id"]);
                let fields = ["note", "expires_at"].into_iter();
                let fields = fields.filter(|name| before.get(*name) != after.get(*name));
                let fields = fields.map(|name| json!({"field": name, "before": before.get(name), "after": after.get(name)}));
                let fields = Some(("fields", Value::from_iter(fields)));
                self.record_change("change", "grant", &name, fields);
            }
            None => self.record_change("create", "grant", &name, Some(("after", after.into()))),
        }
        self.grants.push(new);
        Ok(())
    }

    fn add_stops(
        &mut self,
        document: &Document,
        state: &State,
        options: &ApplyOptions,
        problems: &mut Problems,
    ) {
        let Some(entries) = &document.stops else {
            return;
        };
        let now = Timestamp::now();
        // A stop is never changed: one that differs is another one.
        let key = |new: &NewStop| {
            let scope = new.scope.to_json().to_string();
            (scope, new.mode.as_str(), new.reason.clone(), new.expires_at)
        };
        let mut present: HashMap<_, Vec<&Stop>> = HashMap::new();
        for stop in self.present_stops(state) {
            let scope = stop.scope.to_json().to_string();
            let key = (
                scope,
                stop.mode.as_str(),
                stop.reason.clone(),
                stop.expires_at,
            );
            present.entry(key).or_default().push(stop);
        }
        for located in entries {
            let entry = &located.entry;
            match self.new_stop(entry, options) {
                Ok(new) if new.expires_at.is_some_and(|end| end <= now) => {
                    self.expired
                        .extend(unchanged_row("stop", &stop_name(entry)));
                }
                Ok(new) => match present.get_mut(&key(&new)).and_then(Vec::pop) {
                    Some(_) => self.unchanged += 1,
                    None => {
                        let after = Some((
                            "after",
                            Value::Object(members_without(entry, &["scope", "mode"])),
                        ));
                        self.record_change("create", "stop", &stop_name(entry), after);
                        self.stops.push(new);
                    }
                },
                Err(why) => problems.add(&located.path, &why),
            }
        }
        let mut others: Vec<&Stop> = present.into_values().flatten().collect();
        others.sort_by(|one, other| one.id.cmp(&other.id));
        for stop in others {
            let name = stop_name(&stop_entry(stop));
            if options.prune {
                self.record_change(
                    "remove",
                    "stop",
                    &name,
                    Some(("before", json!({"reason": stop.reason}))),
                );
                self.released.push(stop.id.clone());
            } else {
                self.unmanaged.extend(unchanged_row("stop", &name));
            }
        }
    }

    /// Returns the stops that a document is compared with: also those of ids that come back.
    fn present_stops<'s>(&self, state: &'s State) -> impl Iterator<Item = &'s Stop> {
        let comes_back = move |stop: &&Stop| {
            let mut named = stop.scope.named_workspaces().map(|id| self.after.get(id));
            named.all(|place| place.is_some_and(|place| !place.removed))
        };
        state
            .stops
            .iter()
            .chain(state.dormant.iter().filter(comes_back))
    }

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

    fn new_stop(&self, entry: &StopEntry, options: &ApplyOptions) -> Result<NewStop, Rejection> {
        let scope = read_scope(&entry.scope)?;
        let mut orgs = Vec::new();
        for id in scope.named_workspaces() {
            let place = self.after.get(id);
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
            created_by: options.by.clone(),
            operator: options.operator.clone(),
            expires_at: entry.expires_at.as_deref().map(read_expiry).transpose()?,
            cancel_tasks: false,
        })
    }

    fn record_change(&mut self, action: &str, kind: &str, name: &str, more: Option<(&str, Value)>) {
        let mut change = json!({"action": action, "kind": kind, "name": name});
        if let Some((member, value)) = more {
            change[member] = value;
        }
        self.changes.extend(to_raw_value(&change));
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
