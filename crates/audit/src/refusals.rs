//! Aggregates rejections of unauthenticated callers into one record for each address, reason and second,
//! with their number. A flood of them takes no space from the records of authenticated callers.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::record::{DONE, Draft, EventType};
use kernel::telemetry::MaskedAddress;

/// Maximum number of kinds in one second. Rejections of further kinds are only counted, as lost.
const KINDS_MAX: usize = 1024;

/// The key by which rejections are aggregated.
#[derive(PartialEq, Eq, Hash)]
struct RefusalKey {
    address: Option<MaskedAddress>,
    event_type: EventType,
    outcome: &'static str,
}

/// The first rejection of a kind in this second, and their number.
struct RefusalCount {
    first: Draft,
    count: u64,
}

/// The rejections of this second.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<RefusalKey, RefusalCount>>);

impl Refusals {
    /// True if `draft` is a rejection of an unauthenticated caller.
    pub(super) fn is_refusal(draft: &Draft) -> bool {
        draft.proof.is_none() && draft.status >= 400 && draft.outcome != DONE
    }

    /// Counts a rejection. Returns false if there are too many kinds.
    pub(super) fn count_refusal(&self, draft: Draft) -> bool {
        let kind = RefusalKey {
            address: draft.client,
            event_type: draft.event_type,
            outcome: draft.outcome,
        };
        let mut kinds = self.0.lock();
        if let Some(counted) = kinds.get_mut(&kind) {
            counted.merge(draft);
            return true;
        }
        if kinds.len() >= KINDS_MAX {
            return false;
        }
        let first = draft;
        kinds.insert(kind, RefusalCount { first, count: 1 });
        true
    }

    /// Takes the aggregated rejections, in the order of their times.
    pub(super) fn take_drafts(&self) -> Vec<Draft> {
        let kinds = std::mem::take(&mut *self.0.lock());
        let mut drafts: Vec<Draft> = kinds.into_values().map(RefusalCount::into_draft).collect();
        drafts.sort_by_key(|draft| draft.time.0);
        drafts
    }
}

impl RefusalCount {
    /// Drops the members that differ. The request id stays that of the first.
    fn merge(&mut self, other: Draft) {
        self.count += 1;
        let first = &mut self.first;
        keep_same(&mut first.target, other.target);
        keep_same(&mut first.method, other.method);
        keep_same(&mut first.task_id, other.task_id);
        keep_same(&mut first.detail, other.detail);
        first.request_bytes += other.request_bytes;
        first.response_bytes += other.response_bytes;
        first.duration_ms = first.duration_ms.max(other.duration_ms);
    }

    fn into_draft(self) -> Draft {
        let Self { mut first, count } = self;
        if count > 1 {
            let detail = first.detail.take().unwrap_or_default();
            first.detail = Some(detail.with_member("count", count.into()));
        }
        first
    }
}

/// Drops a member that the others do not have, too.
fn keep_same<T: PartialEq>(member: &mut Option<T>, other: Option<T>) {
    if *member != other {
        *member = None;
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::Detail;

    fn refused(last: u8, outcome: &'static str) -> Draft {
        Draft {
            status: 401,
            outcome,
            client: Some(MaskedAddress::Full(IpAddr::from([192, 0, 2, last]))),
            ..Draft::new(EventType::A2aCall)
        }
    }

    #[test]
    fn refusals_of_one_address_and_reason_are_one_record_with_their_number() {
        let refusals = Refusals::default();
        for _ in 0..1000 {
            assert!(refusals.count_refusal(refused(1, "unauthenticated")));
        }
        assert!(refusals.count_refusal(refused(1, "invalid_request")));
        assert!(refusals.count_refusal(refused(2, "unauthenticated")));
        let taken = refusals.take_drafts();
        let details = taken.iter().filter_map(|draft| draft.detail.as_ref());
        let details: Vec<_> = details.map(Detail::as_str).collect();
        assert_eq!((taken.len(), details), (3, vec![r#"{"count":1000}"#]));
        assert!(refusals.take_drafts().is_empty());
    }

    #[test]
    fn kinds_have_a_bound() {
        let refusals = Refusals::default();
        let kept = (0..2000_u32).filter(|n| {
            let address = IpAddr::from(n.to_be_bytes());
            refusals.count_refusal(Draft {
                client: Some(MaskedAddress::Full(address)),
                ..refused(1, "unauthenticated")
            })
        });
        assert_eq!(kept.count(), KINDS_MAX);
    }
}
