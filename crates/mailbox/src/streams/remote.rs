//! Reads a stream that another replica writes, from the shared state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::copy::{EVENT, Meta, REPLICA_TTL, WHOLE, key};
use super::stream_log::{LogRead, StreamAccess, StreamEnd};
use stores::shared::Shared;
use stores::store::Unavailable;

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
    id: Uuid,
    meta: Meta,
    /// Time of the last reader heartbeat.
    heartbeat_at: Option<Instant>,
    /// Time at which the writer was last known to live.
    alive: Instant,
}

impl RemoteStream {
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Finds the stream of that name; `None`: there is none.
    pub(super) async fn find(shared: &Shared, id: Uuid) -> Result<Option<Self>, Unavailable> {
        let key = key::meta(id);
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

    pub(super) fn access(&self) -> &StreamAccess {
        &self.meta.access
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
        let (key, asked) = (key::events(self.id), Instant::now());
        let writer = key::replica(&self.meta.replica);
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
        let (key, mut after, mut ended) = (key::events(self.id), 0, false);
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
                    bytes: bytes::Bytes::new(),
                    up_to: after,
                    over: Some(StreamEnd::Lost),
                };
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Writes the heartbeat that tells the writer of a reader.
    async fn write_heartbeat(&mut self) -> Result<(), Unavailable> {
        if self
            .heartbeat_at
            .is_some_and(|at| at.elapsed() < READER_TTL / 2)
        {
            return Ok(());
        }
        let key = key::reader(self.id);
        self.shared.set(&key, "", Some(READER_TTL)).await?;
        self.heartbeat_at = Some(Instant::now());
        Ok(())
    }

    /// True if the writer lives, as far as is known: it writes heartbeats for itself and renews the stream's
    /// metadata. If the store lost the metadata of a stream that the writer has evicted, no replica writes it
    /// again.
    async fn is_writer_alive(&mut self) -> bool {
        let keys = [key::replica(&self.meta.replica), key::meta(self.id)];
        let signs = self.shared.get_many(&[&keys[0], &keys[1]]).await;
        // While the store is unavailable the state of the writer is unknown.
        if signs.is_ok_and(|signs| signs.iter().any(Option::is_none)) {
            return self.alive.elapsed() < REPLICA_TTL;
        }
        self.alive = Instant::now();
        true
    }

    async fn read_entries(&self, after: u64) -> Result<Option<LogRead>, Unavailable> {
        let key = key::events(self.id);
        let entries = self.shared.read_numbered(&key, after, ENTRIES_MAX).await?;
        let Some((first, _)) = entries.first() else {
            return Ok(None);
        };
        let mut look = LogRead {
            missed: first - after - 1,
            bytes: bytes::Bytes::new(),
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
                    look.over = Some(StreamEnd::Whole(bytes::Bytes::copy_from_slice(rest)));
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
    let Some(made) = id.get_timestamp() else {
        return false;
    };
    let (seconds, nanos) = made.to_unix();
    let made = UNIX_EPOCH + Duration::new(seconds, nanos);
    // Clocks of replicas differ a little.
    SystemTime::now()
        .duration_since(made)
        .map_or_else(|ahead| ahead.duration() < FRESH, |age| age < FRESH)
}
