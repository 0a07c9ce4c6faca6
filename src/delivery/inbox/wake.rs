//! Wake-ups of waiting readers, on all replicas. A wake-up of a topic without waiters costs nothing. While
//! the link that carries wake-ups is down, one task of this replica polls SQL for all waiters.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::Inbox;
use crate::deadline::ticks;
use crate::ids::WorkspaceId;
use crate::shared::Notice;
use crate::telemetry::Chain;

/// The channel between replicas: the sender, then the topics, one per line.
const CHANNEL: &str = "gw:inbox";

/// Stands for all topics.
const ALL: &str = "*";

/// Topics of one message at most. Beyond it: all topics.
const TELL_MAX: usize = 4096;

/// Pause between two attempts to publish.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Interval of polls of SQL while the link is down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A subject of waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Topic {
    /// New entries of an inbox.
    Inbox(WorkspaceId),
    /// Changes of a task.
    Task(String),
}

impl Topic {
    fn to_line(&self) -> String {
        match self {
            Self::Inbox(id) => format!("i{id}"),
            Self::Task(id) => format!("t{id}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_at_checked(1)? {
            ("i", id) => WorkspaceId::parse(id).ok().map(Self::Inbox),
            ("t", id) => Some(Self::Task(id.to_owned())),
            _ => None,
        }
    }
}

/// The progress of each topic at the last poll.
pub(super) type Marks = HashMap<Topic, i64>;

/// The waiters on this replica, and the wake-ups to be published.
pub(super) struct Hub {
    waiting: DashMap<Topic, watch::Sender<()>>,
    /// Distinguishes this replica's messages from those of other replicas.
    replica: String,
    to_tell: Mutex<BTreeSet<String>>,
    queued: Notify,
}

/// A waiter for a topic. Dropping it ends the wait.
pub struct Watch {
    hub: Arc<Hub>,
    topic: Topic,
    /// `None` only while it is dropped.
    changes: Option<watch::Receiver<()>>,
}

impl Watch {
    /// Waits until there may be a change since it was created, or since the last call. Read first, then wait.
    /// Cancel-safe.
    pub async fn changed(&mut self) {
        if let Some(changes) = &mut self.changes {
            // The sender stays as long as there is a waiter, so the wait cannot fail.
            let _ = changes.changed().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let own = self.changes.take();
        // Under the entry's lock: of two that are dropped at once, one is the last.
        self.hub.waiting.remove_if(&self.topic, |_, changes| {
            drop(own);
            changes.receiver_count() == 0
        });
    }
}

impl Hub {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: DashMap::new(),
            replica: uuid::Uuid::new_v4().simple().to_string(),
            to_tell: Mutex::default(),
            queued: Notify::new(),
        })
    }

    pub(super) fn watch_topic(self: &Arc<Self>, topic: Topic) -> Watch {
        let changes = match self.waiting.entry(topic.clone()) {
            Entry::Occupied(there) => there.get().subscribe(),
            Entry::Vacant(vacant) => {
                let (sender, receiver) = watch::channel(());
                vacant.insert(sender);
                receiver
            }
        };
        Watch {
            hub: Arc::clone(self),
            topic,
            changes: Some(changes),
        }
    }

    /// Wakes the waiters here now, and those on other replicas as soon as the wake-up can be published.
    pub(super) fn wake(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut texts = Vec::new();
        for topic in topics {
            self.wake_here(&topic);
            texts.push(topic.to_line());
        }
        self.queue_lines(texts);
        self.queued.notify_one();
    }

    fn queue_lines(&self, texts: impl IntoIterator<Item = String>) {
        let mut to_tell = self.lock();
        to_tell.extend(texts);
        if to_tell.len() > TELL_MAX {
            *to_tell = BTreeSet::from([ALL.to_owned()]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Each step leaves the set consistent, so a panic elsewhere cannot have broken it.
        self.to_tell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_here(&self, topic: &Topic) {
        if let Some(changes) = self.waiting.get(topic) {
            changes.send_replace(());
        }
    }

    fn wake_all(&self) {
        for changes in &self.waiting {
            changes.send_replace(());
        }
    }

    fn handle_message(&self, text: &str) {
        let mut lines = text.lines();
        if lines.next() == Some(&self.replica) {
            return;
        }
        for line in lines {
            if line == ALL {
                self.wake_all();
            } else if let Some(topic) = Topic::parse(line) {
                self.wake_here(&topic);
            }
        }
    }

    /// Returns the topics with waiters.
    fn waiting_topics(&self) -> Vec<Topic> {
        self.waiting.iter().map(|one| one.key().clone()).collect()
    }
}

impl Inbox {
    /// Publishes wake-ups to other replicas, retrying until it succeeds.
    pub(super) async fn publish_wake_ups(&self) {
        loop {
            self.hub.queued.notified().await;
            loop {
                let batch = std::mem::take(&mut *self.hub.lock());
                if batch.is_empty() {
                    break;
                }
                let lines: Vec<&str> = batch.iter().map(String::as_str).collect();
                let text = format!("{}\n{}", self.hub.replica, lines.join("\n"));
                let Err(error) = self.shared.publish(CHANNEL, &text).await else {
                    continue;
                };
                tracing::debug!(error = %Chain(&error), "failed to publish wake-ups for new messages; retrying");
                // Subscribers on other replicas may not know that the link is down here.
                self.hub.queue_lines(batch);
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Receives wake-ups of other replicas, and polls SQL while the link is down.
    pub(super) async fn receive_wake_ups(&self) {
        let mut notices = self.shared.subscribe(CHANNEL);
        let mut up = false;
        let mut marks = Marks::default();
        let mut look = ticks(LOOK_EVERY);
        loop {
            tokio::select! {
                notice = notices.next() => match notice {
                    Notice::Message(text) => self.hub.handle_message(&text),
                    Notice::Down => up = false,
                    Notice::Up => {
                        // Wake-ups during the outage were missed.
                        self.hub.wake_all();
                        marks = Marks::default();
                        up = true;
                    }
                },
                _ = look.tick(), if !up => {
                    let topics = self.hub.waiting_topics();
                    match self.changed_topics(&mut marks, topics).await {
                        Ok(news) => news.iter().for_each(|topic| self.hub.wake_here(topic)),
                        Err(error) => {
                            tracing::debug!(error = %Chain(&error), "failed to poll for new messages; retrying");
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_topic_goes_with_the_last_who_waits_for_it() {
        let hub = Hub::new();
        let watch = || hub.watch_topic(Topic::Task("t".into()));
        let (first, second) = (watch(), watch());
        drop(first);
        assert_eq!(hub.waiting_topics(), [Topic::Task("t".into())]);
        drop(second);
        for _ in 0..1000 {
            let both = [watch(), watch()];
            thread::scope(|scope| {
                for one in both {
                    scope.spawn(move || drop(one));
                }
            });
            assert!(hub.waiting.is_empty());
        }
    }

    #[test]
    fn many_words_at_once_become_one_for_all() {
        let hub = Hub::new();
        let texts = |hub: &Hub| hub.lock().len();
        hub.wake((0..TELL_MAX).map(|n| Topic::Task(n.to_string())));
        assert_eq!(texts(&hub), TELL_MAX);
        hub.wake([Topic::Task("one more".into())]);
        assert_eq!(*hub.lock(), BTreeSet::from([ALL.to_owned()]));
        let mut watch = hub.watch_topic(Topic::Task("t".into()));
        let said = |who: &str, what: &str| hub.handle_message(&format!("{who}\n{what}"));
        let woken = |watch: &mut Watch| {
            let changes = watch.changes.as_mut().unwrap();
            let woken = changes.has_changed().unwrap();
            changes.mark_unchanged();
            woken
        };
        for (who, what, wakes) in [
            ("other", "tother", false),
            ("other", "it", false),
            ("other", "tt", true),
            ("other", ALL, true),
            (&*hub.replica, "tt", false),
        ] {
            said(who, what);
            assert_eq!(woken(&mut watch), wakes, "{who} {what}");
        }
    }
}
