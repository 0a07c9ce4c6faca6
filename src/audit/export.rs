//! Records as JSON Lines, and chains read back: from the database, or from such a file.

use serde::{Deserialize, Serialize};

use super::query::{Filter, Records, Scan};
use super::record::{EventType, Record};
use super::table::{ChainRow, Order, Table};
use super::unreadable::Unreadable;
use super::verify::{Report, Verifier};
use crate::store::Unavailable;

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
    table: &'a Table,
    scan: Scan<'a>,
    /// Chains as they were at the beginning, of which everything goes out; `None`: what fits a filter does.
    chains: Option<Vec<ChainRow>>,
}

impl Records {
    /// All records that fit, chain by chain, as lines. If everything fits, what is signed of each chain
    /// stands at the end.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn export<'a>(&'a self, filter: &'a Filter) -> Result<Exported<'a>, Unavailable> {
        let chains = if filter.is_empty() {
            Some(self.table.chains().await?)
        } else {
            None
        };
        Ok(Exported {
            table: &self.table,
            scan: Scan::new(&self.table, filter, Order::Chains),
            chains,
        })
    }

    /// Has `verifier` look at all chains in the database.
    ///
    /// # Errors
    /// When the store fails, or retention removed records of a chain in which something seems to be missing.
    pub async fn verify(&self, mut verifier: Verifier<'_>) -> Result<Report, Unavailable> {
        let then = self.table.chains().await?;
        then.iter().for_each(|row| verifier.chain(row));
        let checkpoints = Filter {
            event_type: Some(EventType::AuditCheckpoint.word().to_owned()),
            ..Filter::default()
        };
        let mut scan = Scan::new(&self.table, &checkpoints, Order::Rows);
        loop {
            let records = scan.next().await?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| verifier.foresee(record));
        }
        let all = Filter::default();
        let mut scan = Scan::new(&self.table, &all, Order::Rows);
        loop {
            let records = scan.next().await?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| verifier.record(record));
        }
        let now = self.table.chains().await?;
        let report = verifier.finish(&now);
        let doubtful = |replica: &str| report.problems.iter().any(|one| one.replica == replica);
        let pruned = pruned(&then, &now).find(|row| doubtful(&row.replica));
        match pruned {
            Some(row) => Err(Unreadable::Pruned(row.replica.clone()).into()),
            None => Ok(report),
        }
    }
}

impl Exported<'_> {
    /// The next lines, each with its end; empty when there are no more.
    ///
    /// # Errors
    /// When the store fails, or retention removed records meanwhile.
    pub async fn next(&mut self) -> Result<String, Unavailable> {
        loop {
            let records = self.scan.next().await?;
            if records.is_empty() {
                return self.ends().await;
            }
            let fit = records.iter().filter(|record| self.is_of_then(record));
            let lines: String = fit.map(line).collect();
            // Gateways may write faster than somebody reads.
            if !lines.is_empty() {
                return Ok(lines);
            }
        }
    }

    /// Whether a record was there when the export began: what comes later is behind the signed end.
    fn is_of_then(&self, record: &Record) -> bool {
        let Some(chains) = &self.chains else {
            return true;
        };
        let chain = chains.iter().find(|row| row.replica == record.replica);
        chain.is_some_and(|row| record.seq <= row.last_seq)
    }

    async fn ends(&mut self) -> Result<String, Unavailable> {
        let Some(chains) = self.chains.take() else {
            return Ok(String::new());
        };
        let now = self.table.chains().await?;
        if let Some(row) = pruned(&chains, &now).next() {
            return Err(Unreadable::Pruned(row.replica.clone()).into());
        }
        self.chains = Some(Vec::new());
        Ok(chains
            .iter()
            .map(ChainLine::of)
            .map(|end| line(&end))
            .collect())
    }
}

/// Chains of which retention removed records meanwhile.
fn pruned<'r>(then: &'r [ChainRow], now: &'r [ChainRow]) -> impl Iterator<Item = &'r ChainRow> {
    then.iter().filter(|then| {
        let now = now.iter().find(|now| now.replica == then.replica);
        now.is_none_or(|now| now.first_seq > then.first_seq)
    })
}

fn line<T: Serialize>(what: &T) -> String {
    let mut line = serde_json::to_string(what).unwrap_or_default();
    line.push('\n');
    line
}
