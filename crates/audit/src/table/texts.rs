//! Records whose members are texts, in PostgreSQL. They are inserted many to a statement, each member as a parameter.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::value::RawValue;
use sqlx::Any;
use sqlx::any::AnyArguments;
use sqlx::query::Query;

use super::super::chain::ChainedRecord;
use super::super::filter::{Filter, RecordPosition};
use super::super::usage;
use super::{BatchSums, ChainRow, Order, STATE, new_records};
use stores::db::{Db, Values};
use stores::store::Unavailable;

const COLUMNS: &str = "replica, seq, time, event_type, request_id, trace_id, caller, credential_kind, \
    credential_prefix, target, org, rule, method, outcome, status, request_bytes, response_bytes, \
    duration_ms, task_id, detail, prev, hash, client_address, bridged, \
    root, txn, depth, link, chain, run, context";

/// The number of columns.
const WIDTH: usize = 31;

/// The numbers of rows in one INSERT. The largest that fits is used, so few distinct statements are
/// prepared.
const ROWS: [usize; 4] = [64, 16, 4, 1];

/// Their INSERTs. Rows that exist are skipped, so a write of unknown outcome can be retried.
static INSERTS: LazyLock<[String; 4]> = LazyLock::new(|| ROWS.map(insert_statement));

// Acknowledged records must survive a crash of the server, whatever its settings.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', true) \
    WHERE current_setting('synchronous_commit') IN ('off', 'local')";

// Locked until the commit: one writer of a chain at a time adds to the sums.
const LAST: &str = "SELECT last_seq FROM audit_chains WHERE replica = $1 FOR UPDATE";

// From the signed beginning of their chain on. What is before it, or in no chain, proves nothing.
const RETAINED: &str = " AND EXISTS (SELECT 1 FROM audit_chains AS kept WHERE kept.replica = structure_events.replica \
    AND structure_events.seq >= kept.first_seq)";

const ANY_RECORD: &str = "SELECT 1 FROM structure_events WHERE replica = $1 LIMIT 1";

/// Inserts records of one chain, their sums and the row of the chain, in one transaction.
pub(super) async fn put_records(
    db: &Db,
    records: &[ChainedRecord],
    chain: &ChainRow,
    summed: &BatchSums,
) -> Result<(), Unavailable> {
    let work = async {
        let mut tx = db.begin().await?;
        sqlx::query(DURABLE).execute(&mut *tx).await?;
        let mut rest = records;
        while !rest.is_empty() {
            let fits = ROWS.into_iter().position(|rows| rows <= rest.len());
            let fits = fits.unwrap_or(ROWS.len() - 1);
            let (now, later) = rest.split_at(ROWS[fits]);
            let insert = insert_query(&INSERTS[fits], &chain.replica, now);
            insert.execute(&mut *tx).await?;
            rest = later;
        }
        // Behind the records: a write of them that was given up, and goes on, is over when they are in.
        let last = sqlx::query_scalar(LAST).bind(&chain.replica);
        let last: Option<i64> = last.fetch_optional(&mut *tx).await?;
        let news = new_records(records, last.unwrap_or(0));
        let state = sqlx::query(STATE).bind(&chain.replica);
        let state = state.bind(chain.first_seq).bind(chain.last_seq);
        let state = state.bind(&chain.statement).bind(chain.signed_at);
        state.execute(&mut *tx).await?;
        // Last, since other replicas add to the same sums.
        usage::add_sums(&mut tx, &summed.sums_of(records, news)).await?;
        tx.commit().await
    };
    db.run("audit_put", work).await
}

/// Returns the statement of a page of records that match `filter` and follow `after` in the given order.
pub(super) fn page_statement(
    filter: &Filter,
    order: Order,
    after: Option<&RecordPosition>,
    limit: usize,
) -> (String, Values) {
    let (mut common, mut values) = (String::new(), Values::default());
    // A workspace may have very many records. Both columns that name it have an index in the order of
    // time.
    let mut sides = vec!["true".to_owned()];
    for (column, value) in filter.column_conditions() {
        let n = values.bind(value);
        if column == "workspace" {
            sides = vec![format!("caller = {n}"), format!("target = {n}")];
        } else {
            // Writing to a string cannot fail.
            let _ = write!(common, " AND {column} = {n}");
        }
    }
    for (comparison, at) in filter.time_bounds() {
        let n = values.bind(at.0);
        let _ = write!(common, " AND time {comparison} {n}");
    }
    if order != Order::Rows {
        common.push_str(RETAINED);
    }
    let sorted = match order {
        Order::Newest => "time DESC, replica DESC, seq DESC",
        // The time comes last: PostgreSQL's key admits two rows with one sequence number.
        Order::Chains | Order::Rows => "replica, seq, time",
    };
    if let Some(RecordPosition::Text(ms, replica, seq)) = after {
        let (time, seq) = (values.bind(*ms), values.bind(*seq));
        let replica = values.bind(replica.as_str());
        let _ = match order {
            // The time is compared twice: an index without the other columns needs the simple condition.
            Order::Newest => write!(
                common,
                " AND time <= {time} AND (time, replica, seq) < ({time}, {replica}, {seq})"
            ),
            Order::Chains | Order::Rows => write!(
                common,
                " AND (replica, seq, time) > ({replica}, {seq}, {time})"
            ),
        };
    }
    let sides = sides.iter().map(|side| {
        format!(
            "SELECT * FROM (SELECT {COLUMNS} FROM structure_events WHERE {side}{common} \
                 ORDER BY {sorted} LIMIT {limit}) AS side"
        )
    });
    let sides = sides.collect::<Vec<_>>().join(" UNION ");
    let text = format!("{sides} ORDER BY {sorted} LIMIT {limit}");
    (text, values)
}

pub(super) async fn has_records(db: &Db, replica: &str) -> Result<bool, Unavailable> {
    let query = sqlx::query(ANY_RECORD).bind(replica);
    let found: Option<(i64,)> = db.fetch_optional("audit_prune", query).await?;
    Ok(found.is_some())
}

fn insert_statement(rows: usize) -> String {
    let mut text = format!("INSERT INTO structure_events ({COLUMNS}) VALUES ");
    for row in 0..rows {
        for column in 0..WIDTH {
            let between = match (row, column) {
                (0, 0) => "(",
                (_, 0) => "), (",
                _ => ", ",
            };
            text.push_str(between);
            // Writing to a string cannot fail.
            let _ = write!(text, "${}", row * WIDTH + column + 1);
        }
    }
    text.push_str(") ON CONFLICT DO NOTHING");
    text
}

fn insert_query<'q>(
    statement: &'static str,
    replica: &'q str,
    records: &'q [ChainedRecord],
) -> Query<'q, Any, AnyArguments> {
    let mut query = sqlx::query(statement);
    for record in records {
        let members = &record.record;
        query = query
            .bind(replica)
            .bind(record.seq)
            .bind(record.ms)
            .bind(&*members.event_type)
            .bind(members.request_id.as_deref())
            .bind(members.trace_id.as_deref())
            .bind(members.caller.as_deref())
            .bind(members.credential_kind.as_deref())
            .bind(members.credential_prefix.as_deref())
            .bind(members.target.as_deref())
            .bind(members.org.as_deref())
            .bind(members.rule.as_deref())
            .bind(members.method.as_deref())
            .bind(&*members.outcome)
            .bind(members.status)
            .bind(members.request_bytes)
            .bind(members.response_bytes)
            .bind(members.duration_ms)
            .bind(members.task_id.as_deref())
            .bind(members.detail.as_deref().map(RawValue::get))
            .bind(&*members.prev)
            .bind(hex::encode(record.hash))
            .bind(members.client_address.as_deref())
            .bind(members.bridged.as_deref())
            .bind(members.root.as_deref())
            .bind(members.txn.as_deref())
            .bind(members.depth)
            .bind(members.link.as_deref())
            .bind(members.chain.as_deref())
            .bind(members.run.as_deref())
            .bind(members.context.as_deref());
    }
    query
}
