//! Logs in which the writer numbers the entries: Redis streams with those numbers as ids.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::{RedisError, RedisResult, Value, pipe};

use super::{Redis, RetryLimit, to_millis};
use crate::store::Cause;

impl Redis {
    pub(in crate::shared) async fn append_numbered(
        &self,
        log: &str,
        entries: &[(u64, Bytes)],
        keep: usize,
        ttl: Duration,
    ) -> Result<(), Cause> {
        let mut append = pipe();
        append.ignore_errors();
        for (number, entry) in entries {
            append.cmd("XADD").arg(log).arg("MAXLEN").arg(keep);
            append.arg(format!("{number}-0")).arg("e").arg(&**entry);
        }
        append.cmd("PEXPIRE").arg(log).arg(to_millis(ttl));
        let answers: Vec<RedisResult<Value>> = self.query(&append, RetryLimit::Never).await?;
        let mut errors = answers.into_iter().filter_map(RedisResult::err);
        match errors.find(|error| !is_there(error)) {
            Some(error) => Err(Arc::new(error)),
            None => Ok(()),
        }
    }

    pub(in crate::shared) async fn read_numbered(
        &self,
        log: &str,
        after: u64,
        max: usize,
    ) -> Result<Vec<(u64, Bytes)>, Cause> {
        let mut read = pipe();
        read.cmd("XRANGE").arg(log);
        read.arg(format!("{}-0", after.saturating_add(1))).arg("+");
        read.arg("COUNT").arg(max);
        type Raw = Vec<(String, Vec<Vec<u8>>)>;
        let entries: Raw = self.query_one(&read, RetryLimit::Once).await?;
        let entry = |(id, pairs): (String, Vec<Vec<u8>>)| {
            let number = id.split('-').next()?.parse().ok()?;
            Some((number, pairs.into_iter().nth(1)?.into()))
        };
        Ok(entries.into_iter().filter_map(entry).collect())
    }
}

/// Returns true if the server has an entry with that number, or a later one.
fn is_there(error: &RedisError) -> bool {
    error.to_string().contains("equal or smaller")
}
