//! Whether chains are as they were written: record by record, without a store or a clock.
//!
//! A record proves its place by its hash, which covers its content, its number and the hash before it.
//! A chain proves its end by a statement that a trust key signed. So whoever changes, removes, puts in
//! or reorders a record has to make all later hashes anew, and cannot sign where the chain ends then.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::chain::{CHECKPOINT_TYP, END_TYP, Statement};
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
    /// Nothing is: it cannot be told without a key that is not known here.
    pub key_missing: bool,
}

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
    /// Rows before the signed beginning of their chain, which retention is about to remove: they prove nothing.
    pub outside: u64,
    /// Chains that are not as they were written, each with the first thing that is wrong.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether there was something, and all of it is as it was written. No record at all proves nothing, and
    /// neither does an excerpt in which nothing is signed.
    pub fn is_proven(&self) -> bool {
        self.problems.is_empty() && self.records > self.unproven
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
    scope: Scope,
    chains: BTreeMap<String, State>,
    /// What others saw: records that must be there, by number their hash and who says so.
    seen: HashMap<String, BTreeMap<i64, (String, String)>>,
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
            report: Report::default(),
        }
    }

    /// A record that must be there, from a checkpoint that somebody kept. Before the first record.
    pub fn expect(&mut self, replica: String, seq: i64, hash: String) {
        let by = (hash, "the checkpoint that you give".to_owned());
        self.seen.entry(replica).or_default().insert(seq, by);
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
        state.stated = Some(said);
    }

    /// What a checkpoint says of other chains. For all of them, before the first record.
    pub fn foresee(&mut self, record: &Record) {
        let detail = record.detail.as_deref().map_or("null", |raw| raw.get());
        if let Ok(checkpoint) = serde_json::from_str::<CheckpointDetail>(detail) {
            for (replica, (seq, hash)) in checkpoint.seen {
                let by = (hash, format!("a checkpoint of {}", record.replica));
                let seen = self.seen.entry(replica).or_default();
                seen.entry(seq).or_insert(by);
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
        let seen = self.seen.get(&record.replica);
        match seen.and_then(|seen| seen.get(&record.seq)) {
            Some((hash, by)) if hash != record.hash() => {
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
            if self.scope != Scope::Excerpt && state.problem.is_none() {
                let now = rows.iter().find(|row| row.replica == *replica);
                let now = now.map(|row| {
                    let read = self
                        .keys
                        .verify_statement::<Statement>(&row.statement, END_TYP);
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
                state.for_want_of_a_key(TokenError::UnknownKey);
            }
            if state.stated.is_none() {
                let behind = state.last - state.signed.max(state.first - 1);
                report.unproven += u64::try_from(behind).unwrap_or(0);
            }
        }
        if self.scope != Scope::Excerpt {
            self.missing_records(&mut report);
        }
        report.chains = self
            .chains
            .values()
            .filter(|state| state.records > 0)
            .count();
        let problems = self.chains.into_values().filter_map(|state| state.problem);
        report.problems.extend(problems);
        report
    }

    /// Records that others saw and that are not there.
    fn missing_records(&mut self, report: &mut Report) {
        for (replica, seen) in &self.seen {
            let Some((seq, (_, by))) = seen.last_key_value() else {
                continue;
            };
            let state = self.chains.get(replica);
            // A chain that retention removed is remembered, signed, for as long as others may tell of it.
            let there = state.is_some_and(|state| {
                let first = state.stated.as_ref().map_or(1, |stated| stated.first);
                state.problem.is_some() || *seq <= state.last || *seq < first
            });
            if !there {
                let what = match state {
                    Some(_) => format!("is missing: {by} saw it"),
                    None => format!("the whole chain is missing: {by} saw it"),
                };
                report.problems.push(Problem {
                    replica: replica.clone(),
                    seq: Some(*seq),
                    what,
                    key_missing: false,
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
            key_missing: false,
        });
    }

    /// That it failed says nothing of what it holds.
    fn for_want_of_a_key(&mut self, error: TokenError) {
        if let Some(problem) = &mut self.problem
            && matches!(error, TokenError::UnknownKey)
        {
            problem.key_missing = true;
        }
    }

    /// Whether a record is what comes next.
    fn place(&self, record: &Record, scope: Scope) -> Result<(), String> {
        let whole = match scope {
            Scope::Database => record.is_as_written(),
            Scope::Export | Scope::Excerpt => record.is_whole(),
        };
        if !whole {
            return Err("was changed: its content does not give its hash".to_owned());
        }
        if record.seq < 1 {
            return Err("was put in: chains begin with 1".to_owned());
        }
        if self.records == 0 {
            return self.begin(record, scope);
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

    fn begin(&self, record: &Record, scope: Scope) -> Result<(), String> {
        if scope == Scope::Excerpt {
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
