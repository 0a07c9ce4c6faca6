//! The present state that a policy is compared with, and its form as a document.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::document::{GrantEntry, StopEntry, VERSION, members_without};
use access::hierarchy::{BulkGrants, Grant};
use access::workspace::{
    DeliveryMode, Liveness, PolicyEntry, Status, StoredInstance, Tombstone, Workspace, bulk,
};
use directory::stops::{Stop, Stops};
use directory::{listed_urls, reports_itself};
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use stores::db::Connection;

/// A workspace with its named instances, which are read only where they are an operator's.
#[derive(Debug)]
pub(super) struct CurrentWorkspace {
    pub(super) row: Workspace,
    pub(super) instances: Vec<StoredInstance>,
    /// The workspace as a document has it.
    pub(super) entry: PolicyEntry,
}

/// All workspaces, grants and stops.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) workspaces: BTreeMap<WorkspaceId, Arc<CurrentWorkspace>>,
    /// Removed ids that are of interest.
    pub(super) removed: HashMap<WorkspaceId, Tombstone>,
    pub(super) grants: BTreeMap<(WorkspaceId, WorkspaceId), Grant>,
    /// Stops of operators.
    pub(super) stops: Vec<Stop>,
    /// Stops of operators that name a removed workspace: no part of a document until its id comes back.
    pub(super) dormant: Vec<Stop>,
    /// Stops that org tokens made: no part of a document.
    pub(super) org_stops: Vec<Stop>,
    /// Number of all stops, also those of org tokens.
    pub(super) stop_count: usize,
}

impl State {
    /// Reads the state; `ids`: those that a document names. `None`: there are more than `max` workspaces or grants.
    pub(super) async fn read(
        tx: &mut Connection,
        ids: impl Iterator<Item = WorkspaceId>,
        max: usize,
    ) -> Result<Option<Self>, sqlx::Error> {
        let mut state = Self::default();
        let rows = bulk::load_live(tx, max.saturating_add(1)).await?;
        if rows.len() > max {
            return Ok(None);
        }
        for row in rows {
            let has_list = row.instances > 0 && row.liveness == Liveness::Assumed;
            let instances = match has_list {
                true => bulk::load_instances(tx, &row.id).await?,
                false => Vec::new(),
            };
            let entry = entry_of(&row, &instances);
            let held = Arc::new(CurrentWorkspace {
                entry,
                instances,
                row,
            });
            state.workspaces.insert(held.row.id.clone(), held);
        }
        let parents = state.workspaces.values();
        let parents = parents.filter_map(|held| held.row.parent_id.clone());
        let asked: HashSet<WorkspaceId> = ids
            .chain(parents)
            .filter(|id| !state.workspaces.contains_key(id))
            .collect();
        state.removed = bulk::load_removed(tx, asked).await?.into_iter().collect();
        let grants = BulkGrants::list_all(tx, max.saturating_add(1)).await?;
        if grants.len() > max {
            return Ok(None);
        }
        let now = Timestamp::now();
        for grant in grants {
            let ends = [&grant.caller, &grant.target];
            let holds = grant.expires_at.is_none_or(|end| now < end);
            // A grant of a removed workspace permits nothing any more.
            if holds && ends.iter().all(|id| state.workspaces.contains_key(*id)) {
                let pair = (grant.caller.clone(), grant.target.clone());
                state.grants.insert(pair, grant);
            }
        }
        let stops = Stops::all_in(tx).await?;
        state.stop_count = stops.len();
        let counts = |stop: &Stop| stop.expires_at.is_none_or(|end| now < end);
        let stops = stops.into_iter().filter(counts);
        // Those of org tokens are no policy of operators.
        let (org_stops, stops): (Vec<_>, Vec<_>) = stops.partition(|stop| stop.by_org.is_some());
        state.org_stops = org_stops;
        (state.stops, state.dormant) = stops.into_iter().partition(|stop| {
            let mut named = stop.scope.named_workspaces();
            named.all(|id| state.workspaces.contains_key(id))
        });
        Ok(Some(state))
    }

    /// Returns the state as a document in JSON, with its revision.
    pub(super) fn to_document(&self) -> String {
        let (mut text, revision) = (String::new(), self.revision());
        self.write_document(Some(&revision), &mut |piece| text.push_str(piece));
        text
    }

    /// Passes the document on as text, entry by entry, so that no more than one is in memory as values.
    fn write_document(&self, revision: Option<&str>, out: &mut impl FnMut(&str)) {
        out("{\"grants\":");
        write_list(self.grants.values().map(grant_entry), out);
        if let Some(revision) = revision {
            out(&format!(",\"revision\":\"{revision}\""));
        }
        out(",\"stops\":");
        write_list(self.stops.iter().map(stop_entry), out);
        out(&format!(",\"version\":{VERSION},\"workspaces\":"));
        write_list(self.workspaces.values().map(|held| &held.entry), out);
        out("}");
    }

    /// Returns a hash of all that a document can say.
    pub(super) fn revision(&self) -> String {
        let mut hash = Sha256::new();
        self.write_document(None, &mut |piece| hash.update(piece));
        hex::encode(&hash.finalize()[..16])
    }

    /// True if a difference that was computed from `other` holds for this state.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.revision() == other.revision() && self.stop_ids() == other.stop_ids()
    }

    fn stop_ids(&self) -> HashSet<&str> {
        let stops = self.stops.iter().chain(&self.dormant);
        stops.map(|stop| stop.id.as_str()).collect()
    }

    /// Returns the names of objects that differ between two states, each with its kind.
    pub(super) fn differing_names(&self, other: &Self) -> Vec<Value> {
        let mut found = Vec::new();
        let ids: HashSet<_> = self
            .workspaces
            .keys()
            .chain(other.workspaces.keys())
            .collect();
        for id in ids {
            let [one, two] = [self, other].map(|state| state.workspaces.get(id));
            if one.map(|held| &held.entry) != two.map(|held| &held.entry) {
                found.push(json!({"kind": "workspace", "name": id.as_str()}));
            }
        }
        let pairs: HashSet<_> = self.grants.keys().chain(other.grants.keys()).collect();
        for pair in pairs {
            let of = |state: &Self| state.grants.get(pair).map(grant_entry);
            if of(self) != of(other) {
                found.push(json!({"kind": "grant", "name": grant_name(&pair.0, &pair.1)}));
            }
        }
        for id in self.stop_ids().symmetric_difference(&other.stop_ids()) {
            found.push(json!({"kind": "stop", "name": id}));
        }
        found.sort_by_key(ToString::to_string);
        found
    }
}

fn write_list<T: Serialize>(entries: impl Iterator<Item = T>, out: &mut impl FnMut(&str)) {
    out("[");
    for (n, entry) in entries.enumerate() {
        if n > 0 {
            out(",");
        }
        out(&json!(members_without(&entry, &[])).to_string());
    }
    out("]");
}

/// Returns the name of a grant in differences.
pub(super) fn grant_name(caller: &WorkspaceId, target: &WorkspaceId) -> String {
    format!("{caller} -> {target}")
}

/// Returns the name of a stop in differences: its scope and mode.
pub(super) fn stop_name(entry: &StopEntry) -> String {
    let text = |name: &str| entry.scope.get(name).and_then(Value::as_str).unwrap_or("");
    let scope = match entry.scope.keys().map(String::as_str).collect::<Vec<_>>()[..] {
        [name @ ("workspace" | "subtree" | "org")] => format!("{name} {}", text(name)),
        ["all"] => "all".to_owned(),
        _ => format!("{} -> {}", text("caller"), text("target")),
    };
    format!("{scope} ({})", entry.mode)
}

impl CurrentWorkspace {
    /// True if a row, with all of its instances, says the same as this one.
    pub(super) fn is_as(&self, row: &Workspace, instances: &[StoredInstance]) -> bool {
        let is_assumed = row.liveness == Liveness::Assumed;
        let instances = if is_assumed { instances } else { &[] };
        entry_of(row, instances) == self.entry
    }
}

fn entry_of(row: &Workspace, instances: &[StoredInstance]) -> PolicyEntry {
    let mut entry = PolicyEntry::from_settings(&row.id, &row.settings);
    let is_reported = reports_itself(row, instances);
    entry.urls = listed_urls(row, instances).filter(|_| !is_reported);
    if is_reported || entry.urls.is_some() {
        (entry.url, entry.internal_url) = (None, None);
    }
    entry.paused = Some(row.status == Status::Paused);
    leave_defaults_out(&mut entry);
    entry
}

/// Leaves out the members that have their defaults, but are always stored.
pub(super) fn leave_defaults_out(entry: &mut PolicyEntry) {
    entry.name = entry.name.take().filter(|name| *name != entry.id);
    entry.delivery_mode = entry
        .delivery_mode
        .filter(|mode| *mode != DeliveryMode::Push);
    entry.liveness = entry
        .liveness
        .filter(|liveness| *liveness != Liveness::Heartbeat);
    entry.paused = entry.paused.filter(|paused| *paused);
}

/// Returns a grant as a document has it.
pub(super) fn grant_entry(grant: &Grant) -> GrantEntry {
    GrantEntry {
        caller_id: grant.caller.to_string(),
        target_id: grant.target.to_string(),
        note: grant.note.clone(),
        expires_at: grant.expires_at.map(|at| at.to_string()),
    }
}

/// Returns a stop as a document has it.
pub(super) fn stop_entry(stop: &Stop) -> StopEntry {
    let scope = match stop.scope.to_json() {
        Value::Object(scope) => scope,
        _ => Map::new(),
    };
    StopEntry {
        scope,
        mode: stop.mode.as_str().to_owned(),
        reason: stop.reason.clone(),
        expires_at: stop.expires_at.map(|at| at.to_string()),
    }
}

/// Returns the members of a workspace that differences show.
pub(super) fn compared_members(entry: &PolicyEntry) -> Map<String, Value> {
    members_without(entry, &["id"])
}
