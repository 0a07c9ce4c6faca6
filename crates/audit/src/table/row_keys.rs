//! The numbers by which rows in SQLite are ordered and found.
//!
//! The id of a row is the number of its chain and its sequence number, so rows lie in the order in which they
//! were written. Instead of an index that each record enters, there are two small tables about blocks of rows:
//! the times in a block, and the names in it. A query reads the blocks that may hold what it asks for.

use uuid::Uuid;

use super::super::record::{DONE, EventType, Record};
use kernel::metrics::Outcome;

/// The bits of a sequence number in an id.
const SEQ_BITS: u32 = 40;

/// The largest sequence number.
const SEQ_MAX: i64 = (1 << SEQ_BITS) - 1;

/// Rows of a block, as bits of an id.
pub(super) const BLOCK_BITS: u32 = 12;

/// Maximum difference between the time in a request id and the beginning of the request, and maximum
/// duration, in milliseconds, of a request that is found by its id's time. It is spelled in the index
/// `structure_events_untimed`, too.
pub(super) const NEAR_MS: i64 = 1000;

/// The bits of a key. SQLite stores it in six bytes.
const KEY_BITS: u32 = 47;

/// Returns the id of a row, or `None` if the sequence number is out of range.
pub(super) fn row_id(chain: i64, seq: i64) -> Option<i64> {
    (0..=SEQ_MAX)
        .contains(&seq)
        .then_some((chain << SEQ_BITS) | seq)
}

/// Returns the first id of a chain, as SQL. `chain` is an expression.
pub(super) fn first_id(chain: &str) -> String {
    format!("({chain} << {SEQ_BITS})")
}

/// A column with values that lead to blocks.
#[derive(Clone, Copy)]
pub(super) enum KeyColumn {
    Caller,
    Target,
    Outcome,
    Event,
}

impl KeyColumn {
    /// Returns the key of a value, or `None` if nearly every block has it.
    pub(super) fn key_of(self, value: &str) -> Option<i64> {
        let common: &[&str] = match self {
            Self::Caller | Self::Target => &[],
            Self::Outcome => &[Outcome::Answered.as_str(), DONE],
            Self::Event => &[EventType::A2aCall.as_str()],
        };
        (!common.contains(&value)).then(|| hash_value(self as u8, value))
    }
}

/// Returns the keys of a record.
pub(super) fn member_keys(record: &Record<'_>) -> impl Iterator<Item = i64> {
    let key = |column: KeyColumn, value: Option<&str>| column.key_of(value?);
    [
        key(KeyColumn::Caller, record.caller.as_deref()),
        key(KeyColumn::Target, record.target.as_deref()),
        key(KeyColumn::Outcome, Some(&record.outcome)),
        key(KeyColumn::Event, Some(&record.event_type)),
    ]
    .into_iter()
    .flatten()
}

/// FNV-1a. Different names with one key cost a query some time, no more.
fn hash_value(column: u8, value: &str) -> i64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in std::iter::once(column).chain(value.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    i64::try_from(hash >> (u64::BITS - KEY_BITS)).unwrap_or_default()
}

/// Returns the bytes of a UUID in its usual spelling.
pub(super) fn parse_uuid(text: &str) -> Option<Uuid> {
    let uuid = (text.len() == 36).then(|| Uuid::try_parse(text).ok())??;
    let mut usual = Uuid::encode_buffer();
    (uuid.hyphenated().encode_lower(&mut usual) == text).then_some(uuid)
}

/// Returns the time in a request id, in milliseconds since 1970, if it has one.
pub(super) fn uuid_time(uuid: &Uuid) -> Option<i64> {
    let (seconds, nanoseconds) = uuid.get_timestamp()?.to_unix();
    let is_v7 = uuid.get_version_num() == 7;
    let ms = i64::try_from(seconds).ok()?.checked_mul(1000)? + i64::from(nanoseconds) / 1_000_000;
    is_v7.then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_chain_and_the_number() {
        assert_eq!(row_id(3, 5), Some(3 * (1 << 40) + 5));
        assert_eq!(row_id(1, SEQ_MAX).map(|id| id + 1), row_id(2, 0));
        assert_eq!(row_id(1, SEQ_MAX + 1), None);
        assert_eq!(row_id(1, -1), None);
    }

    #[test]
    fn only_rare_values_have_keys_and_columns_have_their_own() {
        assert_eq!(KeyColumn::Outcome.key_of("answered"), None);
        assert_eq!(KeyColumn::Event.key_of("A2A_CALL"), None);
        let keys = [KeyColumn::Caller.key_of("a"), KeyColumn::Target.key_of("a")];
        assert_ne!(keys[0], keys[1]);
        // Stored: another value would lose the blocks of records that exist.
        assert_eq!(keys[0], Some(hash_value(0, "a")));
        assert!(keys[0].is_some_and(|key| (0..1 << KEY_BITS).contains(&key)));
    }

    #[test]
    fn a_request_id_in_another_spelling_is_text() {
        let text = "0199c7a2-5b1e-7cc3-98c4-dc0c0c07398f";
        let found = parse_uuid(text).unwrap();
        assert_eq!(uuid_time(&found), Some(0x0199_c7a2_5b1e));
        assert_eq!(parse_uuid(&text.to_uppercase()), None);
        assert_eq!(parse_uuid(&text.replace('-', "")), None);
        let other = parse_uuid("c2b3f0a0-5b1e-4cc3-98c4-dc0c0c07398f").unwrap();
        assert_eq!(uuid_time(&other), None);
    }
}
