//! The link of one subscription: its own connection, or one to each master of a cluster, kept up and probed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, select_all};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, PushKind, Value, from_redis_value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::shared::cluster::{Cluster, Shards, epoch_of};
use crate::shared::connections::{Attempts, CONNECT_MAX, Connections, PAUSE};
use crate::shared::node::Address;
use crate::shared::subscription::{Feed, Notice};
use crate::store::{Cause, as_cause, wait_within};

/// Interval between probes of a subscription's link. With [`PROBE_MAX`] it is below 1 s, with a reserve for a busy
/// machine.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Limit for the answer to a probe.
pub(super) const PROBE_MAX: Duration = Duration::from_millis(500);

/// The command that begins a subscription, if there is one, and a label for the log.
pub(super) type SubscribeCommand = (Option<Pipeline>, &'static str);

/// The servers that a subscription connects to in a cluster.
#[derive(Clone, Copy)]
pub(super) enum LinkTarget {
    /// The master that owns a channel.
    Owner(&'static str),
    /// Each master: it reports only its own keys.
    Masters,
}

/// The subscription cannot stay as it is.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("the masters of the cluster are others")]
    OtherMasters,
    #[error("the sentinels name another master")]
    OtherMaster,
}

/// One connection of a link.
struct LinkConnection {
    connection: MultiplexedConnection,
    /// The address of the server, if sentinels or nodes named it.
    at: Option<Address>,
    gone: Arc<Notify>,
}

/// Keeps one subscription's link up. Ends when the subscription is dropped.
pub(super) async fn keep_up(
    connections: Arc<Connections>,
    (listen, to): SubscribeCommand,
    at: LinkTarget,
    prefix: String,
    feed: Arc<Feed>,
) {
    let mut attempts = Attempts::default();
    loop {
        match open_connections(&connections, listen.as_ref(), at, &prefix, &feed).await {
            Ok((lines, shards)) => {
                if attempts.warned {
                    tracing::info!(to, "Subscribed to shared state again");
                } else {
                    tracing::debug!(to, "Subscribed to shared state");
                }
                feed.push_up();
                let since = Instant::now();
                let cause = watch_over(lines, &connections, shards.as_deref()).await;
                feed.push_down();
                tracing::warn!(to, error = %cause, "Lost a subscription to shared state; reconnecting");
                if PAUSE.1 < since.elapsed() {
                    attempts = Attempts::default();
                }
            }
            Err(error) if !attempts.warned => {
                tracing::warn!(to, %error, "Cannot subscribe to shared state; retrying");
            }
            Err(_) => {}
        }
        attempts.warned = true;
        if let Some(cluster) = &connections.cluster {
            cluster.mark_stale();
        }
        tokio::time::sleep(attempts.next_pause()).await;
    }
}

/// Opens all connections of a link. Returns once each server has confirmed the subscription, with the owners of slots
/// that they were chosen by.
async fn open_connections(
    connections: &Connections,
    listen: Option<&Pipeline>,
    at: LinkTarget,
    prefix: &str,
    feed: &Arc<Feed>,
) -> Result<(Vec<LinkConnection>, Option<Arc<Shards>>), Cause> {
    let Some(cluster) = &connections.cluster else {
        let line = open_connection(connections, None, listen, prefix, feed).await?;
        return Ok((vec![line], None));
    };
    let shards = connections.shards(cluster).await?;
    let nodes: Vec<&Address> = match at {
        LinkTarget::Owner(channel) => vec![shards.owner_of(channel.as_bytes())?],
        LinkTarget::Masters => shards.masters.iter().collect(),
    };
    let lines = nodes
        .into_iter()
        .map(|node| open_connection(connections, Some(node), listen, prefix, feed));
    let lines: Result<Vec<_>, _> = join_all(lines).await.into_iter().collect();
    let watched = matches!(at, LinkTarget::Masters).then_some(shards);
    Ok((lines?, watched))
}

/// Opens a connection and waits until the server confirms the subscription.
async fn open_connection(
    connections: &Connections,
    node: Option<&Address>,
    listen: Option<&Pipeline>,
    prefix: &str,
    feed: &Arc<Feed>,
) -> Result<LinkConnection, Cause> {
    let gone = Arc::new(Notify::new());
    let (prefix, feed, notified) = (prefix.to_owned(), feed.clone(), gone.clone());
    let pushed = move |push| take_push(push, &prefix, &feed, &notified);
    let (mut connection, at) = connections.connect(node, pushed).await?;
    if let Some(listen) = listen {
        let confirmed = listen.query_async::<Value>(&mut connection);
        wait_within(CONNECT_MAX, confirmed.map_err(as_cause)).await?;
    }
    Ok(LinkConnection {
        connection,
        at,
        gone,
    })
}

fn take_push(push: PushInfo, prefix: &str, feed: &Feed, gone: &Notify) {
    match push.kind {
        // The second: another node owns the channel from now on.
        PushKind::Disconnection | PushKind::SUnsubscribe => gone.notify_one(),
        PushKind::Message | PushKind::SMessage => {
            // Channel, then message.
            let message = push.data.into_iter().nth(1).map(to_text);
            if let Some(message) = message.filter(|text| text.starts_with(prefix)) {
                feed.push_notice(Notice::Message(message));
            }
        }
        PushKind::Invalidate => match push.data.into_iter().next() {
            Some(Value::Array(keys)) => keys
                .into_iter()
                .for_each(|key| feed.push_notice(Notice::Message(to_text(key)))),
            // The whole database was flushed.
            _ => feed.push_gap(),
        },
        _ => {}
    }
}

/// Waits until a link is lost: a connection of it is, or the masters of the cluster are not those of `shards` any more.
async fn watch_over(
    lines: Vec<LinkConnection>,
    connections: &Connections,
    shards: Option<&Shards>,
) -> Cause {
    let watched = lines
        .into_iter()
        .map(|line| Box::pin(watch_line(line, connections, shards)));
    select_all(watched).await.0
}

/// Waits until a connection is lost: the driver reports it, a probe gets no answer, or the server is no master any
/// more.
async fn watch_line(
    mut line: LinkConnection,
    connections: &Connections,
    shards: Option<&Shards>,
) -> Cause {
    let server = &connections.server;
    let mut probe = Pipeline::new();
    probe.add_command(server.probe_command());
    let of_cluster = connections.cluster.as_ref();
    if of_cluster.is_some() {
        probe.cmd("CLUSTER").arg("INFO");
    }
    loop {
        tokio::select! {
            () = line.gone.notified() => return Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
            () = tokio::time::sleep(PROBE_EVERY) => {}
        }
        let answers = probe.query_async::<Vec<Value>>(&mut line.connection);
        let mut answers = match wait_within(PROBE_MAX, answers.map_err(as_cause)).await {
            Ok(answers) => answers.into_iter(),
            Err(cause) => return cause,
        };
        if let Err(cause) = server.check_role(&answers.next().unwrap_or_default()) {
            // Those that only read would go on with the values of a replica.
            connections.retire_all();
            return cause;
        }
        if let Some(master) = server.agreed_master().await {
            connections.follow_master(&master);
            // The one before may take writes for some time, and its subscribers hear only each other.
            if line.at.as_ref() != Some(&master) {
                return Arc::new(LinkError::OtherMaster);
            }
        }
        if let Some(cluster) = of_cluster
            && let Err(cause) = check_node(answers.next(), cluster, connections, shards).await
        {
            return cause;
        }
    }
}

/// Checks the answer to `CLUSTER INFO`: the node sees most of the masters, and those are the masters that are linked.
async fn check_node(
    info: Option<Value>,
    cluster: &Cluster,
    connections: &Connections,
    shards: Option<&Shards>,
) -> Result<(), Cause> {
    let epoch = epoch_of(&info.map(to_text).unwrap_or_default())?;
    let Some(shards) = shards else {
        return Ok(());
    };
    cluster.mark_stale_before(epoch);
    if connections.shards(cluster).await?.masters == shards.masters {
        Ok(())
    } else {
        Err(Arc::new(LinkError::OtherMasters))
    }
}

fn to_text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => from_redis_value(other).unwrap_or_default(),
    }
}
