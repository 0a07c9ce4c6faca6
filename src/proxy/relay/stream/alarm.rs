//! A clock for a deadline that moves later with each event.

use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// One timer for all waits of a stream. A later deadline leaves it armed as it is: it rings early and is set again, so
/// that an event costs no change of the runtime's timers.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    /// Begins a timer that rings at `deadline`.
    pub(super) fn new(deadline: Instant) -> Self {
        Self {
            sleep: Box::pin(sleep_until(deadline)),
        }
    }

    /// Waits until `deadline`. Cancel-safe.
    pub(super) async fn wait_until(&mut self, deadline: Instant) {
        if self.sleep.deadline() > deadline || self.sleep.is_elapsed() {
            self.sleep.as_mut().reset(deadline);
        }
        loop {
            self.sleep.as_mut().await;
            if self.sleep.deadline() >= deadline {
                return;
            }
            self.sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_rings_at_the_deadline_of_the_last_wait() {
        let began = Instant::now();
        let mut alarm = Alarm::new(began + SECOND);
        for (deadline, waited) in [(10, 0), (10, 5), (8, 7), (20, 15)] {
            let at = began + SECOND * waited;
            tokio::time::advance(at.saturating_duration_since(Instant::now())).await;
            let rang = timeout(
                Duration::from_millis(500),
                alarm.wait_until(began + SECOND * deadline),
            );
            assert!(rang.await.is_err(), "{deadline} at {waited}");
        }
        alarm.wait_until(began + SECOND * 20).await;
        assert_eq!(began.elapsed(), SECOND * 20);
        // One that has rung rings again, also for a deadline that has passed.
        alarm.wait_until(began + SECOND * 21).await;
        assert_eq!(began.elapsed(), SECOND * 21);
        alarm.wait_until(began + SECOND).await;
        assert_eq!(began.elapsed(), SECOND * 21);
        // An earlier deadline than the armed one.
        let armed = timeout(SECOND, alarm.wait_until(began + SECOND * 90));
        assert!(armed.await.is_err());
        alarm.wait_until(began + SECOND * 25).await;
        assert_eq!(began.elapsed(), SECOND * 25);
    }
}
