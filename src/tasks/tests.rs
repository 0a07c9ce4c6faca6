//! The room without HTTP: who started first owns it, what is not known passes, what cannot be read does not.

use std::time::Duration;

use super::*;
use crate::coherence::Coherence;
use crate::config::{self, Config};
use crate::db::Db;
use crate::workspace::Workspaces;

struct Room {
    tasks: Arc<Tasks>,
    hierarchy: Hierarchy,
    metrics: Arc<Metrics>,
    _folder: tempfile::TempDir,
}

fn room(shared: &str) -> Room {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Config = toml::from_str(config::load::DEFAULT).unwrap();
    let sql = format!("sqlite:{}", folder.path().join("gateway.db").display());
    config.stores.sql = sql.into();
    config.stores.shared = shared.to_owned().into();
    config.stores.timeout = Duration::from_millis(200);
    let metrics = Arc::new(Metrics::new());
    let db = Db::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let shared = Shared::open(&config.stores, Arc::clone(&metrics)).unwrap();
    let coherence = Coherence::new(shared.clone(), true, Arc::clone(&metrics));
    let config = Live::from(config);
    let workspaces = Workspaces::new(db.clone());
    Room {
        tasks: Tasks::new(config.clone(), shared, Arc::clone(&metrics)),
        hierarchy: Hierarchy::new(workspaces, db, &coherence, Arc::clone(&metrics), config),
        metrics,
        _folder: folder,
    }
}

fn id(text: &str) -> WorkspaceId {
    WorkspaceId::parse(text).unwrap()
}

fn canvas(user: &str, org: Option<&str>) -> Proof {
    Proof::of(Principal::Canvas {
        user: user.into(),
        org: org.map(Into::into),
        workspaces: None,
        confined: false,
    })
}

impl Room {
    async fn sees(&self, proof: &Proof, task: &str) -> Result<(), Reason> {
        let asked = [task.to_owned()];
        let checked = self
            .tasks
            .check(&self.hierarchy, proof, &id("dev"), &asked)
            .await;
        checked.map_err(|rejection| rejection.reason)
    }
}

#[tokio::test]
async fn the_first_who_started_a_task_owns_it_and_names_alone_are_nobody() {
    let room = room("memory");
    let ann = canvas("ann", Some("acme"));
    room.tasks.learn(&ann.owner(), &id("dev"), "t-1").await;
    let other = canvas("ann", Some("globex"));
    room.tasks.learn(&other.owner(), &id("dev"), "t-1").await;
    assert_eq!(room.sees(&ann, "t-1").await, Ok(()));
    for foreign in [
        other,
        canvas("ann", None),
        canvas("bob", Some("acme")),
        // What one name says in two parts, another says in one.
        canvas("acme\",\"ann", None),
        Proof::of(Principal::Org { org: "acme".into() }),
    ] {
        let sees = room.sees(&foreign, "t-1").await;
        assert_eq!(sees, Err(Reason::TaskNotFound), "{:?}", foreign.principal);
        assert_eq!(room.sees(&foreign, "t-2").await, Ok(()), "unknown");
    }
    assert_eq!(
        room.sees(&Proof::of(Principal::Operator), "t-1").await,
        Ok(())
    );
    let at = room.tasks.target_of(&ann, "t-1").await.unwrap();
    assert_eq!(at, Some(id("dev")));
    // Another agent cannot draw its caller's questions to itself.
    room.tasks.learn(&ann.owner(), &id("ops"), "t-1").await;
    let at = room.tasks.target_of(&ann, "t-1").await.unwrap();
    assert_eq!(at, Some(id("dev")));
    let elsewhere = room.tasks.target_of(&canvas("bob", None), "t-1").await;
    assert_eq!(elsewhere.unwrap(), None);
}

#[tokio::test]
async fn of_a_list_only_foreign_ones_are_hidden_and_another_target_is_another_task() {
    let room = room("memory");
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks.learn(&ann.owner(), &id("dev"), "a").await;
    room.tasks.learn(&bob.owner(), &id("dev"), "b").await;
    let asked = ["a", "b", "c"].map(str::to_owned);
    let seen = |proof: Proof, target: &'static str| {
        let (room, asked) = (&room, &asked);
        async move {
            let tasks = &room.tasks;
            let target = id(target);
            let seen = tasks.visible(&room.hierarchy, &proof, &target, asked);
            seen.await.unwrap()
        }
    };
    assert_eq!(seen(ann, "dev").await, [true, false, true]);
    assert_eq!(seen(bob.clone(), "dev").await, [false, true, true]);
    assert_eq!(seen(bob, "ops").await, [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn alone_an_owner_is_forgotten_a_ttl_after_the_last_use() {
    let room = room("memory");
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks.learn(&ann.owner(), &id("dev"), "t").await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(23 * 3600)).await;
        assert_eq!(room.sees(&bob, "t").await, Err(Reason::TaskNotFound));
        assert_eq!(room.sees(&ann, "t").await, Ok(()));
        let at = room.tasks.target_of(&ann, "t").await.unwrap();
        assert_eq!(at, Some(id("dev")));
    }
    tokio::time::advance(Duration::from_secs(25 * 3600)).await;
    assert_eq!(room.sees(&bob, "t").await, Ok(()));
    room.tasks.learn(&bob.owner(), &id("dev"), "t").await;
    assert_eq!(room.sees(&ann, "t").await, Err(Reason::TaskNotFound));
}

#[tokio::test]
async fn without_the_store_what_is_not_known_here_is_refused_and_the_queue_is_bounded() {
    // Nobody listens there, and nobody writes either.
    let room = room("redis://127.0.0.1:1");
    let (ann, bob) = (canvas("ann", None), canvas("bob", None));
    room.tasks.learn(&ann.owner(), &id("dev"), "t-0").await;
    assert_eq!(room.sees(&ann, "t-0").await, Ok(()));
    assert_eq!(room.sees(&bob, "t-0").await, Err(Reason::TaskNotFound));
    assert_eq!(room.sees(&bob, "t-x").await, Err(Reason::StoreUnavailable));
    assert_eq!(
        room.sees(&Proof::of(Principal::Operator), "t-x").await,
        Ok(())
    );
    for number in 1..NOTES_MAX + 10 {
        let task = format!("t-{number}");
        room.tasks.learn(&ann.owner(), &id("dev"), &task).await;
    }
    assert_eq!(room.metrics.tasks.notes_dropped.get(), 10);
    assert_eq!(
        room.metrics.tasks.learnt.get(),
        u64::try_from(NOTES_MAX).unwrap() + 10
    );
    let last = format!("t-{}", NOTES_MAX + 9);
    assert_eq!(room.sees(&bob, &last).await, Err(Reason::TaskNotFound));
}
