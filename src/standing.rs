//! Checks that an open stream may continue: its caller's token may be revoked meanwhile, or one of its ends
//! be moved, paused or removed. The check is repeated when coherence announces such a change, from memory in
//! steady state, and never for each event.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};

/// Minimum interval of checks, since changes come in bursts. An open stream ends within 2 s of the change
/// that ends it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A future that resolves with the reason why a stream must end.
pub type CutOff = Pin<Box<dyn Future<Output = Rejection> + Send>>;

/// Waits until a stream must end, if it can be ended.
pub async fn cut_off(waits: &mut Option<CutOff>) -> Rejection {
    match waits {
        Some(waits) => waits.await,
        None => std::future::pending().await,
    }
}

impl Gateway {
    /// Waits until the caller may no longer follow the stream of `target`.
    pub fn cut_off(self: &Arc<Self>, proof: Arc<Proof>, target: WorkspaceId) -> CutOff {
        let gateway = Arc::clone(self);
        Box::pin(async move {
            // Subscribed before the first check, so that no change between the two is missed.
            let mut changes = gateway.coherence.access_changes();
            loop {
                if let Some(why) = gateway.why_cut_off(&proof, &target).await {
                    return why;
                }
                sleep(LOOK_EVERY).await;
                gateway.coherence.access_changed(&mut changes).await;
            }
        })
    }

    /// Returns the reason to end the stream. `None`: it may continue, or a store is unavailable, and access
    /// once given stays.
    async fn why_cut_off(&self, proof: &Proof, target: &WorkspaceId) -> Option<Rejection> {
        if !self.identity.stands(proof).await {
            return Some(Rejection::new(
                Reason::Unauthenticated,
                "the credential that opened this stream was revoked, or its workspace was removed; send a live one",
            ));
        }
        let permit = self.hierarchy.permit(proof, target).await;
        let place = self.hierarchy.place(target).await.ok().flatten();
        let (paused, removed) = place.map_or((false, false), |place| (place.paused, place.removed));
        match permit {
            Ok(_) if paused => Some(Rejection::new(
                Reason::NotPermitted,
                "the workspace that sends this stream was paused; call again once it is resumed",
            )),
            Ok(_) => None,
            // The caller knew of the workspace, so its removal is no secret.
            Err(_) if removed => Some(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace that sends this stream was removed",
            )),
            Err(why) => {
                let decided = [Reason::NotPermitted, Reason::WorkspaceNotFound];
                decided.contains(&why.reason).then_some(why)
            }
        }
    }
}
