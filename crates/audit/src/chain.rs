//! The hash chain of one replica, and the signed statement of its beginning and end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{Draft, EventType, Hash, NO_HASH, Record, digest};
use access::workspace::Timestamp;
use trust::{Keys, SignError};

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
    pub(super) fn of_empty_chain(replica: &str) -> Self {
        Self {
            replica: replica.to_owned(),
            first: 1,
            last: 0,
            hash: hex::encode(NO_HASH),
            time: String::new(),
            over: false,
            marks: Vec::new(),
        }
    }

    /// Returns the statement with `records` appended. `spacing` is the minimum interval between marks.
    pub(super) fn with_records(&self, records: &[ChainedRecord], spacing: Duration) -> Self {
        let mut grown = self.clone();
        grown.time = Timestamp::now().to_string();
        if let Some(last) = records.last() {
            grown.last = last.seq;
            grown.hash = hex::encode(last.hash);
        }
        for record in records {
            grown.over |= record.has_type(EventType::AuditStopped);
            let far = grown.marks.last().is_none_or(|(seq, at)| {
                record.seq > *seq && Timestamp(record.ms).since(Timestamp(*at)) >= spacing
            });
            if far && record.has_type(EventType::AuditCheckpoint) {
                grown.marks.push((record.seq, record.ms));
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
    pub(super) fn cut_before(&self, first: i64) -> Self {
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
    pub(super) fn parse_time(&self) -> Option<Timestamp> {
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

/// A record at its place in a chain.
#[derive(Clone, Debug)]
pub(super) struct ChainedRecord {
    /// The time of the record, in milliseconds since 1970.
    pub(super) ms: i64,
    pub(super) seq: i64,
    /// The hash of the record before.
    pub(super) prev: Hash,
    pub(super) hash: Hash,
    pub(super) record: Record<'static>,
}

impl ChainedRecord {
    /// Returns a record of the chain of `replica` that was read from the spool, or `None` if no gateway wrote
    /// it. `text` is its canonical form.
    pub(super) fn from_canonical(replica: &str, ms: i64, hash: &str, text: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(text).ok()?;
        let mut prev = NO_HASH;
        hex::decode_to_slice(&*record.prev, &mut prev).ok()?;
        let own = digest(text.as_bytes());
        // A modified line may be one that no database accepts, which would block all records behind it.
        let as_written = hex::encode(own) == hash
            && record.replica == replica
            && record.time == Timestamp(ms).to_string();
        as_written.then_some(Self {
            ms,
            seq: record.seq,
            prev,
            hash: own,
            record,
        })
    }

    pub(super) fn has_type(&self, event: EventType) -> bool {
        self.record.event_type == event.as_str()
    }
}

/// The last position of a chain.
#[derive(Clone)]
pub(super) struct Chain {
    replica: String,
    pub(super) last: i64,
    pub(super) hash: Hash,
    /// The time of the last record, which many others have, too, and its text.
    time: (Timestamp, String),
    /// The canonical form of the last record: a buffer.
    text: Vec<u8>,
}

impl Chain {
    pub(super) fn new(replica: &str) -> Self {
        Self {
            replica: replica.to_owned(),
            last: 0,
            hash: NO_HASH,
            time: (Timestamp(0), Timestamp(0).to_string()),
            text: Vec::new(),
        }
    }

    /// Appends the next record.
    pub(super) fn push(&mut self, draft: Draft) -> ChainedRecord {
        let time = draft.time;
        if self.time.0 != time {
            self.time = (time, time.to_string());
        }
        self.last += 1;
        let record = Record {
            prev: hex::encode(self.hash).into(),
            replica: self.replica.clone().into(),
            seq: self.last,
            time: self.time.1.clone().into(),
            ..Record::from_draft(draft)
        };
        self.text.clear();
        record.write_canonical(&mut self.text);
        let hash = digest(&self.text);
        ChainedRecord {
            ms: time.0,
            seq: self.last,
            prev: std::mem::replace(&mut self.hash, hash),
            hash,
            record,
        }
    }

    /// Signs the chain up to its last record, for a checkpoint, with the active trust key.
    ///
    /// # Errors
    /// [`SignError`].
    pub(super) fn sign_checkpoint(&self, keys: &Keys) -> Result<String, SignError> {
        let statement = Statement {
            last: self.last,
            hash: hex::encode(self.hash),
            time: Timestamp::now().to_string(),
            ..Statement::of_empty_chain(&self.replica)
        };
        keys.sign(CHECKPOINT_TYP, &statement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(chain: &mut Chain, times: impl IntoIterator<Item = i64>) -> Vec<ChainedRecord> {
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
        let said = Statement::of_empty_chain("here").with_records(&records, second);
        assert_eq!(said.marks, [(1, 1000), (3, 2000), (4, 9000)]);
        assert_eq!((said.last, said.over), (4, false));
        assert_eq!(said.mark_before(Timestamp(1000)), None);
        assert_eq!(said.mark_before(Timestamp(9000)), Some(3));
        assert_eq!(said.cut_before(3).marks, [(4, 9000)]);
        let many = checkpoints(&mut chain, (10..1000).map(|n| n * 1000));
        let mut grown = said;
        for one in many {
            grown = grown.with_records(&[one], second);
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
        let said = Statement::of_empty_chain("here").with_records(&records, Duration::ZERO);
        assert!(said.over);
        assert_eq!(said.hash, hex::encode(chain.hash));
        assert!(said.parse_time().is_some());
    }
}
