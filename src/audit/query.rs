//! Queries of stored audit records: filters, pages with a cursor, and scans.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::corrupt_rows::Unreadable;
use super::record::Record;
use super::table::{Order, Place, Table};
use crate::db::Db;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

/// Default number of records in a page.
pub const PAGE: usize = 100;

/// Maximum number of records in a page.
pub const PAGE_MAX: usize = 500;

/// The conditions of a query. The empty filter matches all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The caller or the target.
    pub workspace: Option<String>,
    /// The caller, in the spelling of records.
    pub caller: Option<String>,
    /// The target workspace.
    pub target: Option<String>,
    /// The outcome.
    pub outcome: Option<String>,
    /// The event type.
    pub event_type: Option<String>,
    /// The JSON-RPC method.
    pub method: Option<String>,
    /// The request id.
    pub request_id: Option<String>,
    /// The replica that owns the chain.
    pub replica: Option<String>,
    /// The earliest time, included.
    pub since: Option<Timestamp>,
    /// The latest time, not included.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// True if every record matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the columns and the values that they must have. `workspace` means the caller or the target.
    pub(super) fn conditions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("workspace", &self.workspace),
            ("caller", &self.caller),
            ("target", &self.target),
            ("outcome", &self.outcome),
            ("event_type", &self.event_type),
            ("method", &self.method),
            ("request_id", &self.request_id),
            ("replica", &self.replica),
        ]
        .into_iter()
        .filter_map(|(column, value)| Some((column, value.as_deref()?)))
    }

    pub(super) fn times(&self) -> impl Iterator<Item = (&'static str, Timestamp)> {
        [(">=", self.since), ("<", self.until)]
            .into_iter()
            .filter_map(|(comparison, at)| Some((comparison, at?)))
    }
}

/// The position after which the next page of records begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Place);

impl Cursor {
    /// Parses the cursor of a page.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (ms, replica, seq) = serde_json::from_slice(&bytes).ok()?;
        Some(Self(Place { ms, replica, seq }))
    }

    fn text(&self) -> String {
        let Place { ms, replica, seq } = &self.0;
        URL_SAFE_NO_PAD.encode(json!([ms, replica, seq]).to_string())
    }
}

/// The stored records, for queries.
pub struct Records {
    pub(super) table: Table,
}

impl Records {
    /// Returns the records of a database, without I/O.
    pub fn new(db: Db) -> Self {
        Self {
            table: Table::new(db),
        }
    }

    /// Returns a page of records, newest first: `{"records":[…],"next_cursor":…}`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn page(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Value, Unavailable> {
        let limit = limit.clamp(1, PAGE_MAX);
        let after = after.map(|cursor| &cursor.0);
        // One extra record shows whether there is a next page.
        let read = self.table.page(filter, Order::Newest, after, limit + 1);
        let mut records = read.await?;
        let more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().filter(|_| more).map(Place::of);
        let records: Vec<Value> = records.iter().map(Record::json).collect();
        let next_cursor = last.map(|place| Cursor(place).text());
        Ok(json!({"records": records, "next_cursor": next_cursor}))
    }
}

/// An iterator over all records that match, in batches.
pub(super) struct Scan<'a> {
    table: &'a Table,
    filter: &'a Filter,
    order: Order,
    after: Option<Place>,
    over: bool,
}

/// Number of records in a batch.
const SCANNED: usize = 2000;

impl<'a> Scan<'a> {
    /// `order` selects the records of known chains, or all rows of the table.
    pub(super) fn new(table: &'a Table, filter: &'a Filter, order: Order) -> Self {
        Self {
            table,
            filter,
            order,
            after: None,
            over: false,
        }
    }

    /// Returns the next batch; empty at the end.
    pub(super) async fn next(&mut self) -> Result<Vec<Record>, Unavailable> {
        if self.over {
            return Ok(Vec::new());
        }
        let after = self.after.as_ref();
        let table = self.table;
        let read = table.page(self.filter, self.order, after, SCANNED).await;
        let records = match read {
            Ok(records) => records,
            Err(error) => return Err(table.named(error).await),
        };
        self.over = records.len() < SCANNED;
        let last = records.last().map(Place::of);
        if let (Some(before), Some(last)) = (&self.after, &last)
            && !table.goes_on(before, last)
        {
            return Err(Unreadable::Disordered(last.replica.clone()).into());
        }
        self.after = last.or(self.after.take());
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was_given() {
        let cursor = Cursor(Place {
            ms: 1,
            replica: "a-1".to_owned(),
            seq: 2,
        });
        assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        for bad in ["", "!", "AAAA", &URL_SAFE_NO_PAD.encode("[1]")] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }
}
