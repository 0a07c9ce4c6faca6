//! Audience of events: a reader may see an event if it may reach its workspace, by the rule for messages.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::record::{Frame, Subject, Told};
use crate::hierarchy::Hierarchy;
use crate::identity::{CredentialKind, Principal, Proof};
use crate::ids::WorkspaceId;
use crate::store::Unavailable;

/// Lifetime of a decision for other readers of the same workspace. A change of access is in force within 1 s.
const DECIDED_FOR: Duration = Duration::from_millis(500);

/// The part of an event that a reader may see.
#[derive(Clone, Copy, Debug)]
enum View {
    Whole,
    /// Visible without payload: the workspace left the place where the reader saw it.
    Bare,
    Nothing,
}

/// Decisions on one event that readers of the same workspace share.
#[derive(Default)]
pub(super) struct Decided(Mutex<HashMap<WorkspaceId, (Instant, View)>>);

impl Decided {
    fn view(&self, reader: &WorkspaceId) -> Option<View> {
        let (at, view) = self.lock().get(reader).copied()?;
        (at.elapsed() < DECIDED_FOR).then_some(view)
    }

    fn keep(&self, reader: &WorkspaceId, view: View) {
        self.lock().insert(reader.clone(), (Instant::now(), view));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, (Instant, View)>> {
        // Each step leaves the map consistent, so a panic elsewhere cannot have broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`frame_for`], decided once for all readers of a workspace, so that many of them cost no more than one.
///
/// # Errors
/// As [`frame_for`].
pub(super) async fn shared_frame_for<'a>(
    hierarchy: &Hierarchy,
    proof: &Proof,
    told: &'a Told,
) -> Result<Option<&'a Frame>, Unavailable> {
    // For all other principals the proof itself decides.
    let Principal::Workspace { id } = &proof.principal else {
        return frame_for(hierarchy, proof, told).await;
    };
    let view = match told.decided.view(id) {
        Some(view) => view,
        None => {
            let view = view_for(hierarchy, proof, told).await?;
            told.decided.keep(id, view);
            view
        }
    };
    Ok(frame(told, view))
}

/// Returns the frame of `told` for the principal of `proof`; `None` if it may not see the event.
///
/// A reader that saw a workspace only at its old place learns that it left, and not its new place.
///
/// # Errors
/// When a fact that decides cannot be read. The event is not shown then.
pub(super) async fn frame_for<'a>(
    hierarchy: &Hierarchy,
    proof: &Proof,
    told: &'a Told,
) -> Result<Option<&'a Frame>, Unavailable> {
    Ok(frame(told, view_for(hierarchy, proof, told).await?))
}

fn frame(told: &Told, view: View) -> Option<&Frame> {
    match view {
        View::Whole => Some(&told.whole),
        View::Bare => told.bare.as_ref(),
        View::Nothing => None,
    }
}

async fn view_for(hierarchy: &Hierarchy, proof: &Proof, told: &Told) -> Result<View, Unavailable> {
    let Some(Subject {
        workspace,
        now,
        was,
    }) = &told.subject
    else {
        return Ok(View::Whole);
    };
    // Development on loopback: the canvas of every org.
    if proof.kind == CredentialKind::Open || proof.principal == Principal::Operator {
        return Ok(View::Whole);
    }
    if let Some(now) = now
        && !now.removed
        && hierarchy.looks_after(&proof.principal, now).await?
    {
        let root = proof.principal.within();
        let is_root = root.is_some_and(|root| root.id == *workspace);
        return Ok(match is_root && was.is_some() {
            // Its parent is outside of the subtree.
            true => View::Bare,
            false => View::Whole,
        });
    }
    if let Some(was) = was
        && !was.removed
        && hierarchy.looks_after(&proof.principal, was).await?
    {
        return Ok(View::Bare);
    }
    Ok(View::Nothing)
}
