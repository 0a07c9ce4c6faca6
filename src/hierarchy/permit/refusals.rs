//! Rejections of callers that may not know more.

use super::super::realm::Nowhere;
use super::Permit;
use crate::identity::Proof;
use crate::rejection::{Reason, Rejection};

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
