//! Whether chains are as they were written: record by record, without a store or a clock.
//!
//! A record proves its place by its hash, which covers its content, its number and the hash before it.
//! A chain proves its end by a statement that a trust key signed. So whoever changes, removes, puts in
//! or reorders a record has to make all later hashes anew, and cannot sign where the chain ends then.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Deserialize;

use super::chain::{STATEMENT_TYP, Statement};
use super::record::{EventType, NO_RECORD, Record};
use super::table::ChainRow;
use crate::trust::{KeySet, TokenError};

/// What is wrong with a chain: the first thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whose chain.
    pub replica: String,
    /// The number of the record, if it is about one.
    pub seq: Option<i64>,
    /// What is wrong with it.
    pub what: String,
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
    /// Chains that are not as they were written, each with the first thing that is wrong.
    pub problems: Vec<Problem>,
    /// What is no proof of anything, and worth to know.
    pub notes: Vec<String>,
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

/// What is said of a chain that was removed as a whole.
#[derive(Deserialize)]
pub(super) struct PrunedDetail {
    pub(super) replica: String,
    pub(super) whole: bool,
}

/// Where one chain is.
#[derive(Default)]
struct State {
    records: u64,
    first: i64,
    last: i64,
    hash: String,
    /// What is signed of it, and how long ago.
    stated: Option<Statement>,
    /// The last checkpoint, signed by a key that is not known here.
    unknown_key: Option<i64>,
    /// The last record that is signed by a known key, by a checkpoint behind it.
    signed: i64,
    problem: Option<Problem>,
}

/// Takes the records of all chains, each chain in its order.
pub struct Verifier<'k> {
    keys: &'k KeySet,
    /// Not everything is there: chains may begin and end anywhere.
    partial: bool,
    chains: BTreeMap<String, State>,
    /// What other chains saw: records that must be there.
    seen: HashMap<String, BTreeMap<i64, (String, String)>>,
    /// Chains that were removed, being too old.
    pruned: HashSet<String>,
    checkpoints: u64,
    notes: Vec<String>,
}

impl<'k> Verifier<'k> {
    /// `partial`: an excerpt. Nothing is said of where its chains begin and end.
    pub fn new(keys: &'k KeySet, partial: bool) -> Self {
        Self {
            keys,
            partial,
            chains: BTreeMap::new(),
            seen: HashMap::new(),
            pruned: HashSet::new(),
            checkpoints: 0,
            notes: Vec::new(),
        }
    }

    /// What is signed of a chain. All of them before the first record.
    pub fn chain(&mut self, row: &ChainRow) {
        let state = self.chains.entry(row.replica.clone()).or_default();
        let stated = self.keys.verify_statement(&row.statement, STATEMENT_TYP);
        let stated = match stated {
            Ok(stated) => stated,
            Err(error) => {
                let what = format!("the statement of where it ends {}", unproven(error));
                return state.fail(&row.replica, None, what);
            }
        };
        let said: &Statement = &stated;
        let same =
            (&said.replica, said.first, said.last) == (&row.replica, row.first_seq, row.last_seq);
        if !same {
            let what = "its row says something else than the signed statement in it".to_owned();
            return state.fail(&row.replica, None, what);
        }
        state.stated = Some(stated);
    }

    /// What a record says of other chains. For all checkpoints and prunings, before the first record.
    pub fn foresee(&mut self, record: &Record) {
        let detail = record.detail.as_deref().map_or("null", |raw| raw.get());
        if record.event_type == EventType::AuditPruned.word() {
            if let Ok(pruned) = serde_json::from_str::<PrunedDetail>(detail)
                && pruned.whole
            {
                self.pruned.insert(pruned.replica);
            }
        } else if let Ok(checkpoint) = serde_json::from_str::<CheckpointDetail>(detail) {
            for (replica, (seq, hash)) in checkpoint.seen {
                let by = (hash, record.replica.clone());
                self.seen.entry(replica).or_default().insert(seq, by);
            }
        }
    }

    /// The next record.
    pub fn record(&mut self, record: &Record) {
        let state = self.chains.entry(record.replica.clone()).or_default();
        if state.problem.is_some() {
            return;
        }
        let first = state.stated.as_ref().map_or(1, |stated| stated.first);
        if !self.partial && state.records == 0 && record.seq < first {
            // Retention has said that it goes, and is about to remove it.
            return;
        }
        let checked = state
            .place(record, self.partial)
            .and_then(|()| self.checkpoint(record))
            .and_then(|good| {
                self.checkpoints += u64::from(good == Some(true));
                self.look_at_seen(record)?;
                Ok(good)
            });
        let Some(state) = self.chains.get_mut(&record.replica) else {
            return;
        };
        match checked {
            Ok(good) => {
                match good {
                    Some(true) => state.signed = record.seq - 1,
                    Some(false) => state.unknown_key = Some(record.seq),
                    None => {}
                }
                state.took(record);
            }
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
        let read = self.keys.verify_statement(&detail.statement, STATEMENT_TYP);
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
        let seen = self.seen.get(&record.replica);
        match seen.and_then(|seen| seen.get(&record.seq)) {
            Some((hash, by)) if hash != record.hash() => Err(format!(
                "a checkpoint of {by} saw another record in its place"
            )),
            _ => Ok(()),
        }
    }

    /// What was found. `rows`: the chains as they are now, since records may have come while others were
    /// read.
    pub fn finish(mut self, rows: &[ChainRow]) -> Report {
        let mut report = Report {
            checkpoints: self.checkpoints,
            ..Report::default()
        };
        for (replica, state) in &mut self.chains {
            report.records += state.records;
            if !self.partial && state.problem.is_none() {
                let now = rows.iter().find(|row| row.replica == *replica);
                let now = now.map(|row| {
                    let read = self
                        .keys
                        .verify_statement::<Statement>(&row.statement, STATEMENT_TYP);
                    read.map_or(0, |stated| stated.last)
                });
                state.end(replica, now);
            }
            if state.problem.is_none()
                && let Some(seq) = state.unknown_key
                && state.signed < seq
                && state.stated.is_none()
            {
                let what = "the checkpoint is signed by a key that is not known, and nothing behind it by one \
                            that is: give the keys of that time with --jwks";
                state.fail(replica, Some(seq), what.to_owned());
            }
        }
        if !self.partial {
            self.missing_chains(&mut report);
        }
        report.chains = self
            .chains
            .values()
            .filter(|state| state.records > 0)
            .count();
        report.notes = self.notes;
        let problems = self.chains.into_values().filter_map(|state| state.problem);
        report.problems.extend(problems);
        report
    }

    fn missing_chains(&mut self, report: &mut Report) {
        for (replica, seen) in &self.seen {
            let Some((seq, (_, by))) = seen.last_key_value() else {
                continue;
            };
            let state = self.chains.get(replica);
            let there = state.is_some_and(|state| {
                let first = state.stated.as_ref().map_or(1, |stated| stated.first);
                state.problem.is_some() || *seq <= state.last || *seq < first
            });
            if !there && !self.pruned.contains(replica) {
                let what = match state {
                    Some(_) => format!("is missing: a checkpoint of {by} saw it"),
                    None => format!("the whole chain is missing: a checkpoint of {by} saw it"),
                };
                report.problems.push(Problem {
                    replica: replica.clone(),
                    seq: Some(*seq),
                    what,
                });
            }
        }
    }
}

impl State {
    fn fail(&mut self, replica: &str, seq: Option<i64>, what: String) {
        self.problem.get_or_insert_with(|| Problem {
            replica: replica.to_owned(),
            seq,
            what,
        });
    }

    /// Whether a record is what comes next.
    fn place(&self, record: &Record, partial: bool) -> Result<(), String> {
        if !record.is_whole() {
            return Err("was changed: its content does not give its hash".to_owned());
        }
        if self.records == 0 {
            return self.begin(record, partial);
        }
        let next = self.last + 1;
        if record.seq > next {
            let last = record.seq - 1;
            return Err(if next == last {
                format!("comes too early: record {next} is missing before it")
            } else {
                format!("comes too early: records {next} to {last} are missing before it")
            });
        }
        if record.seq < next {
            return Err("is out of its order, or stands twice".to_owned());
        }
        if record.prev != self.hash {
            return Err(format!(
                "does not follow record {}: one of the two was replaced",
                self.last
            ));
        }
        if let Some(stated) = &self.stated
            && record.seq == stated.last
            && record.hash() != stated.hash
        {
            return Err("is not the one that was signed as the end of the chain".to_owned());
        }
        Ok(())
    }

    fn begin(&self, record: &Record, partial: bool) -> Result<(), String> {
        if partial {
            return Ok(());
        }
        let Some(stated) = &self.stated else {
            return Err("belongs to a chain of which nothing is signed".to_owned());
        };
        let first = stated.first;
        if record.seq > first {
            return Err(format!(
                "is the first of its chain: records {first} to {} are missing before it",
                record.seq - 1
            ));
        }
        if first == 1 && record.prev != NO_RECORD {
            return Err("is the first of all, and says that there was one before".to_owned());
        }
        if first > 1 && record.event_type != EventType::AuditCheckpoint.word() {
            return Err("is where retention ended, which is always a checkpoint".to_owned());
        }
        if record.seq == stated.last && record.hash() != stated.hash {
            return Err("is not the one that was signed as the end of the chain".to_owned());
        }
        Ok(())
    }

    fn took(&mut self, record: &Record) {
        if self.records == 0 {
            self.first = record.seq;
        }
        self.records += 1;
        self.last = record.seq;
        record.hash().clone_into(&mut self.hash);
    }

    /// Whether it ends where it should. `now`: where it ends by now.
    fn end(&mut self, replica: &str, now: Option<i64>) {
        let Some(stated) = &self.stated else {
            return;
        };
        let (first, last) = (stated.first, stated.last);
        if self.records == 0 && last < first {
            return;
        }
        if self.last < last {
            let next = (self.last + 1).max(first);
            let what = if next == last {
                "is missing: it is signed as the end of the chain".to_owned()
            } else {
                format!("is missing, and all behind it up to {last}, which is signed as the end")
            };
            return self.fail(replica, Some(next), what);
        }
        let now = now.unwrap_or(last).max(last);
        if self.last > now {
            let what = "stands behind the signed end of its chain".to_owned();
            self.fail(replica, Some(now + 1), what);
        }
    }
}

fn unproven(error: TokenError) -> &'static str {
    match error {
        TokenError::UnknownKey => {
            "is signed by a key that is not known here: give the keys of its time with --jwks"
        }
        TokenError::Signature => "has a false signature",
        _ => "is no signed statement",
    }
}
