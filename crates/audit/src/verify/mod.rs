//! Verifies chains record by record, without a store or a clock (`docs/design/security.md`, "Audit, logs and
//! stored data").
//!
//! The hash of a record covers its content, its number and the hash before it. The end of a chain is signed
//! by a trust key. An attacker who changes, removes, inserts or reorders a record has to recompute all
//! later hashes, and cannot sign the new end.

mod file;
mod report;
mod state;

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

pub use self::file::{FileError, verify_file};
pub use self::report::{AnchorUse, format_report};
use self::state::{ChainState, describe_failure};
use super::chain::{CHECKPOINT_TYP, END_TYP, Statement};
use super::record::{EventType, Record};
use super::table::ChainRow;
use access::workspace::Timestamp;
use trust::{KeySet, TokenError};

/// The first problem of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The replica that owns the chain.
    pub replica: String,
    /// The sequence number of the record, if the problem is in one.
    pub seq: Option<i64>,
    /// The description.
    pub what: String,
    /// True if the chain may be intact, but a key that signed it is not available.
    pub key_missing: bool,
}

/// The source of an expected record that no other chain names.
const GIVEN: &str = "the checkpoint that you give";

/// The source of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All rows of a database, each exactly as a gateway wrote it.
    Database,
    /// All lines of an export, in any equivalent JSON form.
    Export,
    /// A part of an export: chains may begin and end anywhere.
    Excerpt,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of records that were read.
    pub records: u64,
    /// Number of chains with records.
    pub chains: usize,
    /// Number of checkpoints with a valid signature.
    pub checkpoints: u64,
    /// Number of checkpoints that are signed by unavailable keys.
    pub unknown: u64,
    /// Number of records behind the last signature.
    pub unproven: u64,
    /// Number of chains without a proven record.
    pub unproven_chains: u64,
    /// Number of rows before the signed beginning of their chain, which retention is about to remove. They
    /// prove nothing.
    pub outside: u64,
    /// The first problem of each chain that is not as it was written.
    pub problems: Vec<Problem>,
}

impl Report {
    /// True if there are records and all are proven. No records prove nothing, and neither does an excerpt
    /// with a chain in which nothing is signed.
    pub fn is_proven(&self) -> bool {
        self.problems.is_empty() && self.records > 0 && self.unproven_chains == 0
    }
}

/// The `detail` of a checkpoint.
#[derive(Default, Deserialize)]
pub(super) struct CheckpointDetail {
    /// The signed statement of the chain up to the checkpoint.
    pub(super) statement: String,
    /// The ends of other chains, as the gateway saw them: `{"replica": [seq, "hash"]}`.
    #[serde(default)]
    pub(super) seen: BTreeMap<String, (i64, String)>,
}

/// A verifier of all chains. It takes the records of each chain in order.
pub struct Verifier<'k> {
    keys: &'k KeySet,
    scope: Scope,
    chains: BTreeMap<String, ChainState>,
    /// The last record of each chain that other chains name, with its hash and source. All earlier ones
    /// follow from it.
    seen: HashMap<String, (i64, String, String)>,
    /// Records that must exist, by sequence number, with their hash.
    expected: HashMap<String, BTreeMap<i64, String>>,
    report: Report,
}

impl<'k> Verifier<'k> {
    /// Creates a verifier.
    pub fn new(keys: &'k KeySet, scope: Scope) -> Self {
        Self {
            keys,
            scope,
            chains: BTreeMap::new(),
            seen: HashMap::new(),
            expected: HashMap::new(),
            report: Report::default(),
        }
    }

    /// Adds a record that must exist, from a checkpoint that the operator kept. Call it before the first
    /// record.
    pub fn expect_record(&mut self, replica: &str, seq: i64, hash: String) {
        let expected = self.expected.entry(replica.to_owned()).or_default();
        let other = expected
            .insert(seq, hash.clone())
            .filter(|known| *known != hash);
        if other.is_some() {
            let what = format!("{GIVEN} cannot be right: you give two for one number");
            let state = self.chains.entry(replica.to_owned()).or_default();
            state.set_problem(replica, Some(seq), what);
        }
    }

    /// Adds an end that was kept outside the database, signed by a trust key: its record must exist. Returns
    /// `false` for an end from before `oldest`, which is ignored: retention may have removed its chain.
    ///
    /// # Errors
    /// When it is not signed, or signed by an unavailable key.
    pub fn add_anchor(
        &mut self,
        statement: &str,
        oldest: Option<Timestamp>,
    ) -> Result<bool, String> {
        let read = self.keys.verify_statement(statement, END_TYP);
        let said: Statement =
            read.map_err(|error| format!("the end {}", describe_failure(error)))?;
        let is_old = said
            .parse_time()
            .is_none_or(|at| oldest.is_some_and(|oldest| at.0 < oldest.0));
        let counts = said.last > 0 && !is_old;
        if counts {
            self.expect_record(&said.replica, said.last, said.hash);
        }
        Ok(counts)
    }

    /// Adds the row of a chain. Call it for all chains before the first record.
    pub fn add_chain(&mut self, row: &ChainRow) {
        let state = self.chains.entry(row.replica.clone()).or_default();
        let said: Statement = match self.keys.verify_statement(&row.statement, END_TYP) {
            Ok(said) => said,
            Err(error) => {
                let what = format!("the statement of where it ends {}", describe_failure(error));
                state.set_problem(&row.replica, None, what);
                return state.mark_key_missing(error);
            }
        };
        let same =
            (&said.replica, said.first, said.last) == (&row.replica, row.first_seq, row.last_seq);
        if !same {
            let what = "its row says something else than the signed statement in it".to_owned();
            return state.set_problem(&row.replica, None, what);
        }
        // Of two rows of one chain the later end counts: its record existed.
        if state
            .stated
            .as_ref()
            .is_none_or(|known| known.last < said.last)
        {
            state.stated = Some(said);
        }
    }

    /// Reads the ends of other chains from a checkpoint. Call it for all checkpoints before the first
    /// record.
    pub fn add_checkpoint(&mut self, record: &Record<'_>) {
        // A checkpoint that retention is about to remove may name chains that are forgotten already.
        let stated = self.chains.get(&*record.replica);
        let stated = stated.and_then(|state| state.stated.as_ref());
        if stated.is_some_and(|stated| record.seq < stated.first) {
            return;
        }
        let detail = record.detail.as_deref().map_or("null", |raw| raw.get());
        if let Ok(checkpoint) = serde_json::from_str::<CheckpointDetail>(detail) {
            for (replica, (seq, hash)) in checkpoint.seen {
                if self.seen.get(&replica).is_none_or(|known| known.0 < seq) {
                    let by = format!("a checkpoint of {}", record.replica);
                    self.seen.insert(replica, (seq, hash, by));
                }
            }
        }
    }

    /// Verifies the next record.
    pub fn verify_record(&mut self, record: &Record<'_>) {
        let state = self.chains.entry(record.replica.to_string()).or_default();
        if state.problem.is_some() {
            return;
        }
        if self.scope == Scope::Database && state.stated.is_none() {
            state.begun.get_or_insert(record.seq);
            return;
        }
        let first = state.stated.as_ref().map_or(1, |stated| stated.first);
        let early = self.scope != Scope::Excerpt && state.records == 0 && record.seq < first;
        if early && record.seq > 0 {
            self.report.outside += 1;
            return;
        }
        let checked = state
            .check_record(record, self.scope)
            .and_then(|()| self.verify_checkpoint(record))
            .and_then(|good| {
                self.report.checkpoints += u64::from(good == Some(true));
                self.report.unknown += u64::from(good == Some(false));
                self.compare_with_seen(record)?;
                Ok(good)
            });
        let Some(state) = self.chains.get_mut(&*record.replica) else {
            return;
        };
        match checked {
            Ok(good) => state.append_record(record, good),
            Err(what) => state.set_problem(&record.replica, Some(record.seq), what),
        }
    }

    /// Returns whether a checkpoint is signed by an available key, or `None` if the record is not a
    /// checkpoint.
    fn verify_checkpoint(&self, record: &Record<'_>) -> Result<Option<bool>, String> {
        if record.event_type != EventType::AuditCheckpoint.as_str() {
            return Ok(None);
        }
        let detail = record.detail.as_deref().map_or("null", |raw| raw.get());
        let detail: CheckpointDetail = serde_json::from_str(detail)
            .map_err(|_| "the checkpoint holds no signed statement".to_owned())?;
        let read = self
            .keys
            .verify_statement(&detail.statement, CHECKPOINT_TYP);
        let stated: Statement = match read {
            Ok(stated) => stated,
            Err(TokenError::UnknownKey) => return Ok(Some(false)),
            Err(error) => {
                return Err(format!(
                    "the statement in the checkpoint {}",
                    describe_failure(error)
                ));
            }
        };
        let of_here = stated.replica == record.replica
            && stated.last == record.seq - 1
            && stated.hash == record.prev;
        of_here
            .then_some(Some(true))
            .ok_or_else(|| "the checkpoint is signed for another place or another chain".to_owned())
    }

    /// Compares the record with the one that other chains or the operator saw.
    fn compare_with_seen(&self, record: &Record<'_>) -> Result<(), String> {
        let expected = self.expected.get(&*record.replica);
        if let Some(hash) = expected.and_then(|expected| expected.get(&record.seq))
            && hash != record.hash()
        {
            return Err(format!("{GIVEN} saw another record in its place"));
        }
        match self.seen.get(&*record.replica) {
            Some((seq, hash, by)) if *seq == record.seq && hash != record.hash() => {
                Err(format!("{by} saw another record in its place"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the result. `rows` are the chains as they are now, since records may have been written
    /// during the verification.
    pub fn finish(mut self, rows: &[ChainRow]) -> Report {
        let mut report = std::mem::take(&mut self.report);
        for (replica, state) in &mut self.chains {
            report.records += state.records;
            let now = rows.iter().find(|row| row.replica == *replica);
            let now = now.map(|row| {
                let read = self
                    .keys
                    .verify_statement::<Statement>(&row.statement, END_TYP);
                read.ok().filter(|stated| stated.replica == *replica)
            });
            if let Some(seq) = state.begun
                && now.as_ref().is_none_or(Option::is_none)
            {
                let what = "belongs to a chain of which nothing is signed".to_owned();
                state.set_problem(replica, Some(seq), what);
            }
            if self.scope == Scope::Excerpt {
                state.finish_excerpt(replica, &mut report);
            } else if state.problem.is_none() {
                let now = now.map(|stated| stated.map_or(0, |stated| stated.last));
                state.check_end(replica, now);
            }
        }
        self.report_missing(&mut report);
        report.chains = self
            .chains
            .values()
            .filter(|state| state.records > 0)
            .count();
        let problems = self.chains.into_values().filter_map(|state| state.problem);
        report.problems.extend(problems);
        report
    }

    /// Reports one missing record of each chain that others name. An excerpt must only contain the records
    /// of `--expect`.
    fn report_missing(&self, report: &mut Report) {
        let absent = |replica: &str, seq: i64| {
            let state = self.chains.get(replica);
            state.is_none_or(|state| !state.accounts_for(seq, self.scope))
        };
        let mut missing = BTreeMap::new();
        if self.scope != Scope::Excerpt {
            for (replica, (seq, _, by)) in &self.seen {
                if absent(replica, *seq) {
                    missing.insert(replica, (*seq, by.as_str()));
                }
            }
        }
        for (replica, records) in &self.expected {
            if let Some(seq) = records.keys().find(|seq| absent(replica, **seq)) {
                missing.insert(replica, (*seq, GIVEN));
            }
        }
        for (replica, (seq, by)) in missing {
            let (seq, what) = if self.chains.contains_key(replica) {
                (Some(seq), format!("is missing: {by} saw it"))
            } else {
                let what = format!("the whole chain is missing: {by} saw its record {seq}");
                (None, what)
            };
            report.problems.push(Problem {
                replica: replica.clone(),
                seq,
                what,
                key_missing: false,
            });
        }
    }
}
