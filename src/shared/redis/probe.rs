//! Whether the server takes writes, and what time it has.

use std::time::{Duration, SystemTime};

use redis::{RedisError, pipe};

use super::{Redis, Repeat, milliseconds};
use crate::store::Cause;

/// The key of the probe, and how long it stays where it is not taken away.
const PROBE_KEY: &str = "gw:probe";
const PROBE_TTL: Duration = Duration::from_secs(10);

impl Redis {
    /// Writes a key that means nothing and takes it away again: a replica answers `PING`, too, and a full server `DEL`.
    /// Done twice it changes nothing.
    pub(in crate::shared) async fn write_probe(&self) -> Result<(), Cause> {
        let mut probe = pipe();
        probe.cmd("SET").arg(PROBE_KEY).arg(1);
        probe.arg("PX").arg(milliseconds(PROBE_TTL)).ignore();
        probe.cmd("DEL").arg(PROBE_KEY).ignore();
        self.ask(&probe, Repeat::Once).await
    }

    pub(in crate::shared) async fn clock(&self) -> Result<SystemTime, Cause> {
        let (seconds, micros): (u64, u64) = self.one(pipe().cmd("TIME"), Repeat::Once).await?;
        let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
        Ok(SystemTime::UNIX_EPOCH + since)
    }
}

/// Whether the server answers and takes no writes: it is a replica, is full, cannot save, or lacks replicas.
pub(in crate::shared) fn refuses_writes(cause: &Cause) -> bool {
    let refuses = |code: &str| matches!(code, "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS");
    let error = cause.downcast_ref::<RedisError>().cloned();
    // Of several commands each has its own word.
    let each = error.and_then(RedisError::into_server_errors);
    each.is_some_and(|each| each.iter().any(|(_, error)| refuses(error.code())))
}
