//! The verification of one chain: the expected next record, and the proven part.

use std::cmp::Ordering;

use super::{Problem, Report, Scope};
use crate::chain::Statement;
use crate::record::NO_HASH;
use crate::record::{EventType, Record};
use trust::TokenError;

/// The state of one chain.
#[derive(Default)]
pub(super) struct ChainState {
    pub(super) records: u64,
    first: i64,
    last: i64,
    hash: String,
    /// The signed statement of the chain.
    pub(super) stated: Option<Statement>,
    /// The last checkpoint that is signed by an unavailable key.
    unknown_key: Option<i64>,
    /// The last record that an available key signed, with a checkpoint behind it or as the end of the
    /// chain.
    signed: i64,
    /// The first record of a chain without a statement, which may have begun during the verification.
    pub(super) begun: Option<i64>,
    pub(super) problem: Option<Problem>,
}

impl ChainState {
    /// Sets the problem, unless the chain has one.
    pub(super) fn set_problem(&mut self, replica: &str, seq: Option<i64>, what: String) {
        self.problem.get_or_insert_with(|| Problem {
            replica: replica.to_owned(),
            seq,
            what,
            key_missing: false,
        });
    }

    /// Marks the problem as one of an unavailable key, which proves no tampering.
    pub(super) fn mark_key_missing(&mut self, error: TokenError) {
        if let Some(problem) = &mut self.problem
            && matches!(error, TokenError::UnknownKey)
        {
            problem.key_missing = true;
        }
    }

    /// Checks that a record is the next one of the chain.
    pub(super) fn check_record(&self, record: &Record<'_>, scope: Scope) -> Result<(), String> {
        // Before the hash: it cannot be computed without the record before.
        self.check_no_gap(record, scope)?;
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
            self.check_first(record, scope)?;
        } else {
            self.check_follows(record)?;
        }
        if let Some(stated) = &self.stated
            && record.seq == stated.last
            && record.hash() != stated.hash
        {
            return Err("is not the one that was signed as the end of the chain".to_owned());
        }
        Ok(())
    }

    /// Checks that no record is missing before this one.
    fn check_no_gap(&self, record: &Record<'_>, scope: Scope) -> Result<(), String> {
        let last = record.seq.saturating_sub(1);
        if self.records > 0 {
            let next = self.next_seq()?;
            return match last.cmp(&next) {
                Ordering::Less => Ok(()),
                Ordering::Equal => Err(format!(
                    "comes too early: record {next} is missing before it"
                )),
                Ordering::Greater => Err(format!(
                    "comes too early: records {next} to {last} are missing before it"
                )),
            };
        }
        match &self.stated {
            Some(stated) if scope != Scope::Excerpt && record.seq > stated.first => Err(format!(
                "is the first of its chain: records {} to {last} are missing before it",
                stated.first
            )),
            _ => Ok(()),
        }
    }

    fn next_seq(&self) -> Result<i64, String> {
        let next = self.last.checked_add(1);
        next.ok_or_else(|| "is behind the last number that there is".to_owned())
    }

    /// Checks that a record follows the last one.
    fn check_follows(&self, record: &Record<'_>) -> Result<(), String> {
        if record.seq < self.next_seq()? {
            return Err("is out of its order, or stands twice".to_owned());
        }
        if record.prev != self.hash {
            return Err(format!(
                "does not follow record {}: one of the two was replaced",
                self.last
            ));
        }
        Ok(())
    }

    fn check_first(&self, record: &Record<'_>, scope: Scope) -> Result<(), String> {
        if scope == Scope::Excerpt {
            return Ok(());
        }
        let Some(stated) = &self.stated else {
            return Err("belongs to a chain of which nothing is signed".to_owned());
        };
        let first = stated.first;
        if first == 1 && record.prev != hex::encode(NO_HASH) {
            return Err("is the first of all, and says that there was one before".to_owned());
        }
        if first > 1 && record.event_type != EventType::AuditCheckpoint.as_str() {
            return Err("is where retention ended, which is always a checkpoint".to_owned());
        }
        Ok(())
    }

    /// True if a record exists or may be missing. It may be missing if the chain has a problem already, or
    /// if retention removed it; the signed statement of that is kept as long as other chains may name the
    /// record.
    pub(super) fn accounts_for(&self, seq: i64, scope: Scope) -> bool {
        if self.problem.is_some() || self.begun.is_some() {
            return true;
        }
        if scope == Scope::Excerpt {
            return self.records > 0 && (self.first..=self.last).contains(&seq);
        }
        let first = self.stated.as_ref().map_or(1, |stated| stated.first);
        seq <= self.last || seq < first
    }

    /// Appends a record. `checkpoint` is true if an available key signed it, false if another did.
    pub(super) fn append_record(&mut self, record: &Record<'_>, checkpoint: Option<bool>) {
        match checkpoint {
            Some(true) => self.signed = record.seq - 1,
            Some(false) => self.unknown_key = Some(record.seq),
            None => {}
        }
        if self
            .stated
            .as_ref()
            .is_some_and(|stated| stated.last == record.seq)
        {
            self.signed = record.seq;
        }
        if self.records == 0 {
            self.first = record.seq;
        }
        self.records += 1;
        self.last = record.seq;
        record.hash().clone_into(&mut self.hash);
    }

    /// Ends an excerpt, and counts the records behind its last signature.
    pub(super) fn finish_excerpt(&mut self, replica: &str, report: &mut Report) {
        if self.records == 0 || self.problem.is_some() {
            return;
        }
        if self.unknown_key.is_some_and(|seq| self.signed < seq) {
            let what = "the checkpoint is signed by a key that is not known, and nothing behind it by one \
                        that is: give the keys of that time with --jwks";
            self.set_problem(replica, self.unknown_key, what.to_owned());
            return self.mark_key_missing(TokenError::UnknownKey);
        }
        let behind = self.last - self.signed.max(self.first - 1);
        report.unproven += u64::try_from(behind).unwrap_or(0);
        report.unproven_chains += u64::from(self.signed < self.first);
    }

    /// Checks the end of the chain. `now` is its current signed end.
    pub(super) fn check_end(&mut self, replica: &str, now: Option<i64>) {
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
            return self.set_problem(replica, Some(next), what);
        }
        let now = now.unwrap_or(last).max(last);
        if self.last > now {
            let what = "stands behind the signed end of its chain".to_owned();
            self.set_problem(replica, Some(now + 1), what);
        }
    }
}

/// Describes why a signed statement proves nothing.
pub(super) fn describe_failure(error: TokenError) -> &'static str {
    match error {
        TokenError::UnknownKey => {
            "is signed by a key that is not known here: give the keys of its time with --jwks"
        }
        TokenError::Signature => "has a false signature",
        _ => "is no signed statement",
    }
}
