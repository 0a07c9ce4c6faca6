//! What keeps the caches of every replica honest (architecture D3): facts are cached for minutes
//! and dropped by push. When the push link is down, or when there is none though others may write,
//! an entry counts for one second.
//!
//! Invariant: once [`Coherence::invalidate`] has returned, no request that begins later on this
//! replica is decided by the old fact, not even by a load that was in progress.

mod coherent;
mod gaps;
mod loading;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};

pub use self::coherent::{Coherent, Known, Weight};
use self::gaps::Gaps;
use crate::db::Db;
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::shared::{Notice, Shared};
use crate::store::Unavailable;

/// The channel on which replicas tell each other what to forget.
const CHANNEL: &str = "gw:invalidate";

/// How long a fact counts while invalidations arrive: long enough that steady state asks hardly ever
/// (two reads for each workspace that beats), short enough that a fact changed behind our back is seen
/// some day.
const AGE_MAX_LINKED: Duration = Duration::from_secs(900);

/// How long a fact counts while invalidations may be missed (contract §2: in force within 1 s).
const AGE_MAX_UNLINKED: Duration = Duration::from_secs(1);

/// Invalidations kept for a publish that failed. Beyond it one that drops everything replaces them.
const UNSENT_MAX: usize = 1024;

/// Pause between two tries to publish what is unsent.
const RESEND_PAUSE: Duration = Duration::from_millis(250);

/// `stores.timeout` of a store that nobody told of.
const STORE_CLOCK: Duration = Duration::from_secs(1);

/// Which cached facts are no longer true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// Where a workspace listens, by the shared state. Its row has not changed.
    Address(WorkspaceId),
    /// A credential, by the SHA-256 of its text in hexadecimal.
    Credential(String),
    /// All of them: after a gap in what was heard.
    Everything,
    /// Whether the first may message the second by an explicit grant.
    Grant(WorkspaceId, WorkspaceId),
    /// A workspace's parent, org, or that it exists; with it the lineage of all below it.
    Lineage(WorkspaceId),
    /// A workspace's state, address or settings.
    Workspace(WorkspaceId),
}

impl Invalidation {
    /// Reads what [`fmt::Display`] wrote. `:` is in no id, so the first one divides.
    fn parse(text: &str) -> Option<Self> {
        if text == "everything" {
            return Some(Self::Everything);
        }
        let (kind, name) = text.split_once(':')?;
        match kind {
            "address" => WorkspaceId::parse(name).ok().map(Self::Address),
            "credential" => Some(Self::Credential(name.to_owned())),
            "grant" => {
                let (caller, target) = name.split_once(':')?;
                let pair = [caller, target].map(WorkspaceId::parse);
                let [Ok(caller), Ok(target)] = pair else {
                    return None;
                };
                Some(Self::Grant(caller, target))
            }
            "lineage" => WorkspaceId::parse(name).ok().map(Self::Lineage),
            "workspace" => WorkspaceId::parse(name).ok().map(Self::Workspace),
            _ => None,
        }
    }
}

impl fmt::Display for Invalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(id) => write!(f, "address:{id}"),
            Self::Credential(hash) => write!(f, "credential:{hash}"),
            Self::Everything => f.write_str("everything"),
            Self::Grant(caller, target) => write!(f, "grant:{caller}:{target}"),
            Self::Lineage(id) => write!(f, "lineage:{id}"),
            Self::Workspace(id) => write!(f, "workspace:{id}"),
        }
    }
}

type Forget = dyn Fn(Invalidation) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// How this replica hears of changes made elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Both stores are embedded: nobody else can change anything.
    NotNeeded,
    /// The SQL store is a server's, but the shared state is this process's: others may write unheard.
    Missing,
    /// Through the shared state's publish and subscribe.
    Channel,
}

/// The link between the caches of all replicas.
pub struct Coherence {
    shared: Shared,
    metrics: Arc<Metrics>,
    link: Link,
    up: AtomicBool,
    /// Counts invalidations, so that a load can tell that one came while it read.
    epoch: AtomicU64,
    caches: RwLock<Vec<Arc<Forget>>>,
    unsent: Mutex<VecDeque<Invalidation>>,
    resend: Notify,
    /// The way around the channel, for when it is only we who cannot publish.
    gaps: OnceLock<Gaps>,
    /// `stores.timeout` of the SQL store.
    store_clock: OnceLock<Duration>,
    /// Marked whenever a fact changed by which something that is open may have to end.
    access: watch::Sender<()>,
}

/// Hears of changes since it was made.
pub struct AccessChanges(watch::Receiver<()>);

impl Coherence {
    /// The link over `shared`. `sql_is_embedded`: whether nobody else can write durable facts.
    pub fn new(shared: Shared, sql_is_embedded: bool, metrics: Arc<Metrics>) -> Arc<Self> {
        let link = match (sql_is_embedded, shared.is_embedded()) {
            (true, true) => Link::NotNeeded,
            (false, true) => Link::Missing,
            (_, false) => Link::Channel,
        };
        metrics.coherent.set(i64::from(link == Link::NotNeeded));
        Arc::new(Self {
            shared,
            metrics,
            link,
            up: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            caches: RwLock::default(),
            unsent: Mutex::default(),
            resend: Notify::new(),
            gaps: OnceLock::new(),
            store_clock: OnceLock::new(),
            access: watch::Sender::new(()),
        })
    }

    /// Has what cannot be published noted in SQL, where every replica looks several times a second:
    /// the others may be linked well, and would go on trusting what they know.
    pub fn note_gaps_in(&self, db: &Db) {
        let _ = self.store_clock.set(db.timeout());
        if self.link == Link::Channel && !db.is_embedded() {
            let _ = self.gaps.set(Gaps::new(db.clone()));
        }
    }

    /// Hears from now on of changes of credentials, places and grants, of this replica and of others.
    pub fn access_changes(&self) -> AccessChanges {
        AccessChanges(self.access.subscribe())
    }

    /// Waits for the next change, or, while changes may be missed, until what is known has aged. May be dropped and
    /// called again without missing any.
    pub async fn access_changed(&self, changes: &mut AccessChanges) {
        let aged = async {
            if AGE_MAX_UNLINKED < self.max_age() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(AGE_MAX_UNLINKED).await;
        };
        tokio::select! {
            // The sender lives as long as `self`.
            _ = changes.0.changed() => {}
            () = aged => {}
        }
    }

    /// How long a cached fact counts now.
    pub fn max_age(&self) -> Duration {
        match self.link {
            Link::NotNeeded => AGE_MAX_LINKED,
            Link::Channel if self.up.load(Ordering::Acquire) => AGE_MAX_LINKED,
            Link::Channel | Link::Missing => AGE_MAX_UNLINKED,
        }
    }

    /// Has `forget` called with every invalidation, ours and other replicas'. For rooms with a cache
    /// that is not a [`Coherent`] one; registered once, when the room is built.
    pub fn on_invalidation<F>(&self, forget: impl Fn(Invalidation) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.caches
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::new(move |what| Box::pin(forget(what))));
    }

    /// Drops the fact here, then tells the other replicas. Call it after the change is committed.
    ///
    /// A publish that fails is noted in SQL, and repeated by [`Coherence::run`] until it succeeds.
    pub async fn invalidate(&self, what: Invalidation) {
        self.apply(&what).await;
        if self.link != Link::Channel {
            return;
        }
        if let Err(error) = self.shared.publish(CHANNEL, &what.to_string()).await {
            tracing::warn!(%error, "other replicas could not be told what to forget; will repeat");
            self.keep_unsent(what);
            if let Some(gaps) = self.gaps.get()
                && let Err(error) = gaps.note().await
            {
                tracing::warn!(%error, "nor could it be noted in SQL");
            }
        }
    }

    /// As [`Coherence::invalidate`], after a change with this outcome. Where the store did not say in time whether it made it,
    /// it may make it until a clock of its own has passed, so what is read again until then is dropped once more.
    pub async fn invalidate_after<T>(
        self: &Arc<Self>,
        outcome: &Result<T, Unavailable>,
        what: Invalidation,
    ) {
        self.invalidate(what.clone()).await;
        if outcome.is_ok() {
            return;
        }
        let coherence = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(coherence.doubt()).await;
            coherence.invalidate(what).await;
        });
    }

    /// How long after a store did not answer in time it may make a change all the same.
    pub fn doubt(&self) -> Duration {
        2 * self.store_clock.get().copied().unwrap_or(STORE_CLOCK)
    }

    /// Listens and repeats, for as long as the process lives. A background task of the server.
    pub async fn run(&self) {
        if self.link == Link::Channel {
            tokio::join!(self.listen(), self.repeat(), self.look_for_gaps());
        }
    }

    async fn listen(&self) {
        let mut subscription = self.shared.subscribe(CHANNEL);
        loop {
            match subscription.next().await {
                Notice::Message(text) => match Invalidation::parse(&text) {
                    Some(what) => self.apply(&what).await,
                    // A newer replica's kind: dropping everything is never wrong.
                    None => self.apply(&Invalidation::Everything).await,
                },
                Notice::Down => self.set_up(false),
                Notice::Up => {
                    // What was said during the gap was missed. Dropped first, trusted after.
                    self.apply(&Invalidation::Everything).await;
                    self.set_up(true);
                }
            }
        }
    }

    /// Helps whoever reaches SQL. Without it nothing new is loaded, and the channel must do.
    async fn look_for_gaps(&self) {
        let Some(gaps) = self.gaps.get() else { return };
        let mut seen = None;
        loop {
            if let Ok(newest) = gaps.newest().await
                && seen != Some(newest)
            {
                // The first look, too: what was noted before it may concern what is known already.
                self.apply(&Invalidation::Everything).await;
                seen = Some(newest);
            }
            tokio::time::sleep(gaps::LOOK_EVERY).await;
        }
    }

    async fn repeat(&self) {
        loop {
            let Some(what) = self.next_unsent() else {
                self.resend.notified().await;
                continue;
            };
            if self
                .shared
                .publish(CHANNEL, &what.to_string())
                .await
                .is_err()
            {
                self.keep_unsent(what);
                tokio::time::sleep(RESEND_PAUSE).await;
            }
        }
    }

    fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
        self.access.send_replace(());
        self.metrics.coherent.set(i64::from(up));
    }

    fn next_unsent(&self) -> Option<Invalidation> {
        self.unsent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    fn keep_unsent(&self, what: Invalidation) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        if unsent.len() >= UNSENT_MAX {
            unsent.clear();
            unsent.push_back(Invalidation::Everything);
        } else {
            unsent.push_back(what);
        }
        drop(unsent);
        self.resend.notify_one();
    }

    /// Drops the fact here and tells nobody: for what every replica hears of by itself.
    pub async fn apply(&self, what: &Invalidation) {
        // Before the entries go: a load that reads the old epoch later than this does not exist.
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let caches = self
            .caches
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for forget in caches {
            forget(what.clone()).await;
        }
        if !matches!(what, Invalidation::Address(_) | Invalidation::Workspace(_)) {
            self.access.send_replace(());
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
