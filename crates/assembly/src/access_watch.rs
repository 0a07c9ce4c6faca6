//! Checks that an open stream may continue: its caller's token may be revoked meanwhile, one of its ends be moved,
//! paused or removed, or an operator may stop it. The check is repeated when coherence announces such a change, from
//! memory in steady state, and never for each event; and at the end of a token or of a grant, which nothing announces.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::gateway::Gateway;
use access::identity::Proof;
use kernel::drain::{DrainSignal, DrainWatch};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::time::Timestamp;

/// Minimum interval of checks, since changes come in bursts. An open stream ends within 2 s of the change
/// that ends it.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Pause between two checks while a store is away.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The part of a caller on which its access to a stream rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessBasis {
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
        basis: AccessBasis,
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
                let check = Box::pin(gateway.check_access(basis, &proof, &target));
                let permitted_until = match check.await {
                    Ok(end) => end,
                    Err(why) => return why,
                };
                let proven_until = proof
                    .stream_end()
                    .filter(|_| basis == AccessBasis::Credential);
                let end = proven_until.into_iter().chain(permitted_until).min();
                let changed = async {
                    sleep(CHECK_EVERY).await;
                    gateway.coherence.access_changed(&mut changes).await;
                };
                let over = async {
                    match end {
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

    /// Returns the reason why a stop of an operator, or a revocation, ends a call that is under way.
    ///
    /// # Errors
    /// `store_unavailable`: a stop of an org or a subtree may cover it.
    pub async fn why_stopped(
        &self,
        proof: &Proof,
        target: &WorkspaceId,
    ) -> Result<Option<Rejection>, Rejection> {
        if self.identity.revocations.covers_proof(proof) {
            return Ok(Some(unproven_rejection()));
        }
        if self.stops.is_idle() {
            return Ok(None);
        }
        // First without the store, which a thousand streams would ask at once while the push link is down.
        if let Some(why) = self.stops.find_cut_by_names(&proof.principal, target) {
            return Ok(Some(why));
        }
        match self.hierarchy.permit(proof, target).await {
            Ok(permit) => Ok(self.stops.find_cut(&permit)),
            Err(why) if why.reason == Reason::StoreUnavailable => Err(why),
            // It has no access any more: what ends its streams for that ends this one.
            Err(_) => Ok(None),
        }
    }

    /// Checks that a stream may go on, and returns the time of the next check that no change announces: the end of the
    /// grant that permits it, or soon while a store is away, since what was let in stays so until it is back.
    ///
    /// # Errors
    /// The reason why it must end.
    async fn check_access(
        &self,
        basis: AccessBasis,
        proof: &Proof,
        target: &WorkspaceId,
    ) -> Result<Option<Timestamp>, Rejection> {
        let stops_away = match self.why_stopped(proof, target).await {
            Ok(Some(why)) => return Err(why.with_delivery(Delivery::Sent)),
            stopped => stopped.is_err(),
        };
        let proven = match basis {
            AccessBasis::Credential => self.identity.check_proof(proof).await,
            AccessBasis::Caller => Ok(true),
        };
        if matches!(proven, Ok(false)) {
            return Err(unproven_rejection());
        }
        let permit = self.hierarchy.permit(proof, target).await;
        let place = self.hierarchy.load_lineage(target).await;
        let away = stops_away || proven.is_err() || place.is_err();
        let soon = Timestamp::now().after(STORE_PAUSE);
        let place = place.ok().flatten();
        let (paused, removed) = place.map_or((false, false), |place| (place.paused, place.removed));
        match permit {
            Ok(_) if paused => Err(Rejection::new(
                Reason::NotPermitted,
                "the workspace that sends this stream was paused; call again once it is resumed",
            )),
            Ok(_) if away => Ok(Some(soon)),
            Ok(permit) => Ok(self.hierarchy.permit_expiry(&permit).await),
            // The caller knew of the workspace, so its removal is no secret.
            Err(_) if removed => Err(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace that sends this stream was removed",
            )),
            // Its removal is announced before its credentials are revoked.
            Err(_) if basis == AccessBasis::Credential && self.is_removed(proof).await => {
                Err(unproven_rejection())
            }
            Err(why) if [Reason::NotPermitted, Reason::WorkspaceNotFound].contains(&why.reason) => {
                Err(why)
            }
            Err(_) => Ok(Some(soon)),
        }
    }

    /// True if the caller is a workspace that was removed.
    async fn is_removed(&self, proof: &Proof) -> bool {
        let Some(id) = proof.principal.workspace() else {
            return false;
        };
        let place = self.hierarchy.load_lineage(id).await.ok().flatten();
        place.is_some_and(|place| place.removed)
    }
}

fn unproven_rejection() -> Rejection {
    Rejection::new(
        Reason::Unauthenticated,
        "the credential that opened this stream was revoked or is past its end, or its workspace was removed; send a live one",
    )
}

/// Waits until the stops in force have changed.
async fn stops_changed(drain: &mut DrainWatch) {
    match drain.next_signal().await {
        DrainSignal::Recheck(recheck) => drain.mark_checked(recheck),
        // The stream ends by itself.
        DrainSignal::End => std::future::pending().await,
    }
}
