//! Wake-ups of waiting readers, on all replicas. A wake-up of a topic without waiters costs nothing. While
//! the link that carries wake-ups is down, one task of this replica polls SQL for all waiters.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use sqlx::AssertSqlSafe;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::telemetry::Chain;
use stores::db::Db;
use stores::shared::{Notice, Shared};
use stores::store::Unavailable;

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

/// Topics per statement.
const LOOK_MAX: usize = 256;

/// What moves on when a topic changes, by the first letter of the topic. Calls with a key have none: who waits for one
/// reads it once a second in any case.
const MARKS: [(char, &str); 2] = [
    (
        'i',
        "SELECT workspace_id AS name, last_seq AS mark FROM inbox_heads WHERE workspace_id IN ",
    ),
    (
        't',
        "SELECT id AS name, updates AS mark FROM activity_logs WHERE id IN ",
    ),
];

/// A subject of waits: a letter for its kind, then a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Topic(String);

impl Topic {
    /// New entries of an inbox.
    pub(super) fn inbox(id: &WorkspaceId) -> Self {
        Self(format!("i{id}"))
    }

    /// Changes of a task.
    pub(super) fn task(id: &str) -> Self {
        Self(format!("t{id}"))
    }

    /// The outcome of a call with a key.
    pub(super) fn call(scope: &str) -> Self {
        Self(format!("c{scope}"))
    }
}

/// The progress of each topic at the last poll.
type Marks = HashMap<Topic, i64>;

/// The waiters on this replica, and the wake-ups to be published.
pub(super) struct Hub {
    waiting: DashMap<Topic, watch::Sender<()>>,
    /// True if there may be other replicas.
    has_peers: bool,
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
    pub(super) fn new(has_peers: bool) -> Arc<Self> {
        Arc::new(Self {
            has_peers,
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
        let mut lines = Vec::new();
        for topic in topics {
            self.wake_here(&topic);
            lines.push(topic.0);
        }
        if self.has_peers {
            self.queue_lines(lines);
            self.queued.notify_one();
        }
    }

    /// Wakes the waiters now, and again when the store, by its own clock, must have decided on a transaction.
    pub(super) fn wake_again(
        self: &Arc<Self>,
        topics: impl IntoIterator<Item = Topic>,
        late: Duration,
    ) {
        let topics: BTreeSet<_> = topics.into_iter().collect();
        let hub = Arc::clone(self);
        tokio::spawn(async move {
            hub.wake(topics.clone());
            sleep(late).await;
            hub.wake(topics);
        });
    }

    fn queue_lines(&self, texts: impl IntoIterator<Item = String>) {
        let mut to_tell = self.to_tell.lock();
        to_tell.extend(texts);
        if to_tell.len() > TELL_MAX {
            *to_tell = BTreeSet::from([ALL.to_owned()]);
        }
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
            } else {
                self.wake_here(&Topic(line.to_owned()));
            }
        }
    }

    /// Returns the topics with waiters.
    fn waiting_topics(&self) -> Vec<Topic> {
        self.waiting.iter().map(|one| one.key().clone()).collect()
    }

    /// Publishes wake-ups to other replicas, retrying until it succeeds.
    pub(super) async fn publish_wake_ups(&self, shared: &Shared) {
        loop {
            let batch = std::mem::take(&mut *self.to_tell.lock());
            if batch.is_empty() {
                self.queued.notified().await;
                continue;
            }
            let lines: Vec<&str> = batch.iter().map(String::as_str).collect();
            let text = format!("{}\n{}", self.replica, lines.join("\n"));
            if let Err(error) = shared.publish(CHANNEL, &text).await {
                tracing::debug!(error = %Chain(&error), "failed to publish wake-ups; retrying");
                // Subscribers on other replicas may not know that the link is down here.
                self.queue_lines(batch);
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Receives wake-ups of other replicas, and polls SQL while the link is down.
    pub(super) async fn receive_wake_ups(&self, shared: &Shared, db: &Db) {
        let mut notices = shared.subscribe(CHANNEL);
        let mut up = false;
        let mut marks = Marks::default();
        let mut look = ticks(LOOK_EVERY);
        loop {
            tokio::select! {
                notice = notices.next() => match notice {
                    Notice::Message(text) => self.handle_message(&text),
                    Notice::Down => up = false,
                    Notice::Up => {
                        // Wake-ups during the outage were missed.
                        self.wake_all();
                        marks = Marks::default();
                        up = true;
                    }
                },
                _ = look.tick(), if !up => match read_marks(db, &self.waiting_topics()).await {
                    Ok(now) => {
                        let news = now.iter().filter(|(topic, mark)| marks.get(topic) != Some(mark));
                        news.for_each(|(topic, _)| self.wake_here(topic));
                        marks = now;
                    }
                    Err(error) => {
                        tracing::debug!(error = %Chain(&error), "failed to poll for wake-ups; retrying");
                    }
                },
            }
        }
    }
}

async fn read_marks(db: &Db, topics: &[Topic]) -> Result<Marks, Unavailable> {
    let mut marks = Marks::with_capacity(topics.len());
    for (kind, text) in MARKS {
        let names: Vec<&str> = topics
            .iter()
            .filter_map(|topic| topic.0.strip_prefix(kind))
            .collect();
        for chunk in names.chunks(LOOK_MAX) {
            let text = format!("{text}{}", row_placeholders(1, chunk.len()));
            let mut query = sqlx::query_as(AssertSqlSafe(text));
            for name in chunk {
                query = query.bind(*name);
            }
            let work = query.fetch_all(db.pool());
            let rows: Vec<(String, i64)> = db.run("inbox_look", work).await?;
            let rows = rows.into_iter();
            marks.extend(rows.map(|(name, mark)| (Topic(format!("{kind}{name}")), mark)));
        }
    }
    Ok(marks)
}

/// Returns the placeholders of so many rows: `($1, $2), ($3, $4)`.
pub(super) fn row_placeholders(rows: usize, columns: usize) -> String {
    let mut text = String::new();
    for marker in 1..=rows * columns {
        let opening = match (marker % columns, marker) {
            (_, 1) => "(",
            (first, _) if first == 1 % columns => "), (",
            _ => ", ",
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{opening}${marker}");
    }
    text.push(')');
    text
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_topic_goes_with_the_last_who_waits_for_it() {
        let hub = Hub::new(true);
        let watch = || hub.watch_topic(Topic::task("t"));
        let (first, second) = (watch(), watch());
        drop(first);
        assert_eq!(hub.waiting_topics(), [Topic::task("t")]);
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
        let hub = Hub::new(true);
        let texts = |hub: &Hub| hub.to_tell.lock().len();
        hub.wake((0..TELL_MAX).map(|n| Topic::task(&n.to_string())));
        assert_eq!(texts(&hub), TELL_MAX);
        hub.wake([Topic::task("one more")]);
        assert_eq!(*hub.to_tell.lock(), BTreeSet::from([ALL.to_owned()]));
        let mut watch = hub.watch_topic(Topic::task("t"));
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
