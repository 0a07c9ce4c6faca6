//! Operations of two commands on one key that no other client may come between. A script, not a transaction: that cannot
//! follow a key that moves within a cluster.

use std::time::Duration;

use redis::{Pipeline, pipe};

use super::{Redis, RetryLimit, to_millis};
use crate::store::Cause;

const GET_WITH_TTL: &str = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}";

/// Not `GETDEL`, which needs Redis 6.2.
const TAKE: &str =
    "local value = redis.call('GET', KEYS[1]) redis.call('DEL', KEYS[1]) return value";

/// Not `PEXPIRE … NX`, which needs Redis 7.
const INCREMENT: &str =
    "redis.call('SET', KEYS[1], 0, 'NX', 'PX', ARGV[1]) return redis.call('INCR', KEYS[1])";

impl Redis {
    /// Returns the value of a key and its remaining time to live, if it has one.
    pub(in crate::shared) async fn get_with_ttl(
        &self,
        key: &str,
    ) -> Result<Option<(String, Option<Duration>)>, Cause> {
        let script = eval_command(GET_WITH_TTL, key);
        let (value, ttl): (Option<String>, i64) = self.query_one(&script, RetryLimit::Once).await?;
        // Negative: the key has no time to live.
        let ttl = u64::try_from(ttl).ok().map(Duration::from_millis);
        Ok(value.map(|value| (value, ttl)))
    }

    /// Reads and deletes a key.
    pub(in crate::shared) async fn take(&self, key: &str) -> Result<Option<String>, Cause> {
        self.query_one(&eval_command(TAKE, key), RetryLimit::Never)
            .await
    }

    /// Increments a counter.
    pub(in crate::shared) async fn increment(
        &self,
        key: &str,
        ttl: Duration,
    ) -> Result<i64, Cause> {
        let mut increment = eval_command(INCREMENT, key);
        increment.arg(to_millis(ttl));
        self.query_one(&increment, RetryLimit::Never).await
    }
}

fn eval_command(text: &str, key: &str) -> Pipeline {
    let mut script = pipe();
    script.cmd("EVAL").arg(text).arg(1).arg(key);
    script
}
