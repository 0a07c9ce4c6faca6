//! The end of an exchange that neither its caller nor its agent causes: the end of the drain, or a stop of an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::failure::shutting_down;
use crate::drain::{self, Drain, Told};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::rejection::{Delivery, Rejection};

/// Pause between two looks for a stop while the store is away.
const STORE_PAUSE: Duration = Duration::from_millis(250);

/// The view of one exchange on what may end it.
pub(in crate::proxy) struct Cut {
    drain: drain::Cut,
    /// The call, which a stop may cover. `None`: only the drain ends it.
    call: Option<Call>,
}

struct Call {
    gateway: Arc<Gateway>,
    proof: Arc<Proof>,
    target: WorkspaceId,
}

impl Cut {
    /// Returns the view of an exchange that only the drain ends.
    pub(in crate::proxy) fn of_drain(drain: &Drain) -> Self {
        Self {
            drain: drain.watch(),
            call: None,
        }
    }

    /// Returns the view of a call, of which both ends are known.
    pub(in crate::proxy) fn of_call(
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
            call: ends.map(|((gateway, proof), target)| Call {
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
    pub(in crate::proxy) async fn requested(&mut self, delivered: Delivery) -> Rejection {
        loop {
            let recheck = match self.drain.told().await {
                Told::End => return shutting_down(delivered),
                Told::Recheck(recheck) => recheck,
            };
            if let Some(call) = &self.call {
                // Boxed: rare, and each wait would be larger by it.
                let stopped = Box::pin(call.gateway.why_stopped(&call.proof, &call.target));
                match stopped.await {
                    Ok(Some(why)) => return why.delivered(delivered),
                    Ok(None) => {}
                    Err(_) => {
                        // Not checked: it is told again.
                        sleep(STORE_PAUSE).await;
                        continue;
                    }
                }
            }
            self.drain.checked(recheck);
        }
    }
}
