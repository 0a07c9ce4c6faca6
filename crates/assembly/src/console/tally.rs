//! Counts the traffic of this replica: exchanges by workspace, details of a few exchanges of each second, and
//! open streams. All of it is bounded, whatever callers send.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use kernel::health::CallResult;
use kernel::ids::WorkspaceId;

/// Workspaces that are counted in one second. A caller may name arbitrary ids, so this is bounded.
const COUNTED_MAX: usize = 10_000;

/// Exchanges of one second that are listed.
pub(super) const TOLD_MAX: usize = 200;

/// Rejections of one second that are listed in addition.
const REFUSALS_TOLD_MAX: usize = 50;

/// Listed exchanges of one second, rejections included.
pub(super) const TOLD_ALL_MAX: usize = TOLD_MAX + REFUSALS_TOLD_MAX;

/// Workspaces counted in one second that may not exist: a request that was rejected before the look-up may
/// name any id. Further ones are counted together.
const UNPROVEN_MAX: usize = 2_000;

/// One exchange as it is listed: caller, target and outcome, never content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeSummary {
    /// The request's id.
    pub id: String,
    /// Time of its end, in milliseconds since 1970.
    pub at: i64,
    /// The caller, as records name it; `None`: not authenticated.
    pub caller: Option<String>,
    /// The workspace of the path.
    pub target: Option<String>,
    /// The JSON-RPC method.
    pub method: String,
    /// The rule that permitted it.
    pub rule: Option<String>,
    /// `answered`, `caller_left`, or the reason of a rejection.
    pub outcome: String,
    /// The result. A replica of an earlier release does not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<CallResult>,
    /// True if the gateway rejected it, or broke it off.
    pub refused: bool,
    /// The HTTP status; 0: none was sent.
    pub status: u16,
    /// Its duration, in milliseconds.
    pub ms: u64,
    /// True if the response was a stream.
    pub stream: bool,
    /// The generations between which it was translated, the caller's first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridged: Option<String>,
}

/// The workspaces of an exchange.
#[derive(Clone, Copy, Default)]
pub struct ExchangeParties<'a> {
    /// The proven caller, if it is one.
    pub caller: Option<&'a WorkspaceId>,
    /// The workspace of the path.
    pub target: Option<&'a WorkspaceId>,
}

/// Traffic of one second.
#[derive(Debug, Default)]
pub(super) struct SecondCounts {
    /// Exchanges and refusals by workspace that was called.
    pub(super) counts: HashMap<WorkspaceId, (u32, u32)>,
    /// Exchanges by workspace that called.
    pub(super) sent: HashMap<WorkspaceId, u32>,
    /// And of ids that had no place among them.
    pub(super) others: (u32, u32),
    /// Entries of `counts` that began with a rejection.
    unproven: usize,
    /// The first exchanges, with details.
    pub(super) told: Vec<ExchangeSummary>,
    refusals_told: usize,
    /// The number of the remaining ones.
    pub(super) more: u64,
}

/// Counts of open streams that changed since the last read.
#[derive(Default)]
struct StreamCounts {
    open: HashMap<WorkspaceId, u32>,
    changed: BTreeSet<WorkspaceId>,
}

/// The counters of this replica.
#[derive(Default)]
pub(super) struct Tally {
    second: Mutex<SecondCounts>,
    streams: Mutex<StreamCounts>,
}

impl Tally {
    /// Counts an exchange that has ended. `tell` returns its details, and is called if there is room.
    pub(super) fn count_exchange(
        &self,
        ends: ExchangeParties<'_>,
        refused: bool,
        tell: impl FnOnce() -> ExchangeSummary,
    ) {
        let mut second = self.second.lock();
        if let Some(target) = ends.target {
            second.count_target(target, refused);
        }
        if let Some(caller) = ends.caller {
            second.count_sent(caller);
        }
        let room = second.told.len() < TOLD_MAX;
        if !room && (!refused || second.refusals_told >= REFUSALS_TOLD_MAX) {
            second.more += 1;
            return;
        }
        second.refusals_told += usize::from(!room);
        let passed = tell();
        second.told.push(passed);
    }

    /// Returns the counts since the last call.
    pub(super) fn take_second(&self) -> SecondCounts {
        std::mem::take(&mut *self.second.lock())
    }

    /// Returns counts of open streams: those that changed since the last call, or all.
    pub(super) fn stream_counts(&self, all: bool) -> Vec<(WorkspaceId, u32)> {
        let mut streams = self.streams.lock();
        let changed = std::mem::take(&mut streams.changed);
        if all {
            let open = streams.open.iter();
            return open.map(|(id, count)| (id.clone(), *count)).collect();
        }
        let count = |id: &WorkspaceId| streams.open.get(id).copied().unwrap_or(0);
        let counts: Vec<u32> = changed.iter().map(count).collect();
        changed.into_iter().zip(counts).collect()
    }

    /// Counts a stream more or less.
    fn change_streams(&self, id: &WorkspaceId, change: impl FnOnce(u32) -> u32) {
        let StreamCounts { open, changed } = &mut *self.streams.lock();
        match change(open.get(id).copied().unwrap_or(0)) {
            0 => open.remove(id),
            count => open.insert(id.clone(), count),
        };
        // Without readers changes are never taken, so they are bounded like counts.
        if changed.len() < COUNTED_MAX {
            changed.insert(id.clone());
        }
    }
}

impl SecondCounts {
    fn count_target(&mut self, target: &WorkspaceId, refused: bool) {
        let room = self.counts.len() < COUNTED_MAX && (!refused || self.unproven < UNPROVEN_MAX);
        if room && !self.counts.contains_key(target) {
            self.counts.insert(target.clone(), (0, 0));
            self.unproven += usize::from(refused);
        }
        let counts = self.counts.get_mut(target).unwrap_or(&mut self.others);
        counts.0 = counts.0.saturating_add(1);
        counts.1 = counts.1.saturating_add(u32::from(refused));
    }

    fn count_sent(&mut self, caller: &WorkspaceId) {
        if let Some(sent) = self.sent.get_mut(caller) {
            *sent = sent.saturating_add(1);
        } else if self.sent.len() < COUNTED_MAX {
            self.sent.insert(caller.clone(), 1);
        }
    }
}

/// An open stream. Dropping it closes it, however it ends.
pub struct OpenStream {
    tally: Arc<Tally>,
    target: WorkspaceId,
}

impl OpenStream {
    pub(super) fn new(tally: &Arc<Tally>, target: &WorkspaceId) -> Self {
        tally.change_streams(target, |open| open.saturating_add(1));
        Self {
            tally: Arc::clone(tally),
            target: target.clone(),
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.tally
            .change_streams(&self.target, |open| open.saturating_sub(1));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::console) fn passed(refused: bool) -> ExchangeSummary {
        ExchangeSummary {
            id: "r".to_owned(),
            at: access::workspace::Timestamp::now().0,
            caller: None,
            target: None,
            method: "message/send".to_owned(),
            rule: None,
            outcome: if refused { "not_permitted" } else { "answered" }.to_owned(),
            result: None,
            refused,
            status: 200,
            ms: 1,
            stream: false,
            bridged: None,
        }
    }

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn to(target: &WorkspaceId) -> ExchangeParties<'_> {
        ExchangeParties {
            target: Some(target),
            ..ExchangeParties::default()
        }
    }

    #[test]
    fn a_second_tells_some_and_counts_all() {
        let tally = Tally::default();
        for n in 0..1000 {
            let ends = ExchangeParties {
                caller: Some(&id("b")),
                target: Some(&id("a")),
            };
            tally.count_exchange(ends, n % 2 == 0, || passed(n % 2 == 0));
        }
        let second = tally.take_second();
        assert_eq!(second.sent, HashMap::from([(id("b"), 1000)]));
        assert_eq!(second.counts[&id("a")], (1000, 500));
        assert_eq!(second.told.len(), TOLD_MAX + REFUSALS_TOLD_MAX);
        assert_eq!(second.more, 1000 - second.told.len() as u64);
        assert!(tally.take_second().told.is_empty());
    }

    #[test]
    fn strangers_cannot_fill_it() {
        let tally = Tally::default();
        for n in 0..COUNTED_MAX + 5 {
            tally.count_exchange(to(&id(&format!("w{n}"))), true, || passed(true));
        }
        // And there is room for those that are there.
        tally.count_exchange(to(&id("here")), false, || passed(false));
        let second = tally.take_second();
        assert_eq!(second.counts.len(), UNPROVEN_MAX + 1);
        assert_eq!(second.counts[&id("here")], (1, 0));
        let others = u32::try_from(COUNTED_MAX + 5 - UNPROVEN_MAX).unwrap();
        assert_eq!(second.others, (others, others));
    }

    #[test]
    fn streams_are_told_when_they_change_or_all_of_them() {
        let tally = Arc::new(Tally::default());
        let (one, two) = (
            OpenStream::new(&tally, &id("a")),
            OpenStream::new(&tally, &id("a")),
        );
        assert_eq!(tally.stream_counts(false), [(id("a"), 2)]);
        assert_eq!(tally.stream_counts(false), []);
        assert_eq!(tally.stream_counts(true), [(id("a"), 2)]);
        drop(one);
        drop(two);
        assert_eq!(tally.stream_counts(false), [(id("a"), 0)]);
        assert_eq!(tally.stream_counts(true), []);
    }
}
