//! Who reaches whom, by which rule: rows for pairs, and one row for workspaces that all reach each other.

use std::collections::BTreeSet;

use serde::Serialize;

use super::world::World;
use access::hierarchy::Rule;

/// A pair, or a group of workspaces that all reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessRow {
    /// Its place in the order of rows, groups first. No id has a space in it.
    #[serde(skip)]
    pub key: String,
    /// The caller of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The target of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The members of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Vec<String>>,
    /// The rule.
    pub rule: &'static str,
}

/// Returns all rows, in order. That a workspace reaches itself is not told.
pub(super) fn list_rows(world: &World) -> Vec<AccessRow> {
    let open: Vec<bool> = (0..world.places().len())
        .map(|n| world.is_open(n))
        .collect();
    let is_open = |n: &usize| open.get(*n) == Some(&true);
    let name = |n: usize| world.place(n).id.to_string();
    let mut rows = Vec::new();
    let mut pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
    for ((org, parent), members) in world.groups() {
        let members: Vec<usize> = members.iter().copied().filter(is_open).collect();
        // Between these a stop of a pair stands, so not all of them reach each other.
        let mut apart = BTreeSet::new();
        for caller in &members {
            let stopped = world.stopped_targets(*caller).iter();
            for target in stopped.filter(|target| world.is_same_group(*caller, **target)) {
                apart.extend([*caller, *target]);
            }
        }
        for one in apart.iter().filter(|one| is_open(one)) {
            let others = members.iter();
            pairs.extend(others.flat_map(|other| [(*one, *other), (*other, *one)]));
        }
        let whole = members.into_iter().filter(|n| !apart.contains(n));
        let group: Vec<String> = whole.map(name).collect();
        let [org, above] = [
            org.as_deref(),
            parent.as_ref().map(kernel::ids::WorkspaceId::as_str),
        ]
        .map(Option::unwrap_or_default);
        let rule = parent
            .as_ref()
            .map_or(Rule::RootSibling, |_| Rule::Sibling)
            .as_str();
        if group.len() > 1 {
            rows.push(AccessRow {
                key: format!("0{above} {org}"),
                caller: None,
                target: None,
                group: Some(group),
                rule,
            });
        }
    }
    for caller in (0..open.len()).filter(is_open) {
        pairs.extend(world.neighbours(caller).into_iter().map(|to| (caller, to)));
    }
    let apart = pairs
        .into_iter()
        .filter(|(caller, target)| caller != target);
    rows.extend(apart.filter_map(|(caller, target)| {
        let rule = world.permit(caller, target).ok()?.as_str();
        let [caller, target] = [caller, target].map(name);
        Some(AccessRow {
            key: format!("1{caller} {target}"),
            caller: Some(caller),
            target: Some(target),
            group: None,
            rule,
        })
    }));
    rows.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    rows
}
