//! The two stores: the same cases on both implementations. Outages of the real servers: `outer/faults/stores`.

mod db;
mod logs;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::config::Stores;
use a2a_gateway::db::Db;
use a2a_gateway::metrics::Metrics;
use a2a_gateway::shared::{Notice, Shared, Subscription};

/// `stores.timeout` of cases in which a store is away.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// The same where none is: nothing there may run out of time.
pub(crate) const AMPLE: Duration = Duration::from_secs(30);

/// The clocks that callers may take together who wait at the same time. One after the other they take many more.
pub(crate) const AT_ONCE: u32 = 15;

fn settings(sql: &str, shared: &str) -> Stores {
    Stores {
        sql: sql.into(),
        shared: shared.into(),
        timeout: AMPLE,
        sql_connections: 4,
    }
}

pub(crate) fn open_db(url: &str) -> Db {
    open_db_with(url, AMPLE)
}

pub(crate) fn open_db_with(url: &str, timeout: Duration) -> Db {
    let settings = Stores {
        timeout,
        ..settings(url, "memory")
    };
    Db::open(&settings, Arc::new(Metrics::new())).unwrap()
}

pub(crate) fn open_shared(url: &str) -> Shared {
    open_shared_with(url, AMPLE)
}

pub(crate) fn open_shared_with(url: &str, timeout: Duration) -> Shared {
    let settings = Stores {
        timeout,
        ..settings("sqlite:unused.db", url)
    };
    Shared::open(&settings, Arc::new(Metrics::new())).unwrap()
}

/// The next notice.
pub(crate) async fn next(subscription: &mut Subscription) -> Notice {
    let notice = tokio::time::timeout(AMPLE * 2, subscription.next()).await;
    notice.expect("a notice")
}

pub(crate) fn message(text: &str) -> Notice {
    Notice::Message(text.to_owned())
}

#[tokio::test]
async fn every_operation_is_counted() {
    let metrics = Arc::new(Metrics::new());
    let shared = Shared::open(&settings("", "memory"), metrics.clone()).unwrap();
    let minute = Duration::from_secs(60);
    shared.set("a", "1", None).await.unwrap();
    shared.get("a").await.unwrap();
    shared.get_many(&["a"]).await.unwrap();
    shared.get_with_ttl("a").await.unwrap();
    shared.set_if_absent("a", "1", minute).await.unwrap();
    shared.increment("a", minute).await.unwrap();
    shared.delete(&["a"]).await.unwrap();
    shared.publish("a", "1").await.unwrap();
    shared.ping().await.unwrap();
    assert_eq!(metrics.store_operations(), 9);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/a.db", folder.path().display());
    let db = Db::open(&settings(&url, "memory"), metrics.clone()).unwrap();
    db.migrate().await.unwrap();
    db.ping().await.unwrap();
    assert_eq!(metrics.store_operations(), 11);
}
