//! Work on long bodies, beside the threads that serve callers: it would hold up all calls of its thread.

use bytes::Bytes;
use std::future::pending;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread::available_parallelism;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Largest body on which work is done at once. It takes as long as seven calls; beside, two wake-ups come to it
/// (`bench/HISTORY.md`).
const AT_ONCE: usize = 128 * 1024;

/// Places for work at one time: more would only take turns on the cores.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, NonZero::get)));

/// True if work on a body of that many bytes belongs beside.
pub const fn is_long(bytes: usize) -> bool {
    bytes > AT_ONCE
}

/// Does `work` on a thread for work that blocks. It waits for the work on other bodies, of which there are as many as
/// `limits.bodies_bytes` holds. Dropping the future does not end the work.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    // It is never closed.
    let place = PLACES.acquire().await.ok();
    let worked = spawn_blocking(move || {
        let _place = place;
        work()
    });
    match worked.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(made) => made,
        Err(Ok(panic)) => resume_unwind(panic),
        // The runtime ends, and this task with it.
        Err(Err(_)) => pending().await,
    }
}

/// Does `work` on a body, here if the body is short.
pub async fn run_on_body<T: Send + 'static>(
    body: &Bytes,
    work: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> T {
    if !is_long(body.len()) {
        return work(body);
    }
    let body = body.clone();
    // Boxed: long bodies are rare, and short ones should not carry its future.
    Box::pin(run(move || work(&body))).await
}

#[cfg(test)]
mod tests {
    use std::thread::current;

    use super::*;

    #[tokio::test]
    async fn only_long_bodies_leave_their_thread() {
        let here = current().id();
        for (size, leaves) in [(0, false), (AT_ONCE, false), (AT_ONCE + 1, true)] {
            let body = Bytes::from(vec![b'x'; size]);
            let (length, thread) = run_on_body(&body, |body| (body.len(), current().id())).await;
            assert_eq!(length, size);
            assert_eq!(thread != here, leaves, "{size} bytes");
        }
    }

    #[tokio::test]
    async fn a_panic_beside_is_one_of_its_call_and_gives_its_place_back() {
        let before = PLACES.available_permits();
        for _ in 0..2 * before {
            let failed = tokio::spawn(run(|| -> () { panic!("on purpose") })).await;
            assert!(failed.unwrap_err().is_panic());
        }
        assert_eq!(run(|| 1).await, 1);
    }
}
