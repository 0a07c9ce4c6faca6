//! Whether chains are as they were written: record by record, without a store or a clock.
//!
//! A record proves its place by its hash, which covers its content, its number and the hash before it.
//! A chain proves its end by a statement that a trust key signed. So whoever changes, removes, puts in
//! or reorders a record has to make all later hashes anew, and cannot sign where the chain ends then.

mod state;

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use self::state::{State, unproven};
use super::chain::{CHECKPOINT_TYP, END_TYP, Statement};
use super::record::{EventType, Record};
use super::table::ChainRow;
use crate::trust::{KeySet, TokenError};
use crate::workspace::Timestamp;

/// What is wrong with a chain: the first thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whose chain.
    pub replica: String,
    /// The number of the record, if it is about one.
    pub seq: Option<i64>,
    /// What is wrong with it.
    pub what: String,
    /// Nothing is: it cannot be told without a key that is not known here.
    pub key_missing: bool,
}

/// Who says that a record must be there, if it is no other chain.
const GIVEN: &str = "the checkpoint that you give";

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All rows of a database, each exactly as a gateway wrote it.
    Database,
    /// All lines of an export, in any form that says the same.
    Export,
    /// Some of them: chains may begin and end anywhere.
    Excerpt,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records that were read.
    pub records: u64,
    /// Chains that they belong to.
    pub chains: usize,
    /// Checkpoints whose signature is good.
    pub checkpoints: u64,
    /// Checkpoints that are signed by keys that are not known here.
    pub unknown: u64,
    /// Records behind which nothing is signed.
    pub unproven: u64,
    /// Chains of whose records none is proven.
    pub unproven_chains: u64,
    /// Rows before the signed beginning of their chain, which retention is about to remove: they prove nothing.
    pub outside: u64,
    /// Chains that are not as they were written, each with the first thing that is wrong.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether there was something, and all of it is as it was written. No record at all proves nothing, and
    /// neither does an excerpt with a chain in which nothing is signed.
    pub fn is_proven(&self) -> bool {
        self.problems.is_empty() && self.records > 0 && self.unproven_chains == 0
    }
}

/// What a checkpoint carries besides its place.
#[derive(Default, Deserialize)]
pub(super) struct CheckpointDetail {
    /// The chain up to it, signed.
    pub(super) statement: String,
    /// The ends of other chains, as they were seen: `{"replica": [seq, "hash"]}`.
    #[serde(default)]
    pub(super) seen: BTreeMap<String, (i64, String)>,
}

/// Takes the records of all chains, each chain in its order.
pub struct Verifier<'k> {
    keys: &'k KeySet,
    scope: Scope,
    chains: BTreeMap<String, State>,
    /// The last record of each chain that others saw, its hash and who says so: all before it follow from it.
    seen: HashMap<String, (i64, String, String)>,
    /// Records that must be there, by number, with their hash.
    expected: HashMap<String, BTreeMap<i64, String>>,
    report: Report,
}

impl<'k> Verifier<'k> {
    /// One that has read nothing yet.
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

    /// A record that must be there, from a checkpoint that somebody kept. Before the first record.
    pub fn expect(&mut self, replica: &str, seq: i64, hash: String) {
        let expected = self.expected.entry(replica.to_owned()).or_default();
        let other = expected
            .insert(seq, hash.clone())
            .filter(|known| *known != hash);
        if other.is_some() {
            let what = format!("{GIVEN} cannot be right: you give two for one number");
            let state = self.chains.entry(replica.to_owned()).or_default();
            state.fail(replica, Some(seq), what);
        }
    }

    /// An end that was kept outside the database, as a trust key signed it: what it says must be there. One from before
    /// `oldest`, whose chain retention may have removed, counts no more: then it is `false`.
    ///
    /// # Errors
    /// When it is not signed, or by a key that is not known here.
    pub fn anchor(&mut self, statement: &str, oldest: Option<Timestamp>) -> Result<bool, String> {
        let read = self.keys.verify_statement(statement, END_TYP);
        let said: Statement = read.map_err(|error| format!("the end {}", unproven(error)))?;
        let is_old = said
            .at()
            .is_none_or(|at| oldest.is_some_and(|oldest| at.0 < oldest.0));
        let counts = said.last > 0 && !is_old;
        if counts {
            self.expect(&said.replica, said.last, said.hash);
        }
        Ok(counts)
    }

    /// What is signed of a chain. All of them before the first record.
    pub fn chain(&mut self, row: &ChainRow) {
        let state = self.chains.entry(row.replica.clone()).or_default();
        let said: Statement = match self.keys.verify_statement(&row.statement, END_TYP) {
            Ok(said) => said,
            Err(error) => {
                let what = format!("the statement of where it ends {}", unproven(error));
                state.fail(&row.replica, None, what);
                return state.for_want_of_a_key(error);
            }
        };
        let same =
            (&said.replica, said.first, said.last) == (&row.replica, row.first_seq, row.last_seq);
        if !same {
            let what = "its row says something else than the signed statement in it".to_owned();
            return state.fail(&row.replica, None, what);
        }
        // Of two ends the later one: what it says was there.
        if state
            .stated
            .as_ref()
            .is_none_or(|known| known.last < said.last)
        {
            state.stated = Some(said);
        }
    }

    /// What a checkpoint says of other chains. For all of them, before the first record.
    pub fn foresee(&mut self, record: &Record) {
        // What retention is about to remove may tell of chains that are forgotten already.
        let stated = self.chains.get(&record.replica);
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

    /// The next record.
    pub fn record(&mut self, record: &Record) {
        let state = self.chains.entry(record.replica.clone()).or_default();
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
            .place(record, self.scope)
            .and_then(|()| self.checkpoint(record))
            .and_then(|good| {
                self.report.checkpoints += u64::from(good == Some(true));
                self.report.unknown += u64::from(good == Some(false));
                self.look_at_seen(record)?;
                Ok(good)
            });
        let Some(state) = self.chains.get_mut(&record.replica) else {
            return;
        };
        match checked {
            Ok(good) => state.took(record, good),
            Err(what) => state.fail(&record.replica, Some(record.seq), what),
        }
    }

    /// Whether a checkpoint is signed by a known key; `None`: the record is none.
    fn checkpoint(&self, record: &Record) -> Result<Option<bool>, String> {
        if record.event_type != EventType::AuditCheckpoint.word() {
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
                    unproven(error)
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

    /// Whether it is what other chains saw.
    fn look_at_seen(&self, record: &Record) -> Result<(), String> {
        let expected = self.expected.get(&record.replica);
        if let Some(hash) = expected.and_then(|expected| expected.get(&record.seq))
            && hash != record.hash()
        {
            return Err(format!("{GIVEN} saw another record in its place"));
        }
        match self.seen.get(&record.replica) {
            Some((seq, hash, by)) if *seq == record.seq && hash != record.hash() => {
                Err(format!("{by} saw another record in its place"))
            }
            _ => Ok(()),
        }
    }

    /// What was found. `rows`: the chains as they are now, since records may have come while others were
    /// read.
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
                state.fail(replica, Some(seq), what);
            }
            if self.scope == Scope::Excerpt {
                state.leave_off(replica, &mut report);
            } else if state.problem.is_none() {
                let now = now.map(|stated| stated.map_or(0, |stated| stated.last));
                state.end(replica, now);
            }
        }
        self.missing_records(&mut report);
        report.chains = self
            .chains
            .values()
            .filter(|state| state.records > 0)
            .count();
        let problems = self.chains.into_values().filter_map(|state| state.problem);
        report.problems.extend(problems);
        report
    }

    /// Records that somebody saw and that are not there, one of each chain. An excerpt need only have those
    /// that were asked for.
    fn missing_records(&self, report: &mut Report) {
        let absent = |replica: &str, seq: i64| {
            let state = self.chains.get(replica);
            state.is_none_or(|state| !state.has(seq, self.scope))
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
