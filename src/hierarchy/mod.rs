//! May they: CanCommunicate, the rule of contract §2.1. Its relations are pure, here; facts are loaded
//! in [`lineage`] and [`grant`], and the rule is asked in [`permit`] and [`reach`].
//!
//! Invariants: no relation crosses orgs and only a grant does, none reaches a removed workspace or goes through one, and
//! data with a cycle denies. A [`Permit`] exists only where the rule said yes.

mod grant;
mod lineage;
mod permit;
mod reach;

use crate::config::LineageReach;
use crate::ids::WorkspaceId;

pub use self::grant::{Grant, NewGrant};
pub use self::permit::{Hierarchy, Permit};
pub use self::reach::Reached;

/// A workspace's place: who is above it, nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The workspace.
    pub id: WorkspaceId,
    /// Whom it belongs to; no org counts as one org.
    pub org: Option<String>,
    /// Its parent, the parent's parent, and so on. Ends with the first removed one, which is kept,
    /// since its other children are still siblings.
    pub ancestors: Vec<WorkspaceId>,
    /// Whether it was removed.
    pub removed: bool,
    /// Whether it is paused. A place that was told of or concluded does not say so.
    pub paused: bool,
    /// Whether the line leads back into itself, or is longer than any that we made.
    pub cyclic: bool,
    /// The access generation: when anyone in the line last moved, in milliseconds since 1970, so that
    /// it grows with each move. 0: nobody ever did; or the place was told of or concluded, and not read.
    pub generation: i64,
}

impl Lineage {
    /// The workspace above it.
    pub fn parent(&self) -> Option<&WorkspaceId> {
        self.ancestors.first()
    }

    fn descends_from(&self, other: &Self) -> bool {
        self.ancestors.contains(&other.id)
    }
}

/// What the caller is to the target: why it may. The first that holds, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// It is the target.
    SelfRule,
    /// It is the target's parent.
    Parent,
    /// It is the target's child.
    Child,
    /// Both have the same parent.
    Sibling,
    /// Both have none, in one org.
    RootSibling,
    /// It is further up the target's line.
    Ancestor,
    /// It is further down the target's line.
    Descendant,
    /// An explicit, unexpired grant.
    Grant,
    /// A canvas user whose token covers the target.
    Canvas,
    /// An integration of the target's org.
    Org,
    /// An operator.
    Operator,
}

impl Rule {
    /// The word in answers, the record and the log.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SelfRule => "self",
            Self::Parent => "parent",
            Self::Child => "child",
            Self::Sibling => "sibling",
            Self::RootSibling => "root_sibling",
            Self::Ancestor => "ancestor",
            Self::Descendant => "descendant",
            Self::Grant => "grant",
            Self::Canvas => "canvas",
            Self::Org => "org",
            Self::Operator => "operator",
        }
    }
}

/// Why the rule says no. For the log and for operators; a caller is told no more than `not_permitted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
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

impl Denied {
    /// Whether a grant may say otherwise.
    const fn may_be_granted(self) -> bool {
        matches!(self, Self::OtherOrg | Self::FurtherUp | Self::Unrelated)
    }
}

/// The relations of CanCommunicate (contract §2.1): whether `caller` may message `target` by its place,
/// and as what. The whole rule, grants included, is [`Hierarchy::rule`].
///
/// # Errors
/// [`Denied`], with the first reason that applies.
pub fn decide(caller: &Lineage, target: &Lineage, reach: LineageReach) -> Result<Rule, Denied> {
    if caller.removed || target.removed {
        return Err(Denied::Removed);
    }
    if caller.cyclic || target.cyclic {
        return Err(Denied::Cyclic);
    }
    if caller.id == target.id {
        return Ok(Rule::SelfRule);
    }
    relation(caller, target, reach)
}

fn relation(caller: &Lineage, target: &Lineage, reach: LineageReach) -> Result<Rule, Denied> {
    if caller.org != target.org {
        return Err(Denied::OtherOrg);
    }
    match (caller.parent(), target.parent()) {
        (_, Some(parent)) if *parent == caller.id => return Ok(Rule::Parent),
        (Some(parent), _) if *parent == target.id => return Ok(Rule::Child),
        // Also when that parent was removed: children keep their place, and one another.
        (Some(one), Some(other)) if one == other => return Ok(Rule::Sibling),
        (None, None) => return Ok(Rule::RootSibling),
        _ => {}
    }
    let rule = if target.descends_from(caller) {
        Rule::Ancestor
    } else if caller.descends_from(target) {
        Rule::Descendant
    } else {
        return Err(Denied::Unrelated);
    };
    match reach {
        LineageReach::Any => Ok(rule),
        LineageReach::Direct => Err(Denied::FurtherUp),
    }
}

#[cfg(test)]
mod tests;
