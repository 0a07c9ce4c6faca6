//! Waits for state that follows a moment later: the replicas' link, cached facts, lines of the log.

use std::time::{Duration, Instant};

pub(crate) use super::agent::NEVER;
use super::gateway::Gateway;
use super::sidecar::Sidecar;

/// Time within which the link has returned earlier messages.
pub(crate) const ECHO: Duration = Duration::from_millis(300);

/// Time between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until something holds.
pub(crate) async fn until_holds(what: &str, holds: impl AsyncFn() -> bool) {
    until_found(what, async || holds().await.then_some(())).await;
}

/// Waits until a look finds something, for longer than anything takes on a busy machine.
pub(crate) async fn until_found<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + NEVER;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asserts throughout `span` that something holds: the span itself is what is tested.
pub(crate) async fn holds_for(span: Duration, what: &str, holds: impl AsyncFn() -> bool) {
    let end = Instant::now() + span;
    loop {
        let is_last = Instant::now() >= end;
        assert!(holds().await, "no longer: {what}");
        if is_last {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Gateway {
    /// Waits for the replicas' link, without which nothing is cached for longer than a second. Only while
    /// Redis is up, or where both stores are embedded.
    pub(crate) async fn until_coherent(&self) {
        let is_coherent = async || self.metric("a2a_gateway_coherent", &[]).await == 1.0;
        until_holds("the replicas' link is up", is_coherent).await;
    }

    /// Repeats requests until all facts are cached. A fact that changes while it is read is not cached, and
    /// the last change may be announced only now.
    pub(crate) async fn until_warm(&self, mut ask: impl AsyncFnMut()) {
        self.until_coherent().await;
        until_found("all stays in memory", async || {
            tokio::time::sleep(ECHO).await;
            let misses = self.misses().await;
            ask().await;
            (self.misses().await == misses).then_some(())
        })
        .await;
    }

    async fn misses(&self) -> f64 {
        let lookups = "a2a_gateway_cache_lookups_total";
        self.metric(lookups, &[r#"result="miss""#]).await
    }

    /// Waits until a metric is at least so much: an exchange is counted after its answer.
    pub(crate) async fn until_counted(&self, name: &str, labels: &[&str], least: f64) {
        let deadline = Instant::now() + NEVER;
        loop {
            let counted = self.metric(name, labels).await;
            if counted >= least {
                return;
            }
            assert!(Instant::now() < deadline, "{name} {labels:?}: {counted}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the log contains `what` so often: a thread of its own writes it.
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
    let deadline = Instant::now() + NEVER;
    while log().matches(what).count() < times {
        assert!(Instant::now() < deadline, "{what}: {}", log());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
