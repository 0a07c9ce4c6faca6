//! What a subscriber hears: messages, and when the link that brings them is down or up again.
//! Bounded: one who falls behind is told that it missed something, never silently.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Notices that wait for a subscriber. One more, and they are replaced by a break.
const WAITING_MAX: usize = 1024;

/// One thing to know about a channel or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// What was published, or the key that changed.
    Message(String),
    /// The link is lost, or notices were dropped: from here on something may be missed.
    Down,
    /// The link is confirmed: from here on nothing is missed. What was known before is to be
    /// thrown away.
    Up,
}

/// The receiving end of [`Shared::subscribe`](super::Shared::subscribe) and
/// [`Shared::watch`](super::Shared::watch). Dropping it ends the link.
pub struct Subscription {
    feed: Arc<Feed>,
    link: Link,
}

/// Keeps a link up for as long as it is polled.
pub(super) type Plan = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Link {
    /// In process: whoever writes fills the feed.
    Direct,
    /// To be spawned by the first `next`, which is surely inside a runtime.
    Planned(Option<Plan>),
    Running(JoinHandle<()>),
}

impl Subscription {
    pub(super) fn direct(feed: Arc<Feed>) -> Self {
        Self {
            feed,
            link: Link::Direct,
        }
    }

    pub(super) fn linked(feed: Arc<Feed>, link: Plan) -> Self {
        Self {
            feed,
            link: Link::Planned(Some(link)),
        }
    }

    /// Waits for the next notice, without a limit: silence is normal. May be dropped and called
    /// again without losing any. Call it inside a runtime.
    pub async fn next(&mut self) -> Notice {
        if let Link::Planned(plan) = &mut self.link
            && let Some(plan) = plan.take()
        {
            self.link = Link::Running(tokio::spawn(plan));
        }
        loop {
            let ready = self.feed.ready.notified();
            if let Some(notice) = self.feed.state().waiting.pop_front() {
                return notice;
            }
            ready.await;
        }
    }
}

impl Subscription {
    /// The next notice if it is there already: to handle many at once.
    pub fn ready(&mut self) -> Option<Notice> {
        self.feed.state().waiting.pop_front()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Link::Running(task) = &self.link {
            task.abort();
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
    pub(super) fn message(&self, text: String) {
        self.push(Notice::Message(text));
    }

    pub(super) fn up(&self) {
        self.state().up = true;
        self.push(Notice::Up);
    }

    pub(super) fn down(&self) {
        self.state().up = false;
        self.push(Notice::Down);
    }

    /// Something was missed although the link holds.
    pub(super) fn gap(&self) {
        let mut state = self.state();
        state.replace_by_gap();
        drop(state);
        self.ready.notify_one();
    }

    fn push(&self, notice: Notice) {
        let mut state = self.state();
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(notice);
        } else {
            state.replace_by_gap();
            tracing::warn!("A subscriber fell behind: {WAITING_MAX} notices became one break");
        }
        drop(state);
        self.ready.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state whole, so a panic elsewhere cannot have broken it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut subscription = Subscription::direct(feed.clone());
        feed.up();
        for number in 0..WAITING_MAX {
            feed.message(number.to_string());
        }
        feed.message("after".to_owned());
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
            feed.up();
            feed.down();
        }
        assert!(feed.state().waiting.len() <= WAITING_MAX);
        assert_eq!(feed.state().waiting.back(), Some(&Notice::Down));
    }
}
