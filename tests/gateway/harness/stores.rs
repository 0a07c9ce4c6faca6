//! Stores of several gateways: one Redis, and one database.

use super::builder::Builder;
use super::gateway::{Gateway, Pair};
use super::servers::{Redis, postgres};

/// A Redis of its own, and a new and empty database.
pub(crate) struct Stores {
    pub(crate) redis: Redis,
    pub(crate) sql: String,
}

impl Stores {
    pub(crate) fn start() -> Self {
        Self {
            redis: Redis::start(),
            sql: postgres().database(),
        }
    }

    /// A gateway on them, under construction.
    pub(crate) fn builder(&self) -> Builder {
        Builder::new(Pair::Embedded).stores(&self.sql, &self.redis.url())
    }

    /// Replicas on them that are linked, with settings as for [`Builder::sets`].
    pub(crate) async fn replicas<const N: usize>(&self, settings: &str) -> [Gateway; N] {
        let mut all = Vec::new();
        for _ in 0..N {
            all.push(self.builder().sets(settings).start().await);
        }
        for replica in &all {
            replica.until_coherent().await;
        }
        let all = all.try_into();
        all.unwrap_or_else(|_| unreachable!("there are {N}"))
    }
}
