//! The hash chain of one replica, and the signed statement of its beginning and end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{Draft, EventType, NO_RECORD, Record, digest};
use crate::trust::{Keys, SignError};
use crate::workspace::Timestamp;

/// The JWS type of the signed end of a chain. It is no token type, so an end never passes for a token.
pub(super) const END_TYP: &str = "a2a-audit+jws";

/// The JWS type of the statement in a checkpoint. It differs from `END_TYP`, so that a checkpoint never
/// passes for the end of its chain.
pub(super) const CHECKPOINT_TYP: &str = "a2a-audit-checkpoint+jws";

/// Maximum number of marks in a statement.
const MARKS_MAX: usize = 64;

/// The beginning and end of a chain at a time. It is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Statement {
    /// The replica that owns the chain.
    pub(super) replica: String,
    /// The sequence number of the first retained record. Retention removed the older ones.
    pub(super) first: i64,
    /// The sequence number of the last record.
    pub(super) last: i64,
    /// The hash of the last record.
    pub(super) hash: String,
    /// The time of the statement, RFC 3339.
    pub(super) time: String,
    /// True if the gateway shut down cleanly, so that no records follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) over: bool,
    /// The checkpoints at which retention may cut later, each with its time (milliseconds since 1970). They
    /// are signed, so that retention does not trust the contents of rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) marks: Vec<(i64, i64)>,
}

impl Statement {
    /// Returns the statement of a chain without records.
    pub(super) fn of_none(replica: &str) -> Self {
        Self {
            replica: replica.to_owned(),
            first: 1,
            last: 0,
            hash: NO_RECORD.to_owned(),
            time: String::new(),
            over: false,
            marks: Vec::new(),
        }
    }

    /// Returns the statement with `records` appended. `spacing` is the minimum interval between marks.
    pub(super) fn with(&self, records: &[Chained], spacing: Duration) -> Self {
        let mut grown = self.clone();
        grown.time = Timestamp::now().to_string();
        if let Some(last) = records.last() {
            grown.last = last.record.seq;
            last.record.hash().clone_into(&mut grown.hash);
        }
        for Chained { ms, record, .. } in records {
            grown.over |= record.event_type == EventType::AuditStopped.as_str();
            let far = grown.marks.last().is_none_or(|(seq, at)| {
                record.seq > *seq && Timestamp(*ms).since(Timestamp(*at)) >= spacing
            });
            if far && record.event_type == EventType::AuditCheckpoint.as_str() {
                grown.marks.push((record.seq, *ms));
            }
        }
        if grown.marks.len() > MARKS_MAX {
            let mut nth = 0;
            grown.marks.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        grown
    }

    /// Returns the statement with the records before `first` removed.
    pub(super) fn cut(&self, first: i64) -> Self {
        let mut cut = self.clone();
        cut.first = first;
        cut.marks.retain(|(seq, _)| *seq > first);
        cut
    }

    /// Returns the last mark before `oldest`.
    pub(super) fn mark_before(&self, oldest: Timestamp) -> Option<i64> {
        let old = self.marks.iter().rev().find(|(_, ms)| *ms < oldest.0);
        old.map(|(seq, _)| *seq)
    }

    /// Returns the time of the statement.
    pub(super) fn at(&self) -> Option<Timestamp> {
        Timestamp::parse(&self.time)
    }

    /// Signs the statement as an end, as a compact JWS (RFC 7515), with the active trust key.
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn sign(&self, keys: &Keys) -> Result<String, SignError> {
        keys.sign(END_TYP, self)
    }
}

/// A record in its chain, with its serialized form.
#[derive(Clone, Debug)]
pub(super) struct Chained {
    /// The time of the record, in milliseconds since 1970.
    pub(super) ms: i64,
    /// The record with its hash.
    pub(super) record: Record,
    /// The canonical form.
    pub(super) text: String,
}

/// The last position of a chain.
#[derive(Clone)]
pub(super) struct Chain {
    replica: String,
    pub(super) last: i64,
    pub(super) hash: String,
}

impl Chain {
    pub(super) fn new(replica: &str) -> Self {
        Self {
            replica: replica.to_owned(),
            last: 0,
            hash: NO_RECORD.to_owned(),
        }
    }

    /// Appends the next record.
    pub(super) fn push(&mut self, draft: Draft) -> Chained {
        let ms = draft.time.0;
        let mut record = Record::of(draft, &self.replica, self.last + 1, &self.hash);
        // Serialization already gives the canonical form (tested in `record`), and is ten times as fast.
        let text = serde_json::to_string(&record).unwrap_or_default();
        let hash = digest(&text);
        self.last += 1;
        self.hash.clone_from(&hash);
        record.hash = Some(hash);
        Chained { ms, record, text }
    }

    /// Signs the chain up to its last record, for a checkpoint, with the active trust key.
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn sign(&self, keys: &Keys) -> Result<String, SignError> {
        let statement = Statement {
            last: self.last,
            hash: self.hash.clone(),
            time: Timestamp::now().to_string(),
            ..Statement::of_none(&self.replica)
        };
        keys.sign(CHECKPOINT_TYP, &statement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(chain: &mut Chain, times: impl IntoIterator<Item = i64>) -> Vec<Chained> {
        let draft = |ms| Draft {
            time: Timestamp(ms),
            ..Draft::new(EventType::AuditCheckpoint)
        };
        times.into_iter().map(|ms| chain.push(draft(ms))).collect()
    }

    #[test]
    fn places_to_cut_at_are_apart_bounded_and_found_by_time() {
        let mut chain = Chain::new("here");
        let second = Duration::from_secs(1);
        let records = checkpoints(&mut chain, [1000, 1500, 2000, 9000]);
        let said = Statement::of_none("here").with(&records, second);
        assert_eq!(said.marks, [(1, 1000), (3, 2000), (4, 9000)]);
        assert_eq!((said.last, said.over), (4, false));
        assert_eq!(said.mark_before(Timestamp(1000)), None);
        assert_eq!(said.mark_before(Timestamp(9000)), Some(3));
        assert_eq!(said.cut(3).marks, [(4, 9000)]);
        let many = checkpoints(&mut chain, (10..1000).map(|n| n * 1000));
        let mut grown = said;
        for one in many {
            grown = grown.with(&[one], second);
        }
        assert!(grown.marks.len() <= MARKS_MAX, "{}", grown.marks.len());
        assert_eq!(grown.marks[0], (1, 1000));
        assert!(grown.mark_before(Timestamp(999_000)).unwrap() > 900);
    }

    #[test]
    fn an_end_is_over_when_the_gateway_stopped() {
        let mut chain = Chain::new("here");
        let records = [EventType::AuditStopped, EventType::AuditCheckpoint]
            .map(|event| chain.push(Draft::new(event)));
        let said = Statement::of_none("here").with(&records, Duration::ZERO);
        assert!(said.over);
        assert_eq!(said.hash, chain.hash);
        assert!(said.at().is_some());
    }
}
