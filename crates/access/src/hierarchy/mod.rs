//! CanCommunicate, the access rule (`docs/reference/credentials.md`, "CanCommunicate"). Its relations are pure
//! functions in this file; facts are loaded in [`lineage`] and [`grant`], and the rule is applied in [`permit`] and
//! [`reach`], which also has what a principal that is no workspace may reach.
//!
//! Invariants: no relation crosses orgs, only a grant does; no relation reaches a removed workspace or passes
//! through one; data with a cycle denies. A [`Permit`] exists only where the rule allowed it.

mod grant;
mod lineage;
mod permit;
mod reach;

pub use self::grant::{BulkGrants, Grant, NewGrant, check_grant_party};
pub use self::permit::{Hierarchy, Permit, workspace_removed};
pub use self::reach::{ReachablePage, not_found};
use kernel::closed_set::words;
use kernel::config::LineageReach;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

/// The place of a workspace in the hierarchy: its ancestors, nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The workspace.
    pub id: WorkspaceId,
    /// The org; workspaces without an org count as one org.
    pub org: Option<String>,
    /// Its parent, the parent's parent, and so on. Ends with the first removed one, which is included, since
    /// its other children are still siblings.
    pub ancestors: Vec<WorkspaceId>,
    /// True if it was removed.
    pub removed: bool,
    /// True if it is paused. A lineage that was derived rather than read does not have this.
    pub paused: bool,
    /// True if the line leads back into itself, or is longer than the gateway allows.
    pub cyclic: bool,
    /// The access generation: the time of the last move in the line, in milliseconds since 1970, so that it
    /// grows with each move. 0: there was none; or the lineage was derived rather than read.
    pub generation: i64,
    /// Time at which this life of the id began, in milliseconds since 1970; 0: it is the first, or the lineage was
    /// derived rather than read.
    pub born_at: i64,
}

impl Lineage {
    /// Returns the parent.
    pub fn parent(&self) -> Option<&WorkspaceId> {
        self.ancestors.first()
    }

    fn descends_from(&self, other: &Self) -> bool {
        self.ancestors.contains(&other.id)
    }
}

/// Maximum characters of an operator's note.
const NOTE_CHARS_MAX: usize = 256;

/// Checks an operator's note on a grant or a token.
///
/// # Errors
/// `invalid_params`.
pub fn check_note(note: Option<&str>) -> Result<(), Rejection> {
    let fits =
        |note: &str| note.chars().count() <= NOTE_CHARS_MAX && !note.chars().any(char::is_control);
    if note.is_none_or(fits) {
        return Ok(());
    }
    let message = "`note` has at most 256 characters, none of them a control character";
    Err(Rejection::new(Reason::InvalidParams, message))
}

/// Returns the place of a workspace below `above`, nearest first, for tests of rooms that need one.
#[cfg(any(test, feature = "testing"))]
pub fn lineage_of(name: &str, org: Option<&str>, above: &[&str]) -> Lineage {
    let id = |text: &str| WorkspaceId::parse(text).expect("a name in a test is valid");
    Lineage {
        id: id(name),
        org: org.map(str::to_owned),
        ancestors: above.iter().map(|name| id(name)).collect(),
        removed: false,
        paused: false,
        cyclic: false,
        generation: 0,
        born_at: 0,
    }
}

words! {
    /// The relation of the caller to the target that allows access. The first that holds, in this order.
    Rule {
        /// The caller is the target.
        SelfRule => "self",
        /// The caller is the target's parent.
        Parent => "parent",
        /// The caller is the target's child.
        Child => "child",
        /// Both have the same parent.
        Sibling => "sibling",
        /// Both have no parent, in one org.
        RootSibling => "root_sibling",
        /// The caller is a further ancestor of the target.
        Ancestor => "ancestor",
        /// The caller is a further descendant of the target.
        Descendant => "descendant",
        /// An explicit, unexpired grant.
        Grant => "grant",
        /// A canvas user with a token that covers the target.
        Canvas => "canvas",
        /// An integration of the target's org.
        Org => "org",
        /// An operator.
        Operator => "operator",
    }
}

/// The reason why the rule denies access. For logs and operators; a caller gets only `not_permitted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// One of the two was removed, and is in no relation.
    #[error("one of the two workspaces was removed")]
    Removed,
    /// The data has a cycle, so no relation can be trusted.
    #[error("the line of one of the two workspaces has a cycle")]
    Cyclic,
    /// They belong to different orgs, which only a grant joins.
    #[error("the two workspaces belong to different orgs, and there is no grant")]
    OtherOrg,
    /// Same org and one line, more than one step apart, with `access.lineage = "direct"`.
    #[error(
        "one of the two workspaces is further up the other's line, which counts only with access.lineage = \"any\", \
         and there is no grant"
    )]
    FurtherUp,
    /// Same org, and no relation.
    #[error("the two workspaces are not related, and there is no grant")]
    Unrelated,
}

impl Denial {
    /// True if a grant can allow the access.
    pub const fn may_be_granted(self) -> bool {
        matches!(self, Self::OtherOrg | Self::FurtherUp | Self::Unrelated)
    }
}

/// Decides by the relations of CanCommunicate whether `caller` may message `target`. The whole rule, grants
/// included, is [`Hierarchy::find_rule`].
///
/// # Errors
/// [`Denial`], with the first reason that applies.
pub fn decide(caller: &Lineage, target: &Lineage, reach: LineageReach) -> Result<Rule, Denial> {
    if caller.removed || target.removed {
        return Err(Denial::Removed);
    }
    if caller.cyclic || target.cyclic {
        return Err(Denial::Cyclic);
    }
    if caller.id == target.id {
        return Ok(Rule::SelfRule);
    }
    if caller.org != target.org {
        return Err(Denial::OtherOrg);
    }
    match (caller.parent(), target.parent()) {
        (_, Some(parent)) if *parent == caller.id => return Ok(Rule::Parent),
        (Some(parent), _) if *parent == target.id => return Ok(Rule::Child),
        // Holds also if that parent was removed: its children keep their place and stay siblings.
        (Some(one), Some(other)) if one == other => return Ok(Rule::Sibling),
        (None, None) => return Ok(Rule::RootSibling),
        _ => {}
    }
    let rule = if target.descends_from(caller) {
        Rule::Ancestor
    } else if caller.descends_from(target) {
        Rule::Descendant
    } else {
        return Err(Denial::Unrelated);
    };
    match reach {
        LineageReach::Any => Ok(rule),
        LineageReach::Direct => Err(Denial::FurtherUp),
    }
}

#[cfg(test)]
mod tests;
