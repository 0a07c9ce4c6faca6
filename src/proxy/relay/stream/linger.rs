//! Continues a stream for a while after its caller left, for resumption (`docs/reference/a2a.md`, "Resuming a stream").

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::feed::AgentStream;
use crate::config::Live;
use crate::drain::Drain;
use crate::proxy::relay::failure::shutting_down;
use crate::rejection::Delivery;

/// Interval of checks for readers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Continues the stream in a task of its own if it can be resumed: a caller that got no event has no name for it.
pub(super) fn linger(feed: AgentStream, config: Live, drain: Arc<Drain>) {
    let log = feed.log.as_ref().filter(|log| log.last() > 0);
    let Some(lingering) = log.and_then(|log| log.linger()) else {
        return;
    };
    // After a handover to another process it may continue to its end.
    let running = drain.count_work();
    tokio::spawn(async move {
        let _running = running;
        let how = follow_stream(feed, &config, &drain).await;
        lingering.record_end(how);
    });
}

/// Follows the stream to its end, and returns how it ended. Dropping the future cancels the call, frees its slot, and
/// tells readers that the stream was cut.
async fn follow_stream(mut feed: AgentStream, config: &Live, drain: &Drain) -> &'static str {
    let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = std::pin::pin!(drain.wait_for_begin());
    loop {
        tokio::select! {
            biased;
            () = &mut draining => {
                feed.end_with(shutting_down(Delivery::Sent));
                return "drained";
            }
            _ = look.tick() => {
                let unread = feed.log.as_ref().map(|log| log.unread_for());
                if unread.is_none_or(|unread| config.get().stream.linger <= unread) {
                    return "unread";
                }
            }
            arrived = feed.wait() => {
                if feed.process(arrived).await.over {
                    return "ended";
                }
            }
        }
    }
}
