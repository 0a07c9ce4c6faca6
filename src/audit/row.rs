//! Reads rows of the audit tables. Their contents are not trusted.

use sqlx::any::AnyRow;
use sqlx::{Any, Row as _};

use super::record::{Record, detail_of};
use super::table::ChainRow;
use crate::workspace::Timestamp;

/// Reads a row of `audit_chains`. Only its signed statement proves that it is genuine.
pub(super) fn chain(row: &AnyRow) -> ChainRow {
    let mut read = Reader { row, whole: true };
    ChainRow {
        replica: read.text("replica"),
        first_seq: read.number("first_seq"),
        last_seq: read.number("last_seq"),
        statement: read.text("statement"),
        signed_at: read.number("signed_at"),
    }
}

/// Reads a row as a record. The contents are not trusted: a value of a wrong type leaves the record without
/// a hash.
pub(super) fn record(row: &AnyRow) -> Record {
    let mut read = Reader { row, whole: true };
    let mut record = Record {
        caller: read.optional("caller"),
        client_address: read.optional("client_address"),
        credential_kind: read.optional("credential_kind"),
        credential_prefix: read.optional("credential_prefix"),
        detail: read.optional("detail").and_then(detail_of),
        duration_ms: read.number("duration_ms"),
        event_type: read.text("event_type"),
        hash: None,
        method: read.optional("method"),
        org: read.optional("org"),
        outcome: read.text("outcome"),
        prev: read.text("prev"),
        replica: read.text("replica"),
        request_bytes: read.number("request_bytes"),
        request_id: read.optional("request_id"),
        response_bytes: read.number("response_bytes"),
        rule: read.optional("rule"),
        seq: read.number("seq"),
        status: read.number("status"),
        target: read.optional("target"),
        task_id: read.optional("task_id"),
        time: Timestamp(read.number("time")).to_string(),
        trace_id: read.optional("trace_id"),
    };
    let null = record
        .detail
        .as_ref()
        .is_some_and(|detail| detail.get() == "null");
    let hash = read.text("hash");
    record.hash = (read.whole && !null).then_some(hash);
    record
}

struct Reader<'r> {
    row: &'r AnyRow,
    whole: bool,
}

impl<'r> Reader<'r> {
    fn read<T>(&mut self, column: &str) -> Option<T>
    where
        T: sqlx::Decode<'r, Any> + sqlx::Type<Any>,
    {
        let read = self.row.try_get(column).ok();
        self.whole &= read.is_some();
        read
    }

    fn text(&mut self, column: &str) -> String {
        self.read(column).unwrap_or_default()
    }

    fn number(&mut self, column: &str) -> i64 {
        self.read(column).unwrap_or_default()
    }

    fn optional(&mut self, column: &str) -> Option<String> {
        self.read(column).unwrap_or_default()
    }
}
