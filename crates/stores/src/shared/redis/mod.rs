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
mod numbered_logs;
mod ordered;
mod probe;
mod scripts;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value, cmd, from_redis_value, pipe,
};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use self::cluster_client::ClusterClient;
use self::link::{LinkTarget, PROBE_EVERY, PROBE_MAX, SubscribeCommand, keep_up};
pub(super) use self::probe::refuses_writes;
use super::connections::Connections;
use super::log::{BATCH_MAX, Entry, EntryId, LogRead};
use super::server::{Server, to_cause};
use super::subscription::{Feed, LinkTask, Subscription};
use crate::store::{Cause, InvalidUrl, StoreTimeout};

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
        self.query_one(pipe().cmd("GET").arg(key), RetryLimit::Once)
            .await
    }

    pub(super) async fn get_many(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Cause> {
        if self.connections.cluster.is_none() {
            return self
                .query_one(pipe().cmd("MGET").arg(keys), RetryLimit::Once)
                .await;
        }
        self.query(&for_each("GET", keys), RetryLimit::Once).await
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
            set.arg(*key).arg(*value);
            if let Some(ttl) = ttl {
                set.arg("PX").arg(to_millis(ttl));
            }
            set
        };
        let sent = self.send_batched(values.iter().map(set).collect());
        sent.await.map(|_| ())
    }

    /// Sends commands in one batch with those of other tasks of this runtime that are ready. Heartbeats arrive in
    /// thousands, and a system call and a server wake-up for each would cost more than the rest of the work. Each
    /// caller gets the answers, or the error, of its own commands. In a cluster each caller sends its own, as a node that
    /// does not answer must not fail the commands for others.
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
        let mut errors = answers
            .iter()
            .flatten()
            .filter_map(|one| one.as_ref().err());
        if errors.any(is_lost) {
            self.connections.give_up().await;
        }
        let mut answers = answers.map(Vec::into_iter);
        for (count, done) in waiting {
            let own = match &mut answers {
                // Consumes all of this caller's answers, even after an error.
                Ok(answers) => Ok(answers.take(count).collect::<Vec<_>>()),
                Err(cause) => Err(Arc::clone(cause)),
            };
            let own = own.and_then(|own| {
                let own: RedisResult<Vec<Value>> = own.into_iter().collect();
                own.map_err(|error| Arc::new(error) as Cause)
            });
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
        set.cmd("SET").arg(key).arg(value).arg("NX");
        set.arg("PX").arg(to_millis(ttl));
        let written: Option<String> = self.query_one(&set, RetryLimit::Never).await?;
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
            refresh.arg(key).arg(to_millis(ttl));
            refresh
        };
        let there = self
            .send_batched(keys.iter().map(refresh).collect())
            .await?;
        from_redis_value(Value::Array(there)).map_err(|error| Arc::new(error) as Cause)
    }

    pub(super) async fn delete(&self, keys: &[&str]) -> Result<(), Cause> {
        let deleted: Vec<u64> = self
            .query(&for_each("DEL", keys), RetryLimit::Never)
            .await?;
        drop(deleted);
        Ok(())
    }

    pub(super) async fn append(
        &self,
        log: &str,
        texts: &[String],
        entries_max: usize,
    ) -> Result<(), Cause> {
        let mut append = pipe();
        for text in texts {
            append.cmd("XADD").arg(log).arg("MAXLEN").arg("~");
            append.arg(entries_max).arg("*").arg("e").arg(text);
        }
        let _ids: Vec<String> = self.query(&append, RetryLimit::Never).await?;
        Ok(())
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
        let mut publish = pipe();
        // In a cluster `PUBLISH` goes through all nodes: a subscriber would not notice that its own is cut off.
        let name = match self.connections.cluster {
            None => "PUBLISH",
            Some(_) => "SPUBLISH",
        };
        publish.cmd(name).arg(channel).arg(message);
        self.query_one(&publish, RetryLimit::Never).await
    }

    pub(super) fn subscribe(&self, channel: &'static str) -> Subscription {
        let mut listen = pipe();
        let name = match self.connections.cluster {
            None => "SUBSCRIBE",
            Some(_) => "SSUBSCRIBE",
        };
        listen.cmd(name).arg(channel);
        self.open_link(
            (Some(listen), channel),
            LinkTarget::Owner(channel),
            String::new(),
        )
    }

    pub(super) fn watch_lapses(&self, prefix: &str) -> Subscription {
        let database = self.connections.server.database();
        let mut listen = pipe();
        let channel = format!("__keyevent@{database}__:expired");
        listen.cmd("SUBSCRIBE").arg(channel);
        let to = (Some(listen), "keys that expire");
        self.open_link(to, LinkTarget::Masters, prefix.to_owned())
    }

    pub(super) fn watch_keys(&self, prefixes: Vec<String>) -> Subscription {
        let prefixes = drop_covered(prefixes);
        // Without a prefix the server would report every key.
        let listen = (!prefixes.is_empty()).then(|| {
            let mut track = pipe();
            track.cmd("CLIENT").arg("TRACKING").arg("ON").arg("BCAST");
            for prefix in &prefixes {
                track.arg("PREFIX").arg(prefix);
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
        let plan: LinkTask = Box::pin(keep_up(
            Arc::clone(&self.connections),
            listen,
            at,
            prefix,
            feed.clone(),
        ));
        Subscription::over_link(feed, plan)
    }

    /// Queries one value.
    async fn query_one<T: FromRedisValue>(
        &self,
        query: &Pipeline,
        repeat: RetryLimit,
    ) -> Result<T, Cause> {
        let (value,): (T,) = self.query(query, repeat).await?;
        Ok(value)
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
            let answer = query.query_async(&mut routed).await;
            return answer.map_err(|error| Arc::new(error) as Cause);
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
        newest.cmd("XREVRANGE").arg(log).arg("+").arg("-");
        newest.arg("COUNT").arg(count);
        let (raw,): (Vec<RawEntry>,) = self.query(&newest).await?;
        Ok(raw.into_iter().rev().filter_map(parse_entry).collect())
    }

    /// Returns the entries after an id, and the ends of the log. Waits for entries for a while. An answer without
    /// entries also shows that the link is alive.
    pub(super) async fn read_after(&mut self, log: &str, after: EntryId) -> Result<LogRead, Cause> {
        let mut reads = pipe();
        reads.cmd("XRANGE").arg(log).arg("-").arg("+");
        reads.arg("COUNT").arg(1);
        reads.cmd("XREVRANGE").arg(log).arg("+").arg("-");
        reads.arg("COUNT").arg(1);
        reads.cmd("XREAD").arg("COUNT").arg(BATCH_MAX).arg("BLOCK");
        reads.arg(to_millis(PROBE_EVERY));
        reads.arg("STREAMS").arg(log).arg(after.to_string());
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
        let limit = PROBE_EVERY + PROBE_MAX;
        let answer = timeout(limit, query.query_async(&mut self.link)).await;
        let answer = answer.map_or_else(
            |_| Err(Arc::new(StoreTimeout(limit)) as Cause),
            |answer| answer.map_err(|error| Arc::new(error) as Cause),
        );
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
