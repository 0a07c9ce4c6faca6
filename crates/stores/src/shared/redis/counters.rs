//! Counters with a limit: a script for each change, so that it is atomic.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd, from_redis_value, from_redis_value_ref, pipe};

use super::{Redis, RetryLimit, to_millis};
use crate::shared::counters::{CounterChange, CounterState, LISTED_MAX, PART, new_life};
use crate::store::{Cause, as_cause};
use kernel::time::Timestamp;

/// Changes one counter. Keys: counter, index. Arguments: its life as the caller knows it, a name for a new life, units
/// to add, units wanted, limit, time to live (ms), 1 if that begins again, present time (ms), its name in the index,
/// entries of the index, the divisor of a share. The value is total and life. Returns life, total, units taken, time to
/// live.
const COUNT: &str = r"
local raw = redis.call('GET', KEYS[1])
local total, life, fresh = 0, ARGV[2], true
if raw then
  local t, l = string.match(raw, '^(%d+) (.+)$')
  if t then total, life, fresh = tonumber(t), l, false end
end
local add, want, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local before = total
if ARGV[1] == '' or ARGV[1] == life then total = math.max(0, total + add) end
local room, taken = limit - total, 0
if want > 0 and room > 0 then
  taken = math.min(want, math.max(1, math.floor(room / tonumber(ARGV[11]))))
  total = total + taken
end
if fresh and total == 0 then return {'', '0', '0', ARGV[6]} end
local value = string.format('%.0f', total) .. ' ' .. life
if fresh or ARGV[7] == '1' then
  redis.call('SET', KEYS[1], value, 'PX', ARGV[6])
elseif total ~= before then
  redis.call('SET', KEYS[1], value, 'KEEPTTL')
end
redis.call('ZADD', KEYS[2], ARGV[8], ARGV[9])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -1 - tonumber(ARGV[10]))
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return {life, string.format('%.0f', total), string.format('%.0f', taken), tostring(redis.call('PTTL', KEYS[1]))}
";

impl Redis {
    /// Changes counters, and takes shares of what is left.
    pub(in crate::shared) async fn count_units(
        self: &Arc<Self>,
        counts: &[CounterChange],
    ) -> Result<Vec<CounterState>, Cause> {
        let now = Timestamp::now().0;
        let change = |count: &CounterChange| {
            let mut eval = cmd("EVAL");
            eval.arg((COUNT, 2, &count.key, &count.index));
            eval.arg((&count.life, new_life(), count.add, count.want, count.limit));
            eval.arg((
                to_millis(count.ttl),
                u8::from(count.renews),
                now,
                &count.member,
            ));
            eval.arg((LISTED_MAX, PART));
            eval
        };
        let answers = self.send_batched(counts.iter().map(change).collect());
        let read = |answer: Value| {
            let (life, total, taken, left): (String, String, String, String) =
                from_redis_value(answer).map_err(as_cause)?;
            Ok(CounterState {
                life,
                total: total.parse().unwrap_or(0),
                taken: taken.parse().unwrap_or(0),
                left: Duration::from_millis(left.parse().unwrap_or(0)),
            })
        };
        answers.await?.into_iter().map(read).collect()
    }

    /// Returns the total of a counter.
    pub(in crate::shared) async fn read_total(&self, key: &str) -> Result<u64, Cause> {
        let value = self.get(key).await?;
        let total = value.as_deref().and_then(|value| value.split_once(' '));
        Ok(total.and_then(|(total, _)| total.parse().ok()).unwrap_or(0))
    }

    /// Returns the counters of an index that were used last.
    pub(in crate::shared) async fn list_counters(
        &self,
        index: &str,
        key: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, CounterState)>, Cause> {
        let mut names = pipe();
        names.cmd("ZREVRANGE").arg((index, 0, LISTED_MAX - 1));
        let names: Vec<String> = self.read_one(&names).await?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut reads = pipe();
        for name in &names {
            let key = key(name);
            reads.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        }
        let values: Vec<Value> = self.query(&reads, RetryLimit::Once).await?;
        let counters = names.into_iter().zip(values.chunks_exact(2));
        let counters = counters.filter_map(|(name, pair)| {
            let value: Option<String> = from_redis_value_ref(&pair[0]).unwrap_or_default();
            let left: i64 = from_redis_value_ref(&pair[1]).unwrap_or_default();
            // A counter that has lapsed stays in the index until newer ones displace it.
            let (total, life) = value.as_deref()?.split_once(' ')?;
            let counter = CounterState {
                life: life.to_owned(),
                total: total.parse().unwrap_or(0),
                taken: 0,
                left: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
            };
            Some((name, counter))
        });
        Ok(counters.collect())
    }
}
