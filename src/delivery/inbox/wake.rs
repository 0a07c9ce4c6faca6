//! Who waits for what, on all replicas. A word that something is new costs those nothing who do not wait for
//! it; while the link that brings it is down, one task of this replica looks at SQL for all who wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Inbox;
use crate::ids::WorkspaceId;
use crate::shared::Notice;
use crate::telemetry::Chain;

/// The channel between replicas: who tells it, then what is new, by lines.
const CHANNEL: &str = "gw:inbox";

/// Stands for everything that may be waited for.
const ALL: &str = "*";

/// What is told at once at most. Beyond it: everything.
const TELL_MAX: usize = 4096;

/// Pause between two tries to tell.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// How often SQL is looked at while the link is down.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What may be waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Topic {
    /// More in an inbox.
    Inbox(WorkspaceId),
    /// More of a task.
    Task(String),
}

impl Topic {
    fn text(&self) -> String {
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

/// How far what is waited for had come at the last look.
pub(super) type Marks = HashMap<Topic, i64>;

/// Those who wait on this replica, and what the others are still to be told.
pub(super) struct Hub {
    waiting: DashMap<Topic, watch::Sender<()>>,
    /// Tells our own words from others'.
    replica: String,
    to_tell: Mutex<BTreeSet<String>>,
    told: Notify,
}

/// One who waits. Dropping it ends that.
pub struct Watch {
    hub: Arc<Hub>,
    topic: Topic,
    changes: watch::Receiver<()>,
}

impl Watch {
    /// Waits until there may be something new since it was made, or since the last time. Look first, then
    /// wait. May be dropped and called again without missing any.
    pub async fn changed(&mut self) {
        // The sender stays for as long as somebody waits, so the wait cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let last = |_: &Topic, changes: &mut watch::Sender<()>| changes.receiver_count() <= 1;
        self.hub.waiting.remove_if_mut(&self.topic, last);
    }
}

impl Hub {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: DashMap::new(),
            replica: uuid::Uuid::new_v4().simple().to_string(),
            to_tell: Mutex::default(),
            told: Notify::new(),
        })
    }

    pub(super) fn watch(self: &Arc<Self>, topic: Topic) -> Watch {
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
            changes,
        }
    }

    /// Something is new: those here hear it now, those on other replicas as soon as it can be told.
    pub(super) fn wake(&self, topics: impl IntoIterator<Item = Topic>) {
        let mut texts = Vec::new();
        for topic in topics {
            self.wake_here(&topic);
            texts.push(topic.text());
        }
        self.to_tell(texts);
        self.told.notify_one();
    }

    fn to_tell(&self, texts: impl IntoIterator<Item = String>) {
        let mut to_tell = self.lock();
        to_tell.extend(texts);
        if to_tell.len() > TELL_MAX {
            *to_tell = BTreeSet::from([ALL.to_owned()]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Each step leaves the set whole, so a panic elsewhere cannot have broken it.
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

    fn heard(&self, text: &str) {
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

    /// What is waited for.
    fn topics(&self) -> Vec<Topic> {
        self.waiting.iter().map(|one| one.key().clone()).collect()
    }
}

impl Inbox {
    /// Tells the other replicas, until they are told.
    pub(super) async fn tell(&self) {
        loop {
            self.hub.told.notified().await;
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
                tracing::debug!(error = %Chain(&error), "Nobody was told of new messages; trying on");
                // Who listens elsewhere may not know that the link is down here.
                self.hub.to_tell(batch);
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Hears what other replicas tell, and looks at SQL while they cannot.
    pub(super) async fn listen(&self) {
        let mut notices = self.shared.subscribe(CHANNEL);
        let mut up = false;
        let mut marks = Marks::default();
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                notice = notices.next() => match notice {
                    Notice::Message(text) => self.hub.heard(&text),
                    Notice::Down => up = false,
                    Notice::Up => {
                        // What was told in between was missed.
                        self.hub.wake_all();
                        marks = Marks::default();
                        up = true;
                    }
                },
                _ = look.tick(), if !up => {
                    let topics = self.hub.topics();
                    match self.look(&mut marks, topics).await {
                        Ok(news) => news.iter().for_each(|topic| self.hub.wake_here(topic)),
                        Err(error) => {
                            tracing::debug!(error = %Chain(&error), "Nobody could look for new messages");
                        }
                    }
                }
            }
        }
    }
}
