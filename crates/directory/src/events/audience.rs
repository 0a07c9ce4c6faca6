//! Audience of events: a reader may see an event if it may reach its workspace, by the rule for messages.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::record::{Frame, PublishedEvent, Subject};
use access::hierarchy::Hierarchy;
use access::identity::{CredentialKind, Principal, Proof};
use kernel::ids::WorkspaceIncarnation;
use stores::store::Unavailable;

/// Lifetime of a decision for other readers of the same workspace. A change of access is in force within 1 s.
const DECIDED_FOR: Duration = Duration::from_millis(500);

/// The part of an event that a reader may see.
#[derive(Clone, Copy, Debug)]
enum View {
    Whole,
    /// Visible without what was said.
    Withheld,
    /// Visible without the members that tell of more than what the reader looks after.
    Limited,
    /// Visible without payload: the workspace left the place where the reader saw it.
    Bare,
    Nothing,
}

/// Decisions on one event that readers of the same workspace, in the same life, share.
#[derive(Default)]
pub(super) struct ViewCache(Mutex<HashMap<WorkspaceIncarnation, (Instant, View)>>);

impl ViewCache {
    fn get(&self, reader: &WorkspaceIncarnation) -> Option<View> {
        let (at, view) = self.0.lock().get(reader).copied()?;
        (at.elapsed() < DECIDED_FOR).then_some(view)
    }

    fn insert(&self, reader: WorkspaceIncarnation, view: View) {
        self.0.lock().insert(reader, (Instant::now(), view));
    }
}

/// Returns the frame of `event` for the principal of `proof`; `None` if it may not see the event. `is_shared`: decided
/// once for all readers of a workspace, so that many of them cost no more than one.
///
/// A reader that saw a workspace only at its old place learns that it left, and not its new place. What happened before
/// the life of the reader began, or in an earlier life of the workspace, is for operators.
///
/// # Errors
/// When a fact that decides cannot be read. The event is not shown then.
pub(super) async fn frame_for<'a>(
    hierarchy: &Hierarchy,
    proof: &Proof,
    event: &'a PublishedEvent,
    is_shared: bool,
) -> Result<Option<&'a Frame>, Unavailable> {
    let reader = match &proof.principal {
        Principal::Workspace { id } if is_shared => Some(WorkspaceIncarnation {
            id: id.clone(),
            born_at: proof.born_at,
        }),
        // For all other principals the proof itself decides.
        _ => None,
    };
    let known = reader.as_ref().and_then(|reader| event.views.get(reader));
    let view = match known {
        Some(view) => view,
        None => view_for(hierarchy, proof, event).await?,
    };
    if let Some(reader) = reader.filter(|_| known.is_none()) {
        event.views.insert(reader, view);
    }
    Ok(match view {
        View::Whole => Some(&event.whole),
        View::Withheld => Some(event.withheld.as_ref().unwrap_or(&event.whole)),
        View::Limited => event.limited.as_ref().map(|(_, frame)| frame),
        View::Bare => event.bare.as_ref(),
        View::Nothing => None,
    })
}

async fn view_for(
    hierarchy: &Hierarchy,
    proof: &Proof,
    event: &PublishedEvent,
) -> Result<View, Unavailable> {
    let Some(subject) = &event.subject else {
        return Ok(View::Whole);
    };
    if proof.sees_no_content() {
        return Ok(View::Withheld);
    }
    // Development on loopback: the canvas of every org.
    if proof.kind == CredentialKind::Open || proof.principal == Principal::Operator {
        return Ok(View::Whole);
    }
    if subject.at.0 < proof.began_at() {
        return Ok(View::Nothing);
    }
    let view = view_of_place(hierarchy, &proof.principal, subject).await?;
    if matches!(view, View::Nothing) || is_of_earlier_life(hierarchy, subject).await? {
        return Ok(View::Nothing);
    }
    match &event.limited {
        Some((besides, _)) if matches!(view, View::Whole) => {
            let all = besides.is_for(hierarchy, &proof.principal).await?;
            Ok(if all { View::Whole } else { View::Limited })
        }
        _ => Ok(view),
    }
}

/// Returns the view that follows from the place which the workspace had then.
async fn view_of_place(
    hierarchy: &Hierarchy,
    reader: &Principal,
    subject: &Subject,
) -> Result<View, Unavailable> {
    if let Some(now) = &subject.now
        && !now.removed
        && hierarchy.may_reach(reader, now).await?
    {
        let root = reader.within();
        let is_root = root.is_some_and(|root| root.id == subject.workspace);
        return Ok(match is_root && subject.was.is_some() {
            // Its parent is outside of the subtree.
            true => View::Bare,
            false => View::Whole,
        });
    }
    if let Some(was) = &subject.was
        && !was.removed
        && hierarchy.may_reach(reader, was).await?
    {
        return Ok(View::Bare);
    }
    Ok(View::Nothing)
}

/// True if the id of the workspace was given away again since. A life that is not in the cache yet is the present one.
async fn is_of_earlier_life(hierarchy: &Hierarchy, subject: &Subject) -> Result<bool, Unavailable> {
    let place = subject.now.as_ref().or(subject.was.as_ref());
    let life = place.map_or(0, |place| place.born_at);
    let present = hierarchy.load_lineage(&subject.workspace).await?;
    Ok(present.is_some_and(|present| life < present.born_at))
}
