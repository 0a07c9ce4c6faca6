//! Records as JSON Lines, and chains read back: from the database, or from such a file.

use serde::{Deserialize, Serialize};

use super::query::{Filter, Records, Scan};
use super::record::{EventType, Record};
use super::table::ChainRow;
use super::verify::{Report, Verifier};
use crate::store::Unavailable;
use crate::trust::KeySet;

/// A line of an export.
#[derive(Clone, Debug)]
pub enum Line {
    /// One record.
    Record(Box<Record>),
    /// Where a chain ends, signed.
    Chain(ChainLine),
}

/// Where a chain begins and ends, signed: at the end of an export of everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainLine {
    event_type: String,
    first: i64,
    last: i64,
    replica: String,
    statement: String,
}

/// `event_type` of [`ChainLine`].
const CHAIN: &str = "AUDIT_CHAIN";

impl ChainLine {
    fn of(row: &ChainRow) -> Self {
        Self {
            event_type: CHAIN.to_owned(),
            first: row.first_seq,
            last: row.last_seq,
            replica: row.replica.clone(),
            statement: row.statement.clone(),
        }
    }

    /// As a row of the table.
    pub fn row(self) -> ChainRow {
        ChainRow {
            replica: self.replica,
            first_seq: self.first,
            last_seq: self.last,
            statement: self.statement,
            signed_at: 0,
        }
    }
}

impl Line {
    /// Reads one line.
    ///
    /// # Errors
    /// When it is neither a record nor the end of a chain.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let record = serde_json::from_str(text).map(|record| Self::Record(Box::new(record)));
        record.or_else(|error| {
            let chain = serde_json::from_str(text);
            chain.map(Self::Chain).map_err(|_| error)
        })
    }
}

/// An export in progress.
pub struct Exported<'a> {
    scan: Scan<'a>,
    chains: Vec<ChainRow>,
}

impl Records {
    /// All records that fit, chain by chain, as lines. If everything fits, what is signed of each chain
    /// stands at the end.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn export<'a>(&'a self, filter: &'a Filter) -> Result<Exported<'a>, Unavailable> {
        let chains = if filter.is_empty() {
            self.table.chains().await?
        } else {
            Vec::new()
        };
        Ok(Exported {
            scan: Scan::new(&self.table, filter),
            chains,
        })
    }

    /// Whether all chains in the database are as they were written.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn verify(&self, keys: &KeySet) -> Result<Report, Unavailable> {
        let mut verifier = Verifier::new(keys, false);
        for row in self.table.chains().await? {
            verifier.chain(&row);
        }
        for event in [EventType::AuditCheckpoint, EventType::AuditPruned] {
            let filter = Filter {
                event_type: Some(event.word().to_owned()),
                ..Filter::default()
            };
            let mut scan = Scan::new(&self.table, &filter);
            loop {
                let records = scan.next().await?;
                if records.is_empty() {
                    break;
                }
                records.iter().for_each(|record| verifier.foresee(record));
            }
        }
        let filter = Filter::default();
        let mut scan = Scan::new(&self.table, &filter);
        loop {
            let records = scan.next().await?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| verifier.record(record));
        }
        let now = self.table.chains().await?;
        Ok(verifier.finish(&now))
    }
}

impl Exported<'_> {
    /// The next lines, each with its end; empty when there are no more.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn next(&mut self) -> Result<String, Unavailable> {
        let records = self.scan.next().await?;
        let mut lines = String::new();
        let mut line = |json: Result<String, serde_json::Error>| {
            lines.push_str(&json.unwrap_or_default());
            lines.push('\n');
        };
        if records.is_empty() {
            for row in self.chains.drain(..) {
                line(serde_json::to_string(&ChainLine::of(&row)));
            }
        }
        for record in records {
            line(serde_json::to_string(&record));
        }
        Ok(lines)
    }
}
