//! The statements that find rows of SQLite: by blocks that may have them.

use std::fmt::Write as _;

use super::super::filter::Filter;
use super::row_keys::{BLOCK_BITS, KeyColumn, NEAR_MS, first_id, parse_uuid, uuid_time};
use super::{Order, REPLICA};
use stores::db::Values;

// A row before the signed beginning of its chain, or in no chain, proves nothing.
const KEPT: &str = " AND EXISTS (SELECT 1 FROM audit_replicas AS known JOIN audit_chains AS kept \
    ON kept.replica = known.replica WHERE known.chain = e.chain AND e.seq >= kept.first_seq)";

/// A row with a time that does not lead to its request id, as the index has it.
const BY_REQUEST: &str = "structure_events AS e INDEXED BY structure_events_untimed \
    WHERE (e.duration_ms > 1000 OR typeof(e.request_id) = 'text')";

/// The rows of a block.
fn block_join() -> String {
    format!(
        "CROSS JOIN structure_events AS e WHERE e.id >= b.block << {BLOCK_BITS} \
         AND e.id < (b.block + 1) << {BLOCK_BITS}"
    )
}

/// The text of a statement in the making, with its values.
#[derive(Default)]
struct StatementBuilder {
    values: Values,
    /// The conditions that hold in each part.
    common: String,
    /// Those on the block of a row.
    blocks: String,
    /// Those on the times of a block, each a column with its comparison.
    times: Vec<String>,
}

impl StatementBuilder {
    /// Adds what holds in each part of the statement.
    fn add_conditions(&mut self, filter: &Filter, order: Order, after: Option<i64>) {
        // Writing to a string cannot fail.
        for (column, value) in filter.column_conditions() {
            let n = match column {
                "workspace" | "request_id" => continue,
                _ => self.values.bind(value),
            };
            let _ = match column {
                "caller" | "target" | "txn" => write!(self.common, " AND e.{column} = {n}"),
                "replica" => {
                    let chain = format!("(SELECT chain FROM audit_replicas WHERE replica = {n})");
                    let ends = [first_id(&chain), first_id(&format!("({chain} + 1)"))];
                    self.add_id_range(&ends);
                    Ok(())
                }
                "method" => write!(
                    self.common,
                    " AND e.method IN (SELECT id FROM audit_words WHERE word = {n} OR word GLOB {n} || ' *')"
                ),
                _ => write!(
                    self.common,
                    " AND e.{column} = (SELECT id FROM audit_words WHERE word = {n})"
                ),
            };
        }
        for (comparison, at) in filter.time_bounds() {
            let n = self.values.bind(at.0);
            let _ = write!(self.common, " AND e.time {comparison} {n}");
            let time = if comparison == "<" { "first" } else { "last" };
            self.times.push(format!("{time}_time {comparison} {n}"));
        }
        if order != Order::Rows {
            self.common.push_str(KEPT);
        }
        if let Some(after) = after {
            let n = self.values.bind(after);
            let behind = if order == Order::Newest { "<" } else { ">" };
            let _ = write!(self.common, " AND e.id {behind} {n}");
            let _ = write!(self.blocks, " AND b.block {behind}= {n} >> {BLOCK_BITS}");
        }
    }

    fn add_id_range(&mut self, [first, end]: &[String; 2]) {
        let _ = write!(self.common, " AND e.id >= {first} AND e.id < {end}");
        let _ = write!(
            self.blocks,
            " AND b.block >= {first} >> {BLOCK_BITS} AND b.block < {end} >> {BLOCK_BITS}"
        );
    }

    /// Returns tables and conditions of the rows of blocks with a key, or of all rows.
    fn rows_part(&mut self, key: Option<i64>) -> String {
        let key = key.map(|key| self.values.bind(key));
        let blocks = &self.blocks;
        let timed = |alias: &str| {
            let times = self.times.iter();
            let times: Vec<String> = times.map(|time| format!(" AND {alias}.{time}")).collect();
            times.concat()
        };
        match key {
            None if self.times.is_empty() => "structure_events AS e WHERE true".to_owned(),
            None => format!("audit_blocks AS b {}{blocks}{}", block_join(), timed("b")),
            Some(key) if self.times.is_empty() => {
                format!("audit_seen AS b {}{blocks} AND b.key = {key}", block_join())
            }
            // A join, since SQLite would look at the times after all rows of the block in place of EXISTS.
            Some(key) => format!(
                "audit_seen AS b CROSS JOIN audit_blocks AS t {}{blocks} AND b.key = {key} \
                 AND t.block = b.block{}",
                block_join(),
                timed("t")
            ),
        }
    }

    /// Returns the parts of a search for a request: rows in the index, and rows at the time of the id.
    fn request_parts(&mut self, request_id: &str) -> Vec<String> {
        let text = self.values.bind(request_id);
        let found = parse_uuid(request_id);
        let bytes = found.map(|uuid| self.values.bind(uuid.into_bytes().to_vec()));
        let either = bytes.as_deref().map_or(String::new(), |n| format!(", {n}"));
        let mut parts = vec![format!("{BY_REQUEST} AND e.request_id IN ({text}{either})")];
        if let (Some(bytes), Some(at)) = (bytes, found.as_ref().and_then(uuid_time)) {
            let from = self.values.bind(at.saturating_sub(NEAR_MS));
            let to = self.values.bind(at.saturating_add(2 * NEAR_MS));
            parts.push(format!(
                "audit_blocks AS b {} AND b.last_time >= {from} AND b.first_time <= {to}{} \
                 AND e.time >= {from} AND e.time <= {to} AND e.request_id = {bytes}",
                block_join(),
                self.blocks
            ));
        }
        parts
    }
}

/// Returns the parts of the statement that finds the records of a filter.
fn build_parts(statement: &mut StatementBuilder, filter: &Filter, order: Order) -> Vec<String> {
    // What proves records must not depend on tables that nothing proves.
    if order == Order::Rows {
        return vec![statement.rows_part(None)];
    }
    if let Some(request_id) = &filter.request_id {
        let mut parts = statement.request_parts(request_id);
        if let Some(workspace) = &filter.workspace {
            let n = statement.values.bind(workspace.as_str());
            for part in &mut parts {
                let _ = write!(part, " AND (e.caller = {n} OR e.target = {n})");
            }
        }
        return parts;
    }
    if filter.txn.is_some() {
        // By its index.
        return vec![statement.rows_part(None)];
    }
    if let Some(workspace) = &filter.workspace {
        let n = statement.values.bind(workspace.as_str());
        let sides = [("caller", KeyColumn::Caller), ("target", KeyColumn::Target)];
        let sides = sides.map(|(column, named)| {
            let mut part = statement.rows_part(named.key_of(workspace));
            let _ = write!(part, " AND e.{column} = {n}");
            part
        });
        return sides.into();
    }
    let named = [
        (KeyColumn::Caller, &filter.caller),
        (KeyColumn::Target, &filter.target),
        (KeyColumn::Outcome, &filter.outcome),
        (KeyColumn::Event, &filter.event_type),
    ];
    let key = |(named, value): (KeyColumn, &Option<String>)| named.key_of(value.as_deref()?);
    let key = named.into_iter().find_map(key);
    vec![statement.rows_part(key)]
}

/// Returns the statement of a page, and its values.
pub(super) fn page_statement(
    filter: &Filter,
    order: Order,
    after: Option<i64>,
    limit: usize,
) -> (String, Values) {
    let mut statement = StatementBuilder::default();
    statement.add_conditions(filter, order, after);
    let parts = build_parts(&mut statement, filter, order);
    let direction = if order == Order::Newest { " DESC" } else { "" };
    let (columns, common) = (select_columns(), &statement.common);
    let part = |from: &String| {
        // A scan in the order of blocks is one in the order of ids, and ends at the limit.
        let blocks = if from.starts_with("audit_") {
            format!("b.block{direction}, ")
        } else {
            String::new()
        };
        format!(
            "SELECT {columns} FROM {from}{common} ORDER BY {blocks}e.id{direction} LIMIT {limit}"
        )
    };
    let mut parts: Vec<String> = parts.iter().map(part).collect();
    let text = if parts.len() == 1 {
        parts.remove(0)
    } else {
        let parts = parts.iter().map(|part| format!("SELECT * FROM ({part})"));
        let all = parts.collect::<Vec<_>>().join(" UNION ");
        format!("{all} ORDER BY id{direction} LIMIT {limit}")
    };
    (text, statement.values)
}

/// Returns the columns of a row, as `row.rs` reads them.
fn select_columns() -> String {
    let word = |column: &str| {
        // A number without a word is no text, so the record is found changed.
        format!(
            "CASE WHEN e.{column} IS NULL THEN NULL ELSE \
             COALESCE((SELECT word FROM audit_words WHERE audit_words.id = e.{column}), x'00') END AS {column}"
        )
    };
    let words = ["event_type", "credential_kind", "rule", "method", "outcome"].map(word);
    format!(
        "e.id, {} AS replica, e.seq, e.time, e.request_id, e.trace_id, e.caller, e.credential_prefix, e.client_address, e.target, e.org, \
         e.status, e.request_bytes, e.response_bytes, e.duration_ms, e.task_id, e.detail, e.hash, \
         e.root, e.txn, e.depth, e.link, e.sent AS chain, e.run, e.context, \
         COALESCE(e.prev, (SELECT before.hash FROM structure_events AS before WHERE before.id = e.id - 1)) AS prev, {}",
        REPLICA.replace("id >>", "e.id >>"),
        words.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use kernel::time::Timestamp;

    const SCHEMA: &str = concat!(
        include_str!("../../../stores/src/db/migrations/0001_schema.sql"),
        include_str!("../../../stores/src/db/migrations/0001_schema.sqlite.sql")
    );

    /// Returns how SQLite finds the records of a filter.
    fn plan(filter: &Filter, after: Option<i64>) -> String {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch(SCHEMA).unwrap();
        let (text, values) = page_statement(filter, Order::Newest, after, 100);
        let text = format!("EXPLAIN QUERY PLAN {text}");
        let mut plan = database.prepare(&text).unwrap();
        assert_eq!(plan.parameter_count(), values.count(), "{text}");
        let nothing = vec![rusqlite::types::Null; values.count()];
        let nothing = rusqlite::params_from_iter(nothing);
        let steps = plan.query_map(nothing, |row| row.get::<_, String>(3));
        let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
        steps.join("\n")
    }

    /// Filters, with the ways on which their records are found.
    fn filters() -> [(Filter, [&'static str; 2]); 8] {
        let some = |text: &str| Some(text.to_owned());
        let seen = "SEARCH b USING PRIMARY KEY (key=?";
        let by_id = "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
        let filter = Filter::default;
        [
            (
                Filter {
                    caller: some("a"),
                    ..filter()
                },
                [seen, by_id],
            ),
            (
                Filter {
                    target: some("a"),
                    outcome: some("answered"),
                    ..filter()
                },
                [seen, by_id],
            ),
            (
                Filter {
                    workspace: some("a"),
                    replica: some("r"),
                    ..filter()
                },
                [seen, by_id],
            ),
            (
                Filter {
                    outcome: some("rate_limited"),
                    ..filter()
                },
                [seen, by_id],
            ),
            (
                Filter {
                    event_type: some("TOKEN_REVOKED"),
                    since: Some(Timestamp(1)),
                    ..filter()
                },
                [seen, by_id],
            ),
            (
                Filter {
                    since: Some(Timestamp(1)),
                    until: Some(Timestamp(9)),
                    ..filter()
                },
                [by_id, by_id],
            ),
            (
                Filter {
                    request_id: some("0199c7a2-5b1e-7cc3-98c4-dc0c0c07398f"),
                    ..filter()
                },
                ["structure_events_untimed (request_id=?", by_id],
            ),
            (
                Filter {
                    txn: some("q7"),
                    ..filter()
                },
                ["structure_events_txn (txn=?", "structure_events_txn (txn=?"],
            ),
        ]
    }

    #[test]
    fn a_page_is_read_from_the_blocks_that_may_have_it() {
        for (filter, ways) in filters() {
            for after in [None, Some(1 << 41)] {
                let plan = plan(&filter, after);
                for way in ways {
                    assert!(plan.contains(way), "{filter:?}: {plan}");
                }
                let times = plan.find("SEARCH t");
                assert!(
                    times.is_none_or(|at| at < plan.find(ways[1]).unwrap()),
                    "{plan}"
                );
                assert_eq!(times.is_some(), filter.event_type.is_some(), "{plan}");
                assert!(!plan.contains("SCAN e"), "{filter:?}: {plan}");
                // Nothing is sorted that the limit could have left unread.
                let parts = filter.request_id.is_some() || filter.workspace.is_some();
                assert!(parts || !plan.contains("TEMP B-TREE"), "{filter:?}: {plan}");
            }
        }
    }
}
