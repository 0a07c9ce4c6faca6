//! The room on SQLite and in-process shared state.

use std::time::Duration;

use serde_json::value::RawValue;

use super::*;
use a2a::Generation;
use access::hierarchy::Permit;
use access::workspace::{DeliveryMode, Liveness, SettingsPatch, Status};
use kernel::config::{AgentPrefix, CompletionMode, Config, Live};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::time::Timestamp;
use stores::coherence::Invalidation;
use stores::db::Db;
use stores::store::Run;

mod capacity;
mod instances;
mod liveness;
mod registering;
mod resolving;

const TTL: Duration = Duration::from_secs(90);

struct Room {
    directory: Directory,
    workspaces: Workspaces,
    shared: Shared,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    config: Live,
    db: Db,
    _folder: tempfile::TempDir,
}

async fn room() -> Room {
    room_on("memory").await
}

async fn room_on(shared: &str) -> Room {
    room_of(shared, 100_000).await
}

async fn room_of(shared: &str, cache_entries: u64) -> Room {
    let change = |config: &mut Config| config.directory.cache_entries = cache_entries;
    room_from(shared, change).await
}

async fn room_with(change: impl FnOnce(&mut Config)) -> Room {
    room_from("memory", change).await
}

async fn room_from(shared: &str, change: impl FnOnce(&mut Config)) -> Room {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Config =
        toml::from_str(include_str!("../../../../config/default.toml")).unwrap();
    config.stores.sql = format!("sqlite:{}/gateway.db", folder.path().display()).into();
    config.stores.shared = shared.to_owned().into();
    config.stores.timeout = Duration::from_secs(60);
    config.limits.target_concurrency = 2;
    change(&mut config);
    // Where all cases register.
    let shared = [
        "http://127.0.0.1:9001",
        "http://127.0.0.1:9002",
        "http://10.0.0.7:8000",
    ];
    let shared = shared.map(|origin| AgentPrefix::parse(origin).unwrap());
    config.registry.shared_origins = shared.into();
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
    let workspaces = Workspaces::new(db.clone());
    let config: Live = config.into();
    let directory = Directory::new(
        &config,
        workspaces.clone(),
        shared.clone(),
        Arc::clone(&coherence),
        Events::new(config.clone(), shared.clone(), Arc::clone(&metrics)),
        Arc::new(Seal::load_or_create(&folder.path().join("keys"), None).unwrap()),
        Arc::clone(&metrics),
    );
    Room {
        directory,
        workspaces,
        shared,
        coherence,
        metrics,
        config,
        db,
        _folder: folder,
    }
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

fn card(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn creation(name: &str) -> Creation {
    creation_with(name, |_| {})
}

fn creation_with(name: &str, say: impl FnOnce(&mut SettingsPatch)) -> Creation {
    let mut patch = SettingsPatch {
        name: Some(name.to_owned()),
        ..SettingsPatch::default()
    };
    say(&mut patch);
    Creation::by_operator(id(name), Change::parse(patch).unwrap())
}

fn registration(name: &str) -> Registration {
    Registration {
        id: id(name),
        instance: None,
        url: Some("http://127.0.0.1:9001/a2a".to_owned()),
        internal_url: Some("http://10.0.0.7:8000/a2a".to_owned()),
        agent_card: card(
            r#"{"name":"a","supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}"#,
        ),
        delivery_mode: None,
        proof: None,
        recheck: None,
    }
}

impl Room {
    /// A registered workspace.
    async fn online(&self, name: &str) {
        self.directory
            .registrations
            .create(&creation(name), Run::Real)
            .await
            .unwrap();
        let itself = Registrar::Itself;
        self.directory
            .registrations
            .register(&registration(name), &itself)
            .await
            .unwrap();
    }

    async fn resolve(&self, name: &str) -> Result<Destination, Reason> {
        let permit = Permit::for_test(None, id(name));
        self.directory
            .resolution
            .resolve(&permit)
            .await
            .map_err(|r| r.reason)
    }

    async fn agent(&self, name: &str) -> Arc<Agent> {
        match self.resolve(name).await.unwrap() {
            Destination::Agent(agent) => agent,
            Destination::Inbox(_) => panic!("it polls"),
        }
    }

    async fn refusal(&self, name: &str) -> Reason {
        self.resolve(name).await.unwrap_err()
    }

    async fn set_status(&self, name: &str, to: Status) {
        let from = self
            .workspaces
            .find(&id(name))
            .await
            .unwrap()
            .unwrap()
            .status;
        if from != to {
            let now = Timestamp::now();
            assert!(
                self.workspaces
                    .set_status(&id(name), from, to, now)
                    .await
                    .unwrap()
            );
        }
        self.coherence
            .apply(&Invalidation::Workspace(id(name)))
            .await;
    }

    async fn status(&self, name: &str) -> Status {
        self.workspaces
            .find(&id(name))
            .await
            .unwrap()
            .unwrap()
            .status
    }

    async fn beat(&self, name: &str, beat: &Heartbeat) -> HeartbeatResult {
        self.directory
            .heartbeats
            .record(&id(name), beat)
            .await
            .unwrap()
    }
}

/// Moves tokio's clock; the wall clock stays. Not paused in between, since SQLite answers from threads.
async fn pass(span: Duration) {
    tokio::time::pause();
    tokio::time::advance(span).await;
    tokio::time::resume();
}
