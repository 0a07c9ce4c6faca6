//! Merges the samples of all replicas for the readers of this one: one event per second, built once for all
//! of them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::console::sample::{Sample, UNKNOWN};
use crate::console::tally::ExchangeSummary;
use access::workspace::{Outline, Timestamp};

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
struct PendingEvent {
    rows: Vec<Outline>,
    seen: Vec<(String, i64, u32)>,
    counts: HashMap<String, (u32, u32)>,
    sent: HashMap<String, u32>,
    streams: HashSet<String>,
    told: Vec<ExchangeSummary>,
    more: u64,
}

/// Counts of some seconds.
#[derive(Default)]
struct Piece {
    at: i64,
    seconds: usize,
    counts: HashMap<String, (u32, u32)>,
    sent: HashMap<String, u32>,
}

#[derive(Default)]
struct HubState {
    replicas: BTreeMap<String, Replica>,
    pending: PendingEvent,
    minute: VecDeque<Piece>,
    /// Start of the counts, in milliseconds since 1970.
    since: Option<i64>,
}

/// Merges samples and broadcasts events to readers.
pub(super) struct Hub {
    state: Mutex<HubState>,
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
    pub(super) fn add_own_sample(&self, sample: Sample) {
        let mut state = self.state.lock();
        state.make_room(&sample.replica, Duration::ZERO);
        state.merge_sample(sample);
    }

    /// Adds a sample of another replica. If all places are taken, it gets that of the replica that has been
    /// silent longest, provided that replica's streams no longer count. False if there was none.
    pub(super) fn add_sample(&self, sample: Sample) -> bool {
        let mut state = self.state.lock();
        let room = state.make_room(&sample.replica, STREAMS_COUNT_FOR);
        if room {
            state.merge_sample(sample);
        }
        room
    }

    /// Adds changed workspaces.
    pub(super) fn add_rows(&self, rows: Vec<Outline>) {
        self.state.lock().pending.rows.extend(rows);
    }

    /// Adds heartbeats: the workspace, the time, and its number of tasks.
    pub(super) fn add_heartbeats(&self, seen: impl Iterator<Item = (String, i64, u32)>) {
        self.state.lock().pending.seen.extend(seen);
    }

    /// Sends the events of this second to the readers. `known`: true if a workspace has this id; counts of
    /// other ids are merged, so that unauthenticated callers cannot fill the page with names.
    pub(super) fn send_tick(&self, now: Timestamp, known: impl Fn(&str) -> bool) {
        let mut state = self.state.lock();
        state.drop_silent_replicas();
        let mut pending = std::mem::take(&mut state.pending);
        pending.count_unknown(known);
        state.record_history(now.0, &pending);
        let counts: Vec<_> = flatten_counts(&pending.counts).collect();
        let streams: Vec<_> = pending
            .streams
            .iter()
            .map(|id| (id, state.stream_count(id)))
            .collect();
        let event = json!({
            "at": now.0,
            "rows": pending.rows,
            "seen": pending.seen,
            "counts": counts,
            "sent": pending.sent.iter().collect::<Vec<_>>(),
            "streams": streams,
            "exchanges": pending.told,
            "more": pending.more,
            "replicas": state.replicas_as_json(),
        });
        // Under the lock, so that a new reader gets it exactly once. There may be no receiver.
        let _ = self.live.send(format_event("tick", &event));
    }

    /// Returns the first event of a new reader, and the subscription to the following ones.
    pub(super) fn subscribe(&self, replica: &str) -> (Bytes, broadcast::Receiver<Bytes>) {
        let mut state = self.state.lock();
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
            .map(|piece| {
                let counts: Vec<_> = flatten_counts(&piece.counts).collect();
                json!([piece.at, counts, piece.sent.iter().collect::<Vec<_>>()])
            })
            .collect();
        let begin = json!({
            "at": now,
            "replica": replica,
            "version": env!("CARGO_PKG_VERSION"),
            "since": since,
            "minute": minute,
            "streams": streams.into_iter().collect::<Vec<_>>(),
            "replicas": state.replicas_as_json(),
        });
        let live = self.live.subscribe();
        (format_event("begin", &begin), live)
    }

    /// Clears all state, since there are no readers.
    pub(super) fn clear(&self) {
        *self.state.lock() = HubState::default();
    }
}

impl PendingEvent {
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
fn add_counts(
    counted: &mut HashMap<String, (u32, u32)>,
    id: &str,
    (exchanges, refusals): (u32, u32),
) {
    if let Some(counts) = counted.get_mut(id) {
        counts.0 = counts.0.saturating_add(exchanges);
        counts.1 = counts.1.saturating_add(refusals);
    } else if counted.len() < COUNTED_MAX {
        counted.insert(id.to_owned(), (exchanges, refusals));
    }
}

/// Adds to what `id` sent, if there is room for it.
fn add_sent(sent: &mut HashMap<String, u32>, id: &str, exchanges: u32) {
    if let Some(sum) = sent.get_mut(id) {
        *sum = sum.saturating_add(exchanges);
    } else if sent.len() < COUNTED_MAX {
        sent.insert(id.to_owned(), exchanges);
    }
}

impl HubState {
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
    fn merge_sample(&mut self, mut sample: Sample) {
        let pending = &mut self.pending;
        for (id, exchanges, refusals) in sample.counts.drain(..) {
            add_counts(&mut pending.counts, &id, (exchanges, refusals));
        }
        for (id, exchanges) in sample.sent.drain(..) {
            add_sent(&mut pending.sent, &id, exchanges);
        }
        let room = TOLD_MAX.saturating_sub(pending.told.len());
        let over = sample.told.len().saturating_sub(room) as u64;
        pending.more = pending
            .more
            .saturating_add(sample.more)
            .saturating_add(over);
        pending.told.extend(sample.told.drain(..).take(room));
        let known = self.replicas.remove(&sample.replica);
        let mut streams = known.map(|replica| replica.streams).unwrap_or_default();
        if sample.gone || sample.all_streams {
            let before = std::mem::take(&mut streams);
            pending.streams.extend(before.into_keys());
        }
        if sample.gone {
            return;
        }
        for (id, open) in sample.streams.drain(..).take(COUNTED_MAX) {
            pending.streams.insert(id.clone());
            if open == 0 {
                streams.remove(&id);
            } else if streams.len() < COUNTED_MAX || streams.contains_key(&id) {
                streams.insert(id, open);
            }
        }
        let (id, heard) = (sample.replica.clone(), Instant::now());
        let last = sample;
        self.replicas.insert(
            id,
            Replica {
                last,
                heard,
                streams,
            },
        );
    }

    fn record_history(&mut self, now: i64, pending: &PendingEvent) {
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
        for (id, counts) in &pending.counts {
            add_counts(&mut piece.counts, id, *counts);
        }
        for (id, exchanges) in &pending.sent {
            add_sent(&mut piece.sent, id, *exchanges);
        }
    }

    fn stream_count(&self, id: &str) -> u32 {
        let of = |replica: &Replica| replica.streams.get(id).copied().unwrap_or(0);
        let open = self.replicas.values().map(of);
        open.fold(0, u32::saturating_add)
    }

    fn drop_silent_replicas(&mut self) {
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

    fn replicas_as_json(&self) -> Vec<serde_json::Value> {
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

fn flatten_counts(counts: &HashMap<String, (u32, u32)>) -> impl Iterator<Item = (&str, u32, u32)> {
    let counts = counts.iter();
    counts.map(|(id, (exchanges, refusals))| (id.as_str(), *exchanges, *refusals))
}

/// Formats one event of an event stream.
pub(super) fn format_event(name: &str, data: &serde_json::Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests;
