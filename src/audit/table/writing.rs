//! Writes records to SQLite: a row each, and what finds them by block.

use std::collections::HashMap;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Error, OptionalExtension as _, Transaction, params};

use super::super::chain::Chained;
use super::super::members::Members;
use super::super::record::EventType;
use super::super::usage;
use super::places::{BLOCK_BITS, NEAR_MS, id, keys, time_of, uuid};
use super::{ChainRow, STATE, Summed, news};

// Rows that exist are skipped, so a write of unknown outcome can be retried.
const INSERT: &str = "INSERT INTO structure_events (id, time, event_type, request_id, trace_id, caller, \
    credential_kind, credential_prefix, client_address, target, org, rule, method, outcome, status, \
    request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";

const LAST: &str = "SELECT last_seq FROM audit_chains WHERE replica = ?";

const CHAIN: &str = "SELECT chain FROM audit_replicas WHERE replica = ?";

const NEW_CHAIN: &str = "INSERT INTO audit_replicas (replica) VALUES (?) ON CONFLICT DO NOTHING";

const WORDS: &str = "SELECT id, word FROM audit_words";

const NEW_WORD: &str = "INSERT INTO audit_words (word) VALUES (?)";

const SEEN: &str = "INSERT INTO audit_seen (key, block) VALUES (?, ?) ON CONFLICT DO NOTHING";

const BLOCK: &str = "INSERT INTO audit_blocks (block, first_time, last_time) VALUES (?, ?, ?) \
    ON CONFLICT (block) DO UPDATE SET first_time = MIN(first_time, excluded.first_time), \
    last_time = MAX(last_time, excluded.last_time)";

/// Writes records of one chain, their sums, and the signed statement of the chain.
pub(super) fn write(
    transaction: &Transaction<'_>,
    records: &[Chained],
    chain: &ChainRow,
    summed: &Summed,
) -> Result<(), Error> {
    if !records.is_empty() {
        transaction.execute(NEW_CHAIN, [&chain.replica])?;
        let number = transaction.query_row(CHAIN, [&chain.replica], |row| row.get(0))?;
        rows(transaction, number, records)?;
    }
    let ChainRow {
        replica,
        first_seq,
        last_seq,
        statement,
        signed_at,
    } = chain;
    let last = transaction.query_row(LAST, [replica], |row| row.get(0));
    let news = news(records, last.optional()?.unwrap_or(0));
    let state = params![replica, first_seq, last_seq, statement, signed_at];
    transaction.execute(STATE, state)?;
    usage::add_to_file(transaction, &summed.days(records, news))
}

fn rows(transaction: &Transaction<'_>, chain: i64, records: &[Chained]) -> Result<(), Error> {
    let mut insert = transaction.prepare(INSERT)?;
    let mut words = Words::read(transaction)?;
    let mut index = Index::default();
    let mut before = None;
    for record in records {
        let Some(id) = id(chain, record.seq) else {
            return Err(Error::IntegralValueOutOfRange(0, record.seq));
        };
        let members = record.members();
        // The row before may be in the older table, or gone: retention cuts at checkpoints.
        let follows = before == Some(record.prev) && !record.is(EventType::AuditCheckpoint);
        before = Some(record.hash);
        insert.execute(params![
            id,
            record.ms,
            words.id(members.event_type)?,
            members
                .request_id
                .map(|id| request(id, record.ms, &members)),
            members.trace_id.as_deref().map(trace),
            members.caller.as_deref(),
            words.optional(members.credential_kind)?,
            members.credential_prefix.as_deref(),
            members.client_address.as_deref(),
            members.target,
            members.org.as_deref(),
            words.optional(members.rule)?,
            words.method(&members)?,
            words.id(members.outcome)?,
            members.status,
            members.request_bytes,
            members.response_bytes,
            members.duration_ms,
            members.task_id.as_deref().map(task),
            members.detail.as_deref(),
            (!follows).then_some(&record.prev[..]),
            &record.hash[..],
        ])?;
        index.note(id, record.ms, &members);
    }
    index.write(transaction)
}

/// A text, in fewer bytes where it has a usual form.
enum Packed<'a> {
    Bytes([u8; 16]),
    Text(&'a str),
}

impl ToSql for Packed<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, Error> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// Packs a request id that holds the time at which its request began.
fn request<'a>(text: &'a str, ms: i64, members: &Members<'_>) -> Packed<'a> {
    let begun = ms.saturating_sub(members.duration_ms);
    let is_near = |at: i64| begun.abs_diff(at) <= NEAR_MS.unsigned_abs();
    match uuid(text) {
        Some(uuid) if time_of(&uuid).is_some_and(is_near) => Packed::Bytes(uuid.into_bytes()),
        _ => Packed::Text(text),
    }
}

fn task(text: &str) -> Packed<'_> {
    uuid(text).map_or(Packed::Text(text), |uuid| Packed::Bytes(uuid.into_bytes()))
}

fn trace(text: &str) -> Packed<'_> {
    let mut bytes = [0; 16];
    let usual = hex::decode_to_slice(text, &mut bytes).is_ok()
        && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    if usual {
        Packed::Bytes(bytes)
    } else {
        Packed::Text(text)
    }
}

/// The numbers of words, the last used first.
struct Words<'t> {
    transaction: &'t Transaction<'t>,
    known: Vec<(String, i64)>,
}

impl<'t> Words<'t> {
    fn read(transaction: &'t Transaction<'t>) -> Result<Self, Error> {
        let mut words = transaction.prepare(WORDS)?;
        let known = words.query_map([], |row| Ok((row.get(1)?, row.get(0)?)))?;
        let known = known.collect::<Result<_, _>>()?;
        Ok(Self { transaction, known })
    }

    fn id(&mut self, word: &str) -> Result<i64, Error> {
        let found = self.known.iter().position(|(known, _)| known == word);
        let Some(at) = found else {
            self.transaction.execute(NEW_WORD, [word])?;
            let id = self.transaction.last_insert_rowid();
            self.known.push((word.to_owned(), id));
            return Ok(id);
        };
        // Few of the words come in most of the records.
        let before = at.saturating_sub(1);
        self.known.swap(at, before);
        Ok(self.known[before].1)
    }

    /// Returns the word of a method, with the generations of a translated call behind a space.
    fn method(&mut self, members: &Members<'_>) -> Result<Option<i64>, Error> {
        match (members.method, members.bridged) {
            (Some(method), Some(bridged)) => self.id(&format!("{method} {bridged}")).map(Some),
            (method, _) => self.optional(method),
        }
    }

    fn optional(&mut self, word: Option<&str>) -> Result<Option<i64>, Error> {
        word.map(|word| self.id(word)).transpose()
    }
}

/// New rows of the tables about blocks.
#[derive(Default)]
struct Index {
    /// The last block of each key.
    last: HashMap<i64, i64>,
    seen: Vec<(i64, i64)>,
    /// Each block with its first and its last time.
    blocks: Vec<(i64, i64, i64)>,
}

impl Index {
    fn note(&mut self, id: i64, ms: i64, members: &Members<'_>) {
        let block = id >> BLOCK_BITS;
        match self.blocks.last_mut() {
            Some((last, first_time, last_time)) if *last == block => {
                *first_time = ms.min(*first_time);
                *last_time = ms.max(*last_time);
            }
            _ => self.blocks.push((block, ms, ms)),
        }
        for key in keys(members) {
            if self.last.insert(key, block) != Some(block) {
                self.seen.push((key, block));
            }
        }
    }

    fn write(self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let mut insert = transaction.prepare(BLOCK)?;
        for block in self.blocks {
            insert.execute(block)?;
        }
        let mut insert = transaction.prepare(SEEN)?;
        for seen in self.seen {
            insert.execute(seen)?;
        }
        Ok(())
    }
}
