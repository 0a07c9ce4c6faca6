//! The write probe of the server, and its clock.

use std::time::{Duration, SystemTime};

use redis::{RedisError, pipe};
use tokio::time::timeout;

use super::{Redis, RetryLimit, to_millis};
use crate::store::Cause;

/// The key of the probe, and its time to live if the probe does not delete it.
const PROBE_KEY: &str = "gw:probe";
const PROBE_TTL: Duration = Duration::from_secs(10);

impl Redis {
    /// Writes a key without meaning and deletes it, at each master of a cluster. `PING` is not enough, as a replica answers
    /// it; nor is `DEL` alone, which a full server accepts. Idempotent.
    pub(in crate::shared) async fn write_probe(&self) -> Result<(), Cause> {
        let connections = &self.connections;
        let keys = match &connections.cluster {
            None => vec![PROBE_KEY.to_owned()],
            Some(cluster) => {
                let shards = timeout(self.timeout, connections.shards(cluster)).await;
                let shards = shards.map_err(|_| self.too_slow())??;
                shards.key_of_each(PROBE_KEY)
            }
        };
        let mut probe = pipe();
        for key in &keys {
            probe.cmd("SET").arg(key).arg(1);
            probe.arg("PX").arg(to_millis(PROBE_TTL)).ignore();
            probe.cmd("DEL").arg(key).ignore();
        }
        self.query(&probe, RetryLimit::Once).await
    }

    /// Returns the time of the server.
    pub(in crate::shared) async fn read_clock(&self) -> Result<SystemTime, Cause> {
        let (seconds, micros): (u64, u64) =
            self.query_one(pipe().cmd("TIME"), RetryLimit::Once).await?;
        let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
        Ok(SystemTime::UNIX_EPOCH + since)
    }
}

/// Returns true if the server answers but takes no writes: it is a replica, is full, cannot save,
/// or lacks replicas.
pub(in crate::shared) fn refuses_writes(cause: &Cause) -> bool {
    let refuses = |code: &str| matches!(code, "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS");
    let error = cause.downcast_ref::<RedisError>().cloned();
    // Each of several commands has its own error code.
    let each = error.and_then(RedisError::into_server_errors);
    each.is_some_and(|each| each.iter().any(|(_, error)| refuses(error.code())))
}
