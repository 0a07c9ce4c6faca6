//! Waiting for what comes a moment later: the replicas' link, facts in memory, lines of the log.

use std::time::{Duration, Instant};

use super::gateway::Gateway;
use super::sidecar::Sidecar;

/// How long it may take until facts stay in memory.
const WARM: Duration = Duration::from_secs(60);

/// Within this the link has brought back what was said before.
pub(crate) const ECHO: Duration = Duration::from_millis(300);

/// For what takes a moment on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

impl Gateway {
    /// Waits for the replicas' link, without which nothing is known for longer than a second. Only
    /// while Redis is up, or where both stores are embedded.
    pub(crate) async fn until_coherent(&self) {
        let deadline = Instant::now() + WARM;
        while self.metric("a2a_gateway_coherent", &[]).await != 1.0 {
            assert!(Instant::now() < deadline, "the replicas' link stays down");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks until all that it takes is in memory. What a change overtakes while it is read is not
    /// kept, and the last change may come back by the link only now.
    pub(crate) async fn until_warm(&self, mut ask: impl AsyncFnMut()) {
        self.until_coherent().await;
        let deadline = Instant::now() + WARM;
        loop {
            tokio::time::sleep(ECHO).await;
            let misses = self.misses().await;
            ask().await;
            if self.misses().await == misses {
                return;
            }
            assert!(Instant::now() < deadline, "nothing stays in memory");
        }
    }

    async fn misses(&self) -> f64 {
        let lookups = "a2a_gateway_cache_lookups_total";
        self.metric(lookups, &[r#"result="miss""#]).await
    }

    /// Waits until a metric is at least so much: an exchange is counted after its answer.
    pub(crate) async fn until_counted(&self, name: &str, labels: &[&str], least: f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counted = self.metric(name, labels).await;
            if counted >= least {
                return;
            }
            assert!(Instant::now() < deadline, "{name} {labels:?}: {counted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the log has said something so often: lines reach it by a thread of their own.
    pub(crate) async fn until_told(&self, what: &str, times: usize) {
        until_told(|| self.log(), what, times).await;
    }
}

impl Sidecar {
    /// As [`Gateway::until_told`].
    pub(crate) async fn until_told(&self, what: &str, times: usize) {
        until_told(|| self.log(), what, times).await;
    }
}

async fn until_told(log: impl Fn() -> String, what: &str, times: usize) {
    let deadline = Instant::now() + PATIENCE;
    while log().matches(what).count() < times {
        assert!(Instant::now() < deadline, "{what}: {}", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
