//! Reads rows of the audit tables. Their contents are not trusted.

use sqlx::any::AnyRow;
use sqlx::{Any, Row as _};
use uuid::Uuid;

use super::record::{Record, parse_detail};
use crate::workspace::Timestamp;

/// Reads a row as a record. The contents are not trusted: a value of a wrong type leaves the record without
/// a hash.
pub(super) fn read_record(row: &AnyRow) -> Record {
    let mut read = Reader::new(row);
    let prev = read.read_text("prev");
    let ids = ["request_id", "task_id", "trace_id"].map(|column| read.read_optional(column));
    let mut record = read.read_members(prev, ids);
    record.bridged = read.read_optional("bridged");
    let hash = read.read_text("hash");
    record.hash = read.is_whole(&record).then_some(hash);
    record
}

/// Reads a compact row as a record, in the same way, and its id.
pub(super) fn read_compact_record(row: &AnyRow) -> (i64, Record) {
    let mut read = Reader::new(row);
    // Where the row before is missing there is none.
    let prev = read.unpack_text("prev", hex_text).unwrap_or_default();
    let ids = [
        read.unpack_text("request_id", uuid_text),
        read.unpack_text("task_id", uuid_text),
        read.unpack_text("trace_id", hex_text),
    ];
    let mut record = read.read_members(prev, ids);
    let hash: Vec<u8> = read.read_column("hash").unwrap_or_default();
    record.hash = read.is_whole(&record).then(|| hex::encode(hash));
    if let Some(translated) = record.method.as_deref().and_then(split_method) {
        let (method, bridged) = translated;
        (record.method, record.bridged) = (Some(method.to_owned()), Some(bridged.to_owned()));
    }
    (read.read_number("id"), record)
}

/// Returns the method of a translated call, and its generations: a compact row has both in one word, so that the rows of
/// other calls have no column for it.
fn split_method(word: &str) -> Option<(&str, &str)> {
    word.split_once(' ')
}

/// Returns the usual spelling of the bytes of a UUID.
fn uuid_text(bytes: &[u8]) -> Option<String> {
    Uuid::from_slice(bytes).ok().map(|uuid| uuid.to_string())
}

fn hex_text(bytes: &[u8]) -> Option<String> {
    Some(hex::encode(bytes))
}

/// Reads the columns of a row.
pub(super) struct Reader<'r> {
    row: &'r AnyRow,
    /// False once a value had a wrong type.
    whole: bool,
}

impl<'r> Reader<'r> {
    pub(super) fn new(row: &'r AnyRow) -> Self {
        Self { row, whole: true }
    }

    /// Reads all members but the hash.
    fn read_members(
        &mut self,
        prev: String,
        [request_id, task_id, trace_id]: [Option<String>; 3],
    ) -> Record {
        Record {
            bridged: None,
            caller: self.read_optional("caller"),
            client_address: self.read_optional("client_address"),
            credential_kind: self.read_optional("credential_kind"),
            credential_prefix: self.read_optional("credential_prefix"),
            detail: self.read_optional("detail").and_then(parse_detail),
            duration_ms: self.read_number("duration_ms"),
            event_type: self.read_text("event_type"),
            hash: None,
            method: self.read_optional("method"),
            org: self.read_optional("org"),
            outcome: self.read_text("outcome"),
            prev,
            replica: self.read_text("replica"),
            request_bytes: self.read_number("request_bytes"),
            request_id,
            response_bytes: self.read_number("response_bytes"),
            rule: self.read_optional("rule"),
            seq: self.read_number("seq"),
            status: self.read_number("status"),
            target: self.read_optional("target"),
            task_id,
            time: Timestamp(self.read_number("time")).to_string(),
            trace_id,
        }
    }

    fn read_column<T>(&mut self, column: &str) -> Option<T>
    where
        T: sqlx::Decode<'r, Any> + sqlx::Type<Any>,
    {
        let read = self.row.try_get(column).ok();
        self.whole &= read.is_some();
        read
    }

    pub(super) fn read_text(&mut self, column: &str) -> String {
        self.read_column(column).unwrap_or_default()
    }

    pub(super) fn read_number(&mut self, column: &str) -> i64 {
        self.read_column(column).unwrap_or_default()
    }

    fn read_optional(&mut self, column: &str) -> Option<String> {
        self.read_column(column).unwrap_or_default()
    }

    /// Reads a text, or the bytes that stand for one.
    fn unpack_text(&mut self, column: &str, text: fn(&[u8]) -> Option<String>) -> Option<String> {
        let bytes: Result<Option<Vec<u8>>, _> = self.row.try_get(column);
        let Ok(bytes) = bytes else {
            return self.read_optional(column);
        };
        let bytes = bytes?;
        let read = text(&bytes);
        self.whole &= read.is_some();
        read
    }

    /// True if all values had their types. A detail of `null` was never written.
    fn is_whole(&self, record: &Record) -> bool {
        let detail = record.detail.as_ref().map(|detail| detail.get());
        self.whole && detail != Some("null")
    }
}
