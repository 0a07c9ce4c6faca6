//! Checks that an open stream may continue: its caller's token may be revoked meanwhile, one of its ends be moved,
//! paused or removed, or an operator may stop it. The check is repeated when coherence announces such a change, from memory in
//! steady state, and never for each event.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::drain::{Cut, Told};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::time::Timestamp;

/// Minimum interval of checks, since changes come in bursts. An open stream ends within 2 s of the change
/// that ends it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The part of a caller that must stand for a stream to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The credential that opened it: for one reader.
    Credential,
    /// The caller itself, whichever of its credentials it has by now: for a call that several readers follow.
    Caller,
}

/// Ends with the reason why a stream must end.
pub type CutOff = Pin<Box<dyn Future<Output = Rejection> + Send>>;

/// Waits until a stream must end, if it can be ended.
pub async fn cut_off(waits: &mut Option<CutOff>) -> Rejection {
    match waits {
        Some(waits) => waits.await,
        None => std::future::pending().await,
    }
}

impl Gateway {
    /// Waits until the caller that `proof` proves may not follow what `target` sends any more.
    pub fn cut_off(
        self: &Arc<Self>,
        needs: Needs,
        proof: Arc<Proof>,
        target: WorkspaceId,
    ) -> CutOff {
        let gateway = Arc::clone(self);
        Box::pin(async move {
            // Subscribed before the first check, so that no change between the two is missed.
            let mut changes = gateway.coherence.access_changes();
            let mut drain = gateway.drain.watch();
            loop {
                // Boxed: a stream that waits should not hold the state of the check.
                let check = Box::pin(gateway.why_cut_off(needs, &proof, &target));
                if let Some(why) = check.await {
                    return why;
                }
                let changed = async {
                    sleep(LOOK_EVERY).await;
                    gateway.coherence.access_changed(&mut changes).await;
                };
                let over = async {
                    match proof.opens_until().filter(|_| needs == Needs::Credential) {
                        Some(end) => sleep(end.since(Timestamp::now())).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    // At once, since streams end within 1 s of a stop.
                    () = stops_changed(&mut drain) => {}
                    () = changed => {}
                    () = over => {}
                }
            }
        })
    }

    /// Returns the reason why a stop of an operator ends a call that is under way.
    ///
    /// # Errors
    /// `store_unavailable`: a stop of an org or a subtree may cover it.
    pub async fn why_stopped(
        &self,
        proof: &Proof,
        target: &WorkspaceId,
    ) -> Result<Option<Rejection>, Rejection> {
        if self.stops.is_idle() {
            return Ok(None);
        }
        // First without the store, which a thousand streams would ask at once while the push link is down.
        if let Some(why) = self.stops.cut_by_names(&proof.principal, target) {
            return Ok(Some(why));
        }
        match self.hierarchy.permit(proof, target).await {
            Ok(permit) => Ok(self.stops.cut(&permit)),
            Err(why) if why.reason == Reason::StoreUnavailable => Err(why),
            // It has no access any more: what ends its streams for that ends this one.
            Err(_) => Ok(None),
        }
    }

    /// `None`: it may go on, or a store is away, and what was let in stays so.
    async fn why_cut_off(
        &self,
        needs: Needs,
        proof: &Proof,
        target: &WorkspaceId,
    ) -> Option<Rejection> {
        // A store that is away is asked again with the next look.
        if let Ok(Some(why)) = self.why_stopped(proof, target).await {
            return Some(why.delivered(Delivery::Sent));
        }
        if needs == Needs::Credential && !self.identity.stands(proof).await {
            return Some(Rejection::new(
                Reason::Unauthenticated,
                "the credential that opened this stream was revoked or is past its end, or its workspace was removed; send a live one",
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

/// Waits until the stops in force have changed.
async fn stops_changed(drain: &mut Cut) {
    match drain.told().await {
        Told::Recheck(recheck) => drain.checked(recheck),
        // The stream ends by itself.
        Told::End => std::future::pending().await,
    }
}
