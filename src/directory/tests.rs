//! The room on SQLite and in-process shared state: registration, liveness, resolving, outages.

use serde_json::value::RawValue;

use super::*;
use crate::coherence::Invalidation;
use crate::db::Db;
use crate::hierarchy::Permit;
use crate::workspace::{DeliveryMode, Liveness, Status, Timestamp};

const TTL: Duration = Duration::from_secs(90);

struct Room {
    directory: Directory,
    workspaces: Workspaces,
    shared: Shared,
    coherence: Arc<Coherence>,
    metrics: Arc<Metrics>,
    db: Db,
    _folder: tempfile::TempDir,
}

async fn room() -> Room {
    room_on("memory").await
}

async fn room_on(shared: &str) -> Room {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Config = toml::from_str(include_str!("../../config/default.toml")).unwrap();
    config.stores.sql = format!("sqlite:{}/gateway.db", folder.path().display()).into();
    config.stores.shared = shared.to_owned().into();
    config.limits.target_concurrency = 2;
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
    let workspaces = Workspaces::new(db.clone());
    let directory = Directory::new(
        &config,
        workspaces.clone(),
        shared.clone(),
        Arc::clone(&coherence),
        Arc::clone(&metrics),
    );
    Room {
        directory,
        workspaces,
        shared,
        coherence,
        metrics,
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
    Creation {
        id: Some(id(name)),
        name: name.to_owned(),
        parent_id: None,
        org: None,
        role: None,
        delivery_mode: DeliveryMode::Push,
        url: None,
        card_url: None,
        max_concurrent: None,
        liveness: Liveness::Heartbeat,
        complete: None,
    }
}

fn registration(name: &str) -> Registration {
    Registration {
        id: id(name),
        url: Some("http://127.0.0.1:9001/a2a".to_owned()),
        internal_url: Some("http://10.0.0.7:8000/a2a".to_owned()),
        agent_card: card(
            r#"{"name":"a","supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}"#,
        ),
        delivery_mode: None,
    }
}

impl Room {
    /// A registered workspace.
    async fn online(&self, name: &str) {
        self.directory.create(&creation(name)).await.unwrap();
        let itself = Registrar::Itself;
        self.directory
            .register(&registration(name), &itself)
            .await
            .unwrap();
    }

    async fn resolve(&self, name: &str) -> Result<Destination, Reason> {
        let permit = Permit::of(None, id(name));
        self.directory.resolve(&permit).await.map_err(|r| r.reason)
    }

    async fn agent(&self, name: &str) -> Arc<Agent> {
        match self.resolve(name).await.unwrap() {
            Destination::Agent(agent) => agent,
            Destination::Inbox => panic!("it polls"),
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

    async fn beat(&self, name: &str, beat: &Beat) -> Beaten {
        self.directory.beat(&id(name), beat).await.unwrap()
    }
}

/// Moves tokio's clock; the wall clock stays. Not paused in between, since SQLite answers from threads.
async fn pass(span: Duration) {
    tokio::time::pause();
    tokio::time::advance(span).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_registered_agent_is_found_with_all_that_a_call_needs() {
    let room = room().await;
    room.online("a").await;
    let agent = room.agent("a").await;
    assert_eq!(agent.endpoint.host, "127.0.0.1:9001");
    assert_eq!(agent.endpoint.path_and_query, "/a2a");
    assert_eq!(agent.generation, Generation::V1);
    assert_eq!(agent.complete, Complete::Full);
    let address = room.directory.address(&agent.endpoint).await.unwrap();
    assert_eq!(address.to_string(), "127.0.0.1:9001");
    for (key, url) in [
        ("ws:a:url", "http://127.0.0.1:9001/a2a"),
        ("ws:a:internal_url", "http://10.0.0.7:8000/a2a"),
    ] {
        assert_eq!(room.shared.get(key).await.unwrap().as_deref(), Some(url));
    }
    let lease = room
        .shared
        .get_with_ttl("workspace:a:heartbeat")
        .await
        .unwrap();
    let (value, left) = lease.unwrap();
    assert!(value.parse::<i64>().is_ok());
    assert!(left.unwrap() <= TTL && left.unwrap() > TTL - Duration::from_secs(5));
}

#[tokio::test]
async fn steady_state_asks_no_store_and_a_heartbeat_asks_once() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    let before = room.metrics.store_operations();
    for _ in 0..50 {
        room.agent("a").await;
    }
    assert_eq!(room.metrics.store_operations(), before);
    for _ in 0..5 {
        pass(Duration::from_secs(60)).await;
        room.beat("a", &Beat::default()).await;
        // Beyond the lease that was read, and still from memory: the heartbeat came in here.
        let asked = room.metrics.store_operations();
        room.agent("a").await;
        let coherent = room.coherence.max_age() == Duration::from_secs(300);
        assert!(coherent && room.metrics.store_operations() - asked <= 3);
    }
}

#[tokio::test]
async fn a_lapsed_workspace_is_offline_at_once_and_a_heartbeat_revives_it() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    pass(TTL - Duration::from_secs(1)).await;
    room.agent("a").await;
    pass(Duration::from_secs(2)).await;
    assert_eq!(
        room.directory.view(&id("a")).await.unwrap().status,
        Status::Offline
    );
    let permit = Permit::of(None, id("a"));
    let refusal = room.directory.resolve(&permit).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::WorkspaceOffline);
    assert_eq!(
        refusal.message,
        "the workspace has sent no heartbeat for 90 s"
    );
    assert_eq!(refusal.retry_after, Some(15));
    assert!(refusal.facts.iter().any(|(name, _)| *name == "last_seen"));
    assert_eq!(
        room.status("a").await,
        Status::Offline,
        "who notices writes it down"
    );
    let beaten = room.beat("a", &Beat::default()).await;
    assert_eq!((beaten.from, beaten.to), (Status::Offline, Status::Online));
    assert_eq!(beaten.expires_in, TTL);
    room.agent("a").await;
}

#[tokio::test]
async fn a_heartbeat_revives_a_lapse_that_nobody_wrote_down() {
    let room = room().await;
    room.online("a").await;
    pass(TTL + Duration::from_secs(1)).await;
    assert!(room.directory.entry(&id("a")).await.unwrap().has_lapsed());
    room.beat("a", &Beat::default()).await;
    room.agent("a").await;
}

#[tokio::test]
async fn the_sweep_finds_what_lapsed_and_only_that() {
    let room = room().await;
    room.online("alive").await;
    // Up on paper, never seen, no lease: what a crash leaves behind.
    for name in ["dead", "assumed", "paused"] {
        room.directory.create(&creation(name)).await.unwrap();
    }
    room.set_status("dead", Status::Degraded).await;
    room.set_status("paused", Status::Paused).await;
    let assumed = Creation {
        liveness: Liveness::Assumed,
        url: registration("x").url,
        ..creation("outsider")
    };
    room.directory.create(&assumed).await.unwrap();
    assert_eq!(room.directory.sweep().await.unwrap(), [id("dead")]);
    assert_eq!(room.status("dead").await, Status::Offline);
    assert_eq!(room.directory.sweep().await.unwrap(), []);
    for (name, status) in [
        ("alive", Status::Online),
        ("paused", Status::Paused),
        ("outsider", Status::Online),
    ] {
        assert_eq!(room.status(name).await, status, "{name}");
    }
}

#[tokio::test]
async fn a_missing_lease_proves_nothing_when_the_shared_state_was_away() {
    let room = room().await;
    room.online("a").await;
    room.shared
        .delete(&["workspace:a:heartbeat"])
        .await
        .unwrap();
    // In process, for a TTL after the start: leases died with the last process.
    room.coherence.apply(&Invalidation::Everything).await;
    room.agent("a").await;
    pass(TTL).await;
    assert_eq!(room.refusal("a").await, Reason::WorkspaceOffline);
}

#[tokio::test]
async fn each_status_has_its_refusal() {
    let room = room().await;
    room.online("a").await;
    for (status, reason) in [
        (Status::Provisioning, Some(Reason::WorkspaceRestarting)),
        (Status::Restarting, Some(Reason::WorkspaceRestarting)),
        (Status::Hibernated, Some(Reason::WorkspaceRestarting)),
        (Status::Offline, Some(Reason::WorkspaceOffline)),
        (Status::Paused, Some(Reason::WorkspaceOffline)),
        (Status::Failed, Some(Reason::WorkspaceOffline)),
        (Status::Degraded, None),
        (Status::Online, None),
        (Status::Removed, Some(Reason::WorkspaceRemoved)),
    ] {
        room.set_status("a", status).await;
        assert_eq!(room.resolve("a").await.err(), reason, "{status:?}");
    }
    assert_eq!(room.refusal("ghost").await, Reason::WorkspaceNotFound);
}

#[tokio::test]
async fn a_poll_target_is_an_inbox_also_while_its_agent_is_away() {
    let room = room().await;
    room.directory.create(&creation("p")).await.unwrap();
    let poll = Registration {
        delivery_mode: Some(DeliveryMode::Poll),
        url: None,
        internal_url: None,
        ..registration("p")
    };
    room.directory
        .register(&poll, &Registrar::Itself)
        .await
        .unwrap();
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox)));
    pass(TTL + Duration::from_secs(1)).await;
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox)));
    assert_eq!(room.status("p").await, Status::Offline);
    assert!(matches!(room.resolve("p").await, Ok(Destination::Inbox)));
    room.set_status("p", Status::Paused).await;
    assert_eq!(room.refusal("p").await, Reason::WorkspaceOffline);
}

#[tokio::test]
async fn trouble_degrades_and_only_calm_restores() {
    let room = room().await;
    room.online("a").await;
    let rate = |error_rate| Beat {
        error_rate,
        ..Beat::default()
    };
    let wedged = Beat {
        wedged: true,
        ..Beat::default()
    };
    for (beat, status) in [
        (rate(0.49), Status::Online),
        (rate(0.5), Status::Degraded),
        (rate(0.1), Status::Degraded),
        (rate(0.09), Status::Online),
        (wedged.clone(), Status::Degraded),
        (wedged, Status::Degraded),
        (rate(0.0), Status::Online),
    ] {
        assert_eq!(room.beat("a", &beat).await.to, status, "{beat:?}");
        assert_eq!(room.status("a").await, status, "{beat:?}");
        room.agent("a").await;
    }
    for status in [
        Status::Paused,
        Status::Failed,
        Status::Hibernated,
        Status::Restarting,
    ] {
        room.set_status("a", status).await;
        assert_eq!(room.beat("a", &rate(0.0)).await.to, status);
    }
    room.set_status("a", Status::Removed).await;
    let removed = room.directory.beat(&id("a"), &rate(0.0)).await.unwrap_err();
    assert_eq!(removed.reason, Reason::WorkspaceRemoved);
    let ghost = room
        .directory
        .beat(&id("ghost"), &rate(0.0))
        .await
        .unwrap_err();
    assert_eq!(ghost.reason, Reason::WorkspaceNotFound);
    assert_eq!(
        room.shared.get("workspace:ghost:heartbeat").await.unwrap(),
        None
    );
}

#[tokio::test]
async fn a_heartbeat_before_registration_makes_nobody_reachable() {
    let room = room().await;
    room.directory.create(&creation("a")).await.unwrap();
    assert_eq!(
        room.beat("a", &Beat::default()).await.to,
        Status::Provisioning
    );
    assert_eq!(room.refusal("a").await, Reason::WorkspaceRestarting);
}

#[tokio::test]
async fn what_heartbeats_say_is_seen_at_once_and_written_later() {
    let room = room().await;
    room.online("a").await;
    let beat = Beat {
        active_tasks: 3,
        current_task: Some("a\0b".to_owned()),
        idle_timeout_seconds: Some(7),
        ..Beat::default()
    };
    let registered = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    room.beat("a", &beat).await;
    assert_eq!(
        room.agent("a").await.idle_timeout,
        Some(Duration::from_secs(7))
    );
    let seen = room.directory.view(&id("a")).await.unwrap();
    assert_eq!(
        (seen.active_tasks, seen.current_task.as_deref()),
        (3, Some("ab"))
    );
    let row = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!((row.active_tasks, row.last_seen), (0, registered.last_seen));
    room.online("b").await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    room.beat("b", &Beat::default()).await;
    room.directory.flush_last_seen().await.unwrap();
    let row = room.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!((row.active_tasks, row.last_seen), (3, seen.last_seen));
    let asked = room.metrics.store_operations();
    room.directory.flush_last_seen().await.unwrap();
    assert_eq!(
        room.metrics.store_operations(),
        asked,
        "nothing new, nothing written"
    );
}

#[tokio::test]
async fn a_url_that_another_program_wrote_counts_if_the_policy_lets_it() {
    let room = room().await;
    room.online("a").await;
    for (url, outcome) in [
        ("http://127.0.0.1:32768/", Ok("127.0.0.1:32768")),
        ("http://169.254.169.254/", Err(Reason::AddressForbidden)),
        ("nonsense", Err(Reason::AddressForbidden)),
    ] {
        room.shared.set("ws:a:url", url, None).await.unwrap();
        room.coherence.apply(&Invalidation::Everything).await;
        let found = room.resolve("a").await;
        match outcome {
            Ok(host) => assert_eq!(room.agent("a").await.endpoint.host, host),
            Err(reason) => assert_eq!(found.unwrap_err(), reason, "{url}"),
        }
    }
    room.shared.delete(&["ws:a:url"]).await.unwrap();
    room.coherence.apply(&Invalidation::Everything).await;
    assert_eq!(room.agent("a").await.endpoint.host, "127.0.0.1:9001");
}

#[tokio::test]
async fn when_sql_is_away_what_was_known_counts_for_a_minute() {
    let room = room().await;
    room.online("a").await;
    room.online("unseen").await;
    room.agent("a").await;
    room.db.pool().close().await;
    room.coherence.apply(&Invalidation::Everything).await;
    room.agent("a").await;
    assert_eq!(room.refusal("unseen").await, Reason::StoreUnavailable);
    pass(Duration::from_secs(59)).await;
    room.agent("a").await;
    pass(Duration::from_secs(2)).await;
    assert_eq!(room.refusal("a").await, Reason::StoreUnavailable);
}

#[tokio::test]
async fn what_is_said_to_have_changed_is_never_served_stale() {
    let room = room().await;
    room.online("a").await;
    room.agent("a").await;
    room.db.pool().close().await;
    room.coherence
        .apply(&Invalidation::Workspace(id("a")))
        .await;
    assert_eq!(room.refusal("a").await, Reason::StoreUnavailable);
}

#[tokio::test]
async fn when_the_shared_state_is_away_sql_says_where_the_agent_is() {
    let room = room_on("redis://127.0.0.1:1/").await;
    room.directory.create(&creation("a")).await.unwrap();
    let refusal = room
        .directory
        .register(&registration("a"), &Registrar::Itself)
        .await;
    assert_eq!(refusal.unwrap_err().reason, Reason::StoreUnavailable);
    assert_eq!(room.agent("a").await.endpoint.host, "127.0.0.1:9001");
    assert_eq!(room.beat("a", &Beat::default()).await.to, Status::Online);
    assert!(
        room.directory
            .sweep()
            .await
            .is_ok_and(|lapsed| lapsed.is_empty())
    );
    room.set_status("a", Status::Offline).await;
    assert_eq!(room.refusal("a").await, Reason::WorkspaceOffline);
}

#[tokio::test]
async fn slots_are_counted_across_reloads() {
    let room = room().await;
    room.online("a").await;
    let one = room.directory.slot(&*room.agent("a").await).unwrap();
    room.coherence.apply(&Invalidation::Everything).await;
    let agent = room.agent("a").await;
    let two = room.directory.slot(&agent).unwrap();
    let busy = room.directory.slot(&agent).unwrap_err();
    assert_eq!(
        (busy.reason, busy.retry_after),
        (Reason::AgentBusy, Some(1))
    );
    assert_eq!(room.metrics.target_permits.get(), 2);
    drop((one, two));
    assert_eq!(room.metrics.target_permits.get(), 0);
}

#[tokio::test]
async fn discovery_tells_each_caller_its_own_url() {
    let room = room().await;
    room.online("a").await;
    let ask = async |caller: Option<&str>| {
        let permit = Permit::of(caller.map(id), id("a"));
        room.directory.discover(&permit).await
    };
    let inside = ask(Some("b")).await.unwrap();
    assert_eq!(inside.url.as_deref(), Some("http://10.0.0.7:8000/a2a"));
    let outside = ask(None).await.unwrap();
    assert_eq!(outside.url.as_deref(), Some("http://127.0.0.1:9001/a2a"));
    assert_eq!(outside.status, Status::Online);
    let json = serde_json::to_value(&outside).unwrap();
    assert_eq!(json["agent_card"]["name"], "a");
    room.set_status("a", Status::Paused).await;
    let refusal = ask(None).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::WorkspaceOffline);
    assert!(refusal.facts.iter().any(|(name, _)| *name == "last_seen"));
}

mod registering;
