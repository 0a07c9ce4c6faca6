//! Two replicas of the directory on one PostgreSQL and one Redis: what one hears, the other knows; what
//! counts while a server is away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2a_gateway::coherence::Coherence;
use a2a_gateway::config::{AuthMode, Config, Live};
use a2a_gateway::db::Db;
use a2a_gateway::directory::{
    Change, Creation, Destination, Directory, Heartbeat, Registrar, Registration, Terms,
};
use a2a_gateway::events::Events;
use a2a_gateway::hierarchy::Hierarchy;
use a2a_gateway::identity::Identity;
use a2a_gateway::ids::WorkspaceId;
use a2a_gateway::metrics::{Format, Metrics};
use a2a_gateway::rejection::Reason;
use a2a_gateway::shared::Shared;
use a2a_gateway::store::Run;
use a2a_gateway::trust::{Keys, Seal};
use a2a_gateway::workspace::{DeliveryMode, SettingsPatch, Status, Workspaces};

use crate::harness::servers::{self, Redis};
use crate::harness::{Stores, holds_for, until_holds};

struct Replica {
    directory: Arc<Directory>,
    hierarchy: Hierarchy,
    identity: Identity,
    workspaces: Workspaces,
    metrics: Arc<Metrics>,
    _folder: tempfile::TempDir,
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

/// A new workspace, by the operator.
pub(crate) fn creation(id: WorkspaceId, delivery_mode: DeliveryMode) -> Creation {
    let patch = SettingsPatch {
        name: Some(id.to_string()),
        delivery_mode: Some(delivery_mode),
        ..SettingsPatch::default()
    };
    Creation::by_operator(id, Change::parse(patch).unwrap())
}

async fn replica(sql: &str, shared: &str, heartbeat_ttl: Duration) -> Replica {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Config = toml::from_str(include_str!("../../config/default.toml")).unwrap();
    config.stores.sql = sql.into();
    config.stores.shared = shared.into();
    // A store that is busy with other cases is slow, not away.
    config.stores.timeout = Duration::from_secs(20);
    config.stores.sql_connections = 4;
    config.auth.mode = AuthMode::Open;
    config.registry.heartbeat_ttl = heartbeat_ttl;
    let config = Live::from(config);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.get().stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    let shared = Shared::open(&config.get().stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared.clone(), db.is_embedded(), Arc::clone(&metrics));
    let workspaces = Workspaces::new(db.clone());
    let seal = Arc::new(Seal::load_or_create(folder.path(), None).unwrap());
    let directory = Arc::new(Directory::new(
        &config,
        workspaces.clone(),
        shared.clone(),
        Arc::clone(&coherence),
        Events::new(config.clone(), shared, Arc::clone(&metrics)),
        Arc::clone(&seal),
        Arc::clone(&metrics),
    ));
    let (places, counts) = (workspaces.clone(), || Arc::clone(&metrics));
    let hierarchy = Hierarchy::new(places, db.clone(), &coherence, counts(), config.clone());
    let keys = Arc::new(Keys::load_or_create(folder.path()).unwrap());
    let identity = Identity::new(config, db, (keys, seal), Arc::clone(&coherence), counts());
    // As a gateway does when it has looked for leases.
    coherence.set_leases_known();
    let following = Arc::clone(&directory);
    tokio::spawn(async move { tokio::join!(coherence.run(), following.entries.follow_url_keys()) });
    Replica {
        directory,
        hierarchy,
        identity,
        workspaces,
        metrics,
        _folder: folder,
    }
}

impl Replica {
    async fn resolve(&self, name: &str) -> Result<Destination, Reason> {
        let proof = self.identity.authenticate(None).await.unwrap();
        let permit = self.hierarchy.permit(&proof, &id(name)).await;
        let permit = permit.map_err(|refusal| refusal.reason)?;
        let found = self.directory.resolution.resolve(&permit).await;
        found.map_err(|refusal| refusal.reason)
    }

    /// A heartbeat of its agent.
    async fn beats(&self, name: &str, beat: &Heartbeat) {
        let beats = &self.directory.heartbeats;
        beats.record(&id(name), beat).await.unwrap();
    }

    /// The host that a message to `name` goes to, or the reason that it cannot, as a word.
    async fn host(&self, name: &str) -> String {
        match self.resolve(name).await {
            Ok(Destination::Agent(agent)) => agent.endpoint.host.clone(),
            Ok(Destination::Inbox(_)) => "inbox".to_owned(),
            Err(reason) => reason.as_str().to_owned(),
        }
    }

    /// Asks, as callers do, until the answer is `expected`.
    async fn turns(&self, name: &str, expected: &str) {
        until_holds(expected, async || self.host(name).await == expected).await;
    }

    /// Asks for `name` until all that it takes stays in memory: what was said of its change may come back
    /// only now, and a link that comes up makes all forgotten.
    async fn warms(&self, name: &str) {
        until_holds("it stays in memory", async || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (linked, misses) = (self.metrics.coherent.get() == 1, self.misses());
            self.host(name).await;
            linked && self.misses() == misses
        })
        .await;
    }

    /// How often something was read that was not in memory: the series, as they are shown.
    fn misses(&self) -> Vec<String> {
        let text = self.metrics.render(Format::Text);
        let name = "a2a_gateway_cache_lookups_total{";
        let lookups = text.lines().filter(|line| line.starts_with(name));
        let misses = lookups.filter(|line| line.contains(r#"result="miss""#));
        misses.map(str::to_owned).collect()
    }

    async fn register(&self, name: &str, url: &str) {
        let card = serde_json::value::RawValue::from_string(r#"{"name":"a"}"#.to_owned()).unwrap();
        let registration = Registration {
            recheck: None,
            id: id(name),
            instance: None,
            url: Some(url.to_owned()),
            internal_url: None,
            agent_card: card,
            delivery_mode: None,
            proof: None,
        };
        let operator = Registrar::Operator(Terms::default());
        let registrations = &self.directory.registrations;
        let done = registrations.register(&registration, &operator);
        done.await.unwrap();
    }

    async fn status(&self, name: &str) -> Status {
        self.directory.views.find(&id(name)).await.unwrap().status
    }
}

const LONG: Duration = Duration::from_secs(90);

/// Replicas on one Redis, and it.
async fn replicas<const N: usize>(heartbeat_ttl: Duration) -> (Redis, [Replica; N]) {
    let Stores { redis, sql } = Stores::start();
    let mut all = Vec::new();
    for _ in 0..N {
        all.push(replica(&sql, &redis.url(), heartbeat_ttl).await);
    }
    let all = all.try_into();
    (redis, all.unwrap_or_else(|_| unreachable!("there are {N}")))
}

#[tokio::test]
async fn replicas_agree() {
    let (redis, [one, two]) = replicas(LONG).await;
    assert_eq!(two.host("a").await, "workspace_not_found");
    one.register("a", "http://127.0.0.1:9001/").await;
    two.turns("a", "127.0.0.1:9001").await;
    one.register("a", "http://127.0.0.1:9002/").await;
    two.turns("a", "127.0.0.1:9002").await;
    // Another program moves the agent.
    redis.command(&["SET", "ws:a:url", "http://127.0.0.1:9003/"]);
    two.turns("a", "127.0.0.1:9003").await;
    one.turns("a", "127.0.0.1:9003").await;
    redis.command(&["DEL", "ws:a:url"]);
    two.turns("a", "127.0.0.1:9002").await;
    let trouble = Heartbeat {
        error_rate: Some(1.0),
        active_tasks: 2,
        current_task: Some("t".to_owned()),
        ..Heartbeat::default()
    };
    two.beats("a", &trouble).await;
    two.directory.heartbeats.flush().await.unwrap();
    let row = one.workspaces.find(&id("a")).await.unwrap().unwrap();
    assert_eq!(row.status, Status::Degraded);
    assert_eq!(row.active_tasks, 2);
    assert_eq!(row.current_task.as_deref(), Some("t"));
    two.register("b", "http://127.0.0.1:9004/").await;
    let calm = Heartbeat {
        error_rate: Some(0.0),
        ..Heartbeat::default()
    };
    two.beats("a", &calm).await;
    two.beats("b", &Heartbeat::default()).await;
    two.directory.heartbeats.flush().await.unwrap();
    let row = one.workspaces.find(&id("a")).await.unwrap().unwrap();
    let state = (row.status, row.active_tasks, row.current_task);
    assert_eq!(state, (Status::Online, 0, None));
}

#[tokio::test]
async fn a_lapse_is_seen_everywhere_and_undone_by_a_heartbeat() {
    const TTL: Duration = Duration::from_secs(3);
    let (_redis, [one, two]) = replicas(TTL).await;
    // Where the machine stalls it has lapsed, rightly.
    let is_found = async |replica: &Replica, since: Instant| {
        let host = replica.host("a").await;
        assert!(host == "127.0.0.1:9001" || since.elapsed() >= TTL, "{host}");
    };
    let began = Instant::now();
    one.register("a", "http://127.0.0.1:9001/").await;
    one.register("b", "http://127.0.0.1:9001/").await;
    is_found(&two, began).await;
    two.turns("a", "workspace_offline").await;
    one.turns("a", "workspace_offline").await;
    assert_eq!(one.status("a").await, Status::Offline);
    // Nobody asks for this one: the sweep finds it, and one of the two notes it.
    let (mut noted, mut after) = (Vec::new(), 0);
    while after < 10 {
        let [first, second] = [&one, &two].map(|replica| replica.directory.lapses.sweep());
        let (first, second) = tokio::join!(first, second);
        noted.extend(first.unwrap());
        noted.extend(second.unwrap());
        after += usize::from(!noted.is_empty());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(noted, [id("b")]);
    let began = Instant::now();
    one.beats("a", &Heartbeat::default()).await;
    is_found(&one, began).await;
    until_holds("the other has heard", async || {
        one.beats("a", &Heartbeat::default()).await;
        two.host("a").await == "127.0.0.1:9001"
    })
    .await;
}

#[tokio::test]
async fn a_deleted_lease_is_a_lapse() {
    let (redis, [one, two]) = replicas(LONG).await;
    // Past the first word of the links, after which a missing lease is doubted for a while.
    one.register("a", "http://127.0.0.1:9001/").await;
    two.turns("a", "127.0.0.1:9001").await;
    // As a gateway does once a second after its start.
    assert!(two.directory.lapses.know_leases().await);
    redis.command(&["DEL", "workspace:a:heartbeat"]);
    redis.command(&["SET", "ws:a:url", "http://127.0.0.1:9001/"]);
    two.turns("a", "workspace_offline").await;
}

#[tokio::test]
async fn an_agent_is_found_while_redis_is_away_and_after_it_came_back_empty() {
    let (redis, [one]) = replicas(LONG).await;
    one.register("a", "http://127.0.0.1:9001/").await;
    let is_found = async || one.host("a").await == "127.0.0.1:9001";
    assert!(is_found().await);
    redis.kill();
    holds_for(Duration::from_secs(1), "it is found", is_found).await;
    one.beats("a", &Heartbeat::default()).await;
    redis.restart();
    // While it is away no lapse can be proven; when it is back and empty, neither.
    let is_kept = async || {
        let swept = one.directory.lapses.sweep().await.unwrap_or_default();
        one.host("a").await == "127.0.0.1:9001" && swept.is_empty()
    };
    holds_for(Duration::from_secs(1), "it is found, and no lapse", is_kept).await;
    until_holds("the lease is back", async || {
        one.beats("a", &Heartbeat::default()).await;
        let lease = redis.command(&["GET", "workspace:a:heartbeat"]);
        lease.trim().parse::<i64>().is_ok()
    })
    .await;
}

#[tokio::test]
async fn what_was_known_is_found_while_postgresql_is_away_and_nothing_else() {
    let postgres = servers::Postgres::start();
    let sql = postgres.database();
    let redis = Redis::start();
    let one = replica(&sql, &redis.url(), LONG).await;
    for name in ["a", "unseen"] {
        one.register(name, "http://127.0.0.1:9001/").await;
    }
    assert_eq!(one.host("a").await, "127.0.0.1:9001");
    one.warms("a").await;
    // Not killed: this server commits late, and would lose the registrations.
    postgres.pause();
    assert_eq!(one.host("a").await, "127.0.0.1:9001");
    assert_eq!(one.host("unseen").await, "store_unavailable");
    postgres.resume();
    one.turns("unseen", "127.0.0.1:9001").await;
}

#[tokio::test]
async fn lines_are_read_alike_on_postgresql() {
    let (_redis, [one]) = replicas(LONG).await;
    let mut parent: Option<WorkspaceId> = None;
    for name in ["root", "mid", "leaf"] {
        let patch = SettingsPatch {
            name: Some(name.to_owned()),
            parent_id: Some(parent.as_ref().map(ToString::to_string)),
            org: Some(parent.is_none().then(|| "acme".to_owned())),
            max_concurrent: Some(Some(3)),
            ..SettingsPatch::default()
        };
        let creation = Creation::by_operator(id(name), Change::parse(patch).unwrap());
        let registrations = &one.directory.registrations;
        let create = || registrations.create(&creation, Run::Real);
        create().await.unwrap();
        let taken = create().await.unwrap_err();
        assert_eq!(taken.reason, Reason::Conflict);
        parent = Some(id(name));
    }
    let line = one.workspaces.load_line(&id("leaf")).await.unwrap();
    let ids: Vec<_> = line.iter().map(|step| step.id.as_str()).collect();
    assert_eq!(ids, ["leaf", "mid", "root"]);
    assert!(line.iter().all(|step| step.org.as_deref() == Some("acme")));
    let said = one
        .hierarchy
        .check_access(&id("root"), &id("mid"))
        .await
        .unwrap();
    assert_eq!(said.unwrap().as_str(), "parent");
}
