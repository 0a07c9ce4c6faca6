//! Queries of stored audit records: filters, pages with a cursor, and scans.

use serde_json::{Value, json};

use super::corrupt_rows::ReadFailure;
use super::filter::{Filter, RecordPosition, encode_cursor};
use super::record::Record;
use super::table::{Order, Table};
use stores::db::Db;
use stores::store::Unavailable;

/// Default number of records in a page.
pub const PAGE: usize = 100;

/// Maximum number of records in a page.
pub const PAGE_MAX: usize = 500;

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
    pub async fn read_page(
        &self,
        filter: &Filter,
        after: Option<&RecordPosition>,
        limit: usize,
    ) -> Result<Value, Unavailable> {
        let limit = limit.clamp(1, PAGE_MAX);
        // One extra record shows whether there is a next page.
        let read = self
            .table
            .read_page(filter, Order::Newest, after, limit + 1);
        let mut records = read.await?;
        let more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().filter(|_| more);
        let next_cursor = last.map(|(place, _)| encode_cursor(place));
        let records = records.iter().map(|(_, record)| record.to_json());
        let records: Vec<Value> = records.collect();
        Ok(json!({"records": records, "next_cursor": next_cursor}))
    }
}

impl Records {
    /// Returns records that match and follow `after`, newest first, each with its place.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_batch(
        &self,
        filter: &Filter,
        after: Option<&RecordPosition>,
        limit: usize,
    ) -> Result<Vec<(RecordPosition, Record<'static>)>, Unavailable> {
        self.table
            .read_page(filter, Order::Newest, after, limit)
            .await
    }
}

/// An iterator over all records that match, in batches.
pub(super) struct Scan<'a> {
    table: &'a Table,
    filter: &'a Filter,
    order: Order,
    after: Option<RecordPosition>,
    over: bool,
}

/// Number of records in a batch.
const SCAN_BATCH: usize = 2000;

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
    pub(super) async fn next(&mut self) -> Result<Vec<Record<'static>>, Unavailable> {
        if self.over {
            return Ok(Vec::new());
        }
        let after = self.after.as_ref();
        let table = self.table;
        let read = table
            .read_page(self.filter, self.order, after, SCAN_BATCH)
            .await;
        let records = match read {
            Ok(records) => records,
            Err(error) => return Err(table.name_corrupt_record(error).await),
        };
        self.over = records.len() < SCAN_BATCH;
        if let (Some(before), Some((last, record))) = (&self.after, records.last())
            && !table.is_ordered(before, last)
        {
            return Err(ReadFailure::Disordered(record.replica.to_string()).into());
        }
        let last = records.last().map(|(place, _)| place.clone());
        self.after = last.or(self.after.take());
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }
}
