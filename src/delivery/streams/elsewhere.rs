//! A stream that another replica has, read from the shared state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::copy::{EVENT, Meta, REPLICA_TTL, WHOLE};
use super::kept::{Look, Over, Whose};
use super::key;
use crate::shared::Shared;
use crate::store::Unavailable;

/// Between two looks for what is new.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Entries that one look brings at most.
const ENTRIES_MAX: usize = 64;

/// How long a sign that somebody reads lasts; given anew after half of it.
const READER_TTL: Duration = Duration::from_secs(5);

/// A stream that began less than this ago may not be known here yet.
const FRESH: Duration = Duration::from_secs(2);

/// A stream of another replica, while somebody reads it here.
pub(super) struct Elsewhere {
    shared: Shared,
    id: Uuid,
    meta: Meta,
    /// When it was last said that somebody reads.
    said: Option<Instant>,
    /// When its writer was last known to live.
    alive: Instant,
}

impl Elsewhere {
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// The stream of that name; `None`: nobody has it.
    pub(super) async fn find(shared: &Shared, id: Uuid) -> Result<Option<Self>, Unavailable> {
        let key = key::meta(id);
        loop {
            if let Some(meta) = shared.get(&key).await? {
                // What cannot be read is of a gateway that knows better.
                let meta = serde_json::from_str(&meta).ok();
                return Ok(meta.map(|meta| Self {
                    shared: shared.clone(),
                    id,
                    meta,
                    said: None,
                    alive: Instant::now(),
                }));
            }
            if !is_fresh(id) {
                return Ok(None);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    pub(super) fn whose(&self) -> &Whose {
        &self.meta.whose
    }

    /// Whether there may have been an event of that number. One that was sent a moment ago may not be known here yet,
    /// and one that a gateway sent just before it died never is.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(super) async fn has(&self, number: u64) -> Result<bool, Unavailable> {
        let Some(before) = number.checked_sub(1) else {
            return Ok(true);
        };
        let (key, asked) = (key::events(self.id), Instant::now());
        let writer = key::replica(&self.meta.replica);
        let mut known_open = false;
        loop {
            let entries = self.shared.read_numbered(&key, before, 1).await?;
            if let Some((n, entry)) = entries.first() {
                // Behind the last event stands how the stream ended.
                return Ok(*n > number || entry.first() == Some(&EVENT));
            }
            if FRESH < asked.elapsed() {
                // What is behind the end is not awaited, nor what a writer that has given a new sign of life since
                // does not know.
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

    /// Whether its last entry says how it ended.
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

    /// Waits for what comes after an event. Goes on trying while the store is away.
    pub(super) async fn look(&mut self, after: u64) -> Look {
        loop {
            let _ = self.say().await;
            // Before the events: what a writer wrote before its end is read all the same.
            let lives = self.lives().await;
            if let Ok(Some(look)) = self.read(after).await {
                return look;
            }
            if !lives {
                return Look {
                    missed: 0,
                    bytes: bytes::Bytes::new(),
                    up_to: after,
                    over: Some(Over::Lost),
                };
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Lets the writer know that somebody reads.
    async fn say(&mut self) -> Result<(), Unavailable> {
        if self.said.is_some_and(|at| at.elapsed() < READER_TTL / 2) {
            return Ok(());
        }
        let key = key::reader(self.id);
        self.shared.set(&key, "", Some(READER_TTL)).await?;
        self.said = Some(Instant::now());
        Ok(())
    }

    /// Whether the writer lives, as far as one can tell: it gives signs of life, and of the stream. What the store
    /// lost of one that its writer has not got any more nobody writes again.
    async fn lives(&mut self) -> bool {
        let keys = [key::replica(&self.meta.replica), key::meta(self.id)];
        let signs = self.shared.get_many(&[&keys[0], &keys[1]]).await;
        // While the store is away nobody knows.
        if signs.is_ok_and(|signs| signs.iter().any(Option::is_none)) {
            return self.alive.elapsed() < REPLICA_TTL;
        }
        self.alive = Instant::now();
        true
    }

    async fn read(&self, after: u64) -> Result<Option<Look>, Unavailable> {
        let key = key::events(self.id);
        let entries = self.shared.read_numbered(&key, after, ENTRIES_MAX).await?;
        let Some((first, _)) = entries.first() else {
            return Ok(None);
        };
        let mut look = Look {
            missed: first - after - 1,
            bytes: bytes::Bytes::new(),
            up_to: first - 1,
            over: None,
        };
        let mut bytes = BytesMut::new();
        for (n, entry) in entries {
            // What was trimmed between two looks of one answer, or never came: said with the next look.
            if n != look.up_to + 1 {
                break;
            }
            match entry.split_first() {
                Some((&EVENT, event)) => {
                    bytes.extend_from_slice(event);
                    look.up_to = n;
                }
                Some((&WHOLE, rest)) => {
                    look.over = Some(Over::Whole(bytes::Bytes::copy_from_slice(rest)));
                }
                _ => look.over = Some(Over::Lost),
            }
        }
        look.bytes = bytes.freeze();
        Ok(Some(look))
    }
}

/// Whether the id was made a moment ago: it carries its time.
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
