//! The sums of a batch of calls: first by the names in the records, then by org, once the orgs of the workspaces are
//! known.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::AddAssign;

use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::Day;
use super::call::{Call, CallEnd, UNKNOWN};
use super::cells::{Cells, Minutes};
use crate::record::clean_text;
use kernel::closed_set::words;
use kernel::health::CallResult;

words! {
    /// The side of a call under which it is summed.
    Side {
        /// The workspace that called, and its org.
        Caller => "caller",
        /// The workspace that was called, and its org.
        Target => "target",
    }
}

impl Side {
    /// Returns the kind of a sum as the table has it: of a workspace on this side of its calls, or of all of an org
    /// there.
    pub(super) const fn sum_kind(self, by_org: bool) -> &'static str {
        match (self, by_org) {
            (Self::Caller, false) => "caller",
            (Self::Caller, true) => "caller_org",
            (Self::Target, false) => "target",
            (Self::Target, true) => "target_org",
        }
    }
}

/// Declares the sums: each is a member and a column.
macro_rules! sums {
    ($($(#[$doc:meta])* $sum:ident,)*) => {
        /// Sums of calls.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Sums {
            $($(#[$doc])* pub $sum: i64,)*
        }

        impl Sums {
            /// The columns.
            pub(super) const COLUMNS: [&'static str; 8] = [$(stringify!($sum)),*];

            /// Returns the sums in the order of their columns.
            pub(super) fn column_values(&self) -> [i64; 8] {
                [$(self.$sum),*]
            }

            /// Reads the columns of a row.
            pub(super) fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
                Ok(Self {
                    $($sum: row.try_get(stringify!($sum))?,)*
                })
            }
        }

        impl AddAssign for Sums {
            fn add_assign(&mut self, other: Self) {
                $(self.$sum = self.$sum.saturating_add(other.$sum);)*
            }
        }
    };
}

sums! {
    /// Calls that were answered, or left by their callers.
    calls,
    /// Those of them that opened a stream.
    streams,
    /// Calls that were refused: a reason with a 4xx status.
    refused,
    /// Calls that failed: a reason with a 5xx status.
    failed,
    /// Bytes of the bodies of requests that were not refused.
    bytes_in,
    /// Bytes of the bodies of their answers.
    bytes_out,
    /// Their durations in milliseconds.
    duration_ms,
    /// Those of all calls that the agent failed, by the model of health.
    agent_failed,
}

impl Sums {
    fn from_call(call: &Call<'_>) -> Self {
        let mut sums = Self::default();
        if call.result == CallResult::AgentFailed {
            sums.agent_failed = call.count;
        }
        match call.end {
            CallEnd::Passed => {
                sums.calls = call.count;
                sums.streams = if call.streams { call.count } else { 0 };
            }
            CallEnd::Failed => sums.failed = call.count,
            CallEnd::Refused => {
                sums.refused = call.count;
                return sums;
            }
        }
        sums.bytes_in = call.request_bytes;
        sums.bytes_out = call.response_bytes;
        sums.duration_ms = call.duration_ms;
        sums
    }
}

/// The key of a sum. Its order is that in which rows are written, so that two replicas never wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Key {
    pub(super) kind: &'static str,
    /// Empty: no org.
    pub(super) org: String,
    /// Empty: all of the org.
    pub(super) workspace: String,
    pub(super) day: Day,
}

/// The orgs of workspaces that exist, by id.
pub(in super::super) type Orgs = HashMap<String, Option<String>>;

/// The sums of a batch by org and workspace.
pub(super) type Days = BTreeMap<Key, Sums>;

/// A caller on a day: its name, and its org as far as records have it.
type CallerDay<'a> = (Day, &'a str, Option<Cow<'a, str>>);

/// The sums of a batch by the names in its records.
#[derive(Default)]
pub(in super::super) struct Batch<'a> {
    callers: HashMap<CallerDay<'a>, Sums>,
    targets: HashMap<(Day, &'a str), Sums>,
    minutes: Minutes<'a>,
}

/// The sums to which the calls of a batch are added.
#[derive(Clone)]
pub(in super::super) struct BatchRows {
    pub(super) days: Days,
    pub(super) cells: Cells,
}

impl<'a> Batch<'a> {
    /// Sums up calls.
    pub(in super::super) fn from_calls(calls: impl IntoIterator<Item = Call<'a>>) -> Self {
        let mut batch = Self::default();
        for call in calls {
            let sums = Sums::from_call(&call);
            // Refusals of callers that proved nothing name targets that need not exist, or none.
            let is_strangers = call.caller == UNKNOWN && call.end != CallEnd::Passed;
            let target = call.target.filter(|_| !is_strangers);
            batch.minutes.add_call(&call, target);
            if let Some(target) = target {
                *batch.targets.entry((call.day, target)).or_default() += sums;
            }
            *batch
                .callers
                .entry((call.day, call.caller, call.org))
                .or_default() += sums;
        }
        batch
    }

    /// Returns the ids of workspaces whose orgs [`Batch::into_rows`] needs.
    pub(in super::super) fn workspace_ids(&self) -> Vec<&'a str> {
        let callers = self.callers.keys().filter_map(|(_, name, org)| {
            let is_needed = org.is_none() && !name.contains(':');
            is_needed.then_some(*name)
        });
        let targets = self.targets.keys().map(|(_, name)| *name);
        let all: BTreeSet<&str> = callers.chain(targets).collect();
        all.into_iter().collect()
    }

    /// Returns the sums by org and workspace. A target that is no workspace has none: callers choose its name.
    pub(in super::super) fn into_rows(self, orgs: &Orgs) -> BatchRows {
        let known = |name: &str| orgs.get(name).map(|org| org.as_deref().unwrap_or_default());
        let cells = self.minutes.into_cells(known);
        let mut days = Days::new();
        let mut add = |side: Side, day, org: &str, workspace: &str, sums| {
            for (by_org, workspace) in [(false, workspace), (true, "")] {
                let key = Key {
                    kind: side.sum_kind(by_org),
                    org: org.to_owned(),
                    workspace: workspace.to_owned(),
                    day,
                };
                *days.entry(key).or_default() += sums;
            }
        };
        for ((day, name, org), sums) in self.callers {
            let known = || orgs.get(name).and_then(Option::as_deref);
            let org = org.or_else(|| known().map(|org| clean_text(org.into())));
            let org = org.unwrap_or_default();
            add(Side::Caller, day, &org, name, sums);
        }
        for ((day, name), sums) in self.targets {
            if let Some(org) = orgs.get(name) {
                let org = clean_text(org.as_deref().unwrap_or_default().into());
                add(Side::Target, day, &org, name, sums);
            }
        }
        BatchRows { days, cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(caller: &'a str, org: Option<&'a str>, target: &'a str, end: CallEnd) -> Call<'a> {
        Call {
            day: Day(9),
            ms: 9 * 24 * 3_600_000,
            outcome: "answered",
            status: 200,
            result: CallResult::Answered,
            caller,
            org: org.map(Cow::from),
            target: Some(target),
            streams: true,
            end,
            count: 1,
            request_bytes: 10,
            response_bytes: 100,
            duration_ms: 1000,
        }
    }

    fn passed(calls: i64) -> Sums {
        Sums {
            calls,
            streams: calls,
            bytes_in: 10 * calls,
            bytes_out: 100 * calls,
            duration_ms: 1000 * calls,
            ..Sums::default()
        }
    }

    #[test]
    fn each_side_is_summed_by_workspace_and_by_org() {
        let batch = Batch::from_calls([
            call("a", Some("acme"), "t", CallEnd::Passed),
            call("b", Some("acme"), "t", CallEnd::Passed),
            call("b", None, "t", CallEnd::Refused),
            call("canvas:", None, "t", CallEnd::Failed),
        ]);
        assert_eq!(batch.workspace_ids(), ["b", "t"]);
        let orgs = Orgs::from([
            ("b".to_owned(), Some("acme".to_owned())),
            ("t".to_owned(), Some("globex".to_owned())),
        ]);
        let days = batch.into_rows(&orgs).days;
        let sums = |kind, org: &str, workspace: &str| {
            let key = Key {
                kind,
                org: org.to_owned(),
                workspace: workspace.to_owned(),
                day: Day(9),
            };
            days.get(&key).copied().unwrap_or_default()
        };
        assert_eq!(sums("caller", "acme", "a"), passed(1));
        let both = Sums {
            refused: 1,
            ..passed(2)
        };
        assert_eq!(sums("caller_org", "acme", ""), both);
        let all = Sums {
            calls: 2,
            streams: 2,
            refused: 1,
            failed: 1,
            ..passed(3)
        };
        assert_eq!(sums("target", "globex", "t"), all);
        assert_eq!(sums("target_org", "globex", ""), all);
        assert_eq!(sums("caller", "", "canvas:").failed, 1);
        assert_eq!(days.len(), 3 + 2 + 2);
    }

    #[test]
    fn names_that_callers_make_up_get_no_sums() {
        let batch = Batch::from_calls([
            call("a", None, "made-up", CallEnd::Refused),
            call("unknown:", None, "t", CallEnd::Refused),
        ]);
        let orgs = Orgs::from([("a".to_owned(), None), ("t".to_owned(), None)]);
        let days = batch.into_rows(&orgs).days;
        assert!(
            days.keys().all(|key| key.kind.starts_with("caller")),
            "{days:?}"
        );
    }
}
