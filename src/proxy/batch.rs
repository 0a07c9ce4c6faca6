//! Sends of one thread in batches.

use std::future::poll_fn;
use std::task::Poll;

/// Lets the tasks of this thread that are ready run first, once. They get as far as this too, and what they send then
/// leaves in one batch: a peer on this machine is woken once for all of it, not once for each message. Costs one poll
/// where no other task is ready. Unlike `yield_now`, it does not look for I/O events before it goes on.
pub(in crate::proxy) async fn join_batch() {
    let mut has_waited = false;
    poll_fn(|task| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn tasks_that_are_ready_send_together() {
        let steps = Mutex::new(Vec::new());
        let note = |step: &'static str| steps.lock().unwrap().push(step);
        let call = async || {
            note("read");
            join_batch().await;
            note("sent");
        };
        futures_util::future::join3(call(), call(), call()).await;
        assert_eq!(
            *steps.lock().unwrap(),
            ["read", "read", "read", "sent", "sent", "sent"]
        );
    }
}
