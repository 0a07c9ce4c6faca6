//! Merges the samples of all replicas for the readers of this one: one event per second, built once for all
//! of them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::sample::{Sample, UNKNOWN};
use super::tally::Passed;
use crate::workspace::{Outline, Timestamp};

/// Events that a reader may be behind before it is disconnected. Readers share them.
const BEHIND_MAX: usize = 16;

/// Replicas that are shown at most.
const REPLICAS_MAX: usize = 64;

/// Time without a sample after which a replica is dropped: it crashed, since a shutdown sends a last one.
const REPLICA_SHOWN_FOR: Duration = Duration::from_secs(120);

/// Time without a sample after which a replica's open streams no longer count.
const STREAMS_COUNT_FOR: Duration = Duration::from_secs(5);

/// Workspaces that one event counts at most, over all replicas.
const COUNTED_MAX: usize = 20_000;

/// Exchanges that one event lists at most, over all replicas.
const TOLD_MAX: usize = 300;

/// The history for new readers: the number of pieces, and the seconds of each.
const PIECES: usize = 6;
const PIECE_SECONDS: usize = 10;

/// The state of a replica.
struct Replica {
    /// Its last sample, without the counts.
    last: Sample,
    heard: Instant,
    streams: HashMap<String, u32>,
}

/// The contents of the next event.
#[derive(Default)]
struct Pending {
    rows: Vec<Outline>,
    seen: Vec<(String, i64, u32)>,
    counts: HashMap<String, (u32, u32)>,
    streams: HashSet<String>,
    told: Vec<Passed>,
    more: u64,
}

/// Counts of some seconds.
#[derive(Default)]
struct Piece {
    at: i64,
    seconds: usize,
    counts: HashMap<String, (u32, u32)>,
}

#[derive(Default)]
struct State {
    replicas: BTreeMap<String, Replica>,
    pending: Pending,
    minute: VecDeque<Piece>,
    /// Start of the counts, in milliseconds since 1970.
    since: Option<i64>,
}

/// Merges samples and broadcasts events to readers.
pub(super) struct Hub {
    state: Mutex<State>,
    live: broadcast::Sender<Bytes>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            live: broadcast::Sender::new(BEHIND_MAX),
        }
    }
}

impl Hub {
    /// Adds a sample of this replica: it always gets a place.
    pub(super) fn take_own(&self, sample: Sample) {
        let mut state = self.state();
        state.make_room(&sample.replica, Duration::ZERO);
        state.take(sample);
    }

    /// Adds a sample of another replica. If all places are taken, it gets that of the replica that has been
    /// silent longest, provided that replica's streams no longer count. False if there was none.
    pub(super) fn take(&self, sample: Sample) -> bool {
        let mut state = self.state();
        let room = state.make_room(&sample.replica, STREAMS_COUNT_FOR);
        if room {
            state.take(sample);
        }
        room
    }

    /// Adds changed workspaces.
    pub(super) fn changed(&self, rows: Vec<Outline>) {
        self.state().pending.rows.extend(rows);
    }

    /// Adds heartbeats: the workspace, the time, and its number of tasks.
    pub(super) fn seen(&self, seen: impl Iterator<Item = (String, i64, u32)>) {
        self.state().pending.seen.extend(seen);
    }

    /// Sends the events of this second to the readers. `known`: true if a workspace has this id; counts of
    /// other ids are merged, so that unauthenticated callers cannot fill the page with names.
    pub(super) fn beat(&self, now: Timestamp, known: impl Fn(&str) -> bool) {
        let mut state = self.state();
        state.forget_replicas();
        let mut pending = std::mem::take(&mut state.pending);
        pending.count_unknown(known);
        state.remember(now.0, &pending.counts);
        let counts: Vec<_> = counted(&pending.counts).collect();
        let streams: Vec<_> = pending
            .streams
            .iter()
            .map(|id| (id, state.streams_of(id)))
            .collect();
        let event = json!({
            "at": now.0,
            "rows": pending.rows,
            "seen": pending.seen,
            "counts": counts,
            "streams": streams,
            "exchanges": pending.told,
            "more": pending.more,
            "replicas": state.shown(),
        });
        // Under the lock, so that a new reader gets it exactly once. There may be no receiver.
        let _ = self.live.send(event_text("tick", &event));
    }

    /// Returns the first event of a new reader, and the subscription to the following ones.
    pub(super) fn open(&self, replica: &str) -> (Bytes, broadcast::Receiver<Bytes>) {
        let mut state = self.state();
        let now = Timestamp::now().0;
        let since = *state.since.get_or_insert(now);
        let mut streams: HashMap<&str, u32> = HashMap::new();
        for (id, open) in state.replicas.values().flat_map(|one| &one.streams) {
            let all = streams.entry(id).or_default();
            *all = all.saturating_add(*open);
        }
        let minute: Vec<_> = state
            .minute
            .iter()
            .map(|piece| json!([piece.at, counted(&piece.counts).collect::<Vec<_>>()]))
            .collect();
        let begin = json!({
            "at": now,
            "replica": replica,
            "version": env!("CARGO_PKG_VERSION"),
            "since": since,
            "minute": minute,
            "streams": streams.into_iter().collect::<Vec<_>>(),
            "replicas": state.shown(),
        });
        let live = self.live.subscribe();
        (event_text("begin", &begin), live)
    }

    /// Clears all state, since there are no readers.
    pub(super) fn clear(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state consistent, so a panic elsewhere cannot have broken it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Merges the counts of unknown ids into one row. An id with an answered request belongs to a workspace.
    fn count_unknown(&mut self, known: impl Fn(&str) -> bool) {
        let mut unknown = (0_u32, 0_u32);
        self.counts.retain(|id, (exchanges, refusals)| {
            if id != UNKNOWN && (refusals < exchanges || known(id)) {
                return true;
            }
            unknown.0 = unknown.0.saturating_add(*exchanges);
            unknown.1 = unknown.1.saturating_add(*refusals);
            false
        });
        if unknown.0 > 0 {
            self.counts.insert(UNKNOWN.to_owned(), unknown);
        }
    }
}

/// Adds to the counts of `id`, if there is room for it.
fn add(counted: &mut HashMap<String, (u32, u32)>, id: &str, (exchanges, refusals): (u32, u32)) {
    if let Some(counts) = counted.get_mut(id) {
        counts.0 = counts.0.saturating_add(exchanges);
        counts.1 = counts.1.saturating_add(refusals);
    } else if counted.len() < COUNTED_MAX {
        counted.insert(id.to_owned(), (exchanges, refusals));
    }
}

impl State {
    /// Makes a place for `id`, if necessary that of the replica silent longest, and longer than `silent`.
    fn make_room(&mut self, id: &str, silent: Duration) -> bool {
        if self.replicas.contains_key(id) || self.replicas.len() < REPLICAS_MAX {
            return true;
        }
        let longest = self.replicas.iter().min_by_key(|(_, one)| one.heard);
        let longest = longest.filter(|(_, one)| silent.is_zero() || silent < one.heard.elapsed());
        let Some(longest) = longest.map(|(id, _)| id.clone()) else {
            return false;
        };
        if let Some(replica) = self.replicas.remove(&longest) {
            let streams = replica.streams.into_keys();
            self.pending.streams.extend(streams);
        }
        true
    }

    /// Adds a sample of a replica that has a place.
    fn take(&mut self, sample: Sample) {
        for (id, exchanges, refusals) in &sample.counts {
            add(&mut self.pending.counts, id, (*exchanges, *refusals));
        }
        let pending = &mut self.pending;
        let room = TOLD_MAX.saturating_sub(pending.told.len());
        let over = sample.told.len().saturating_sub(room) as u64;
        pending.more = pending
            .more
            .saturating_add(sample.more)
            .saturating_add(over);
        pending.told.extend(sample.told.iter().take(room).cloned());
        if sample.gone {
            if let Some(replica) = self.replicas.remove(&sample.replica) {
                pending.streams.extend(replica.streams.into_keys());
            }
            return;
        }
        let last = Sample {
            counts: Vec::new(),
            streams: Vec::new(),
            told: Vec::new(),
            ..sample.clone()
        };
        let replica = self.replicas.entry(sample.replica).or_insert(Replica {
            last: last.clone(),
            heard: Instant::now(),
            streams: HashMap::new(),
        });
        (replica.last, replica.heard) = (last, Instant::now());
        if sample.all_streams {
            let before = std::mem::take(&mut replica.streams);
            self.pending.streams.extend(before.into_keys());
        }
        for (id, open) in sample.streams.into_iter().take(COUNTED_MAX) {
            self.pending.streams.insert(id.clone());
            if open == 0 {
                replica.streams.remove(&id);
            } else if replica.streams.len() < COUNTED_MAX || replica.streams.contains_key(&id) {
                replica.streams.insert(id, open);
            }
        }
    }

    fn remember(&mut self, now: i64, counts: &HashMap<String, (u32, u32)>) {
        self.since.get_or_insert(now);
        let full = |piece: &Piece| PIECE_SECONDS <= piece.seconds;
        if self.minute.back().is_none_or(full) {
            self.minute.push_back(Piece::default());
        }
        if PIECES < self.minute.len() {
            self.minute.pop_front();
        }
        let Some(piece) = self.minute.back_mut() else {
            return;
        };
        (piece.at, piece.seconds) = (now, piece.seconds + 1);
        for (id, counts) in counts {
            add(&mut piece.counts, id, *counts);
        }
    }

    fn streams_of(&self, id: &str) -> u32 {
        let of = |replica: &Replica| replica.streams.get(id).copied().unwrap_or(0);
        let open = self.replicas.values().map(of);
        open.fold(0, u32::saturating_add)
    }

    fn forget_replicas(&mut self) {
        let pending = &mut self.pending;
        self.replicas.retain(|_, replica| {
            let silent = replica.heard.elapsed();
            if silent > STREAMS_COUNT_FOR {
                pending
                    .streams
                    .extend(replica.streams.drain().map(|(id, _)| id));
            }
            silent < REPLICA_SHOWN_FOR
        });
    }

    fn shown(&self) -> Vec<serde_json::Value> {
        let replicas = self.replicas.values();
        let shown = replicas.map(|replica| {
            let last = &replica.last;
            json!({
                "replica": last.replica,
                "version": last.version,
                "started": last.started,
                "silent_ms": u64::try_from(replica.heard.elapsed().as_millis()).unwrap_or(u64::MAX),
                "sql": last.sql,
                "shared": last.shared,
                "draining": last.draining,
                "open": last.open,
                "streams": replica.streams.values().map(|open| u64::from(*open)).sum::<u64>(),
            })
        });
        shown.collect()
    }
}

fn counted(counts: &HashMap<String, (u32, u32)>) -> impl Iterator<Item = (&str, u32, u32)> {
    let counts = counts.iter();
    counts.map(|(id, (exchanges, refusals))| (id.as_str(), *exchanges, *refusals))
}

/// Formats one event of an event stream.
pub(super) fn event_text(name: &str, data: &serde_json::Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::super::tally::tests::passed;
    use super::*;

    fn data(event: &Bytes) -> serde_json::Value {
        let text = std::str::from_utf8(event).unwrap();
        let data = text.lines().nth(1).unwrap().strip_prefix("data: ").unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[tokio::test]
    async fn replicas_are_put_together_and_told_once() {
        let hub = Hub::default();
        let (_, mut live) = hub.open("x");
        hub.take(sample("x"));
        hub.take(sample("y"));
        hub.beat(Timestamp(10), |_| true);
        let tick = data(&live.recv().await.unwrap());
        assert_eq!(tick["counts"], json!([["a", 4, 2]]));
        assert_eq!(tick["streams"], json!([["a", 2]]));
        assert_eq!(tick["more"], 6);
        assert_eq!(tick["exchanges"].as_array().unwrap().len(), 2);
        assert_eq!(tick["replicas"].as_array().unwrap().len(), 2);
        hub.take(Sample {
            streams: Vec::new(),
            ..sample("y")
        });
        hub.beat(Timestamp(11), |_| true);
        let tick = data(&live.recv().await.unwrap());
        assert_eq!(tick["streams"], json!([["a", 1]]), "y has none any more");
        let (begin, _) = hub.open("x");
        let begin = data(&begin);
        assert_eq!(begin["minute"], json!([[11, [["a", 6, 3]]]]));
        assert_eq!(begin["streams"], json!([["a", 1]]));
    }

    #[tokio::test]
    async fn what_is_told_is_bounded_and_the_rest_counted() {
        let hub = Hub::default();
        let (_, mut live) = hub.open("x");
        let told = vec![passed(true); TOLD_MAX];
        for replica in ["x", "y"] {
            let told = told.clone();
            hub.take(Sample {
                told,
                more: 0,
                ..sample(replica)
            });
        }
        hub.beat(Timestamp(1), |_| true);
        let tick = data(&live.recv().await.unwrap());
        assert_eq!(tick["exchanges"].as_array().unwrap().len(), TOLD_MAX);
        assert_eq!(tick["more"], TOLD_MAX);
        for n in 0..2 * REPLICAS_MAX {
            hub.take(sample(&n.to_string()));
        }
        assert_eq!(hub.state().replicas.len(), REPLICAS_MAX);
        for second in 0..200 {
            hub.beat(Timestamp(second), |_| true);
        }
        assert_eq!(hub.state().minute.len(), PIECES);
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_replicas_keep_nobody_out_but_for_a_while() {
        let hub = Hub::default();
        for n in 0..REPLICAS_MAX {
            assert!(hub.take(sample(&n.to_string())));
        }
        assert!(!hub.take(sample("new")));
        let has = |id: &str| hub.state().replicas.contains_key(id);
        hub.take_own(sample("own"));
        assert!(has("own") && !has("new"));
        assert_eq!(hub.state().replicas.len(), REPLICAS_MAX);
        tokio::time::advance(STREAMS_COUNT_FOR + Duration::from_millis(1)).await;
        hub.take_own(sample("own"));
        assert!(hub.take(sample("new")));
        assert!(has("own") && has("new"));
        assert_eq!(hub.state().replicas.len(), REPLICAS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_ends_says_so_and_one_that_falls_silent_has_no_streams() {
        let hub = Hub::default();
        let (_, mut live) = hub.open("x");
        let second = async |live: &mut broadcast::Receiver<Bytes>| {
            hub.beat(Timestamp(1), |_| true);
            data(&live.recv().await.unwrap())
        };
        hub.take(sample("x"));
        hub.take(sample("y"));
        second(&mut live).await;
        hub.take(sample("y").goodbye());
        let tick = second(&mut live).await;
        assert_eq!(tick["streams"], json!([["a", 1]]));
        assert_eq!(tick["replicas"].as_array().unwrap().len(), 1, "{tick}");
        tokio::time::advance(STREAMS_COUNT_FOR + Duration::from_millis(1)).await;
        let tick = second(&mut live).await;
        assert_eq!(tick["streams"], json!([["a", 0]]));
        assert_eq!(tick["replicas"][0]["streams"], 0, "{tick}");
        tokio::time::advance(REPLICA_SHOWN_FOR).await;
        assert_eq!(second(&mut live).await["replicas"], json!([]));
    }

    #[tokio::test]
    async fn ids_that_no_workspace_has_are_counted_together() {
        let hub = Hub::default();
        let (_, mut live) = hub.open("x");
        let counts = [
            ("known", 2, 2),
            ("made-up", 1, 1),
            ("another", 3, 3),
            ("new", 2, 1),
            (UNKNOWN, 4, 4),
        ];
        let counts = counts.map(|(id, exchanges, refusals)| (id.to_owned(), exchanges, refusals));
        hub.take(Sample {
            counts: counts.to_vec(),
            ..sample("x")
        });
        hub.beat(Timestamp(1), |id| id == "known");
        let tick = data(&live.recv().await.unwrap());
        let mut counts = tick["counts"].as_array().unwrap().clone();
        counts.sort_by_key(ToString::to_string);
        let expected = [
            json!(["known", 2, 2]),
            json!(["new", 2, 1]),
            json!(["unknown:", 8, 8]),
        ];
        assert_eq!(counts, expected);
    }

    #[tokio::test]
    async fn counts_stop_at_the_most_that_they_can_be() {
        let hub = Hub::default();
        let (_, mut live) = hub.open("x");
        for replica in ["x", "y"] {
            hub.take(Sample {
                counts: vec![("a".to_owned(), u32::MAX, u32::MAX)],
                streams: vec![("a".to_owned(), u32::MAX)],
                more: u64::MAX,
                ..sample(replica)
            });
        }
        for second in 0..2 {
            hub.beat(Timestamp(second), |_| true);
        }
        let tick = data(&live.recv().await.unwrap());
        assert_eq!(tick["counts"], json!([["a", u32::MAX, u32::MAX]]));
        assert_eq!(tick["streams"], json!([["a", u32::MAX]]));
        assert_eq!(tick["more"], u64::MAX);
        hub.open("x");
    }
}
