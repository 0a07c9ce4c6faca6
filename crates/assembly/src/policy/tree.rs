//! The tree of workspaces in memory, as it is and as it will be: what the rules of the single routes read of the store.

use std::collections::{HashMap, HashSet};

use super::state::State;
use access::workspace::{LINE_MAX, Step, StoredInstance, Surroundings};
use kernel::ids::WorkspaceId;

/// The place of a workspace.
#[derive(Clone, Debug)]
pub(super) struct TreeNode {
    pub(super) parent: Option<WorkspaceId>,
    pub(super) org: Option<String>,
    pub(super) removed: bool,
}

/// The places of all workspaces.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    places: HashMap<WorkspaceId, TreeNode>,
    children: HashMap<WorkspaceId, Vec<WorkspaceId>>,
}

impl Tree {
    /// Returns the present tree.
    pub(super) fn from_state(state: &State) -> Self {
        let mut tree = Self::default();
        for (id, held) in &state.workspaces {
            let place = TreeNode {
                parent: held.row.parent_id.clone(),
                org: held.row.org.clone(),
                removed: false,
            };
            tree.places.insert(id.clone(), place);
        }
        for (id, gone) in &state.removed {
            let place = TreeNode {
                parent: gone.parent_id.clone(),
                org: None,
                removed: true,
            };
            tree.places.insert(id.clone(), place);
        }
        tree
    }

    /// Puts a workspace at a place.
    pub(super) fn insert(&mut self, id: &WorkspaceId, place: TreeNode) {
        self.places.insert(id.clone(), place);
    }

    /// Removes a workspace; it keeps its parent.
    pub(super) fn remove(&mut self, id: &WorkspaceId) {
        if let Some(place) = self.places.get_mut(id) {
            place.removed = true;
        }
    }

    /// Returns the place of a workspace.
    pub(super) fn get(&self, id: &WorkspaceId) -> Option<&TreeNode> {
        self.places.get(id)
    }

    /// Returns the workspaces that were not removed.
    pub(super) fn live_ids(&self) -> impl Iterator<Item = &WorkspaceId> {
        let live = self.places.iter().filter(|(_, place)| !place.removed);
        live.map(|(id, _)| id)
    }

    /// Sets orgs that are not said: that of the parent. `unsaid`: the workspaces below a parent that say none.
    pub(super) fn inherit_orgs(&mut self, unsaid: &HashSet<WorkspaceId>) {
        for id in unsaid {
            let mut above = id;
            let mut org = None;
            for _ in 0..=LINE_MAX {
                let Some(parent) = self
                    .places
                    .get(above)
                    .and_then(|place| place.parent.as_ref())
                else {
                    break;
                };
                if unsaid.contains(parent) {
                    above = parent;
                    continue;
                }
                org = self.places.get(parent).and_then(|place| place.org.clone());
                break;
            }
            if let Some(place) = self.places.get_mut(id) {
                place.org = org;
            }
        }
    }

    /// Finds the children of each workspace. Called once all of them have their places.
    pub(super) fn index_children(&mut self) {
        self.children.clear();
        for (id, place) in &self.places {
            if let (Some(parent), false) = (&place.parent, place.removed) {
                let children = self.children.entry(parent.clone()).or_default();
                children.push(id.clone());
            }
        }
    }

    /// Returns a workspace and its ancestors, nearest first, up to the first removed one; at most one more than
    /// [`LINE_MAX`]. Empty: there is none of this id.
    pub(super) fn line_of(&self, id: &WorkspaceId) -> Vec<Step> {
        let mut line = Vec::new();
        let mut next = Some(id);
        while let Some((id, place)) = next.and_then(|id| self.places.get_key_value(id)) {
            line.push(Step {
                id: id.clone(),
                parent_id: place.parent.clone(),
                org: place.org.clone(),
                removed: place.removed,
                paused: false,
                generation: 0,
                born_at: 0,
            });
            if line.len() > LINE_MAX || (place.removed && line.len() > 1) {
                break;
            }
            next = place.parent.as_ref();
        }
        line
    }

    /// Returns the surroundings of a workspace at its place in this tree. `line`: as it is in the present one.
    pub(super) fn surroundings_of(
        &self,
        id: &WorkspaceId,
        line: Vec<Step>,
        instances: Vec<StoredInstance>,
    ) -> Surroundings {
        let place = self.places.get(id);
        let parent = place.and_then(|place| place.parent.as_ref());
        Surroundings {
            line,
            above: parent.map_or(Vec::new(), |parent| self.line_of(parent)),
            is_circular: parent.is_some_and(|parent| self.is_above(id, parent)),
            height: self.height_of(id),
            leaves_children: self.leaves_children(id),
            instances,
        }
    }

    /// True if a child of the workspace is in another org.
    pub(super) fn leaves_children(&self, id: &WorkspaceId) -> bool {
        let org = self.places.get(id).and_then(|place| place.org.as_ref());
        let mut children = self.children.get(id).into_iter().flatten();
        children.any(|child| self.places.get(child).and_then(|place| place.org.as_ref()) != org)
    }

    /// True if `upper` is `lower` or above it, with removed ones in between counted.
    fn is_above(&self, upper: &WorkspaceId, lower: &WorkspaceId) -> bool {
        let mut seen = HashSet::new();
        let mut next = Some(lower);
        while let Some(id) = next {
            if id == upper {
                return true;
            }
            if !seen.insert(id) {
                return false;
            }
            next = self.places.get(id).and_then(|place| place.parent.as_ref());
        }
        false
    }

    /// Returns the levels below a workspace.
    pub(super) fn height_of(&self, id: &WorkspaceId) -> usize {
        let mut level = vec![id];
        for height in 0..=LINE_MAX {
            let below = level.iter().flat_map(|id| self.children.get(*id));
            level = below.flatten().collect();
            if level.is_empty() {
                return height;
            }
        }
        LINE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn tree(places: &[(&str, Option<&str>, Option<&str>)]) -> Tree {
        let mut tree = Tree::default();
        for (name, parent, org) in places {
            let place = TreeNode {
                parent: parent.map(id),
                org: org.map(str::to_owned),
                removed: false,
            };
            tree.insert(&id(name), place);
        }
        tree.index_children();
        tree
    }

    #[test]
    fn places_are_read_as_the_store_reads_them() {
        let tree = tree(&[
            ("root", None, Some("a")),
            ("mid", Some("root"), Some("a")),
            ("low", Some("mid"), Some("b")),
        ]);
        let line: Vec<_> = tree
            .line_of(&id("low"))
            .into_iter()
            .map(|step| step.id)
            .collect();
        assert_eq!(line, [id("low"), id("mid"), id("root")]);
        assert_eq!(
            (tree.height_of(&id("root")), tree.height_of(&id("low"))),
            (2, 0)
        );
        assert!(tree.leaves_children(&id("mid")) && !tree.leaves_children(&id("root")));
        assert!(
            !tree
                .surroundings_of(&id("low"), Vec::new(), Vec::new())
                .is_circular
        );
        assert_eq!(tree.line_of(&id("none")).len(), 0);
    }

    #[test]
    fn a_circle_is_found_from_each_of_its_workspaces_and_has_an_end() {
        let tree = tree(&[
            ("a", Some("b"), None),
            ("b", Some("c"), None),
            ("c", Some("a"), None),
        ]);
        for name in ["a", "b", "c"] {
            assert!(
                tree.surroundings_of(&id(name), Vec::new(), Vec::new())
                    .is_circular
            );
        }
        assert_eq!(tree.line_of(&id("a")).len(), LINE_MAX + 1);
        assert_eq!(tree.height_of(&id("a")), LINE_MAX);
    }

    #[test]
    fn an_org_that_is_not_said_is_that_of_the_next_workspace_above_that_says_one() {
        let mut tree = tree(&[
            ("root", None, Some("a")),
            ("mid", Some("root"), None),
            ("low", Some("mid"), None),
            ("lost", Some("nothing"), None),
        ]);
        tree.inherit_orgs(&["mid", "low", "lost"].map(id).into_iter().collect());
        let org = |name: &str| tree.get(&id(name)).and_then(|place| place.org.clone());
        assert_eq!(org("low").as_deref(), Some("a"));
        assert_eq!(org("lost"), None);
    }
}
