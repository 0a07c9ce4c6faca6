//! Inboxes: what is put there stays, in order, for all who read; on both pairs of stores.

mod cuts;
mod entries;
mod feed;
mod http;
mod replicas;
mod tasks;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use a2a_gateway::config::{self, Config, Live};
use a2a_gateway::db::Db;
use a2a_gateway::delivery::inbox::{
    Activity, ActivityType, Filter, Inbox, Item, NewActivity, Source, Start,
};
use a2a_gateway::delivery::mailbox::Mailbox;
use a2a_gateway::events::Events;
use a2a_gateway::ids::WorkspaceId;
use a2a_gateway::metrics::{Format, Metrics};
use a2a_gateway::rejection::Rejection;
use a2a_gateway::shared::Shared;
use serde_json::json;

use crate::harness::Pair;
use crate::harness::servers::{self, Redis};

/// The time after which a word between replicas counts as lost.
const NEVER: Duration = Duration::from_secs(60);

/// The room on one pair of stores, without the gateway around it.
#[derive(Clone)]
struct Room {
    inbox: Arc<Inbox>,
    metrics: Arc<Metrics>,
    db: Db,
    config: Config,
    redis: Option<Arc<Redis>>,
    _folder: Arc<tempfile::TempDir>,
}

impl Room {
    async fn open(pair: Pair, change: impl FnOnce(&mut Config)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
        let (sql, redis) = match pair {
            Pair::Embedded => {
                let file = folder.path().join("gateway.db");
                (format!("sqlite:{}", file.display()), None)
            }
            Pair::External => {
                let redis = Arc::new(Redis::start());
                (servers::postgres().database(), Some(redis))
            }
        };
        let shared = redis.as_ref().map(|redis| redis.url());
        config.stores.sql = sql.into();
        config.stores.shared = shared.unwrap_or("memory".into()).into();
        config.stores.timeout = Duration::from_secs(10);
        change(&mut config);
        Self::over(config, redis, folder).await
    }

    async fn over(
        config: Config,
        redis: Option<Arc<Redis>>,
        folder: Arc<tempfile::TempDir>,
    ) -> Self {
        let metrics = Arc::new(Metrics::new());
        let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
        let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
        db.migrate().await.unwrap();
        let live = Live::from(config.clone());
        let events = Events::new(live.clone(), shared.clone(), Arc::clone(&metrics));
        let mailbox = Mailbox::new(live, (db.clone(), shared), Arc::clone(&metrics));
        let inbox = Inbox::new(Arc::clone(&mailbox), events);
        let running = Arc::clone(&inbox);
        tokio::spawn(async move { tokio::join!(running.run(), mailbox.run()) });
        Self {
            inbox,
            metrics,
            db,
            config,
            redis,
            _folder: folder,
        }
    }

    /// Another replica on the same stores.
    async fn beside(&self) -> Self {
        let folder = Arc::clone(&self._folder);
        Self::over(self.config.clone(), self.redis.clone(), folder).await
    }

    async fn put(&self, to: &str, text: &str) -> Activity {
        self.inbox.put(message(to, text)).await.unwrap()
    }

    /// All that comes after `seq`, as texts.
    async fn after(&self, of: &str, seq: i64) -> Vec<String> {
        let (all, from) = (Filter::default(), Start::After(seq));
        let page = self.inbox.read_page(&id(of), all, from, 500).await.unwrap();
        page.items.iter().map(text).collect()
    }

    fn metric(&self, line: &str) -> bool {
        let text = self.metrics.render(Format::Text);
        text.lines().any(|found| found == line)
    }
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

/// A message of the workspace `caller`.
fn message(to: &str, text: &str) -> NewActivity {
    let body = json!({"text": text}).to_string();
    let source = Source::Agent(id("caller"));
    NewActivity::message(&id(to), source, "caller".into(), "message/send", body)
}

fn notice(of: &str, text: &str) -> NewActivity {
    NewActivity {
        kind: ActivityType::Notify,
        source: Source::Agent(id(of)),
        target: None,
        method: None,
        ..message(of, text)
    }
}

fn text(item: &Item) -> String {
    let body = item.request_body.as_ref().unwrap().get();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body["text"].as_str().unwrap_or_default().to_owned()
}

/// How many messages a case of many sends.
#[expect(
    clippy::disallowed_methods,
    reason = "for whoever measures: the gateway itself reads no such variable"
)]
fn messages(default: usize) -> usize {
    let set = std::env::var("A2A_GATEWAY_INBOX_MESSAGES").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Those that write at the same moment in a case of many, and those that read.
const WRITERS: usize = 50;
const READERS: usize = 10;

/// All messages, half of them at either replica.
async fn write(rooms: [&Room; 2], messages: usize) {
    let writers = (0..WRITERS).map(|writer| async move {
        for n in 0..messages / WRITERS {
            rooms[writer % 2].put("dev", &format!("{writer} {n}")).await;
        }
    });
    futures_util::future::join_all(writers).await;
}

/// Each message once, and for every reader in the same order.
fn assert_alike(seen: &[Vec<String>], messages: usize) {
    let all: HashSet<&String> = seen[0].iter().collect();
    assert_eq!(all.len(), messages, "each once");
    assert!(seen.iter().all(|one| *one == seen[0]), "all read the same");
}

fn reason<T: std::fmt::Debug>(result: Result<T, Rejection>) -> &'static str {
    result.unwrap_err().reason.as_str()
}
