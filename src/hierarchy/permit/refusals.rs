//! Rejections of callers that may not know more.

use super::super::Denial;
use super::super::realm::RealmDenial;
use super::Permit;
use crate::identity::Proof;
use crate::rejection::{Reason, Rejection};

/// Returns the one rejection for all callers that may not know more. The cause is for the log.
pub(super) fn denial_rejection(why: Denial) -> Rejection {
    not_permitted().with_cause(why)
}

/// As [`denial_rejection`], where no rule was evaluated.
pub(super) fn realm_rejection(why: RealmDenial) -> Rejection {
    not_permitted().with_cause(why)
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
    if let Some(from) = permit.caller_lineage()
        && from.born_at != proof.born_at
    {
        return Err(realm_rejection(RealmDenial::Caller));
    }
    match (proof.pair_generation, permit.target_lineage()) {
        (Some(generation), Some(to)) if generation < to.born_at => Err(Rejection::new(
            Reason::NotPermitted,
            "the pair token is for a workspace of this id that was removed; GET /registry/discover/{id} gives one for \
             the present one",
        )),
        _ => Ok(()),
    }
}
