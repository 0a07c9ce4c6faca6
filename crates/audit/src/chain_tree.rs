//! The calls of a root's run as a tree. The parent of a call is the one that received the chain token which this call
//! handed in.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::filter::Filter;
use super::query::Records;
use super::record::{EventType, Record};
use access::workspace::Timestamp;
use stores::store::Unavailable;

/// Most calls of a tree: the newest.
const CALLS_MAX: usize = 2000;

/// Most levels of a tree. Calls below begin trees of their own.
const LEVELS_MAX: usize = 64;

impl Records {
    /// Returns the calls of the run of a request: `{"root","txn","calls":[…],"truncated"}`. Each call has the ones that
    /// serve it in `calls`, the earliest first. Without a chain these are the calls of the request alone. `None`: there
    /// is no record of the request.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read_chain_tree(&self, request_id: &str) -> Result<Option<Value>, Unavailable> {
        let mut filter = Filter {
            request_id: Some(request_id.to_owned()),
            event_type: Some(EventType::A2aCall.as_str().to_owned()),
            ..Filter::default()
        };
        let mut found = self.read_batch(&filter, None, CALLS_MAX + 1).await?;
        let of_chain = found.iter().find(|(_, record)| record.txn.is_some());
        if let Some((_, record)) = of_chain {
            filter.txn = record.txn.as_deref().map(str::to_owned);
            filter.request_id = None;
            found = self.read_batch(&filter, None, CALLS_MAX + 1).await?;
        }
        let truncated = found.len() > CALLS_MAX;
        found.truncate(CALLS_MAX);
        let records = found.into_iter().map(|(_, record)| record);
        Ok(build_tree(records.collect()).map(|mut tree| {
            tree["truncated"] = truncated.into();
            tree
        }))
    }
}

/// Returns the time at which a call began, in milliseconds since 1970.
fn begin_of(record: &Record<'_>) -> i64 {
    let ended = Timestamp::parse(&record.time).map_or(0, |at| at.0);
    ended.saturating_sub(record.duration_ms)
}

fn build_tree(mut records: Vec<Record<'_>>) -> Option<Value> {
    records.sort_by_key(|record| (begin_of(record), record.depth, record.seq));
    let first = records.first()?;
    let (root, txn) = (json!(first.root), json!(first.txn));
    // The last call that was sent each chain token. One token serves several calls.
    let mut holders: HashMap<&str, usize> = HashMap::new();
    let mut parents: Vec<Option<usize>> = Vec::with_capacity(records.len());
    let mut levels: Vec<usize> = Vec::with_capacity(records.len());
    for (at, record) in records.iter().enumerate() {
        let parent = record.link.as_deref().and_then(|link| holders.get(link));
        let parent = parent.copied().filter(|one| levels[*one] < LEVELS_MAX);
        levels.push(parent.map_or(0, |one| levels[one] + 1));
        parents.push(parent);
        if let Some(chain) = record.chain.as_deref() {
            holders.insert(chain, at);
        }
    }
    let mut below: Vec<Vec<Value>> = vec![Vec::new(); records.len()];
    let mut top = Vec::new();
    for at in (0..records.len()).rev() {
        let record = &records[at];
        let mut call = record.to_json();
        let mut calls = std::mem::take(&mut below[at]);
        calls.reverse();
        call["calls"] = calls.into();
        call["tampered"] = (!record.is_whole()).into();
        match parents[at] {
            Some(parent) => below[parent].push(call),
            None => top.push(call),
        }
    }
    top.reverse();
    Some(json!({"root": root, "txn": txn, "calls": top}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::record::{ChainMembers, Draft};

    fn record(
        chain: &mut Chain,
        at: i64,
        link: Option<&str>,
        sent: Option<&str>,
    ) -> Record<'static> {
        let on_chain = ChainMembers {
            root: "canvas:ada".to_owned(),
            txn: "q7".to_owned(),
            depth: 0,
            link: link.map(str::to_owned),
            sent: sent.map(str::to_owned),
        };
        let chained = chain.push(Draft {
            time: Timestamp(at),
            on_chain: Some(Box::new(on_chain)),
            ..Draft::new(EventType::A2aCall)
        });
        let mut record: Record<'static> =
            serde_json::from_str(&chained.record.canonical_text()).unwrap();
        record.hash = Some(hex::encode(chained.hash));
        record
    }

    #[test]
    fn a_call_hangs_on_the_last_one_before_it_that_was_sent_its_token() {
        let mut here = Chain::new("here-1");
        let mut records = vec![
            record(&mut here, 50, Some("lost"), None),
            record(&mut here, 40, Some("two"), None),
            record(&mut here, 30, Some("one"), Some("two")),
            record(&mut here, 20, None, Some("one")),
            record(&mut here, 10, None, Some("one")),
        ];
        records[1].status = 200;
        let tree = build_tree(records).unwrap();
        let calls = |one: &Value| one["calls"].as_array().unwrap().clone();
        let top = calls(&tree);
        assert_eq!((tree["root"].clone(), top.len()), (json!("canvas:ada"), 3));
        assert_eq!(
            (
                calls(&top[0]).len(),
                calls(&top[1]).len(),
                calls(&top[2]).len()
            ),
            (0, 1, 0)
        );
        let inner = &calls(&calls(&top[1])[0])[0];
        assert_eq!(
            (&inner["link"], &inner["tampered"]),
            (&json!("two"), &json!(true))
        );
        assert_eq!(top[0]["tampered"], json!(false));
    }

    #[test]
    fn a_tree_has_a_bound_of_levels() {
        let mut here = Chain::new("here-1");
        let own = |at: i64| record(&mut here, at, Some("own"), Some("own"));
        let tree = build_tree((0..200).map(own).collect()).unwrap();
        assert_eq!(tree["calls"].as_array().unwrap().len(), 4);
    }
}
