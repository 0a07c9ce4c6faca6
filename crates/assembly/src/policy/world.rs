//! All workspaces, grants and stops at one time, in memory, and the decision of who may reach whom: [`World::permit`],
//! which statements, the matrix and replays ask. Health and pauses are no matter of it.
//!
//! Nothing here walks all pairs. Whom a workspace may reach is either among a few that its place names
//! ([`World::neighbours`]), or in its group, all of which reach each other: siblings, and roots of one org.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::plan::Plan;
use super::state::State;
use super::tree::Tree;
use access::hierarchy::{Denial, Lineage, Rule, decide};
use directory::stops::{ActiveStops, End, Scope, Stop};
use kernel::config::LineageReach;
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;

/// Why a call is refused.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// CanCommunicate denies it.
    Denied(Denial),
    /// A stop covers it.
    Stopped(Arc<Stop>),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Denied(why) => write!(to, "{why}"),
            Self::Stopped(stop) => write!(to, "stopped: {}", stop.reason),
        }
    }
}

/// Workspaces that reach each other: their org and their parent.
pub(super) type GroupKey = (Option<String>, Option<WorkspaceId>);

/// The facts of all decisions. Workspaces have numbers, in the order of their ids; removed ones have none.
pub(super) struct World {
    places: Vec<Lineage>,
    numbers: HashMap<WorkspaceId, usize>,
    /// The children of each; with `access.lineage = "any"` all below it.
    below: Vec<Vec<usize>>,
    /// The targets that each was granted, in order.
    grants: HashMap<usize, Vec<usize>>,
    groups: BTreeMap<GroupKey, Vec<usize>>,
    stops: ActiveStops,
    /// The targets to which calls of each are stopped by a stop of the pair.
    stopped_pairs: HashMap<usize, Vec<usize>>,
    reach: LineageReach,
}

impl World {
    /// Returns the facts as they are.
    pub(super) fn present(state: &State, reach: LineageReach) -> Self {
        let stops = state.stops.iter().chain(&state.org_stops).cloned();
        let pairs = state.grants.keys();
        Self::new(&Tree::from_state(state), pairs, stops.collect(), reach)
    }

    /// Returns the facts as they are once `plan` is applied.
    pub(super) fn planned(state: &State, plan: &Plan, reach: LineageReach) -> Self {
        let gone: HashSet<_> = plan.ungranted.iter().map(|(_, pair)| pair).collect();
        let kept = state.grants.keys().filter(|pair| !gone.contains(pair));
        let made = plan
            .grants
            .iter()
            .map(|new| (new.caller.clone(), new.target.clone()));
        let made: Vec<_> = made.collect();
        let released = |stop: &&Stop| !plan.released.contains(&stop.id);
        // Those of ids that come back cover them again.
        let held = state.stops.iter().chain(&state.dormant).filter(released);
        let mut stops: Vec<Stop> = held.chain(&state.org_stops).cloned().collect();
        stops.extend(plan.stops.iter().map(|new| new.to_stop("planned")));
        Self::new(&plan.after, kept.chain(&made), stops, reach)
    }

    /// Builds it of places, pairs that are granted, and stops.
    pub(super) fn new<'a>(
        tree: &Tree,
        granted: impl Iterator<Item = &'a (WorkspaceId, WorkspaceId)>,
        stops: Vec<Stop>,
        reach: LineageReach,
    ) -> Self {
        let lines = tree.live_ids().map(|id| tree.line_of(id));
        let mut places: Vec<Lineage> = lines.filter_map(Lineage::from_line).collect();
        places.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        let numbered = places.iter().enumerate();
        let numbers: HashMap<_, _> = numbered.map(|(n, place)| (place.id.clone(), n)).collect();
        let number = |id: &WorkspaceId| numbers.get(id).copied();
        let mut below = vec![Vec::new(); places.len()];
        let mut groups: BTreeMap<GroupKey, Vec<usize>> = BTreeMap::new();
        for (n, place) in places.iter().enumerate() {
            let levels = match reach {
                LineageReach::Direct => 1,
                LineageReach::Any => place.ancestors.len(),
            };
            for above in place.ancestors.iter().take(levels).filter_map(number) {
                if let Some(below) = below.get_mut(above) {
                    below.push(n);
                }
            }
            if !place.cyclic {
                let key = (place.org.clone(), place.parent().cloned());
                groups.entry(key).or_default().push(n);
            }
        }
        let pair_of =
            |(caller, target): (&WorkspaceId, &WorkspaceId)| number(caller).zip(number(target));
        let grants = index_pairs(granted.filter_map(|pair| pair_of((&pair.0, &pair.1))));
        let stopped = stops.iter().filter_map(|stop| match &stop.scope {
            Scope::Pair(caller, target) => pair_of((caller, target)),
            _ => None,
        });
        let stopped_pairs = index_pairs(stopped);
        Self {
            stops: ActiveStops::new(stops, Timestamp::now()),
            places,
            numbers,
            below,
            grants,
            groups,
            stopped_pairs,
            reach,
        }
    }

    /// Decides whether one workspace may reach another, by CanCommunicate, grants and stops.
    ///
    /// # Errors
    /// The first reason that refuses it.
    pub(super) fn permit(&self, caller: usize, target: usize) -> Result<Rule, Refusal> {
        let [from, to] = [caller, target].map(|n| self.place(n));
        let rule = match decide(from, to, self.reach) {
            Err(why) if why.may_be_granted() && self.has_grant(caller, target) => Rule::Grant,
            Err(why) => return Err(Refusal::Denied(why)),
            Ok(rule) => rule,
        };
        let ends = [from, to].map(|place| End::at_workspace(&place.id, Some(place)));
        match self.stops.find(&ends, false) {
            Some(stop) => Err(Refusal::Stopped(stop)),
            None => Ok(rule),
        }
    }

    /// True if it makes and takes calls at all: no stop covers all of them.
    pub(super) fn is_open(&self, n: usize) -> bool {
        let place = self.place(n);
        let end = End::at_workspace(&place.id, Some(place));
        self.stops.find(&[end, End::of_org(None)], false).is_none()
    }

    fn has_grant(&self, caller: usize, target: usize) -> bool {
        let granted = self.grants.get(&caller);
        granted.is_some_and(|targets| targets.binary_search(&target).is_ok())
    }

    /// Returns the workspaces outside of its group that it may reach, if [`World::permit`] says so, and itself. None
    /// stands twice.
    pub(super) fn neighbours(&self, n: usize) -> Vec<usize> {
        let place = self.place(n);
        let levels = match self.reach {
            LineageReach::Direct => 1,
            LineageReach::Any => place.ancestors.len(),
        };
        let above = place.ancestors.iter().take(levels);
        let mut found: Vec<usize> = above.filter_map(|id| self.number(id)).collect();
        found.extend(self.below.get(n).into_iter().flatten());
        let granted = self.grants.get(&n).into_iter().flatten().copied();
        found.extend(granted.filter(|target| !self.is_same_group(n, *target)));
        found.push(n);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// True if two are in one group.
    pub(super) fn is_same_group(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|n| self.place(n));
        !one.cyclic && !other.cyclic && one.org == other.org && one.parent() == other.parent()
    }

    /// Returns the targets of stops of a pair of which `n` is the caller.
    pub(super) fn stopped_targets(&self, n: usize) -> &[usize] {
        self.stopped_pairs.get(&n).map_or(&[], Vec::as_slice)
    }

    /// Returns the groups, each in order. A workspace of a line with a cycle is in none.
    pub(super) fn groups(&self) -> &BTreeMap<GroupKey, Vec<usize>> {
        &self.groups
    }

    /// Returns the number of a workspace.
    pub(super) fn number(&self, id: &WorkspaceId) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    /// Returns the place of a workspace.
    pub(super) fn place(&self, n: usize) -> &Lineage {
        self.places.get(n).expect("numbers are those of this world")
    }

    /// Returns the places, by number.
    pub(super) fn places(&self) -> &[Lineage] {
        &self.places
    }

    /// Returns a stop over all calls of a caller that is no workspace, of an org, to a target.
    pub(super) fn find_stop_of_org(&self, org: Option<&str>, target: usize) -> Option<Arc<Stop>> {
        let place = self.place(target);
        let end = End::at_workspace(&place.id, Some(place));
        self.stops.find(&[End::of_org(org), end], false)
    }
}

fn index_pairs(pairs: impl Iterator<Item = (usize, usize)>) -> HashMap<usize, Vec<usize>> {
    let mut index: HashMap<usize, Vec<usize>> = HashMap::new();
    for (caller, target) in pairs {
        index.entry(caller).or_default().push(target);
    }
    for targets in index.values_mut() {
        targets.sort_unstable();
        targets.dedup();
    }
    index
}
