//! Redis servers by their addresses, and questions to several of them at once.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::AsyncConnectionConfig;
use tokio::time::{Instant, timeout_at};

use crate::store::Cause;

/// Host and port.
pub(super) type Address = (String, u16);

/// Limit for the answers of all sentinels, or nodes of a cluster. Below the limit for a connection, which comes after
/// it.
const ASK_MAX: Duration = Duration::from_millis(400);

/// Returns the settings of a connection without clocks of its own: its users have theirs.
pub(super) fn config_without_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

/// Asks several servers at once, until their answers are enough or the time is over. Returns the last error.
pub(super) async fn ask_each<T>(
    asked: impl Iterator<Item = impl Future<Output = Result<T, Cause>>>,
    mut is_enough: impl FnMut(T) -> bool,
) -> String {
    let deadline = Instant::now() + ASK_MAX;
    let mut answers: FuturesUnordered<_> = asked.map(|one| timeout_at(deadline, one)).collect();
    let mut last = "no answer in time".to_owned();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Ok(answer)) => {
                if is_enough(answer) {
                    break;
                }
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => {}
        }
    }
    last
}
