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
        add.cmd("ZCARD").arg(set);
        let (_, _, count): (Value, Value, i64) = self.query(&add, RetryLimit::Never).await?;
        if count <= max {
            return Ok(Vec::new());
        }
        let mut take = pipe();
        take.cmd("ZPOPMIN").arg(set).arg(count - max);
        let taken: Vec<(String, f64)> = self.query_one(&take, RetryLimit::Never).await?;
        Ok(taken.into_iter().map(|(member, _)| member).collect())
    }
}
