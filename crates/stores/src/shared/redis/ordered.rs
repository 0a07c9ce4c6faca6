//! Sets that keep the newest of their members.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Value, pipe};

use super::{Redis, RetryLimit, to_millis};
use crate::store::Cause;

impl Redis {
    /// Adds a member, and removes and returns the oldest beyond `max`.
    pub(in crate::shared) async fn add_newest(
        &self,
        set: &str,
        member: &str,
        max: i64,
        ttl: Duration,
    ) -> Result<Vec<String>, Cause> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_millis());
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let mut add = pipe();
        add.cmd("ZADD").arg(set).arg(now).arg(member);
        add.cmd("PEXPIRE").arg(set).arg(to_millis(ttl));
        // By rank, not by number: of two that add at once neither removes one of the newest.
        add.cmd("ZRANGE").arg(set).arg(0).arg(-(max + 1));
        let (_, _, oldest): (Value, Value, Vec<String>) =
            self.query(&add, RetryLimit::Never).await?;
        if !oldest.is_empty() {
            let mut remove = pipe();
            remove.cmd("ZREM").arg(set).arg(&oldest);
            let _: Value = self.query_one(&remove, RetryLimit::Never).await?;
        }
        Ok(oldest)
    }
}
