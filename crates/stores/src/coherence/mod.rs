//! Cache invalidation between replicas ([`Coherence`]). Cached values live for 15 minutes and are
//! invalidated by push. While the push link is down, or if there is no link although other
//! processes may write, an entry lives for one second.
//!
//! Invariant: once [`Coherence::invalidate`] has returned, no request that begins later on this
//! replica uses the old value, not even through a load that was in progress.
//!
//! The table `coherence_gaps`: one number that grows with each invalidation that could not be
//! published. Only this file has SQL for it.

mod cache;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

pub use self::cache::{CachedState, CoherentCache, Weight};
use crate::db::Db;
use crate::shared::{Notice, Shared};
use crate::store::Unavailable;
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;

/// The channel on which replicas publish invalidations.
const CHANNEL: &str = "gw:invalidate";

/// Lifetime of an entry while invalidations arrive. Long enough that the steady state hardly reads
/// the store (two reads for each workspace that sends heartbeats), and short enough that a change
/// made outside the gateways is seen eventually.
const AGE_MAX_LINKED: Duration = Duration::from_secs(900);

/// Lifetime of an entry while invalidations may be missed: a revocation takes effect within 1 s.
const AGE_MAX_UNLINKED: Duration = Duration::from_secs(1);

/// Unpublished invalidations kept. Beyond that, one that drops everything replaces them.
const UNSENT_MAX: usize = 1024;

/// Pause between two attempts to publish an unsent invalidation.
const RESEND_PAUSE: Duration = Duration::from_millis(250);

/// `stores.timeout` if [`Coherence::note_gaps_in`] did not set it.
const STORE_CLOCK: Duration = Duration::from_secs(1);

/// The set of cached values that an invalidation removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The address of a workspace in the shared state. Its row has not changed.
    Address(WorkspaceId),
    /// A credential, by the SHA-256 of its text in hexadecimal.
    Credential(String),
    /// All values: after a gap in the notices received.
    Everything,
    /// The explicit grant by which the first may message the second.
    Grant(WorkspaceId, WorkspaceId),
    /// A workspace's parent, org, pause or existence, and with it the lineage of all workspaces below it. Open streams
    /// check their access anew.
    Lineage(WorkspaceId),
    /// What was revoked of persons, sessions, runs and credentials.
    Revocations,
    /// The stops in force.
    Stops,
    /// A workspace's state, address or settings. Open streams go on.
    Workspace(WorkspaceId),
}

impl Invalidation {
    /// Parses the output of [`fmt::Display`]. No id contains `:`, so the first one separates.
    fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        let parse_id = |text| WorkspaceId::parse(text).ok();
        Some(match kind {
            "address" => Self::Address(parse_id(name)?),
            "credential" => Self::Credential(name.to_owned()),
            "everything" => Self::Everything,
            "grant" => {
                let (caller, target) = name.split_once(':')?;
                Self::Grant(parse_id(caller)?, parse_id(target)?)
            }
            "lineage" => Self::Lineage(parse_id(name)?),
            "revocations" => Self::Revocations,
            "stops" => Self::Stops,
            "workspace" => Self::Workspace(parse_id(name)?),
            _ => return None,
        })
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
            Self::Revocations => f.write_str("revocations"),
            Self::Stops => f.write_str("stops"),
            Self::Workspace(id) => write!(f, "workspace:{id}"),
        }
    }
}

type ForgetFn = dyn Fn(Invalidation) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The way this replica receives changes made by other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Both stores are embedded: no other process can change anything.
    NotNeeded,
    /// The SQL store is a server, but the shared state is in this process: other processes may
    /// write without notice.
    Missing,
    /// Through the publish/subscribe channel of the shared state.
    Channel,
}

/// The invalidation link between the caches of all replicas.
pub struct Coherence {
    shared: Shared,
    metrics: Arc<Metrics>,
    link: Link,
    up: AtomicBool,
    /// True once the leases granted before the start are known, or could have been renewed since.
    leases_known: AtomicBool,
    /// Counts invalidations, so that a load can detect one that arrived while it read.
    epoch: AtomicU64,
    caches: RwLock<Vec<Arc<ForgetFn>>>,
    unsent: Mutex<VecDeque<Invalidation>>,
    resend: Notify,
    /// The fallback through SQL, for when only this replica cannot publish.
    sql: OnceLock<Db>,
    /// Marked on each change that may end an open stream or connection.
    access: watch::Sender<()>,
}

/// A receiver of the access changes since it was created.
pub struct AccessChanges(watch::Receiver<()>);

impl Coherence {
    /// Creates the link over `shared`. `sql_is_embedded`: no other process can write to the SQL
    /// store.
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
            up: AtomicBool::new(link == Link::NotNeeded),
            leases_known: AtomicBool::new(link != Link::Channel),
            epoch: AtomicU64::new(0),
            caches: RwLock::default(),
            unsent: Mutex::default(),
            resend: Notify::new(),
            sql: OnceLock::new(),
            access: watch::Sender::new(()),
        })
    }

    /// Records in SQL each invalidation that cannot be published. Each replica polls it several
    /// times a second: the other replicas may have a working link and would keep stale entries.
    pub fn note_gaps_in(&self, db: &Db) {
        let _ = self.sql.set(db.clone());
    }

    /// Returns the store with the table of gaps, if other replicas share it.
    fn gaps(&self) -> Option<&Db> {
        self.sql.get().filter(|db| !db.is_embedded())
    }

    /// Subscribes to changes of credentials, lineage and grants, made by this or another replica.
    pub fn access_changes(&self) -> AccessChanges {
        AccessChanges(self.access.subscribe())
    }

    /// Waits for the next change, or, while changes may be missed, until cached values have
    /// expired. Cancellation-safe: may be dropped and called again without missing a change.
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

    /// Returns the current lifetime of a cached entry.
    pub fn max_age(&self) -> Duration {
        match self.link {
            Link::NotNeeded => AGE_MAX_LINKED,
            Link::Channel if self.up.load(Ordering::Acquire) => AGE_MAX_LINKED,
            Link::Channel | Link::Missing => AGE_MAX_UNLINKED,
        }
    }

    /// Calls `forget` with each invalidation, of this replica and of others. For modules with a
    /// cache that is not a [`CoherentCache`]; registered once, when the module is built.
    pub fn on_invalidation<F>(&self, forget: impl Fn(Invalidation) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.caches
            .write()
            .push(Arc::new(move |what| Box::pin(forget(what))));
    }

    /// Drops all that [`Coherence::on_invalidation`] registered.
    pub fn drop_caches(&self) {
        self.caches.write().clear();
    }

    /// Removes the value here, then publishes the invalidation. Call it after the change is
    /// committed.
    ///
    /// A publish that fails is recorded in SQL, and [`Coherence::run`] repeats it until it
    /// succeeds.
    pub async fn invalidate(&self, what: Invalidation) {
        self.apply(&what).await;
        if self.link != Link::Channel {
            return;
        }
        if let Err(error) = self.shared.publish(CHANNEL, &what.to_string()).await {
            tracing::warn!(%error, "failed to publish a cache invalidation; will retry");
            self.keep_unsent(what);
            if let Some(gaps) = self.gaps()
                && let Err(error) = gaps.execute("coherence_note", sqlx::query(NOTE)).await
            {
                tracing::warn!(%error, "failed to record an unpublished invalidation in SQL");
            }
        }
    }

    /// Like [`Coherence::invalidate`], after a change with this outcome. If the store timed out, it
    /// may still make the change until its own timeout has passed, so the value is invalidated once
    /// more after that.
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
            tokio::time::sleep(coherence.write_uncertainty()).await;
            coherence.invalidate(what).await;
        });
    }

    /// Returns the time for which a store that timed out may still make a change.
    pub fn write_uncertainty(&self) -> Duration {
        2 * self.sql.get().map_or(STORE_CLOCK, Db::timeout)
    }

    /// Receives and republishes invalidations for the life of the process. A background task of the
    /// server.
    pub async fn run(&self) {
        if self.link == Link::Channel {
            tokio::join!(
                self.follow_channel(),
                self.republish_unsent(),
                self.follow_gaps()
            );
        }
    }

    async fn follow_channel(&self) {
        let mut subscription = self.shared.subscribe(CHANNEL);
        let mut moved_before = None;
        loop {
            match subscription.next().await {
                Notice::Message(text) => {
                    // The kind of a newer replica: dropping everything is always correct.
                    let what = Invalidation::parse(&text).unwrap_or(Invalidation::Everything);
                    self.apply(&what).await;
                }
                Notice::Down => self.set_up(false),
                Notice::Up => {
                    // Notices of the gap were missed: drop everything first, then trust the link.
                    self.apply(&Invalidation::Everything).await;
                    self.set_up(true);
                    let moves = self.shared.move_count();
                    let before = moved_before.replace(moves);
                    if before.is_some_and(|before| before != moves) {
                        // What was published at the earlier server did not reach those that had gone over.
                        self.keep_unsent(Invalidation::Everything);
                    }
                }
            }
        }
    }

    /// Polls the gaps table. It helps replicas that reach SQL; without SQL no new value is loaded
    /// either, and the channel must suffice.
    async fn follow_gaps(&self) {
        let Some(gaps) = self.gaps() else { return };
        let mut seen = None;
        loop {
            let newest = gaps.fetch_optional::<(i64,)>("coherence_look", sqlx::query(NEWEST));
            if let Ok(newest) = newest.await
                && seen != Some(newest)
            {
                // The first poll, too: an earlier gap may concern entries that are cached already.
                self.apply(&Invalidation::Everything).await;
                seen = Some(newest);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn republish_unsent(&self) {
        loop {
            let Some(what) = self.next_unsent() else {
                self.resend.notified().await;
                continue;
            };
            let text = what.to_string();
            if self.shared.publish(CHANNEL, &text).await.is_err() {
                self.keep_unsent(what);
                tokio::time::sleep(RESEND_PAUSE).await;
            }
        }
    }

    fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
        self.access.send_replace(());
        self.update_metric();
    }

    /// Returns true once [`Coherence::set_leases_known`] was called.
    pub fn are_leases_known(&self) -> bool {
        self.leases_known.load(Ordering::Acquire)
    }

    /// Ends the time after the start in which agents without a lease count as alive.
    pub fn set_leases_known(&self) {
        self.leases_known.store(true, Ordering::Release);
        self.update_metric();
    }

    fn update_metric(&self) {
        let coherent = self.up.load(Ordering::Acquire) && self.are_leases_known();
        self.metrics.coherent.set(i64::from(coherent));
    }

    fn next_unsent(&self) -> Option<Invalidation> {
        self.unsent.lock().pop_front()
    }

    fn keep_unsent(&self, what: Invalidation) {
        let mut unsent = self.unsent.lock();
        if unsent.len() >= UNSENT_MAX {
            unsent.clear();
            unsent.push_back(Invalidation::Everything);
        } else {
            unsent.push_back(what);
        }
        drop(unsent);
        self.resend.notify_one();
    }

    /// Removes the value here without publishing: for changes that each replica receives anyway.
    pub async fn apply(&self, what: &Invalidation) {
        // Before the entries are removed, so that no load can read the old epoch after this.
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let caches = self.caches.read().clone();
        for forget in caches {
            forget(what.clone()).await;
        }
        let of_access = !matches!(
            what,
            Invalidation::Address(_) | Invalidation::Stops | Invalidation::Workspace(_)
        );
        if of_access {
            self.access.send_replace(());
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;

/// Poll interval: a third of the second within which a revocation takes effect.
const LOOK_EVERY: Duration = Duration::from_millis(330);

const NOTE: &str = "INSERT INTO coherence_gaps (id, noted) VALUES (1, 1) \
    ON CONFLICT (id) DO UPDATE SET noted = coherence_gaps.noted + 1";
const NEWEST: &str = "SELECT noted FROM coherence_gaps WHERE id = 1";
