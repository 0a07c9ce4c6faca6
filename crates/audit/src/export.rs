//! Exports records as JSON Lines, and verifies the chains in the database.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::corrupt_rows::ReadFailure;
use super::filter::Filter;
use super::query::{Records, Scan};
use super::record::{EventType, Record};
use super::table::{ChainRow, Order, Table};
use super::verify::{Report, Verifier};
use stores::store::Unavailable;

/// A line of an export.
#[derive(Clone, Debug)]
pub enum Line {
    /// One record.
    Record(Box<Record<'static>>),
    /// The signed end of a chain.
    Chain(ChainRow),
}

/// The signed beginning and end of a chain. These lines follow all records of a full export.
#[derive(Serialize, Deserialize)]
#[serde(tag = "event_type")]
enum ChainLine<'a> {
    #[serde(rename = "AUDIT_CHAIN")]
    Chain(Cow<'a, ChainRow>),
}

impl Line {
    /// Parses one line.
    ///
    /// # Errors
    /// When it is neither a record nor the end of a chain.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let record = serde_json::from_str(text).map(|record| Self::Record(Box::new(record)));
        record.or_else(|error| {
            let chain = serde_json::from_str(text).map_err(|_| error);
            chain.map(|ChainLine::Chain(row)| Self::Chain(row.into_owned()))
        })
    }
}

/// An export in progress.
pub struct Export<'a> {
    table: &'a Table,
    scan: Scan<'a>,
    /// The chains at the beginning of a full export; `None` for a filtered one.
    chains: Option<Vec<ChainRow>>,
}

impl Records {
    /// Starts an export of all records that match, chain by chain. A full export ends with the signed end
    /// of each chain.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn start_export<'a>(&'a self, filter: &'a Filter) -> Result<Export<'a>, Unavailable> {
        let chains = if filter.is_empty() {
            Some(self.table.read_chains().await?)
        } else {
            None
        };
        Ok(Export {
            table: &self.table,
            scan: Scan::new(&self.table, filter, Order::Chains),
            chains,
        })
    }

    /// Verifies all chains in the database with `verifier`.
    ///
    /// # Errors
    /// When the store fails, or when retention removed records of a chain that seems to lack some.
    pub async fn verify_chains(&self, mut verifier: Verifier<'_>) -> Result<Report, Unavailable> {
        let then = self.table.read_chains().await?;
        then.iter().for_each(|row| verifier.add_chain(row));
        let checkpoints = Filter {
            event_type: Some(EventType::AuditCheckpoint.as_str().to_owned()),
            ..Filter::default()
        };
        self.scan_rows(&checkpoints, |record| verifier.add_checkpoint(record))
            .await?;
        self.scan_rows(&Filter::default(), |record| verifier.verify_record(record))
            .await?;
        let now = self.table.read_chains().await?;
        let report = verifier.finish(&now);
        let doubtful = |replica: &str| report.problems.iter().any(|one| one.replica == replica);
        let pruned = pruned_chains(&then, &now).find(|row| doubtful(&row.replica));
        match pruned {
            Some(row) => Err(ReadFailure::Pruned(row.replica.clone()).into()),
            None => Ok(report),
        }
    }

    /// Gives all rows that match to `take`, chain by chain.
    async fn scan_rows(
        &self,
        filter: &Filter,
        mut take: impl FnMut(&Record<'_>),
    ) -> Result<(), Unavailable> {
        let mut scan = Scan::new(&self.table, filter, Order::Rows);
        loop {
            let records = scan.next().await?;
            if records.is_empty() {
                return Ok(());
            }
            records.iter().for_each(&mut take);
        }
    }
}

impl Export<'_> {
    /// Returns the next lines, each with its line end; empty at the end.
    ///
    /// # Errors
    /// When the store fails, or when retention removed records during the export.
    pub async fn next(&mut self) -> Result<String, Unavailable> {
        loop {
            let records = self.scan.next().await?;
            if records.is_empty() {
                return self.chain_lines().await;
            }
            let fit = records
                .iter()
                .filter(|record| self.existed_at_start(record));
            let lines: String = fit.map(to_json_line).collect();
            // Gateways may write faster than the export reads.
            if !lines.is_empty() {
                return Ok(lines);
            }
        }
    }

    /// True if the record existed when the export began. Later ones are behind the signed end.
    fn existed_at_start(&self, record: &Record<'_>) -> bool {
        let Some(chains) = &self.chains else {
            return true;
        };
        let chain = chains.iter().find(|row| row.replica == record.replica);
        chain.is_some_and(|row| record.seq <= row.last_seq)
    }

    async fn chain_lines(&mut self) -> Result<String, Unavailable> {
        let Some(chains) = self.chains.take() else {
            return Ok(String::new());
        };
        let now = self.table.read_chains().await?;
        if let Some(row) = pruned_chains(&chains, &now).next() {
            return Err(ReadFailure::Pruned(row.replica.clone()).into());
        }
        self.chains = Some(Vec::new());
        Ok(chains
            .iter()
            .map(|row| to_json_line(&ChainLine::Chain(Cow::Borrowed(row))))
            .collect())
    }
}

/// Returns the chains that lost records to retention between `then` and `now`.
fn pruned_chains<'r>(
    then: &'r [ChainRow],
    now: &'r [ChainRow],
) -> impl Iterator<Item = &'r ChainRow> {
    then.iter().filter(|then| {
        let now = now.iter().find(|now| now.replica == then.replica);
        now.is_none_or(|now| now.first_seq > then.first_seq)
    })
}

fn to_json_line<T: Serialize>(what: &T) -> String {
    let mut line = serde_json::to_string(what).unwrap_or_default();
    line.push('\n');
    line
}
