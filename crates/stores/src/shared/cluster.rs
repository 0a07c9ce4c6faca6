//! Redis Cluster: which master owns the slot of a key.
//!
//! The client of the `redis` crate for clusters is not used: it sends a write again after a broken connection, and
//! leaves out the nodes that it is not connected to from a command for several.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{FromRedisValue as _, Value, pipe};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::node::{Address, ask_each, config_without_timeouts};
use super::server::Server;
use crate::store::{Cause, as_cause};

/// Number of slots that the keys of a cluster are distributed over.
const SLOTS: u16 = 16_384;

/// Pause between two questions for the owners of slots.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The owners of all slots, as the nodes told them at one time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shards {
    /// The epoch of the cluster. A later one replaces an earlier one.
    epoch: u64,
    /// First slot, last slot, master. In the order of slots.
    ranges: Vec<(u16, u16, Address)>,
    pub(super) masters: BTreeSet<Address>,
    /// Masters and replicas.
    nodes: BTreeSet<Address>,
}

/// The owners of slots cannot be found out.
#[derive(Debug, thiserror::Error)]
enum ClusterError {
    #[error(
        "none of {asked} nodes of the cluster answers in time that it is up; the last error: {last}"
    )]
    Down { asked: usize, last: String },
    #[error("the node is not up: {0}")]
    NodeDown(String),
    #[error("the answer to CLUSTER SLOTS is not understood")]
    Slots,
    #[error("the node knows no master that owns slots")]
    NoMaster,
    #[error("no node of the cluster owns slot {0}")]
    NoOwner(u16),
}

/// A cluster: its nodes, and the owners of its slots as they were told last.
pub(super) struct Cluster {
    /// The nodes of the URL.
    seeds: Vec<Address>,
    shards: ArcSwapOption<Shards>,
    /// True once a node answered that a key is elsewhere, or did not answer.
    stale: AtomicBool,
    /// The time of the last question. Locked while nodes are asked, so that callers share it.
    asked: Mutex<Option<Instant>>,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>) -> Self {
        Self {
            seeds,
            shards: ArcSwapOption::empty(),
            stale: AtomicBool::new(true),
            asked: Mutex::default(),
        }
    }

    /// Has the next caller of [`Self::load_shards`] ask the nodes.
    pub(super) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The same, if the owners are known only from before an epoch.
    pub(super) fn mark_stale_before(&self, epoch: u64) {
        if self.cached().is_none_or(|known| known.epoch < epoch) {
            self.mark_stale();
        }
    }

    fn cached(&self) -> Option<Arc<Shards>> {
        self.shards.load_full()
    }

    fn cached_fresh(&self) -> Option<Arc<Shards>> {
        let in_doubt = self.stale.load(Ordering::Acquire);
        self.cached().filter(|_| !in_doubt)
    }

    /// Returns the owners of slots, and those that they replace if others were known until now. Asks the nodes if the
    /// owners are unknown or in doubt.
    ///
    /// # Errors
    /// When no node answers.
    pub(super) async fn load_shards(
        &self,
        server: &Server,
    ) -> Result<(Arc<Shards>, Option<Arc<Shards>>), Cause> {
        if let Some(shards) = self.cached_fresh() {
            return Ok((shards, None));
        }
        let mut asked = self.asked.lock().await;
        if let Some(shards) = self.cached_fresh() {
            return Ok((shards, None));
        }
        if let Some(last) = *asked {
            tokio::time::sleep_until(last + ASK_EVERY).await;
        }
        // Before the nodes are asked: a doubt that comes meanwhile remains.
        self.stale.store(false, Ordering::Release);
        let known = self.cached();
        let learned = self.ask_nodes(server, known.as_deref()).await;
        *asked = Some(Instant::now());
        let learned = learned.inspect_err(|_| self.mark_stale())?;
        if let Some(known) = &known
            && (known.epoch > learned.epoch || **known == learned)
        {
            return Ok((Arc::clone(known), None));
        }
        let learned = Arc::new(learned);
        tracing::debug!(masters = ?learned.masters, epoch = learned.epoch, "Learned the owners of slots");
        self.shards.store(Some(Arc::clone(&learned)));
        Ok((learned, known))
    }

    /// Asks all known nodes at once. Returns the answer of the latest epoch once more than half have answered or the
    /// time is over.
    async fn ask_nodes(&self, server: &Server, known: Option<&Shards>) -> Result<Shards, Cause> {
        let mut nodes: BTreeSet<&Address> = self.seeds.iter().collect();
        nodes.extend(known.iter().flat_map(|known| &known.nodes));
        let (asked, mut answered) = (nodes.len(), 0);
        let mut latest: Option<Shards> = None;
        let is_enough = |shards: Shards| {
            if latest
                .as_ref()
                .is_none_or(|latest| latest.epoch < shards.epoch)
            {
                latest = Some(shards);
            }
            answered += 1;
            answered * 2 > asked
        };
        let last = ask_each(
            nodes.into_iter().map(|node| ask_node(server, node)),
            is_enough,
        )
        .await;
        latest.ok_or_else(|| as_cause(ClusterError::Down { asked, last }))
    }
}

impl Shards {
    /// Returns the master that owns the slot of a key.
    ///
    /// # Errors
    /// When none owns it.
    pub(super) fn owner_of(&self, key: &[u8]) -> Result<&Address, Cause> {
        let slot = slot_of(key);
        let behind = self.ranges.partition_point(|(first, _, _)| *first <= slot);
        let range = self.ranges[..behind].last();
        let range = range.filter(|(_, last, _)| slot <= *last);
        range
            .map(|(_, _, master)| master)
            .ok_or_else(|| as_cause(ClusterError::NoOwner(slot)))
    }

    /// Returns a key for each master that it owns: `name` with a number.
    pub(super) fn key_of_each(&self, name: &str) -> Vec<String> {
        let mut left = self.masters.clone();
        let mut keys = Vec::new();
        // With few slots a master needs many attempts.
        for number in 0..u32::from(SLOTS) * 4 {
            if left.is_empty() {
                break;
            }
            let key = format!("{name}:{number}");
            if self
                .owner_of(key.as_bytes())
                .is_ok_and(|owner| left.remove(owner))
            {
                keys.push(key);
            }
        }
        keys
    }

    /// Reads the answer to `CLUSTER SLOTS`. A node without a host is the one that was asked.
    fn parse(slots: Value, epoch: u64, asked: &Address) -> Option<Self> {
        let mut shards = Self {
            epoch,
            ..Self::default()
        };
        let Value::Array(ranges) = slots else {
            return None;
        };
        for range in ranges {
            let Value::Array(parts) = range else {
                return None;
            };
            let mut parts = parts.into_iter();
            let first = u16::from_redis_value(parts.next()?).ok()?;
            let last = u16::from_redis_value(parts.next()?).ok()?;
            let mut nodes = parts.map(|node| read_node(node, asked));
            let master = nodes.next()??;
            shards.nodes.insert(master.clone());
            for replica in nodes {
                shards.nodes.insert(replica?);
            }
            shards.masters.insert(master.clone());
            shards.ranges.push((first, last, master));
        }
        shards.ranges.sort_unstable();
        Some(shards)
    }
}

fn read_node(node: Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = node else {
        return None;
    };
    let mut parts = parts.into_iter();
    let host: Option<String> = Option::from_redis_value(parts.next()?).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    let port = u16::from_redis_value(parts.next()?).ok()?;
    Some((host.unwrap_or_else(|| asked.0.clone()), port))
}

/// Returns the slot of a key: that of the part in its first braces, if there is one.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let close = behind.iter().position(|byte| *byte == b'}')?;
        Some(&behind[..close])
    });
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed) % SLOTS
}

/// Returns the epoch that an answer to `CLUSTER INFO` tells.
///
/// # Errors
/// When the node says that the cluster is not up: it cannot see most of the masters.
pub(super) fn epoch_of(info: &str) -> Result<u64, Cause> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let state = field("cluster_state").unwrap_or_default();
    let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok());
    match epoch {
        Some(epoch) if state == "ok" => Ok(epoch),
        _ => Err(Arc::new(ClusterError::NodeDown(state.to_owned()))),
    }
}

async fn ask_node(server: &Server, node: &Address) -> Result<Shards, Cause> {
    let config = config_without_timeouts();
    let (client, _) = server.make_client(Some(node)).await?;
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connection.await.map_err(as_cause)?;
    let mut ask = pipe();
    ask.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let answers = ask.query_async(&mut connection).await;
    let (info, slots): (String, Value) = answers.map_err(as_cause)?;
    let epoch = epoch_of(&info)?;
    let shards = Shards::parse(slots, epoch, node).ok_or(ClusterError::Slots);
    let shards = shards.map_err(as_cause)?;
    if shards.masters.is_empty() {
        return Err(Arc::new(ClusterError::NoMaster));
    }
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> Shards {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host: Value, port: i64| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first: i64, last: i64, nodes: Vec<Value>| {
            let ends = [Value::Int(first), Value::Int(last)];
            Value::Array(ends.into_iter().chain(nodes).collect())
        };
        let slots = Value::Array(vec![
            range(
                8000,
                16_383,
                vec![node(text("two"), 2), node(text("three"), 3)],
            ),
            range(0, 4999, vec![node(Value::Nil, 1)]),
        ]);
        Shards::parse(slots, 7, &("asked".to_owned(), 9)).unwrap()
    }

    #[test]
    fn a_key_belongs_to_the_slot_that_the_specification_gives() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }

    #[test]
    fn the_owner_of_a_slot_is_the_first_node_of_its_range() {
        let shards = shards();
        let key = |wanted: std::ops::Range<u16>| {
            let mut keys = (0..).map(|n: u32| n.to_string());
            keys.find(|key| wanted.contains(&slot_of(key.as_bytes())))
                .unwrap()
        };
        let owner = |wanted| shards.owner_of(key(wanted).as_bytes()).ok().cloned();
        assert_eq!(owner(0..5000), Some(("asked".to_owned(), 1)));
        assert_eq!(owner(5000..8000), None);
        assert_eq!(owner(8000..16_384), Some(("two".to_owned(), 2)));
        assert_eq!(shards.masters.len(), 2);
        assert_eq!(shards.nodes.len(), 3);
        assert_eq!(shards.key_of_each("k").len(), 2);
    }

    #[test]
    fn a_node_that_cannot_see_the_others_tells_nothing() {
        let info = "cluster_state:ok\r\ncluster_known_nodes:6\r\ncluster_current_epoch:12\r\n";
        assert_eq!(epoch_of(info).unwrap(), 12);
        assert!(epoch_of(&info.replace(":ok", ":fail")).is_err());
        assert!(epoch_of("").is_err());
    }
}
