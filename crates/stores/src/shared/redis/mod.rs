//! Shared state on Redis 6 or later: the only Redis commands of the crate.
//!
//! Operations share multiplexed connections (`connections.rs`). Each subscription has its own connection, probed so
//! that a dead one is detected within 1 s: caches of access decisions depend on its messages. In a cluster each command
//! goes to the master that owns its key (`cluster_client.rs`); more than one key in a command have one hash tag.
//!
//! `redis::aio::ConnectionManager` is not used. It keeps a connection whose answers time out, so a network that
//! drops packets would cut the gateway off until the kernel gives up, after a quarter of an hour.

mod cluster_client;
mod counters;
mod link;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::TryFutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value, cmd, from_redis_value, pipe,
};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::cluster_client::ClusterClient;
use self::link::{LinkTarget, PROBE_EVERY, PROBE_MAX, SubscribeCommand, keep_up};
use super::connections::Connections;
use super::log::{BATCH_MAX, Entry, EntryId, LogRead};
use super::server::{Server, to_cause};
use super::subscription::{Feed, Subscription};
use crate::store::{Cause, InvalidUrl, StoreTimeout, as_cause, wait_within};
use kernel::time::Timestamp;

/// Operations of two commands on one key that no other client may come between are scripts, not transactions: those
/// cannot follow a key that moves within a cluster.
const GET_WITH_TTL: &str = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}";

/// Not `GETDEL`, which needs Redis 6.2.
const TAKE: &str =
    "local value = redis.call('GET', KEYS[1]) redis.call('DEL', KEYS[1]) return value";

/// Not `PEXPIRE … NX`, which needs Redis 7.
const INCREMENT: &str =
    "redis.call('SET', KEYS[1], 0, 'NX', 'PX', ARGV[1]) return redis.call('INCR', KEYS[1])";

/// The key of the write probe, and its time to live if the probe does not delete it.
const PROBE_KEY: &str = "gw:probe";
const PROBE_TTL: Duration = Duration::from_secs(10);

/// The number of retries for a command when the connection breaks before its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryLimit {
    /// For commands that write.
    Never,
    /// For commands that only read. Servers drop idle connections, which must not fail a read.
    Once,
}

pub(super) struct Redis {
    pub(super) connections: Arc<Connections>,
    timeout: Duration,
    /// By runtime; bounded by the requests in progress.
    queued: DashMap<Id, Vec<QueuedCommands>>,
}

/// Commands to send, and the channel for their answers.
struct QueuedCommands {
    commands: Vec<Cmd>,
    done: oneshot::Sender<Result<Vec<Value>, Cause>>,
}

impl Redis {
    pub(super) fn open(url: &str, timeout: Duration) -> Result<Self, InvalidUrl> {
        let server = Arc::new(Server::parse(url)?);
        Ok(Self {
            connections: Arc::new(Connections::new(server)),
            timeout,
            queued: DashMap::new(),
        })
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<String>, Cause> {
        self.read_one(pipe().cmd("GET").arg(key)).await
    }

    pub(super) async fn get_many(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Cause> {
        if self.connections.cluster.is_none() {
            return self.read_one(pipe().cmd("MGET").arg(keys)).await;
        }
        self.query(&for_each("GET", keys), RetryLimit::Once).await
    }

    /// Returns the value of a key and its remaining time to live, if it has one.
    pub(super) async fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Cause> {
        let (value, ttl): (Option<String>, i64) =
            self.read_one(&eval_command(GET_WITH_TTL, key)).await?;
        // Negative: the key has no time to live.
        let ttl = u64::try_from(ttl).ok().map(Duration::from_millis);
        Ok(value.map(|value| (value, ttl)))
    }

    pub(super) async fn set(
        self: &Arc<Self>,
        key: &str,
        value: &str,
        ttl: Option<Duration>,
    ) -> Result<(), Cause> {
        self.set_each(&[(key, value)], ttl).await
    }

    pub(super) async fn set_many(
        self: &Arc<Self>,
        values: &[(&str, &str)],
        ttl: Duration,
    ) -> Result<(), Cause> {
        self.set_each(values, Some(ttl)).await
    }

    async fn set_each(
        self: &Arc<Self>,
        values: &[(&str, &str)],
        ttl: Option<Duration>,
    ) -> Result<(), Cause> {
        let set = |(key, value): &(&str, &str)| {
            let mut set = cmd("SET");
            set.arg((key, value));
            if let Some(ttl) = ttl {
                set.arg(("PX", to_millis(ttl)));
            }
            set
        };
        let sent = self.send_batched(values.iter().map(set).collect());
        sent.await.map(|_| ())
    }

    /// Sends commands in one batch with those of other tasks of this runtime that are ready. Heartbeats arrive in
    /// thousands, and a system call and a server wake-up for each would cost more than the rest of the work. Each
    /// caller gets the answers, or the error, of its own commands. In a cluster each caller sends its own, as a node
    /// that does not answer must not fail the commands for others.
    async fn send_batched(self: &Arc<Self>, commands: Vec<Cmd>) -> Result<Vec<Value>, Cause> {
        if self.connections.cluster.is_some() {
            let mut own = pipe();
            for command in commands {
                own.add_command(command);
            }
            return self.query(&own, RetryLimit::Never).await;
        }
        let runtime = Handle::current().id();
        let (done, answers) = oneshot::channel();
        let first = {
            let mut queued = self.queued.entry(runtime).or_default();
            queued.push(QueuedCommands { commands, done });
            queued.len() == 1
        };
        if first {
            tokio::spawn(Arc::clone(self).send_batch_of(runtime));
        }
        // `ask` has a timeout. The sender is dropped only with the runtime.
        answers.await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    async fn send_batch_of(self: Arc<Self>, runtime: Id) {
        // Tasks that can run now add their commands to this batch.
        tokio::task::yield_now().await;
        let queued = self.queued.get_mut(&runtime);
        let queued = queued.map(|mut queued| std::mem::take(&mut *queued));
        let mut together = pipe();
        together.ignore_errors();
        let mut waiting = Vec::new();
        for QueuedCommands { commands, done } in queued.into_iter().flatten() {
            waiting.push((commands.len(), done));
            for command in commands {
                together.add_command(command);
            }
        }
        let answers: Result<Vec<RedisResult<Value>>, Cause> =
            self.query(&together, RetryLimit::Never).await;
        let mut errors = answers.iter().flatten().flat_map(|one| one.as_ref().err());
        if errors.any(is_lost) {
            self.connections.give_up().await;
        }
        let mut answers = answers.map(Vec::into_iter);
        for (count, done) in waiting {
            let own = match &mut answers {
                // Consumes all of this caller's answers, even after an error.
                Ok(answers) => {
                    let own: Vec<_> = answers.take(count).collect();
                    own.into_iter()
                        .collect::<RedisResult<_>>()
                        .map_err(as_cause)
                }
                Err(cause) => Err(Arc::clone(cause)),
            };
            let _ = done.send(own);
        }
    }

    pub(super) async fn set_if_absent(
        &self,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Result<bool, Cause> {
        let mut set = pipe();
        set.cmd("SET").arg((key, value, "NX", "PX", to_millis(ttl)));
        let written: Option<String> = self.write_one(&set).await?;
        Ok(written.is_some())
    }

    /// Uses neither `GETEX`, which needs Redis 6.2, nor `SET`, which could overwrite another writer's change.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        keys: &[&str],
        ttl: Duration,
    ) -> Result<Vec<bool>, Cause> {
        let refresh = |key: &&str| {
            let mut refresh = cmd("PEXPIRE");
            refresh.arg((key, to_millis(ttl)));
            refresh
        };
        let there = self.send_batched(keys.iter().map(refresh).collect());
        from_redis_value(Value::Array(there.await?)).map_err(as_cause)
    }

    pub(super) async fn delete(&self, keys: &[&str]) -> Result<(), Cause> {
        let delete = for_each("DEL", keys);
        let deleted: Vec<u64> = self.query(&delete, RetryLimit::Never).await?;
        drop(deleted);
        Ok(())
    }

    /// Reads and deletes a key.
    pub(super) async fn take(&self, key: &str) -> Result<Option<String>, Cause> {
        self.write_one(&eval_command(TAKE, key)).await
    }

    /// Increments a counter.
    pub(super) async fn increment(&self, key: &str, ttl: Duration) -> Result<i64, Cause> {
        let mut increment = eval_command(INCREMENT, key);
        increment.arg(to_millis(ttl));
        self.write_one(&increment).await
    }

    /// Adds a member, and removes and returns the oldest beyond `max`.
    pub(super) async fn add_newest(
        &self,
        set: &str,
        member: &str,
        max: i64,
        ttl: Duration,
    ) -> Result<Vec<String>, Cause> {
        let mut add = pipe();
        add.cmd("ZADD").arg((set, Timestamp::now().0, member));
        add.cmd("PEXPIRE").arg((set, to_millis(ttl)));
        // By rank, not by number: of two that add at once neither removes one of the newest.
        add.cmd("ZRANGE").arg((set, 0, -(max + 1)));
        let (_, _, oldest): (Value, Value, Vec<String>) =
            self.query(&add, RetryLimit::Never).await?;
        if !oldest.is_empty() {
            let mut remove = pipe();
            remove.cmd("ZREM").arg((set, &oldest));
            let _: Value = self.write_one(&remove).await?;
        }
        Ok(oldest)
    }

    pub(super) async fn append(
        &self,
        log: &str,
        texts: &[String],
        entries_max: usize,
    ) -> Result<(), Cause> {
        let mut append = pipe();
        for text in texts {
            append.cmd("XADD");
            append.arg((log, "MAXLEN", "~", entries_max, "*", "e", text));
        }
        let ids = self.query::<Vec<String>>(&append, RetryLimit::Never);
        ids.await.map(drop)
    }

    /// Appends to a log in which the writer numbers the entries: a stream with those numbers as ids.
    pub(super) async fn append_numbered(
        &self,
        log: &str,
        entries: &[(u64, Bytes)],
        keep: usize,
        ttl: Duration,
    ) -> Result<(), Cause> {
        let mut append = pipe();
        append.ignore_errors();
        for (number, entry) in entries {
            append.cmd("XADD");
            append.arg((log, "MAXLEN", keep, format!("{number}-0"), "e", &**entry));
        }
        append.cmd("PEXPIRE").arg((log, to_millis(ttl)));
        let answers: Vec<RedisResult<Value>> = self.query(&append, RetryLimit::Never).await?;
        // The server has an entry with that number, or a later one.
        let is_there = |error: &RedisError| error.to_string().contains("equal or smaller");
        let mut errors = answers.into_iter().filter_map(RedisResult::err);
        errors
            .find(|error| !is_there(error))
            .map_or(Ok(()), |error| Err(as_cause(error)))
    }

    pub(super) async fn read_numbered(
        &self,
        log: &str,
        after: u64,
        max: usize,
    ) -> Result<Vec<(u64, Bytes)>, Cause> {
        let first = format!("{}-0", after.saturating_add(1));
        let mut read = pipe();
        read.cmd("XRANGE").arg((log, first, "+", "COUNT", max));
        let entries: Vec<(String, Vec<Vec<u8>>)> = self.read_one(&read).await?;
        let entry = |(id, pairs): (String, Vec<Vec<u8>>)| {
            let number = id.split('-').next()?.parse().ok()?;
            Some((number, pairs.into_iter().nth(1)?.into()))
        };
        Ok(entries.into_iter().filter_map(entry).collect())
    }

    /// Writes a key without meaning and deletes it, at each master of a cluster. `PING` is not enough, as a replica
    /// answers it; nor is `DEL` alone, which a full server accepts. Idempotent.
    pub(super) async fn write_probe(&self) -> Result<(), Cause> {
        let connections = &self.connections;
        let keys = match &connections.cluster {
            None => vec![PROBE_KEY.to_owned()],
            Some(cluster) => {
                let shards = wait_within(self.timeout, connections.shards(cluster));
                shards.await?.key_of_each(PROBE_KEY)
            }
        };
        let mut probe = pipe();
        for key in &keys {
            let set = (key, 1, "PX", to_millis(PROBE_TTL));
            probe.cmd("SET").arg(set).ignore();
            probe.cmd("DEL").arg(key).ignore();
        }
        self.query(&probe, RetryLimit::Once).await
    }

    /// Returns the time of the server.
    pub(super) async fn read_clock(&self) -> Result<SystemTime, Cause> {
        let (seconds, micros): (u64, u64) = self.read_one(pipe().cmd("TIME")).await?;
        let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
        Ok(SystemTime::UNIX_EPOCH + since)
    }

    /// Opens a connection for following a log: its blocking reads delay no other operation.
    pub(super) async fn log_link(&self, log: &str) -> Result<LogConnection, Cause> {
        let connections = Arc::clone(&self.connections);
        let opened = match &connections.cluster {
            None => connections.connect(None, |_| {}).await,
            Some(cluster) => {
                let shards = connections.shards(cluster).await?;
                let owner = shards.owner_of(log.as_bytes())?;
                let opened = connections.connect(Some(owner), |_| {}).await;
                opened.inspect_err(|_| cluster.mark_stale())
            }
        };
        let (link, _) = opened?;
        Ok(LogConnection { link, connections })
    }

    pub(super) async fn publish(&self, channel: &str, message: &str) -> Result<(), Cause> {
        // In a cluster `PUBLISH` goes through all nodes: a subscriber would not notice that its own is cut off.
        let name = if self.connections.cluster.is_some() {
            "SPUBLISH"
        } else {
            "PUBLISH"
        };
        self.write_one(pipe().cmd(name).arg((channel, message)))
            .await
    }

    pub(super) fn subscribe(&self, channel: &'static str) -> Subscription {
        let name = if self.connections.cluster.is_some() {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        let listen = pipe().cmd(name).arg(channel).to_owned();
        let target = LinkTarget::Owner(channel);
        self.open_link((Some(listen), channel), target, String::new())
    }

    pub(super) fn watch_lapses(&self, prefix: &str) -> Subscription {
        let database = self.connections.server.database();
        let channel = format!("__keyevent@{database}__:expired");
        let listen = pipe().cmd("SUBSCRIBE").arg(channel).to_owned();
        let to = (Some(listen), "keys that expire");
        self.open_link(to, LinkTarget::Masters, prefix.to_owned())
    }

    pub(super) fn watch_keys(&self, prefixes: Vec<String>) -> Subscription {
        let prefixes = drop_covered(prefixes);
        // Without a prefix the server would report every key.
        let listen = (!prefixes.is_empty()).then(|| {
            let mut track = pipe();
            track.cmd("CLIENT").arg(("TRACKING", "ON", "BCAST"));
            for prefix in &prefixes {
                track.arg(("PREFIX", prefix));
            }
            track
        });
        let to = (listen, "keys that others write");
        self.open_link(to, LinkTarget::Masters, String::new())
    }

    /// Links a subscription. `listen` has the command, if there is one, and a label for the log. Messages that do
    /// not begin with `prefix` are skipped.
    fn open_link(&self, listen: SubscribeCommand, at: LinkTarget, prefix: String) -> Subscription {
        let feed = Arc::new(Feed::default());
        let connections = Arc::clone(&self.connections);
        let plan = keep_up(connections, listen, at, prefix, feed.clone());
        Subscription::new(feed, Some(Box::pin(plan)))
    }

    /// Queries one value by a command that only reads.
    async fn read_one<T: FromRedisValue>(&self, query: &Pipeline) -> Result<T, Cause> {
        self.query(query, RetryLimit::Once)
            .await
            .map(|(value,)| value)
    }

    /// The same by a command that writes.
    async fn write_one<T: FromRedisValue>(&self, query: &Pipeline) -> Result<T, Cause> {
        self.query(query, RetryLimit::Never)
            .await
            .map(|(value,)| value)
    }

    async fn query<T: FromRedisValue>(
        &self,
        query: &Pipeline,
        repeat: RetryLimit,
    ) -> Result<T, Cause> {
        let deadline = Instant::now() + self.timeout;
        if let Some(cluster) = &self.connections.cluster {
            let mut routed = ClusterClient {
                connections: &self.connections,
                cluster,
                deadline,
                repeat,
            };
            return query.query_async(&mut routed).await.map_err(as_cause);
        }
        let mut repeats = usize::from(repeat == RetryLimit::Once);
        loop {
            let mut connected = timeout_at(deadline, self.connections.get(None))
                .await
                .map_err(|_| self.too_slow())??;
            let answer = query.query_async(&mut connected.connection);
            let Ok(answer) = timeout_at(deadline, answer).await else {
                connected.give_up();
                return Err(self.too_slow());
            };
            match answer {
                Ok(value) => return Ok(value),
                Err(error) if is_lost(&error) => {
                    connected.give_up();
                    if repeats == 0 {
                        return Err(Arc::new(error));
                    }
                    repeats -= 1;
                }
                Err(error) => return Err(to_cause(error)),
            }
        }
    }

    fn too_slow(&self) -> Cause {
        Arc::new(StoreTimeout(self.timeout))
    }
}

/// A connection on which a log is followed.
pub(super) struct LogConnection {
    link: MultiplexedConnection,
    connections: Arc<Connections>,
}

/// An entry as the server sends it: the id, then names and values.
type RawEntry = (String, Vec<String>);

impl LogConnection {
    /// Returns the newest entries, oldest first.
    pub(super) async fn read_newest(
        &mut self,
        log: &str,
        count: usize,
    ) -> Result<Vec<Entry>, Cause> {
        let mut newest = pipe();
        newest.cmd("XREVRANGE").arg((log, "+", "-", "COUNT", count));
        let (raw,): (Vec<RawEntry>,) = self.query(&newest).await?;
        Ok(raw.into_iter().rev().filter_map(parse_entry).collect())
    }

    /// Returns the entries after an id, and the ends of the log. Waits for entries for a while. An answer without
    /// entries also shows that the link is alive.
    pub(super) async fn read_after(&mut self, log: &str, after: EntryId) -> Result<LogRead, Cause> {
        let mut reads = pipe();
        reads.cmd("XRANGE").arg((log, "-", "+", "COUNT", 1));
        reads.cmd("XREVRANGE").arg((log, "+", "-", "COUNT", 1));
        let waits = ("COUNT", BATCH_MAX, "BLOCK", to_millis(PROBE_EVERY));
        reads.cmd("XREAD").arg(waits);
        reads.arg(("STREAMS", log, after.to_string()));
        type Read = Option<HashMap<String, Vec<RawEntry>>>;
        let (oldest, newest, read): (Vec<RawEntry>, Vec<RawEntry>, Read) =
            self.query(&reads).await?;
        let end = |raw: Vec<RawEntry>| raw.into_iter().find_map(|(id, _)| id.parse().ok());
        let entries = read.into_iter().flatten().flat_map(|(_, raw)| raw);
        Ok(LogRead {
            ends: end(oldest).zip(end(newest)),
            entries: entries.filter_map(parse_entry).collect(),
        })
    }

    async fn query<T: FromRedisValue>(&mut self, query: &Pipeline) -> Result<T, Cause> {
        let answer = query.query_async(&mut self.link).map_err(as_cause);
        let answer = wait_within(PROBE_EVERY + PROBE_MAX, answer).await;
        answer.inspect_err(|_| {
            // The log may have moved.
            if let Some(cluster) = &self.connections.cluster {
                cluster.mark_stale();
            }
        })
    }
}

fn parse_entry((id, pairs): RawEntry) -> Option<Entry> {
    let id = id.parse().ok()?;
    let text = pairs.into_iter().nth(1)?;
    Some(Entry { id, text })
}

/// Returns true if another connection may help: this one is broken, or its server does not take writes (any more,
/// or yet).
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
}

fn eval_command(text: &str, key: &str) -> Pipeline {
    let mut script = pipe();
    script.cmd("EVAL").arg((text, 1, key));
    script
}

/// Returns a command for each key.
fn for_each(name: &str, keys: &[&str]) -> Pipeline {
    let mut each = Pipeline::with_capacity(keys.len());
    for key in keys {
        each.cmd(name).arg(*key);
    }
    each
}

fn to_millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Removes prefixes that another one covers: the server rejects overlapping prefixes.
fn drop_covered(mut prefixes: Vec<String>) -> Vec<String> {
    prefixes.sort_unstable();
    prefixes.dedup_by(|longer, shorter| longer.starts_with(shorter.as_str()));
    prefixes
}

/// Returns true if the server answers but takes no writes: it is a replica, is full, cannot save,
/// or lacks replicas.
pub(super) fn refuses_writes(cause: &Cause) -> bool {
    let refuses = |code: &str| matches!(code, "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS");
    let error = cause.downcast_ref::<RedisError>().cloned();
    // Each of several commands has its own error code.
    let each = error.and_then(RedisError::into_server_errors);
    each.is_some_and(|each| each.iter().any(|(_, error)| refuses(error.code())))
}
