//! The end of an exchange that neither its caller nor its agent causes: the end of the drain, or a stop of an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::failure::shutting_down;
use crate::drain::{Drain, DrainSignal, DrainWatch};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::rejection::{Delivery, Rejection};

/// Pause between two looks for a stop while the store is away.
const STORE_PAUSE: Duration = Duration::from_millis(250);

/// The watch of one exchange over what may end it.
pub(in crate::proxy) struct CancelWatch {
    drain: DrainWatch,
    /// The call. `None`: only the drain ends the exchange.
    call: Option<WatchedCall>,
}

/// A call that a stop may cover.
struct WatchedCall {
    gateway: Arc<Gateway>,
    proof: Arc<Proof>,
    target: WorkspaceId,
}

impl CancelWatch {
    /// Returns the watch of an exchange that only the drain ends.
    pub(in crate::proxy) fn for_drain(drain: &Drain) -> Self {
        Self {
            drain: drain.watch(),
            call: None,
        }
    }

    /// Returns the watch of a call, of which both ends are known.
    pub(in crate::proxy) fn for_call(
        drain: &Drain,
        gateway: Option<&Arc<Gateway>>,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> Self {
        let ends = gateway.zip(proof).zip(target);
        let mut drain = drain.watch();
        // A stop that came after the check of the call and before this is looked at, too.
        if gateway.is_some_and(|gateway| !gateway.stops.is_idle()) {
            drain.check_once();
        }
        Self {
            drain,
            call: ends.map(|((gateway, proof), target)| WatchedCall {
                gateway: Arc::clone(gateway),
                proof: Arc::clone(proof),
                target: target.clone(),
            }),
        }
    }

    /// True if the drain has ended: exchanges must end now.
    pub(in crate::proxy) fn is_requested(&self) -> bool {
        self.drain.is_requested()
    }

    /// Waits until the exchange must end, and returns the reason. Cancellation-safe.
    pub(in crate::proxy) async fn cancelled(&mut self, delivered: Delivery) -> Rejection {
        loop {
            let recheck = match self.drain.next_signal().await {
                DrainSignal::End => return shutting_down(delivered),
                DrainSignal::Recheck(recheck) => recheck,
            };
            if let Some(call) = &self.call {
                // Boxed: rare, and each wait would be larger by it.
                let stopped = Box::pin(call.gateway.why_stopped(&call.proof, &call.target));
                match stopped.await {
                    Ok(Some(why)) => return why.with_delivery(delivered),
                    Ok(None) => {}
                    Err(_) => {
                        // Not checked: it is told again.
                        sleep(STORE_PAUSE).await;
                        continue;
                    }
                }
            }
            self.drain.mark_checked(recheck);
        }
    }
}
