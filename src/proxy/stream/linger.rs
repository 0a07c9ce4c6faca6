//! A stream whose caller has left goes on for a while: for those who come back for it (contract §6.3).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::feed::Feed;
use crate::config::Live;
use crate::drain::Drain;
use crate::proxy::ended::shutting_down;
use crate::rejection::Delivery;

/// How often it is looked whether anybody reads.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Lets it go on in a task of its own, if anybody can come back: who was sent no event has no name for it.
pub(super) fn linger(feed: Feed, config: Live, drain: Arc<Drain>) {
    let log = feed.log.as_ref().filter(|log| log.last() > 0);
    let Some(lingering) = log.and_then(|log| log.linger()) else {
        return;
    };
    // Where another process follows it may go on to its end.
    let running = drain.enter();
    tokio::spawn(async move {
        let _running = running;
        let how = follow(feed, &config, &drain).await;
        lingering.ended(how);
    });
}

/// Follows the stream to its end; dropping it cancels the call, frees its place, and says to readers that
/// there was more. Answers how it ended.
async fn follow(mut feed: Feed, config: &Live, drain: &Drain) -> &'static str {
    let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = std::pin::pin!(drain.begins());
    loop {
        tokio::select! {
            biased;
            () = &mut draining => {
                feed.part(shutting_down(Delivery::Sent));
                return "drained";
            }
            _ = look.tick() => {
                let unread = feed.log.as_ref().map(|log| log.unread_for());
                if unread.is_none_or(|unread| config.get().stream.linger <= unread) {
                    return "unread";
                }
            }
            arrived = feed.wait() => {
                if feed.take(arrived).await.over {
                    return "ended";
                }
            }
        }
    }
}
