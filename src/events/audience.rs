//! Who may see an event: whoever may reach its workspace, by the rule for messages.

use super::record::{Audience, Frame, Told};
use crate::hierarchy::{Hierarchy, Lineage};
use crate::identity::{CredentialKind, Principal, Proof};
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

/// The frame of `told` for whom `proof` proves; `None`: it is not theirs to see.
///
/// Who saw a workspace only where it was hears that it went from there, and not where it is.
///
/// # Errors
/// When a fact that decides cannot be read. Nobody sees it then.
pub(super) async fn frame_for<'a>(
    hierarchy: &Hierarchy,
    proof: &Proof,
    told: &'a Told,
) -> Result<Option<&'a Frame>, Unavailable> {
    let Audience::Of {
        workspace,
        now,
        was,
    } = &told.audience
    else {
        return Ok(Some(&told.whole));
    };
    // On loopback, in development: the canvas of every org.
    if proof.kind == CredentialKind::Open || proof.principal == Principal::Operator {
        return Ok(Some(&told.whole));
    }
    if let Some(now) = now
        && sees(hierarchy, &proof.principal, workspace, now).await?
    {
        return Ok(Some(&told.whole));
    }
    if let Some(was) = was
        && sees(hierarchy, &proof.principal, workspace, was).await?
    {
        return Ok(told.bare.as_ref());
    }
    Ok(None)
}

/// Whether `principal` may reach `workspace` at `place`.
async fn sees(
    hierarchy: &Hierarchy,
    principal: &Principal,
    workspace: &WorkspaceId,
    place: &Lineage,
) -> Result<bool, Unavailable> {
    if place.removed {
        return Ok(false);
    }
    Ok(match principal {
        Principal::Operator => true,
        Principal::Org { org } => place.org.as_ref() == Some(org),
        // Its list decides alone; without one its org, where none counts as one org.
        Principal::Canvas {
            org,
            workspaces: Some(list),
            confined,
            ..
        } => list.contains(workspace) && (!confined || place.org == *org),
        Principal::Canvas { org, .. } => place.org == *org,
        Principal::Workspace { id } => hierarchy.reaches(id, place).await?,
    })
}
