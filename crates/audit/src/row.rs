//! Reads rows of the audit tables. Their contents are not trusted.

use std::borrow::Cow;

use sqlx::any::AnyRow;
use sqlx::{Any, Row as _};
use uuid::Uuid;

use super::record::{Record, parse_detail};
use access::workspace::Timestamp;

type Text = Cow<'static, str>;

/// Reads a row as a record, with its id, which only compact rows have. The contents are not trusted: a value of a wrong
/// type leaves the record without a hash.
pub(super) fn read_record(row: &AnyRow) -> (Option<i64>, Record<'static>) {
    let mut read = Reader::new(row);
    let mut record = Record {
        bridged: row.try_get("bridged").ok().map(|text: String| text.into()),
        caller: read.read_optional("caller"),
        chain: read.read_optional("chain"),
        client_address: read.read_optional("client_address"),
        context: read.unpack_text("context", uuid_text),
        credential_kind: read.read_optional("credential_kind"),
        credential_prefix: read.read_optional("credential_prefix"),
        depth: read.read_column::<Option<i64>>("depth").flatten(),
        detail: read
            .read_optional("detail")
            .and_then(|text| parse_detail(text.into_owned()))
            .map(Cow::Owned),
        duration_ms: read.read_number("duration_ms"),
        event_type: read.read_text("event_type").into(),
        hash: None,
        link: read.read_optional("link"),
        method: read.read_optional("method"),
        org: read.read_optional("org"),
        outcome: read.read_text("outcome").into(),
        // Where the row before is missing there is none.
        prev: read.unpack_text("prev", hex_text).unwrap_or_default(),
        replica: read.read_text("replica").into(),
        request_bytes: read.read_number("request_bytes"),
        request_id: read.unpack_text("request_id", uuid_text),
        response_bytes: read.read_number("response_bytes"),
        root: read.read_optional("root"),
        rule: read.read_optional("rule"),
        run: read.unpack_text("run", hex_text),
        seq: read.read_number("seq"),
        status: read.read_number("status"),
        target: read.read_optional("target"),
        task_id: read.unpack_text("task_id", uuid_text),
        time: Timestamp(read.read_number("time")).to_string().into(),
        trace_id: read.unpack_text("trace_id", hex_text),
        txn: read.read_optional("txn"),
    };
    let hash = read.unpack_text("hash", hex_text);
    let whole = read.is_whole(&record);
    record.hash = hash.filter(|_| whole).map(Cow::into_owned);
    // A compact row has a method and its generations in one word, so that the rows of other calls have no column for
    // it.
    if let Some((method, bridged)) = record.method.as_deref().and_then(|it| it.split_once(' ')) {
        let [method, bridged] = [method, bridged].map(|text| Some(Text::from(text.to_owned())));
        (record.method, record.bridged) = (method, bridged);
    }
    (row.try_get("id").ok(), record)
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

    fn read_optional(&mut self, column: &str) -> Option<Text> {
        let text: Option<Option<String>> = self.read_column(column);
        text.flatten().map(Text::from)
    }

    /// Reads a text, or the bytes that stand for one.
    fn unpack_text(&mut self, column: &str, text: fn(&[u8]) -> Option<String>) -> Option<Text> {
        let bytes: Result<Option<Vec<u8>>, _> = self.row.try_get(column);
        let Ok(bytes) = bytes else {
            return self.read_optional(column);
        };
        let bytes = bytes?;
        let read = text(&bytes);
        self.whole &= read.is_some();
        read.map(Text::from)
    }

    /// True if all values had their types. A detail of `null` was never written.
    fn is_whole(&self, record: &Record<'_>) -> bool {
        let detail = record.detail.as_ref().map(|detail| detail.get());
        self.whole && detail != Some("null")
    }
}
