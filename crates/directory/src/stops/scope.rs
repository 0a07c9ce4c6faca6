//! The workspaces that a stop covers, and the ends of a call that it is compared with.

use serde_json::{Value, json};

use access::hierarchy::{Lineage, Permit};
use kernel::ids::WorkspaceId;

/// The calls that a stop covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Calls from and to one workspace.
    Workspace(WorkspaceId),
    /// Calls from and to a workspace or one below it.
    Subtree(WorkspaceId),
    /// Calls from and to the workspaces of an org, and those of its users and integrations.
    Org(String),
    /// Calls of the first to the second.
    Pair(WorkspaceId, WorkspaceId),
    /// All calls.
    All,
}

impl Scope {
    /// Returns the kind, the name and the target, as the table has them.
    pub(super) fn to_columns(&self) -> [&str; 3] {
        match self {
            Self::Workspace(id) => ["workspace", id.as_str(), ""],
            Self::Subtree(id) => ["subtree", id.as_str(), ""],
            Self::Org(org) => ["org", org, ""],
            Self::Pair(caller, target) => ["pair", caller.as_str(), target.as_str()],
            Self::All => ["all", "", ""],
        }
    }

    /// Reads what [`Scope::to_columns`] returns.
    pub(super) fn from_columns([kind, name, target]: [&str; 3]) -> Option<Self> {
        let id = |text| WorkspaceId::parse(text).ok();
        Some(match kind {
            "workspace" => Self::Workspace(id(name)?),
            "subtree" => Self::Subtree(id(name)?),
            "org" => Self::Org(name.to_owned()),
            "pair" => Self::Pair(id(name)?, id(target)?),
            "all" => Self::All,
            _ => return None,
        })
    }

    /// Returns the form in requests and answers.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Workspace(id) => json!({"workspace": id.as_str()}),
            Self::Subtree(id) => json!({"subtree": id.as_str()}),
            Self::Org(org) => json!({"org": org}),
            Self::Pair(caller, target) => {
                json!({"caller": caller.as_str(), "target": target.as_str()})
            }
            Self::All => json!({"all": true}),
        }
    }

    /// Returns the workspaces that it names.
    pub fn named_workspaces(&self) -> impl Iterator<Item = &WorkspaceId> {
        let named = match self {
            Self::Workspace(id) | Self::Subtree(id) => [Some(id), None],
            Self::Pair(caller, target) => [Some(caller), Some(target)],
            Self::Org(_) | Self::All => [None, None],
        };
        named.into_iter().flatten()
    }
}

/// One end of a call.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The workspace; `None`: a user, an integration or an operator.
    pub id: Option<&'a WorkspaceId>,
    /// The org; `None` also if it is unknown.
    pub org: Option<&'a str>,
    /// Its ancestors; none if they are unknown.
    pub ancestors: &'a [WorkspaceId],
}

impl<'a> End<'a> {
    /// Returns the end at a workspace.
    pub fn at_workspace(id: &'a WorkspaceId, place: Option<&'a Lineage>) -> Self {
        Self {
            id: Some(id),
            org: place.and_then(|place| place.org.as_deref()),
            ancestors: place.map_or(&[], |place| &place.ancestors),
        }
    }

    /// True if it is at this workspace, or at one below it.
    pub(super) fn is_below(&self, root: &WorkspaceId) -> bool {
        self.id == Some(root) || self.ancestors.contains(root)
    }

    /// Returns the end at a caller that is no workspace.
    pub fn of_org(org: Option<&'a str>) -> Self {
        Self {
            id: None,
            org,
            ancestors: &[],
        }
    }
}

/// The ends of a call, as a permit found them.
pub(super) fn call_ends(permit: &Permit) -> [End<'_>; 2] {
    let caller = match permit.caller() {
        Some(id) => End::at_workspace(id, permit.caller_lineage()),
        None => End::of_org(permit.org()),
    };
    [
        caller,
        End::at_workspace(permit.target(), permit.target_lineage()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_was_written() {
        let id = |text| WorkspaceId::parse(text).unwrap();
        for scope in [
            Scope::Workspace(id("dev")),
            Scope::Subtree(id("dev")),
            Scope::Org("acme".to_owned()),
            Scope::Pair(id("dev"), id("qa")),
            Scope::All,
        ] {
            assert_eq!(Scope::from_columns(scope.to_columns()), Some(scope));
        }
        assert_eq!(Scope::from_columns(["workspace", "a b", ""]), None);
        assert_eq!(Scope::from_columns(["other", "dev", ""]), None);
    }
}
