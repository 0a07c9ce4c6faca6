//! The link of one subscription: its own connection, kept up and probed.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushKind, Value, from_redis_value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::shared::connections::{CONNECT_MAX, Connections, connect};
use crate::shared::server::Server;
use crate::shared::subscription::Feed;
use crate::store::{Cause, TooSlow};

/// Interval between probes of a subscription's link. With [`PROBE_MAX`] it is below 1 s, with a reserve for a busy
/// machine.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Limit for the answer to a probe.
pub(super) const PROBE_MAX: Duration = Duration::from_millis(500);

/// First and longest pause between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The command that begins a subscription, if there is one, and a label for the log.
pub(super) type Listen = (Option<Pipeline>, &'static str);

/// Keeps one subscription's link up. Ends when the subscription is dropped.
pub(super) async fn keep_up(
    connections: Arc<Connections>,
    (listen, to): Listen,
    prefix: String,
    feed: Arc<Feed>,
) {
    let mut pause = PAUSE.0;
    let mut told = false;
    loop {
        let gone = Arc::new(Notify::new());
        match listening(&connections.server, listen.as_ref(), &prefix, &feed, &gone).await {
            Ok(connection) => {
                if told {
                    tracing::info!(to, "Subscribed to shared state again");
                } else {
                    tracing::debug!(to, "Subscribed to shared state");
                }
                feed.up();
                let since = Instant::now();
                let cause = watch_over(connection, &connections, &gone).await;
                feed.down();
                tracing::warn!(to, error = %cause, "Lost a subscription to shared state; reconnecting");
                told = true;
                if PAUSE.1 < since.elapsed() {
                    pause = PAUSE.0;
                }
            }
            Err(error) => {
                if !told {
                    tracing::warn!(to, %error, "Cannot subscribe to shared state; retrying");
                }
                told = true;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Opens a connection and waits until the server confirms the subscription.
async fn listening(
    server: &Server,
    listen: Option<&Pipeline>,
    prefix: &str,
    feed: &Arc<Feed>,
    gone: &Arc<Notify>,
) -> Result<MultiplexedConnection, Cause> {
    let (prefix, feed, gone) = (prefix.to_owned(), feed.clone(), gone.clone());
    let mut connection = connect(server, move |push| match push.kind {
        PushKind::Disconnection => gone.notify_one(),
        PushKind::Message => {
            // Channel, then message.
            let message = push.data.into_iter().nth(1).map(text);
            if let Some(message) = message.filter(|text| text.starts_with(&prefix)) {
                feed.message(message);
            }
        }
        PushKind::Invalidate => match push.data.into_iter().next() {
            Some(Value::Array(keys)) => keys.into_iter().for_each(|key| feed.message(text(key))),
            // The whole database was flushed.
            _ => feed.gap(),
        },
        _ => {}
    })
    .await?;
    if let Some(listen) = listen {
        let confirmed = listen.query_async::<Value>(&mut connection);
        timeout(CONNECT_MAX, confirmed)
            .await
            .map_err(|_| Arc::new(TooSlow(CONNECT_MAX)) as Cause)?
            .map_err(|error| Arc::new(error) as Cause)?;
    }
    Ok(connection)
}

/// Waits until the link is lost: the driver reports it, a probe gets no answer, or the server is no master any more.
async fn watch_over(
    mut connection: MultiplexedConnection,
    connections: &Connections,
    gone: &Notify,
) -> Cause {
    let probe = connections.server.probe();
    loop {
        tokio::select! {
            () = gone.notified() => return Arc::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
            () = tokio::time::sleep(PROBE_EVERY) => {}
        }
        match timeout(PROBE_MAX, probe.query_async::<Value>(&mut connection)).await {
            Ok(Ok(answer)) => {
                if let Err(cause) = connections.server.judge(&answer) {
                    // Those that only read would go on with the values of a replica.
                    connections.retire_all();
                    return cause;
                }
            }
            Ok(Err(error)) => return Arc::new(error),
            Err(_) => return Arc::new(TooSlow(PROBE_MAX)),
        }
    }
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => from_redis_value(other).unwrap_or_default(),
    }
}
