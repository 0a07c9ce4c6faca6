//! Subscriptions: messages, and notices that their link is down or up again. Bounded: a subscriber
//! that falls behind receives a gap ([`Notice::Down`], then [`Notice::Up`]), so that no loss is
//! silent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Most notices that wait for a subscriber. One more, and a gap replaces them.
const WAITING_MAX: usize = 1024;

/// A notice of a channel or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The published message, or the name of the changed key.
    Message(String),
    /// The link is lost, or notices were dropped: from here on some may be missed.
    Down,
    /// The link is confirmed: from here on no notice is missed. The subscriber must discard its
    /// earlier state.
    Up,
}

/// The receiving end of [`Shared::subscribe`](super::Shared::subscribe) and
/// [`Shared::watch_keys`](super::Shared::watch_keys). Dropping it closes the link.
pub struct Subscription {
    feed: Arc<Feed>,
    /// Keeps the link up; `None`: there is none, as the writer fills the feed, or it was spawned.
    plan: Option<LinkTask>,
    /// Spawned by the first `next`, which is called inside a runtime.
    link: Option<JoinHandle<()>>,
}

/// A future that keeps a link up while it is polled.
pub(super) type LinkTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Subscription {
    pub(super) fn new(feed: Arc<Feed>, plan: Option<LinkTask>) -> Self {
        let link = None;
        Self { feed, plan, link }
    }

    /// Waits for the next notice, without a limit: silence is normal. Cancellation-safe: may be
    /// dropped and called again without losing a notice. Must be called inside a runtime.
    pub async fn next(&mut self) -> Notice {
        if let Some(plan) = self.plan.take() {
            self.link = Some(tokio::spawn(plan));
        }
        loop {
            let ready = self.feed.ready.notified();
            if let Some(notice) = self.feed.state.lock().waiting.pop_front() {
                return notice;
            }
            ready.await;
        }
    }

    /// Returns the next notice if there is one already, so that a caller can handle many at once.
    pub fn try_next(&mut self) -> Option<Notice> {
        self.feed.state.lock().waiting.pop_front()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            link.abort();
        }
    }
}

/// The sending end, filled without waiting.
#[derive(Default)]
pub(super) struct Feed {
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Notice>,
    up: bool,
}

impl Feed {
    pub(super) fn push_up(&self) {
        self.state.lock().up = true;
        self.push_notice(Notice::Up);
    }

    pub(super) fn push_down(&self) {
        self.state.lock().up = false;
        self.push_notice(Notice::Down);
    }

    /// Reports that notices were missed although the link is up.
    pub(super) fn push_gap(&self) {
        let mut state = self.state.lock();
        state.replace_by_gap();
        drop(state);
        self.ready.notify_one();
    }

    pub(super) fn push_notice(&self, notice: Notice) {
        let mut state = self.state.lock();
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(notice);
        } else {
            state.replace_by_gap();
            tracing::warn!("subscriber fell behind: {WAITING_MAX} notices replaced by a gap");
        }
        drop(state);
        self.ready.notify_one();
    }
}

impl State {
    fn replace_by_gap(&mut self) {
        self.waiting.clear();
        self.waiting.push_back(Notice::Down);
        if self.up {
            self.waiting.push_back(Notice::Up);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_falls_behind_is_told_of_a_break_and_nothing_else() {
        let feed = Arc::new(Feed::default());
        let mut subscription = Subscription::new(feed.clone(), None);
        feed.push_up();
        for number in 0..WAITING_MAX {
            feed.push_notice(Notice::Message(number.to_string()));
        }
        feed.push_notice(Notice::Message("after".to_owned()));
        assert_eq!(subscription.next().await, Notice::Down);
        assert_eq!(subscription.next().await, Notice::Up);
        assert_eq!(
            subscription.next().await,
            Notice::Message("after".to_owned())
        );
    }

    #[tokio::test]
    async fn a_flapping_link_nobody_reads_stays_bounded() {
        let feed = Arc::new(Feed::default());
        for _ in 0..WAITING_MAX {
            feed.push_up();
            feed.push_down();
        }
        assert!(feed.state.lock().waiting.len() <= WAITING_MAX);
        assert_eq!(feed.state.lock().waiting.back(), Some(&Notice::Down));
    }
}
