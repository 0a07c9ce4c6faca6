//! Copies stream logs to the shared state in the background, so that a stream can be resumed on another
//! replica. Events that are copied late, since the store was unavailable, appear there late. Events that the
//! bounds dropped meanwhile are a gap. Copies that the store lost, after a restart without data or without the latest
//! writes, are written again as long as their logs are kept here. Without it, readers on other replicas would wait for
//! an end that is never written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Streams;
use super::stream_log::{LogRead, StreamAccess, StreamEnd, StreamLog, UncopiedEvents};
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
const REPLICA_TTL: Duration = Duration::from_secs(8);

/// Time that shutdown waits for events that are not copied yet.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Keys in the shared state, each followed by an id: the events of a stream, by number; its metadata (the caller and
/// the writer); the heartbeat of a reader on another replica; the heartbeat of a replica that writes.
const EVENTS_KEY: &str = "gw:stream:";
const META_KEY: &str = "gw:stream-meta:";
const READER_KEY: &str = "gw:stream-reader:";
const REPLICA_KEY: &str = "gw:replica:";

/// Returns a key of a stream.
fn stream_key(key: &str, id: Uuid) -> String {
    format!("{key}{}", id.simple())
}

/// Returns the keys of the copies of some streams.
fn copy_keys(ids: impl Iterator<Item = Uuid>) -> Vec<String> {
    ids.flat_map(|id| [META_KEY, EVENTS_KEY].map(|key| stream_key(key, id)))
        .collect()
}

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

/// An entry that is an event.
const EVENT: u8 = b'e';

/// An entry that is the end, with the bytes behind the last event.
const WHOLE: u8 = b'w';

/// An entry that is the end of a stream that was broken off.
const LOST: u8 = b'l';

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
        let alive = format!("{REPLICA_KEY}{}", self.replica);
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
            let keys = copy_keys(some.iter().copied());
            copies.shared.delete(&as_strs(&keys)).await?;
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
        let key = stream_key(EVENTS_KEY, kept.id);
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
        let key = stream_key(META_KEY, kept.id);
        shared.set(&key, &meta, Some(ttl)).await?;
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
            let open = self.logs_where(StreamLog::is_open);
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
        let keys = lingering.iter().map(|kept| stream_key(READER_KEY, kept.id));
        let keys: Vec<String> = keys.collect();
        let readers = shared.get_many(&as_strs(&keys)).await?;
        for (kept, reader) in lingering.iter().zip(readers) {
            if reader.is_some() {
                kept.record_read();
            }
        }
        let Some(ttl) = renew else { return Ok(()) };
        let known = open.iter().filter(|k| k.known.load(Ordering::Acquire));
        let keys = copy_keys(known.map(|kept| kept.id));
        shared.refresh(&as_strs(&keys), ttl).await.map(drop)
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
    let known = streams.logs_where(|kept| kept.known.load(Ordering::Acquire));
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
    let events = stream_key(EVENTS_KEY, kept.id);
    if shared.get(&stream_key(META_KEY, kept.id)).await?.is_some() {
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

// Reads a stream that another replica writes, from the shared state.

/// Interval of polls for new entries.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Entries of one poll at most.
const ENTRIES_MAX: usize = 64;

/// Lifetime of a reader's heartbeat; renewed after half of it.
const READER_TTL: Duration = Duration::from_secs(5);

/// A stream that began less than this ago may not be copied yet.
const FRESH: Duration = Duration::from_secs(2);

/// A stream of another replica, while it is read here.
pub(super) struct RemoteStream {
    shared: Shared,
    pub(super) id: Uuid,
    pub(super) meta: Meta,
    /// Time of the last reader heartbeat.
    heartbeat_at: Option<Instant>,
    /// Time at which the writer was last known to live.
    alive: Instant,
}

impl RemoteStream {
    /// Finds the stream of that name; `None`: there is none.
    pub(super) async fn find(shared: &Shared, id: Uuid) -> Result<Option<Self>, Unavailable> {
        let key = stream_key(META_KEY, id);
        loop {
            if let Some(meta) = shared.get(&key).await? {
                // Metadata that cannot be read was written by a newer release.
                let meta = serde_json::from_str(&meta).ok();
                return Ok(meta.map(|meta| Self {
                    shared: shared.clone(),
                    id,
                    meta,
                    heartbeat_at: None,
                    alive: Instant::now(),
                }));
            }
            if !is_fresh(id) {
                return Ok(None);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn events_key(&self) -> String {
        stream_key(EVENTS_KEY, self.id)
    }

    fn writer_key(&self) -> String {
        format!("{REPLICA_KEY}{}", self.meta.replica)
    }

    /// True if there may have been an event of that number. An event that was sent a moment ago may not be
    /// copied yet, and one that a gateway sent just before it crashed never is.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(super) async fn may_have(&self, number: u64) -> Result<bool, Unavailable> {
        let Some(before) = number.checked_sub(1) else {
            return Ok(true);
        };
        let (key, asked) = (self.events_key(), Instant::now());
        let writer = self.writer_key();
        let mut known_open = false;
        loop {
            let entries = self.shared.read_numbered(&key, before, 1).await?;
            if let Some((n, entry)) = entries.first() {
                // The entry behind the last event records how the stream ended.
                return Ok(*n > number || entry.first() == Some(&EVENT));
            }
            if FRESH < asked.elapsed() {
                // Stop waiting for an event behind the end of the stream, or for one that a writer with a
                // newer heartbeat has not written.
                if !known_open && self.has_ended().await? || REPLICA_TTL + FRESH < asked.elapsed() {
                    return Ok(false);
                }
                known_open = true;
                if self.shared.get(&writer).await?.is_none() {
                    return Ok(true);
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// True if the last entry records how the stream ended.
    async fn has_ended(&self) -> Result<bool, Unavailable> {
        let (key, mut after, mut ended) = (self.events_key(), 0, false);
        loop {
            let entries = self.shared.read_numbered(&key, after, ENTRIES_MAX).await?;
            let Some((last, entry)) = entries.last() else {
                return Ok(ended);
            };
            (after, ended) = (*last, entry.first() != Some(&EVENT));
        }
    }

    /// Waits for entries after an event. Retries while the store is unavailable.
    pub(super) async fn next_events(&mut self, after: u64) -> LogRead {
        loop {
            let _ = self.write_heartbeat().await;
            // Checked before the events are read, so that events that a writer wrote before it ended are
            // still read.
            let lives = self.is_writer_alive().await;
            if let Ok(Some(look)) = self.read_entries(after).await {
                return look;
            }
            if !lives {
                return LogRead {
                    missed: 0,
                    bytes: Bytes::new(),
                    up_to: after,
                    over: Some(StreamEnd::Lost),
                };
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Writes the heartbeat that tells the writer of a reader.
    async fn write_heartbeat(&mut self) -> Result<(), Unavailable> {
        let last = self.heartbeat_at;
        if last.is_some_and(|at| at.elapsed() < READER_TTL / 2) {
            return Ok(());
        }
        let key = stream_key(READER_KEY, self.id);
        self.shared.set(&key, "", Some(READER_TTL)).await?;
        self.heartbeat_at = Some(Instant::now());
        Ok(())
    }

    /// True if the writer lives, as far as is known: it writes heartbeats for itself and renews the stream's
    /// metadata. If the store lost the metadata of a stream that the writer has evicted, no replica writes it
    /// again.
    async fn is_writer_alive(&mut self) -> bool {
        let keys = [self.writer_key(), stream_key(META_KEY, self.id)];
        let signs = self.shared.get_many(&[&keys[0], &keys[1]]).await;
        // While the store is unavailable the state of the writer is unknown.
        if signs.is_ok_and(|signs| signs.iter().any(Option::is_none)) {
            return self.alive.elapsed() < REPLICA_TTL;
        }
        self.alive = Instant::now();
        true
    }

    async fn read_entries(&self, after: u64) -> Result<Option<LogRead>, Unavailable> {
        let key = self.events_key();
        let entries = self.shared.read_numbered(&key, after, ENTRIES_MAX).await?;
        let Some((first, _)) = entries.first() else {
            return Ok(None);
        };
        let mut look = LogRead {
            missed: first - after - 1,
            bytes: Bytes::new(),
            up_to: first - 1,
            over: None,
        };
        let mut bytes = BytesMut::new();
        for (n, entry) in entries {
            // Entries that were trimmed between two polls, or never arrived, are reported with the next poll.
            if n != look.up_to + 1 {
                break;
            }
            match entry.split_first() {
                Some((&EVENT, event)) => {
                    bytes.extend_from_slice(event);
                    look.up_to = n;
                }
                Some((&WHOLE, rest)) => {
                    look.over = Some(StreamEnd::Whole(Bytes::copy_from_slice(rest)));
                }
                _ => look.over = Some(StreamEnd::Lost),
            }
        }
        look.bytes = bytes.freeze();
        Ok(Some(look))
    }
}

/// True if the id was generated a moment ago: it contains its time.
fn is_fresh(id: Uuid) -> bool {
    let made = id.get_timestamp().map(|made| made.to_unix());
    // Clocks of replicas differ a little.
    made.is_some_and(|(seconds, nanos)| {
        let made = UNIX_EPOCH + Duration::new(seconds, nanos);
        let age = SystemTime::now().duration_since(made);
        age.unwrap_or_else(|ahead| ahead.duration()) < FRESH
    })
}
