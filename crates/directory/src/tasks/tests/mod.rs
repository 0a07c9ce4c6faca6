//! Unit tests without HTTP: the first caller owns a task, unknown tasks pass, a store that cannot be read
//! rejects.

mod bindings;

use std::time::Duration;

use super::*;
use access::identity::{Operator, Principal, Role};
use access::workspace::Workspaces;
use kernel::config::{self, Config};
use stores::coherence::Coherence;
use stores::db::Db;

struct Room {
    tasks: Arc<Tasks>,
    hierarchy: Arc<Hierarchy>,
    metrics: Arc<Metrics>,
    stores: (Live, Db, Shared),
    _folder: Arc<tempfile::TempDir>,
}

async fn room(shared: &str) -> Room {
    room_with(shared, |_| {}).await
}

async fn room_with(shared: &str, change: impl FnOnce(&mut Config)) -> Room {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
    let sql = format!("sqlite:{}", folder.path().join("gateway.db").display());
    config.stores.sql = sql.into();
    config.stores.shared = shared.to_owned().into();
    config.stores.timeout = Duration::from_secs(60);
    change(&mut config);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    db.migrate().await.unwrap();
    let coherence = Coherence::new(shared.clone(), true, Arc::clone(&metrics));
    let config = Live::from(config);
    let workspaces = Workspaces::new(db.clone());
    Room {
        tasks: Tasks::new(
            config.clone(),
            (db.clone(), shared.clone()),
            Arc::clone(&metrics),
        ),
        stores: (config.clone(), db.clone(), shared),
        hierarchy: Arc::new(Hierarchy::new(
            workspaces,
            db,
            &coherence,
            Arc::clone(&metrics),
            config,
        )),
        metrics,
        _folder: folder,
    }
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

fn life(text: &str) -> WorkspaceIncarnation {
    WorkspaceIncarnation::parse(text).unwrap()
}

fn canvas(user: &str, org: Option<&str>) -> Proof {
    Proof::for_test(Principal::Canvas {
        user: user.into(),
        org: org.map(Into::into),
        workspaces: None,
        confined: false,
        within: None,
    })
}

impl Room {
    /// The same stores, as another process opens them.
    fn again(&self) -> Self {
        let (config, db, shared) = self.stores.clone();
        let metrics = Arc::clone(&self.metrics);
        Self {
            tasks: Tasks::new(config, (db, shared), metrics),
            hierarchy: Arc::clone(&self.hierarchy),
            metrics: Arc::clone(&self.metrics),
            stores: self.stores.clone(),
            _folder: Arc::clone(&self._folder),
        }
    }

    async fn sees(&self, proof: &Proof, task: &str) -> Result<(), Reason> {
        let asked = [task.to_owned()];
        let checked = self
            .tasks
            .check(&self.hierarchy, proof, &life("dev"), &asked)
            .await;
        checked.map_err(|rejection| rejection.reason)
    }
}

#[tokio::test]
async fn the_first_who_started_a_task_owns_it_and_names_alone_are_nobody() {
    let room = room("memory").await;
    let ann = canvas("ann", Some("acme"));
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "t-1", None);
    let other = canvas("ann", Some("globex"));
    room.tasks
        .record_owner((&other.owner(), None), &life("dev"), "t-1", None);
    assert_eq!(room.sees(&ann, "t-1").await, Ok(()));
    for foreign in [
        other,
        canvas("ann", None),
        canvas("bob", Some("acme")),
        // Two parts of one name must not equal one part of another.
        canvas("acme\",\"ann", None),
        Proof::for_test(Principal::Org {
            org: "acme".into(),
            within: None,
        }),
    ] {
        let sees = room.sees(&foreign, "t-1").await;
        assert_eq!(sees, Err(Reason::TaskNotFound), "{:?}", foreign.principal);
        assert_eq!(room.sees(&foreign, "t-2").await, Ok(()), "unknown");
    }
    assert_eq!(
        room.sees(&Proof::for_test(Principal::Operator), "t-1")
            .await,
        Ok(())
    );
    // A message to the task of another would be answered with it.
    let mut operate = Proof::for_test(Principal::Operator);
    let role = Role::Operate;
    operate.operator = Some(Arc::new(Operator {
        role,
        ..Operator::CONFIGURED
    }));
    let sees = room.sees(&operate, "t-1").await;
    assert_eq!(sees, Err(Reason::RoleRequired));
    let at = room.tasks.target_of(&ann, "t-1").await.unwrap();
    assert_eq!(at, Some(id("dev")));
    // Another agent cannot redirect its caller's requests to itself.
    room.tasks
        .record_owner((&ann.owner(), None), &life("ops"), "t-1", None);
    let at = room.tasks.target_of(&ann, "t-1").await.unwrap();
    assert_eq!(at, Some(id("dev")));
    let elsewhere = room.tasks.target_of(&canvas("bob", None), "t-1").await;
    assert_eq!(elsewhere.unwrap(), None);
}

#[tokio::test]
async fn of_a_list_only_foreign_ones_are_hidden_and_another_target_is_another_task() {
    let room = room("memory").await;
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "a", None);
    room.tasks
        .record_owner((&bob.owner(), None), &life("dev"), "b", None);
    let asked = ["a", "b", "c"].map(str::to_owned);
    let seen = |proof: Proof, target: &'static str| {
        let (room, asked) = (&room, &asked);
        async move {
            let tasks = &room.tasks;
            let target = life(target);
            let seen = tasks.check_visibility(&room.hierarchy, &proof, &target, asked);
            seen.await.unwrap()
        }
    };
    assert_eq!(seen(ann.clone(), "dev").await, [true, false, true]);
    assert_eq!(seen(bob.clone(), "dev").await, [false, true, true]);
    assert_eq!(seen(bob, "ops").await, [true, true, true]);
    // Another life of the target has other tasks, and another life of a caller none of the first.
    assert_eq!(seen(ann, "dev~7").await, [true, true, true]);
}

#[tokio::test]
async fn alone_an_owner_is_forgotten_a_ttl_after_the_last_use_and_kept_over_a_restart() {
    let ttl = Duration::from_secs(12);
    let room = room_with("memory", |config| config.a2a.task_ttl = ttl).await;
    let running = Arc::clone(&room.tasks);
    tokio::spawn(async move { running.run().await });
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "t", None);
    assert_eq!(room.sees(&bob, "t").await, Err(Reason::TaskNotFound));
    room.tasks.flush().await;
    // Another process reads it from the store.
    let again = room.again();
    assert_eq!(again.sees(&bob, "t").await, Err(Reason::TaskNotFound));
    assert_eq!(again.sees(&ann, "t").await, Ok(()));
    let at = again.tasks.target_of(&ann, "t").await.unwrap();
    assert_eq!(at, Some(id("dev")));
    assert_eq!(again.sees(&bob, "t-x").await, Ok(()), "unknown");
    // Learning another owner's task changes nothing.
    let deadline = std::time::Instant::now() + 10 * ttl;
    while room.sees(&bob, "t").await.is_err() {
        assert!(
            std::time::Instant::now() < deadline,
            "it is never forgotten"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    room.tasks
        .record_owner((&bob.owner(), None), &life("dev"), "t", None);
    assert_eq!(room.sees(&ann, "t").await, Err(Reason::TaskNotFound));
}

#[tokio::test]
async fn what_was_anothers_before_a_restart_is_not_drawn_to_who_comes_first_after_it() {
    let room = room("memory").await;
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    let run = |tasks: &Arc<Tasks>| {
        let tasks = Arc::clone(tasks);
        tokio::spawn(async move { tasks.run().await });
    };
    run(&room.tasks);
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "t", None);
    room.tasks.flush().await;
    let again = room.again();
    run(&again.tasks);
    again
        .tasks
        .record_owner((&bob.owner(), None), &life("dev"), "t", None);
    again.tasks.flush().await;
    assert_eq!(again.sees(&bob, "t").await, Err(Reason::TaskNotFound));
    assert_eq!(again.sees(&ann, "t").await, Ok(()));
}

#[tokio::test]
async fn a_caller_that_starts_many_tasks_forgets_its_own_oldest_ones() {
    let room = room_with("memory", |config| config.a2a.tasks_per_caller = 100).await;
    let running = Arc::clone(&room.tasks);
    tokio::spawn(async move { running.run().await });
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "t-ann", None);
    for number in 0..1000 {
        let task = format!("t-{number}");
        room.tasks
            .record_owner((&bob.owner(), None), &life("dev"), &task, None);
        // Keep the queue of notes within its bound.
        if number % 500 == 0 {
            room.tasks.flush().await;
        }
    }
    room.tasks.flush().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while room.again().sees(&ann, "t-1").await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the oldest stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again = room.again();
    assert_eq!(again.sees(&ann, "t-999").await, Err(Reason::TaskNotFound));
    assert_eq!(again.sees(&bob, "t-ann").await, Err(Reason::TaskNotFound));
}

#[tokio::test]
async fn without_the_store_what_is_not_known_here_is_refused_and_the_queue_is_bounded() {
    // Nothing listens there, and no writer runs.
    let room = room_with("redis://127.0.0.1:1", |config| {
        config.stores.timeout = Duration::from_millis(200);
    })
    .await;
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks
        .record_owner((&ann.owner(), None), &life("dev"), "t-0", None);
    assert_eq!(room.sees(&ann, "t-0").await, Ok(()));
    assert_eq!(room.sees(&bob, "t-0").await, Err(Reason::TaskNotFound));
    assert_eq!(room.sees(&bob, "t-x").await, Err(Reason::StoreUnavailable));
    assert_eq!(
        room.sees(&Proof::for_test(Principal::Operator), "t-x")
            .await,
        Ok(())
    );
    for number in 1..NOTES_MAX + 10 {
        let task = format!("t-{number}");
        room.tasks
            .record_owner((&ann.owner(), None), &life("dev"), &task, None);
    }
    // One caller takes half of the places, and the next one half of the rest.
    let half = u64::try_from(NOTES_MAX / 2).unwrap();
    assert_eq!(room.metrics.tasks.notes_dropped.get(), half + 10);
    for number in 0..half {
        let task = format!("u-{number}");
        room.tasks
            .record_owner((&bob.owner(), None), &life("dev"), &task, None);
    }
    assert_eq!(
        room.metrics.tasks.notes_dropped.get(),
        2 * half + 10 - half / 2
    );
    assert_eq!(
        room.metrics.tasks.learnt.get(),
        u64::try_from(NOTES_MAX).unwrap() + 10 + half
    );
    let last = format!("t-{}", NOTES_MAX + 9);
    assert_eq!(room.sees(&bob, &last).await, Err(Reason::TaskNotFound));
}
