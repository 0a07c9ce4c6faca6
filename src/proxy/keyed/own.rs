//! Answers that the gateway gives itself: for one key once, as an agent's.

use pingora::protocols::http::ServerSession;

use super::Found;
use crate::delivery::calls::{Answer, Key, Outcome};
use crate::proxy::Proxy;
use crate::proxy::ended::Ended;
use crate::proxy::exchange::Exchange;
use crate::rejection::{Reason, Rejection};

/// What came of it.
pub(in crate::proxy) enum Own<T> {
    /// It was done now.
    Now(Answer, T),
    /// It was done before, or at the same moment for somebody else.
    Before(Outcome),
}

impl Proxy {
    /// Does `work` unless it was done for the key already, to its end whoever waits for it, and keeps its
    /// answer.
    pub(in crate::proxy) async fn own<T: Send + 'static>(
        &self,
        session: &mut ServerSession,
        exchange: &Exchange,
        key: &Key,
        work: impl Future<Output = Result<(Answer, T), Rejection>> + Send + 'static,
    ) -> Result<Own<T>, Ended> {
        let until = exchange.started + exchange.config.timeouts.total;
        let claim = loop {
            let free = match self.found(session, key, until).await? {
                Found::Free(free) => free,
                Found::Done(outcome) => return Ok(Own::Before(outcome)),
            };
            // Where another replica is faster, there is something to wait for.
            if let Some((claim, _)) = self.gateway.delivery.calls.claim(free).await? {
                break claim;
            }
        };
        let running = self.relay.drain.enter();
        let done = tokio::spawn(async move {
            let _running = running;
            match work.await {
                Ok((mut answer, what)) => {
                    answer.kept = claim.answered(answer.clone(), None).await;
                    Ok((answer, what))
                }
                Err(refused) => {
                    claim.refused(refused.clone()).await;
                    Err(refused)
                }
            }
        });
        let done = done.await.map_err(|_| forsaken())?;
        let (answer, what) = done?;
        Ok(Own::Now(answer, what))
    }
}

/// What was done for the call broke off: a bug.
fn forsaken() -> Rejection {
    Rejection::new(Reason::Internal, "the call could not be answered")
}
