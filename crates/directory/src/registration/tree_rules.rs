//! Rules for the parent and org of a workspace, without I/O. The facts are read, and locked, by
//! [`Workspaces::change`](access::workspace::Workspaces::change).

use crate::rejections::{conflict, not_permitted};
use access::workspace::{LINE_MAX, Move, Settings, Step, Surroundings, Workspace};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::Rejection;

/// Editor of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Editor {
    /// An operator, who may also move it.
    Operator,
    /// An org token of its org, which may not move it.
    Org,
}

/// Checks that the first of `line` is in the subtree of `root`, if there is one.
///
/// # Errors
/// `not_permitted`.
pub(super) fn require_within(
    line: &[Step],
    root: Option<&WorkspaceIncarnation>,
) -> Result<(), Rejection> {
    let is_root = |step: &Step, root: &WorkspaceIncarnation| {
        step.id == root.id && step.born_at == root.born_at && !step.removed
    };
    let Some(root) = root else {
        return Ok(());
    };
    if line.iter().any(|step| is_root(step, root)) {
        return Ok(());
    }
    Err(not_permitted(
        "the token looks after a subtree: choose a parent in it, or leave parent_id out for its root",
    ))
}

/// Returns the org of the new workspace `id` below the first of `line`, which must accept it as a child.
///
/// # Errors
/// `conflict`.
pub fn org_below(
    id: &WorkspaceId,
    line: &[Step],
    org: Option<&str>,
) -> Result<Option<String>, Rejection> {
    let parent = live_parent(line)?;
    if org.is_some() && org != parent.org.as_deref() {
        return Err(conflict(
            "the parent belongs to another org: leave `org` out, or choose a parent of that org",
        ));
    }
    if line.iter().any(|step| step.id == *id) {
        return Err(conflict("the workspace would be its own ancestor"));
    }
    if line.len() >= LINE_MAX {
        return Err(too_deep());
    }
    Ok(parent.org.clone())
}

/// Sets parent and org in `settings` as `wanted` requests, if the rules allow it.
pub(super) fn apply_move(
    workspace: &Workspace,
    around: &Surroundings,
    wanted: &Move,
    editor: Editor,
    settings: &mut Settings,
) -> Result<(), Rejection> {
    if let Some(parent_id) = &wanted.parent_id {
        settings.parent_id.clone_from(parent_id);
    }
    if let Some(org) = &wanted.org {
        settings.org.clone_from(org);
    }
    let leaves = settings.org != workspace.org;
    if !leaves && settings.parent_id == workspace.parent_id {
        return Ok(());
    }
    if editor != Editor::Operator {
        return Err(not_permitted("only an operator moves a workspace"));
    }
    if let Some(parent_id) = &settings.parent_id {
        if *parent_id == workspace.id {
            return Err(conflict(
                "a workspace cannot be its own parent: name another, or null to make it a root",
            ));
        }
        let parent = live_parent(&around.above)?;
        if around.is_circular {
            return Err(conflict(
                "the parent is below the workspace, which would be its own ancestor: move the parent elsewhere first",
            ));
        }
        if parent.org != settings.org {
            return Err(conflict(if wanted.org.is_none() {
                "the parent belongs to another org: to move the workspace there, say `org`, too"
            } else {
                "the parent belongs to another org than `org` says: say `parent_id`, too, a workspace of that org or null"
            }));
        }
        if around.above.len() + 1 + around.height > LINE_MAX {
            return Err(too_deep());
        }
    }
    // No relation crosses orgs, and a move does not move descendants to another org.
    if around.leaves_children {
        return Err(conflict(
            "other workspaces are below it, and belong to its org: move them to another parent, or remove them, first",
        ));
    }
    Ok(())
}

fn live_parent(line: &[Step]) -> Result<&Step, Rejection> {
    match line.first() {
        None => Err(conflict(
            "the parent does not exist: create it first, or name another",
        )),
        Some(parent) if parent.removed => Err(conflict(
            "the parent was removed: name another, or null to make the workspace a root",
        )),
        Some(parent) => Ok(parent),
    }
}

fn too_deep() -> Rejection {
    conflict("the hierarchy is 64 levels deep at most: choose a parent that is higher up")
}
