//! Shared state on Redis 6 or later: the only Redis commands of the crate.
//!
//! Operations share multiplexed connections (`connections.rs`). Each subscription has its own connection, probed so
//! that a dead one is detected within 1 s: caches of access decisions depend on its messages.
//!
//! `redis::aio::ConnectionManager` is not used. It keeps a connection whose answers time out, so a network that
//! drops packets would cut the gateway off until the kernel gives up, after a quarter of an hour.

pub(super) mod counted;
mod link;
mod numbered;
mod ordered;
mod probe;

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

use self::link::{Listen, PROBE_EVERY, PROBE_MAX, keep_up};
pub(super) use self::probe::{clock, refuses_writes, write_probe};
use super::connections::{Connections, connect};
use super::log::{BATCH_MAX, Entry, EntryId, Look};
use super::server::Server;
use super::subscription::{Feed, Plan, Subscription};
use crate::store::{Cause, InvalidUrl, TooSlow};

/// The number of retries for a command when the connection breaks before its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// For commands that write.
    Never,
    /// For commands that only read. Servers drop idle connections, which must not fail a read.
    Once,
}

pub(super) struct Redis {
    connections: Arc<Connections>,
    timeout: Duration,
    /// By runtime; bounded by the requests in progress.
    unasked: DashMap<Id, Vec<Unasked>>,
}

/// Commands to send, and the channel for their answers.
struct Unasked {
    commands: Vec<Cmd>,
    done: oneshot::Sender<Result<Vec<Value>, Cause>>,
}

impl Redis {
    pub(super) fn open(url: &str, timeout: Duration) -> Result<Self, InvalidUrl> {
        let server = Arc::new(Server::parse(url)?);
        Ok(Self {
            connections: Arc::new(Connections::new(server)),
            timeout,
            unasked: DashMap::new(),
        })
    }

    pub(super) fn losses(&self) -> u64 {
        self.connections.losses()
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<String>, Cause> {
        self.one(pipe().cmd("GET").arg(key), Repeat::Once).await
    }

    pub(super) async fn get_many(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Cause> {
        self.one(pipe().cmd("MGET").arg(keys), Repeat::Once).await
    }

    pub(super) async fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Cause> {
        let mut both = pipe();
        both.atomic().cmd("GET").arg(key).cmd("PTTL").arg(key);
        let (value, ttl): (Option<String>, i64) = self.ask(&both, Repeat::Once).await?;
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
        self.set_many(&[(key, value)], ttl).await
    }

    pub(super) async fn set_many(
        self: &Arc<Self>,
        values: &[(&str, &str)],
        ttl: Option<Duration>,
    ) -> Result<(), Cause> {
        let set = |(key, value): &(&str, &str)| {
            let mut set = cmd("SET");
            set.arg(*key).arg(*value);
            if let Some(ttl) = ttl {
                set.arg("PX").arg(milliseconds(ttl));
            }
            set
        };
        let sent = self.together(values.iter().map(set).collect());
        sent.await.map(|_| ())
    }

    /// Sends commands in one batch with those of other tasks of this runtime that are ready. Heartbeats arrive in
    /// thousands, and a system call and a server wake-up for each would cost more than the rest of the work. Each
    /// caller gets the answers, or the error, of its own commands.
    async fn together(self: &Arc<Self>, commands: Vec<Cmd>) -> Result<Vec<Value>, Cause> {
        let runtime = Handle::current().id();
        let (done, answers) = oneshot::channel();
        let first = {
            let mut unasked = self.unasked.entry(runtime).or_default();
            unasked.push(Unasked { commands, done });
            unasked.len() == 1
        };
        if first {
            tokio::spawn(Arc::clone(self).ask_together(runtime));
        }
        // `ask` has a timeout. The sender is dropped only with the runtime.
        answers.await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    async fn ask_together(self: Arc<Self>, runtime: Id) {
        // Tasks that can run now add their commands to this batch.
        tokio::task::yield_now().await;
        let unasked = self.unasked.get_mut(&runtime);
        let unasked = unasked.map(|mut unasked| std::mem::take(&mut *unasked));
        let mut together = pipe();
        together.ignore_errors();
        let mut waiting = Vec::new();
        for Unasked { commands, done } in unasked.into_iter().flatten() {
            waiting.push((commands.len(), done));
            for command in commands {
                together.add_command(command);
            }
        }
        let answers: Result<Vec<RedisResult<Value>>, Cause> =
            self.ask(&together, Repeat::Never).await;
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
        set.arg("PX").arg(milliseconds(ttl));
        let written: Option<String> = self.one(&set, Repeat::Never).await?;
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
            refresh.arg(key).arg(milliseconds(ttl));
            refresh
        };
        let there = self.together(keys.iter().map(refresh).collect()).await?;
        from_redis_value(Value::Array(there)).map_err(|error| Arc::new(error) as Cause)
    }

    pub(super) async fn delete(&self, keys: &[&str]) -> Result<(), Cause> {
        self.one(pipe().cmd("DEL").arg(keys), Repeat::Never).await
    }

    pub(super) async fn take(&self, key: &str) -> Result<Option<String>, Cause> {
        let mut take = pipe();
        // Not `GETDEL`, which needs Redis 6.2.
        take.atomic().cmd("GET").arg(key);
        take.cmd("DEL").arg(key).ignore();
        self.one(&take, Repeat::Never).await
    }

    pub(super) async fn log_append(
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
        let _ids: Vec<String> = self.ask(&append, Repeat::Never).await?;
        Ok(())
    }

    /// Opens a connection for following a log: its blocking reads delay no other operation.
    pub(super) async fn log_link(&self) -> Result<LogLink, Cause> {
        connect(&self.connections.server, |_| {}).await.map(LogLink)
    }

    pub(super) async fn increment(&self, key: &str, ttl: Duration) -> Result<i64, Cause> {
        let mut increment = pipe();
        // Not `PEXPIRE … NX`, which needs Redis 7.
        increment.atomic().cmd("SET").arg(key).arg(0).arg("NX");
        increment.arg("PX").arg(milliseconds(ttl)).ignore();
        increment.cmd("INCR").arg(key);
        self.one(&increment, Repeat::Never).await
    }

    pub(super) async fn publish(&self, channel: &str, message: &str) -> Result<(), Cause> {
        let mut publish = pipe();
        publish.cmd("PUBLISH").arg(channel).arg(message);
        self.one(&publish, Repeat::Never).await
    }

    pub(super) fn subscribe(&self, channel: &'static str) -> Subscription {
        let mut listen = pipe();
        listen.cmd("SUBSCRIBE").arg(channel);
        self.link((Some(listen), channel), String::new())
    }

    pub(super) fn lapses(&self, prefix: &str) -> Subscription {
        let database = self.connections.server.database();
        let mut listen = pipe();
        let channel = format!("__keyevent@{database}__:expired");
        listen.cmd("SUBSCRIBE").arg(channel);
        self.link((Some(listen), "keys that expire"), prefix.to_owned())
    }

    pub(super) fn watch(&self, prefixes: Vec<String>) -> Subscription {
        let prefixes = disjoint(prefixes);
        // Without a prefix the server would report every key.
        let listen = (!prefixes.is_empty()).then(|| {
            let mut track = pipe();
            track.cmd("CLIENT").arg("TRACKING").arg("ON").arg("BCAST");
            for prefix in &prefixes {
                track.arg("PREFIX").arg(prefix);
            }
            track
        });
        self.link((listen, "keys that others write"), String::new())
    }

    /// Links a subscription. `listen` has the command, if there is one, and a label for the log. Messages that do
    /// not begin with `prefix` are skipped.
    fn link(&self, listen: Listen, prefix: String) -> Subscription {
        let feed = Arc::new(Feed::default());
        let plan: Plan = Box::pin(keep_up(
            Arc::clone(&self.connections),
            listen,
            prefix,
            feed.clone(),
        ));
        Subscription::linked(feed, plan)
    }

    /// Queries one value.
    async fn one<T: FromRedisValue>(&self, query: &Pipeline, repeat: Repeat) -> Result<T, Cause> {
        let (value,): (T,) = self.ask(query, repeat).await?;
        Ok(value)
    }

    async fn ask<T: FromRedisValue>(&self, query: &Pipeline, repeat: Repeat) -> Result<T, Cause> {
        let deadline = Instant::now() + self.timeout;
        let mut repeats = usize::from(repeat == Repeat::Once);
        loop {
            let mut connected = timeout_at(deadline, self.connections.get())
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
                Err(error) => return Err(Arc::new(error)),
            }
        }
    }

    fn too_slow(&self) -> Cause {
        Arc::new(TooSlow(self.timeout))
    }
}

/// A connection on which a log is followed.
pub(super) struct LogLink(MultiplexedConnection);

/// An entry as the server sends it: the id, then names and values.
type RawEntry = (String, Vec<String>);

impl LogLink {
    /// Returns the newest entries, oldest first.
    pub(super) async fn newest(&mut self, log: &str, count: usize) -> Result<Vec<Entry>, Cause> {
        let mut newest = pipe();
        newest.cmd("XREVRANGE").arg(log).arg("+").arg("-");
        newest.arg("COUNT").arg(count);
        let (raw,): (Vec<RawEntry>,) = self.ask(&newest).await?;
        Ok(raw.into_iter().rev().filter_map(entry).collect())
    }

    /// Returns the entries after an id, and the ends of the log. Waits for entries for a while. An answer without
    /// entries also shows that the link is alive.
    pub(super) async fn look(&mut self, log: &str, after: EntryId) -> Result<Look, Cause> {
        let mut look = pipe();
        look.cmd("XRANGE").arg(log).arg("-").arg("+");
        look.arg("COUNT").arg(1);
        look.cmd("XREVRANGE").arg(log).arg("+").arg("-");
        look.arg("COUNT").arg(1);
        look.cmd("XREAD").arg("COUNT").arg(BATCH_MAX).arg("BLOCK");
        look.arg(milliseconds(PROBE_EVERY));
        look.arg("STREAMS").arg(log).arg(after.to_string());
        type Read = Option<HashMap<String, Vec<RawEntry>>>;
        let (oldest, newest, read): (Vec<RawEntry>, Vec<RawEntry>, Read) = self.ask(&look).await?;
        let end = |raw: Vec<RawEntry>| raw.into_iter().find_map(|(id, _)| id.parse().ok());
        let entries = read.into_iter().flatten().flat_map(|(_, raw)| raw);
        Ok(Look {
            ends: end(oldest).zip(end(newest)),
            entries: entries.filter_map(entry).collect(),
        })
    }

    async fn ask<T: FromRedisValue>(&mut self, query: &Pipeline) -> Result<T, Cause> {
        let limit = PROBE_EVERY + PROBE_MAX;
        match timeout(limit, query.query_async(&mut self.0)).await {
            Ok(answer) => answer.map_err(|error| Arc::new(error) as Cause),
            Err(_) => Err(Arc::new(TooSlow(limit))),
        }
    }
}

fn entry((id, pairs): RawEntry) -> Option<Entry> {
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

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Removes prefixes that another one covers: the server rejects overlapping prefixes.
fn disjoint(mut prefixes: Vec<String>) -> Vec<String> {
    prefixes.sort_unstable();
    prefixes.dedup_by(|longer, shorter| longer.starts_with(shorter.as_str()));
    prefixes
}
