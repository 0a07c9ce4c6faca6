//! Commands for a cluster: each is sent to the master that owns its key, and follows the key when that moves.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use redis::{
    Arg, Cmd, Pipeline, RedisError, RedisFuture, RedisResult, ServerError, ServerErrorKind, Value,
    pipe,
};
use tokio::time::{Instant, sleep, timeout_at};

use super::RetryLimit;
use crate::shared::cluster::Cluster;
use crate::shared::connections::Connections;
use crate::shared::node::Address;
use crate::store::Cause;

/// First and longest pause before a command is sent again, while a key moves or a master is replaced.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Redirects that a command follows without a pause.
const REDIRECTS_AT_ONCE: u32 = 2;

/// The connections of one operation.
pub(super) struct ClusterClient<'a> {
    pub(super) connections: &'a Connections,
    pub(super) cluster: &'a Cluster,
    pub(super) deadline: Instant,
    pub(super) repeat: RetryLimit,
}

/// A command without an answer yet.
struct PendingCommand<'a> {
    /// Its place among the commands of the operation.
    at: usize,
    command: &'a Cmd,
    /// The node that its last answer named.
    redirect: Option<Redirect>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Redirect {
    node: Address,
    /// True while the slot moves: this one command is meant for its new owner.
    asking: bool,
}

impl ClusterClient<'_> {
    /// Sends the commands at once to their masters. One that was not carried out because its key is elsewhere is sent
    /// again; one without an answer only where [`RetryLimit`] allows it.
    async fn send(&self, commands: Vec<&Cmd>) -> RedisResult<Vec<Value>> {
        let mut answers: Vec<Option<Value>> = commands.iter().map(|_| None).collect();
        let open = |(at, command)| PendingCommand {
            at,
            command,
            redirect: None,
        };
        let mut open: Vec<PendingCommand<'_>> =
            commands.into_iter().enumerate().map(open).collect();
        let mut may_repeat = self.repeat == RetryLimit::Once;
        let mut pause = PAUSE.0;
        let mut rounds = 0;
        loop {
            rounds += 1;
            // Two nodes may each name the other, until both know of the move.
            let mut must_wait = rounds > REDIRECTS_AT_ONCE;
            let mut is_lost = false;
            let sent = self.send_pending(open).await?;
            open = Vec::new();
            for (command, answered) in sent {
                let redirect = match answered {
                    Err(error) if !may_repeat => return Err(error),
                    Err(_) => {
                        is_lost = true;
                        None
                    }
                    Ok(value) => match self.find_redirect(value) {
                        Ok(value) => {
                            answers[command.at] = Some(value);
                            continue;
                        }
                        Err(redirect) => redirect,
                    },
                };
                must_wait |= redirect.is_none();
                open.push(PendingCommand {
                    redirect,
                    ..command
                });
            }
            if open.is_empty() {
                return Ok(answers.into_iter().map(Option::unwrap_or_default).collect());
            }
            may_repeat &= !is_lost;
            if must_wait {
                if self.deadline <= Instant::now() + pause {
                    return Err(timeout_error());
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            open.sort_unstable_by_key(|command| command.at);
        }
    }

    /// Sends commands by node, each node's in one batch. Returns each with its answer, or with the error of its batch.
    async fn send_pending<'c>(
        &self,
        open: Vec<PendingCommand<'c>>,
    ) -> RedisResult<Vec<(PendingCommand<'c>, RedisResult<Value>)>> {
        let shards = self.in_time(self.connections.shards(self.cluster)).await?;
        let mut batches: HashMap<Redirect, Vec<PendingCommand<'c>>> = HashMap::new();
        for mut command in open {
            let to = match (command.redirect.take(), key_of(command.command)) {
                (Some(redirect), _) => redirect,
                (None, key) => {
                    let first = || Ok(shards.masters.first().cloned().unwrap_or_default());
                    let owner = key.map(|key| shards.owner_of(key).cloned());
                    let node = owner.unwrap_or_else(first).map_err(unreachable_error)?;
                    let asking = false;
                    Redirect { node, asking }
                }
            };
            batches.entry(to).or_default().push(command);
        }
        let sent = batches.into_iter().map(|(to, commands)| async move {
            let answers: Vec<RedisResult<Value>> = match self.send_batch(&to, &commands).await {
                Ok(values) => values.into_iter().map(Ok).collect(),
                Err(error) => commands.iter().map(|_| Err(error.clone())).collect(),
            };
            commands.into_iter().zip(answers)
        });
        Ok(join_all(sent).await.into_iter().flatten().collect())
    }

    async fn send_batch(
        &self,
        to: &Redirect,
        commands: &[PendingCommand<'_>],
    ) -> RedisResult<Vec<Value>> {
        let connected = self.in_time(self.connections.get(Some(&to.node))).await;
        let mut connected = connected.inspect_err(|_| self.cluster.mark_stale())?;
        let mut batch = pipe();
        for command in commands {
            if to.asking {
                batch.cmd("ASKING");
            }
            batch.add_command(command.command.clone());
        }
        let sent = batch.len();
        let answers = connected.connection.req_packed_commands(&batch, 0, sent);
        let answers = timeout_at(self.deadline, answers).await;
        let answers = answers.unwrap_or_else(|_| Err(timeout_error()));
        let values = answers.inspect_err(|_| {
            connected.give_up();
            self.cluster.mark_stale();
        })?;
        let own = |(at, value)| (!to.asking || at % 2 == 1).then_some(value);
        Ok(values.into_iter().enumerate().filter_map(own).collect())
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Cause>>) -> RedisResult<T> {
        let done = timeout_at(self.deadline, work).await;
        done.map_err(|_| timeout_error())?
            .map_err(unreachable_error)
    }

    /// Returns the answer.
    ///
    /// # Errors
    /// It says that the command was not carried out here: where it belongs, if that is known.
    fn find_redirect(&self, answer: Value) -> Result<Value, Option<Redirect>> {
        let Value::ServerError(error) = &answer else {
            return Ok(answer);
        };
        let at = |asking| node_of(error).map(|node| Redirect { node, asking });
        let kind = error.kind();
        let elsewhere = match kind {
            Some(ServerErrorKind::Ask) => at(true),
            Some(ServerErrorKind::Moved) => at(false),
            Some(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading,
            ) => None,
            _ => return Ok(answer),
        };
        if !matches!(kind, Some(ServerErrorKind::Ask | ServerErrorKind::TryAgain)) {
            self.cluster.mark_stale();
        }
        Err(elsewhere)
    }
}

/// The node of an answer `MOVED SLOT HOST:PORT` or `ASK SLOT HOST:PORT`. `None` if it has no host.
fn node_of(error: &ServerError) -> Option<Address> {
    let (_, node) = error.details()?.split_once(' ')?;
    let (host, port) = node.rsplit_once(':')?;
    let port = port.parse().ok()?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// The key by which a command is sent: the first one.
fn key_of(command: &Cmd) -> Option<&[u8]> {
    let mut words = command.args_iter().map(|word| match word {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    });
    let name = words.next()??;
    // A script is followed by its text and the number of its keys.
    let skipped = if name == b"EVAL" { 2 } else { 0 };
    words.nth(skipped)?
}

fn timeout_error() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

fn unreachable_error(cause: Cause) -> RedisError {
    io::Error::other(cause).into()
}

impl ConnectionLike for ClusterClient<'_> {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let answers = self.send(vec![command]).await?;
            Ok(answers.into_iter().next().unwrap_or_default())
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        debug_assert!(
            offset == 0 && count == pipeline.len(),
            "a transaction cannot follow a key that moves"
        );
        Box::pin(self.send(pipeline.cmd_iter().collect()))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn a_command_goes_by_its_first_key() {
        let mut get = cmd("GET");
        get.arg("a").arg("b");
        assert_eq!(key_of(&get), Some(&b"a"[..]));
        let mut eval = cmd("EVAL");
        eval.arg("return 1").arg(2).arg("one").arg("two");
        assert_eq!(key_of(&eval), Some(&b"one"[..]));
        assert_eq!(key_of(&cmd("TIME")), None);
    }
}
