//! Rejections of callers that may not know more.

use super::Permit;
use crate::identity::Proof;
use crate::rejection::{Reason, Rejection};

/// Reason why no rule was evaluated. For the log and for operators. Without a name, since the requested id need
/// not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::hierarchy) enum Nowhere {
    #[error("there is no workspace of the caller's id")]
    Caller,
    #[error("there is no workspace of the target's id")]
    Target,
    #[error("the credential is for the workspaces of another org")]
    Org,
    #[error("the credential lists workspaces, and the target is not among them")]
    List,
    #[error("the credential is for a subtree, and the target is not in it")]
    Subtree,
    #[error("the credential is for a subtree, and its root was removed or is in another org")]
    Root,
}

pub(super) fn nowhere(why: Nowhere) -> Rejection {
    not_permitted().cause(why)
}

pub(super) fn not_permitted() -> Rejection {
    Rejection::new(
        Reason::NotPermitted,
        "this credential may not reach that workspace: workspaces reach themselves, their parent, \
         children and siblings, and whom they were granted; POST /registry/check-access tells an \
         operator why not",
    )
}

pub(in crate::hierarchy) fn not_found() -> Rejection {
    Rejection::new(
        Reason::WorkspaceNotFound,
        "there is no workspace of this id: create it with POST /workspaces",
    )
}

/// Rejects a proof of an earlier life of its workspace, and a pair token for an earlier life of its target.
pub(super) fn require_life(proof: &Proof, permit: &Permit) -> Result<(), Rejection> {
    if let Some(from) = permit.from()
        && from.born_at != proof.born_at
    {
        return Err(nowhere(Nowhere::Caller));
    }
    match (proof.pair_generation, permit.to()) {
        (Some(generation), Some(to)) if generation < to.born_at => Err(Rejection::new(
            Reason::NotPermitted,
            "the pair token is for a workspace of this id that was removed; GET /registry/discover/{id} gives one for \
             the present one",
        )),
        _ => Ok(()),
    }
}
