//! Writes records to SQLite: a row each, and what finds them by block.

use std::collections::HashMap;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Error, OptionalExtension as _, Transaction, params};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::super::chain::ChainedRecord;
use super::super::pace::Pace;
use super::super::record::{EventType, Record};
use super::super::usage;
use super::row_keys::{BLOCK_BITS, NEAR_MS, member_keys, parse_uuid, row_id, uuid_time};
use super::{BatchSums, ChainRow, STATE, new_records};

// Rows that exist are skipped, so a write of unknown outcome can be retried.
const INSERT: &str = "INSERT INTO structure_events (id, time, event_type, request_id, trace_id, caller, \
    credential_kind, credential_prefix, client_address, target, org, rule, method, outcome, status, \
    request_bytes, response_bytes, duration_ms, task_id, detail, prev, hash, root, txn, depth, link, \
    sent, run, context) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
    ON CONFLICT DO NOTHING";

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
pub(super) fn write_records(
    transaction: &Transaction<'_>,
    records: &[ChainedRecord],
    chain: &ChainRow,
    summed: &BatchSums,
    pace: &mut Pace,
) -> Result<(), Error> {
    if !records.is_empty() {
        transaction.execute(NEW_CHAIN, [&chain.replica])?;
        let number = transaction.query_row(CHAIN, [&chain.replica], |row| row.get(0))?;
        insert_rows(transaction, number, records, pace)?;
    }
    let ChainRow {
        replica,
        first_seq,
        last_seq,
        statement,
        signed_at,
    } = chain;
    let last = transaction.query_row(LAST, [replica], |row| row.get(0));
    let news = new_records(records, last.optional()?.unwrap_or(0));
    let state = params![replica, first_seq, last_seq, statement, signed_at];
    transaction.execute(STATE, state)?;
    usage::add_sums_to_file(transaction, &summed.sums_of(records, news))?;
    // The commit is a piece of its own.
    pace.rest();
    Ok(())
}

fn insert_rows(
    transaction: &Transaction<'_>,
    chain: i64,
    records: &[ChainedRecord],
    pace: &mut Pace,
) -> Result<(), Error> {
    let mut insert = transaction.prepare(INSERT)?;
    let mut words = Words::load(transaction)?;
    let mut index = BlockIndex::default();
    let mut before = None;
    for record in pace.pieces(records) {
        let Some(id) = row_id(chain, record.seq) else {
            return Err(Error::IntegralValueOutOfRange(0, record.seq));
        };
        let members = &record.record;
        // The row before may be in the older table, or gone: retention cuts at checkpoints.
        let follows = before == Some(record.prev) && !record.has_type(EventType::AuditCheckpoint);
        before = Some(record.hash);
        insert.execute(params![
            id,
            record.ms,
            words.word_id(&members.event_type)?,
            members
                .request_id
                .as_deref()
                .map(|id| pack_request_id(id, record.ms, members)),
            members.trace_id.as_deref().map(pack_trace_id),
            members.caller.as_deref(),
            words.optional_id(members.credential_kind.as_deref())?,
            members.credential_prefix.as_deref(),
            members.client_address.as_deref(),
            members.target.as_deref(),
            members.org.as_deref(),
            words.optional_id(members.rule.as_deref())?,
            words.method_id(members)?,
            words.word_id(&members.outcome)?,
            members.status,
            members.request_bytes,
            members.response_bytes,
            members.duration_ms,
            members.task_id.as_deref().map(pack_task_id),
            members.detail.as_deref().map(RawValue::get),
            (!follows).then_some(&record.prev[..]),
            &record.hash[..],
            members.root.as_deref(),
            members.txn.as_deref(),
            members.depth,
            members.link.as_deref(),
            members.chain.as_deref(),
            members.run.as_deref().map(pack_trace_id),
            members.context.as_deref().map(pack_task_id),
        ])?;
        index.add_row(id, record.ms, members);
    }
    index.save(transaction, pace)
}

/// A text, in fewer bytes where it has a usual form.
enum CompactText<'a> {
    Bytes([u8; 16]),
    Text(&'a str),
}

impl ToSql for CompactText<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, Error> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl<'a> CompactText<'a> {
    fn pack(text: &'a str, bytes: Option<[u8; 16]>) -> Self {
        bytes.map_or(Self::Text(text), Self::Bytes)
    }
}

/// Packs a request id that holds the time at which its request began.
fn pack_request_id<'a>(text: &'a str, ms: i64, members: &Record<'_>) -> CompactText<'a> {
    let begun = ms.saturating_sub(members.duration_ms);
    let is_near = |at: i64| begun.abs_diff(at) <= NEAR_MS.unsigned_abs();
    let uuid = parse_uuid(text).filter(|uuid| uuid_time(uuid).is_some_and(is_near));
    CompactText::pack(text, uuid.map(Uuid::into_bytes))
}

fn pack_task_id(text: &str) -> CompactText<'_> {
    CompactText::pack(text, parse_uuid(text).map(Uuid::into_bytes))
}

fn pack_trace_id(text: &str) -> CompactText<'_> {
    let mut bytes = [0; 16];
    let usual = hex::decode_to_slice(text, &mut bytes).is_ok()
        && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    CompactText::pack(text, usual.then_some(bytes))
}

/// The numbers of words, the last used first.
struct Words<'t> {
    transaction: &'t Transaction<'t>,
    known: Vec<(String, i64)>,
}

impl<'t> Words<'t> {
    fn load(transaction: &'t Transaction<'t>) -> Result<Self, Error> {
        let mut words = transaction.prepare(WORDS)?;
        let known = words.query_map([], |row| Ok((row.get(1)?, row.get(0)?)))?;
        let known = known.collect::<Result<_, _>>()?;
        Ok(Self { transaction, known })
    }

    fn word_id(&mut self, word: &str) -> Result<i64, Error> {
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
    fn method_id(&mut self, members: &Record<'_>) -> Result<Option<i64>, Error> {
        match (members.method.as_deref(), members.bridged.as_deref()) {
            (Some(method), Some(bridged)) => self.word_id(&format!("{method} {bridged}")).map(Some),
            (method, _) => self.optional_id(method),
        }
    }

    fn optional_id(&mut self, word: Option<&str>) -> Result<Option<i64>, Error> {
        word.map(|word| self.word_id(word)).transpose()
    }
}

/// New rows of the tables about blocks.
#[derive(Default)]
struct BlockIndex {
    /// The last block of each key.
    last: HashMap<i64, i64>,
    seen: Vec<(i64, i64)>,
    /// Each block with its first and its last time.
    blocks: Vec<(i64, i64, i64)>,
}

impl BlockIndex {
    fn add_row(&mut self, id: i64, ms: i64, members: &Record<'_>) {
        let block = id >> BLOCK_BITS;
        match self.blocks.last_mut() {
            Some((last, first_time, last_time)) if *last == block => {
                *first_time = ms.min(*first_time);
                *last_time = ms.max(*last_time);
            }
            _ => self.blocks.push((block, ms, ms)),
        }
        for key in member_keys(members) {
            if self.last.insert(key, block) != Some(block) {
                self.seen.push((key, block));
            }
        }
    }

    fn save(self, transaction: &Transaction<'_>, pace: &mut Pace) -> Result<(), Error> {
        let mut insert = transaction.prepare(BLOCK)?;
        for block in self.blocks {
            insert.execute(block)?;
        }
        let mut insert = transaction.prepare(SEEN)?;
        for seen in pace.pieces(self.seen) {
            insert.execute(seen)?;
        }
        Ok(())
    }
}
