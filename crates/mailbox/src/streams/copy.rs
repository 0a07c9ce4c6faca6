//! Copies stream logs to the shared state in the background, so that a stream can be resumed on another
//! replica. Events that are copied late, since the store was unavailable, appear there late. Events that the
//! bounds dropped meanwhile are a gap. Copies that the store lost, after a restart without data or without the latest
//! writes, are written again as long as their logs are kept here. Without it, readers on other replicas would wait for
//! an end that is never written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Streams;
use super::stream_log::{StreamAccess, StreamEnd, StreamLog, UncopiedEvents};
use kernel::deadline::ticks;
use kernel::telemetry::Chain;
use stores::shared::Shared;
use stores::store::Unavailable;

/// Pause between two rounds. Events that arrive meanwhile are copied in the same round.
const COPY_EVERY: Duration = Duration::from_millis(20);

/// Streams that are copied concurrently.
const AT_ONCE: usize = 64;

/// Pause between two attempts while the store is unavailable.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Interval of heartbeats, of checks for readers on other replicas, and of checks for data that the store
/// lost.
const KNOWN_EVERY: Duration = Duration::from_secs(2);

/// Lifetime of a heartbeat.
pub(super) const REPLICA_TTL: Duration = Duration::from_secs(8);

/// Time that shutdown waits for events that are not copied yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Key names in the shared state.
pub(super) mod key {
    use uuid::Uuid;

    /// Returns the key of the events, by number.
    pub(crate) fn events(id: Uuid) -> String {
        format!("gw:stream:{}", id.simple())
    }

    /// Returns the key of the metadata: the caller and the writer.
    pub(crate) fn meta(id: Uuid) -> String {
        format!("gw:stream-meta:{}", id.simple())
    }

    /// Returns the key of the reader's heartbeat: present while another replica reads the stream.
    pub(crate) fn reader(id: Uuid) -> String {
        format!("gw:stream-reader:{}", id.simple())
    }

    /// Returns the key of a replica's heartbeat: present while the writer lives.
    pub(crate) fn replica(id: &str) -> String {
        format!("gw:replica:{id}")
    }
}

/// An entry that is an event.
pub(super) const EVENT: u8 = b'e';

/// An entry that is the end, with the bytes behind the last event.
pub(super) const WHOLE: u8 = b'w';

/// An entry that is the end of a stream that was broken off.
pub(super) const LOST: u8 = b'l';

/// Data that another replica needs before it serves the stream.
#[derive(Serialize, Deserialize)]
pub(super) struct Meta {
    #[serde(flatten)]
    pub(super) access: StreamAccess,
    pub(super) replica: String,
}

/// Copies of logs in the shared state.
pub(super) struct Copies {
    pub(super) shared: Shared,
    /// The name of this replica there.
    replica: String,
    /// Time of the last heartbeat.
    signed: Mutex<Option<Instant>>,
    /// `Shared::loss_count` at the last check for lost copies.
    pub(super) losses: AtomicU64,
    queue: Mutex<Vec<Arc<StreamLog>>>,
    queued: Notify,
}

impl Copies {
    pub(super) fn new(shared: Shared) -> Self {
        Self {
            losses: AtomicU64::new(shared.loss_count()),
            shared,
            replica: Uuid::now_v7().simple().to_string(),
            signed: Mutex::default(),
            queue: Mutex::default(),
            queued: Notify::new(),
        }
    }

    /// Writes a heartbeat of this replica, unless one was written within `KNOWN_EVERY`.
    async fn write_heartbeat(&self) -> Result<(), Unavailable> {
        let lock_signed = || self.signed.lock();
        if lock_signed().is_some_and(|at| at.elapsed() < KNOWN_EVERY) {
            return Ok(());
        }
        let alive = key::replica(&self.replica);
        self.shared.set(&alive, "", Some(REPLICA_TTL)).await?;
        *lock_signed() = Some(Instant::now());
        Ok(())
    }
}

impl Streams {
    /// Queues a log to be copied, once. The queue is never longer than the number of logs.
    pub(super) fn copy_later(&self, kept: &Arc<StreamLog>) {
        let Some(copies) = &self.copies else { return };
        if !kept.queued.swap(true, Ordering::AcqRel) {
            copies.queue.lock().push(Arc::clone(kept));
            copies.queued.notify_one();
        }
    }

    /// Copies queued logs. Runs until it is dropped.
    pub(super) async fn copy_queued(&self) {
        let Some(copies) = &self.copies else { return };
        let mut warned = false;
        let mut tick = ticks(KNOWN_EVERY);
        loop {
            tokio::select! {
                () = copies.queued.notified() => sleep(COPY_EVERY).await,
                _ = tick.tick() => {}
            }
            if let Err(error) = requeue_lost(self, copies).await {
                tracing::debug!(error = %Chain(&error), "failed to check which stream copies the store lost; will retry");
            }
            if let Err(error) = self.delete_gone(copies).await {
                tracing::debug!(error = %Chain(&error), "failed to delete copies of evicted streams; they stay until they lapse");
            }
            let queue = std::mem::take(&mut *copies.queue.lock());
            let mut failed = false;
            for some in queue.chunks(AT_ONCE) {
                let tries = some.iter().map(|kept| self.copy_one(copies, kept));
                for (kept, tried) in some.iter().zip(join_all(tries).await) {
                    let Err(error) = tried else { continue };
                    self.metrics.streams.copies_failed.inc();
                    failed = true;
                    if !std::mem::replace(&mut warned, true) {
                        let error = Chain(&error);
                        tracing::warn!(%error, "failed to copy streams for other replicas; retrying");
                    }
                    self.copy_later(kept);
                }
            }
            if failed {
                sleep(RETRY_PAUSE).await;
            } else {
                warned = false;
            }
        }
    }

    /// Deletes the copies of logs that were evicted here, so that the store keeps no more than this replica
    /// does.
    async fn delete_gone(&self, copies: &Copies) -> Result<(), Unavailable> {
        let gone = std::mem::take(&mut self.logs.lock().gone);
        for some in gone.chunks(AT_ONCE) {
            let keys = some
                .iter()
                .flat_map(|id| [key::meta(*id), key::events(*id)]);
            let keys: Vec<String> = keys.collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            copies.shared.delete(&keys).await?;
        }
        Ok(())
    }

    async fn copy_one(&self, copies: &Copies, kept: &StreamLog) -> Result<(), Unavailable> {
        // First: events that arrive from here on queue the log again.
        kept.queued.store(false, Ordering::Release);
        let Some(uncopied) = kept.uncopied_events() else {
            return Ok(());
        };
        let ttl = self.config.get().stream.log_ttl;
        if !kept.known.load(Ordering::Acquire) {
            self.publish_meta(copies, kept, ttl).await?;
        }
        let entries = to_entries(&uncopied);
        let keep = uncopied.kept + usize::from(uncopied.over.is_some());
        let key = key::events(kept.id);
        copies
            .shared
            .append_numbered(&key, &entries, keep.max(1), ttl)
            .await?;
        kept.mark_copied(&uncopied);
        Ok(())
    }

    async fn publish_meta(
        &self,
        copies: &Copies,
        kept: &StreamLog,
        ttl: Duration,
    ) -> Result<(), Unavailable> {
        let meta = Meta {
            access: kept.access.clone(),
            replica: copies.replica.clone(),
        };
        let meta = serde_json::json!(meta).to_string();
        let shared = &copies.shared;
        copies.write_heartbeat().await?;
        shared.set(&key::meta(kept.id), &meta, Some(ttl)).await?;
        kept.known.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes heartbeats while a stream runs, renews its copies, and checks for readers on other replicas of
    /// streams that go on without their caller. Runs until it is dropped.
    pub(super) async fn renew_regularly(&self) {
        let Some(copies) = &self.copies else { return };
        let mut tick = ticks(KNOWN_EVERY);
        let mut renewed = Instant::now();
        loop {
            tick.tick().await;
            let open: Vec<_> = {
                let logs = self.logs.lock();
                let open = logs.by_id.values().filter(|kept| kept.is_open());
                open.map(Arc::clone).collect()
            };
            if open.is_empty() {
                continue;
            }
            let ttl = self.config.get().stream.log_ttl;
            let renew = ttl / 4 < renewed.elapsed();
            if renew {
                renewed = Instant::now();
            }
            if let Err(error) = self.renew_copies(copies, &open, renew.then_some(ttl)).await {
                tracing::debug!(error = %Chain(&error), "failed to write the heartbeat of streams; will retry");
            }
        }
    }

    async fn renew_copies(
        &self,
        copies: &Copies,
        open: &[Arc<StreamLog>],
        renew: Option<Duration>,
    ) -> Result<(), Unavailable> {
        let shared = &copies.shared;
        copies.write_heartbeat().await?;
        let lingering = open.iter().filter(|k| k.lingers.load(Ordering::Acquire));
        let lingering: Vec<_> = lingering.collect();
        let keys: Vec<String> = lingering.iter().map(|kept| key::reader(kept.id)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        for (kept, reader) in lingering.iter().zip(shared.get_many(&keys).await?) {
            if reader.is_some() {
                kept.record_read();
            }
        }
        let Some(ttl) = renew else { return Ok(()) };
        let known = open
            .iter()
            .filter(|kept| kept.known.load(Ordering::Acquire));
        let keys: Vec<String> = known
            .flat_map(|kept| [key::meta(kept.id), key::events(kept.id)])
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        shared.refresh(&keys, ttl).await.map(drop)
    }

    /// Waits until all logs are copied and no stream lingers, at most `FLUSH_MAX`.
    pub async fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        while self.lingering.total() > 0 || !self.is_copied() {
            if Instant::now() >= deadline {
                tracing::warn!(
                    "shutdown: the last events of streams were not copied for other replicas"
                );
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn is_copied(&self) -> bool {
        self.copies.is_none() || self.logs.lock().by_id.values().all(|kept| kept.is_copied())
    }
}

fn to_entries(uncopied: &UncopiedEvents) -> Vec<(u64, Bytes)> {
    let entry = |tag, bytes: &[u8]| {
        let mut entry = BytesMut::with_capacity(1 + bytes.len());
        entry.put_u8(tag);
        entry.extend_from_slice(bytes);
        entry.freeze()
    };
    let events = uncopied.events.iter();
    let mut entries: Vec<_> = events.map(|(n, event)| (*n, entry(EVENT, event))).collect();
    let end = uncopied.over.as_ref().map(|over| match over {
        StreamEnd::Whole(rest) => entry(WHOLE, rest),
        StreamEnd::Lost => entry(LOST, &[]),
    });
    entries.extend(end.map(|end| (uncopied.up_to + 1, end)));
    entries
}

/// Looks for lost copies if the connection to the store was lost since the last check, and queues them
/// again. Must not run while logs are copied.
///
/// # Errors
/// When the store is unavailable: the check is to be repeated.
async fn requeue_lost(streams: &Streams, copies: &Copies) -> Result<(), Unavailable> {
    // Read before the check: losses during the check are found by the next one.
    let losses = copies.shared.loss_count();
    if copies.losses.load(Ordering::Relaxed) == losses {
        return Ok(());
    }
    let known: Vec<Arc<StreamLog>> = {
        let logs = streams.logs.lock();
        let known = logs
            .by_id
            .values()
            .filter(|kept| kept.known.load(Ordering::Acquire));
        known.map(Arc::clone).collect()
    };
    for some in known.chunks(AT_ONCE) {
        let looks = some.iter().map(|kept| has_copy(copies, kept));
        for (kept, there) in some.iter().zip(join_all(looks).await) {
            if !there? {
                kept.mark_uncopied();
                streams.copy_later(kept);
            }
        }
    }
    copies.losses.store(losses, Ordering::Relaxed);
    Ok(())
}

/// True if other replicas can read the copied entries. Otherwise the rest of the copy is deleted, since entry
/// numbers must increase.
async fn has_copy(copies: &Copies, kept: &StreamLog) -> Result<bool, Unavailable> {
    let shared = &copies.shared;
    let events = key::events(kept.id);
    if shared.get(&key::meta(kept.id)).await?.is_some() {
        let Some(last) = kept.last_copied() else {
            return Ok(true);
        };
        let found = shared.read_numbered(&events, last - 1, 1).await?;
        if found.first().is_some_and(|(n, _)| *n == last) {
            return Ok(true);
        }
    }
    shared.delete(&[&events]).await?;
    Ok(false)
}
