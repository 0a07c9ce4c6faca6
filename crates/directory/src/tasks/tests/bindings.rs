//! Bindings of tasks and contexts to instances.

use super::*;
use kernel::ids::InstanceId;

fn instance(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

fn ann() -> Arc<Proof> {
    Arc::new(Proof::for_test(Principal::Workspace { id: id("ann") }))
}

fn binder(room: &Room, name: &str) -> Binder {
    Binder::new(
        &room.tasks,
        (life("dev"), &instance(name)),
        &ann(),
        Vec::new(),
    )
}

/// Binds in place of `a`, which is gone.
fn heir(room: &Room, name: &str) -> Binder {
    let gone = vec![instance("a")];
    Binder::new(&room.tasks, (life("dev"), &instance(name)), &ann(), gone)
}

async fn bound(room: &Room, subjects: &[Subject<'_>]) -> Option<InstanceId> {
    let found = room
        .tasks
        .find_bindings(&life("dev"), subjects, "ann")
        .await;
    let first = found.unwrap().into_iter().next();
    first.map(|(_, instance)| instance)
}

fn run(room: &Room) {
    let tasks = Arc::clone(&room.tasks);
    tokio::spawn(async move { tasks.run().await });
}

#[tokio::test]
async fn an_answer_binds_its_task_and_its_context_also_for_the_next_process() {
    let room = room("memory").await;
    run(&room);
    let (task, context) = (Subject::Task("T-1"), Subject::Context("c-1"));
    assert_eq!(bound(&room, &[task, context]).await, None);
    binder(&room, "a").bind(None, Some("T-1"), false).await;
    binder(&room, "b").bind(Some("c-1"), None, false).await;
    room.tasks.flush().await;
    for room in [&room, &room.again()] {
        assert_eq!(bound(room, &[task]).await, Some(instance("a")));
        assert_eq!(bound(room, &[context]).await, Some(instance("b")));
        assert_eq!(bound(room, &[task, context]).await, Some(instance("a")));
        assert_eq!(
            bound(room, &[Subject::Task("x"), context]).await,
            Some(instance("b"))
        );
        // Agents may treat ids of tasks that differ in case as equal.
        assert_eq!(
            bound(room, &[Subject::Task("t-1")]).await,
            Some(instance("a"))
        );
        for other in [
            Subject::Context("t-1"),
            Subject::Context("C-1"),
            Subject::Task("c-1"),
        ] {
            assert_eq!(bound(room, &[other]).await, None, "{other:?}");
        }
        let elsewhere = room.tasks.find_bindings(&life("ops"), &[task], "ann").await;
        assert_eq!(elsewhere.unwrap(), [], "another target");
    }
    // Another instance uses the same id. In memory, and for a process that has not read the binding.
    binder(&room, "b").bind(None, Some("T-1"), false).await;
    assert_eq!(bound(&room, &[task]).await, Some(instance("a")));
    let again = room.again();
    run(&again);
    binder(&again, "b").bind(None, Some("T-1"), false).await;
    again.tasks.flush().await;
    assert_eq!(bound(&room.again(), &[task]).await, Some(instance("a")));
    // Its instance is gone: the one that answers has it from now on.
    heir(&again, "c").bind(None, Some("T-1"), false).await;
    again.tasks.flush().await;
    assert_eq!(bound(&room.again(), &[task]).await, Some(instance("c")));
}

#[tokio::test]
async fn a_binding_lasts_a_ttl_from_its_last_use_and_that_of_an_ended_task_is_not_renewed() {
    let ttl = Duration::from_secs(12);
    let room = room_with("memory", |config| config.affinity.ttl = ttl).await;
    run(&room);
    let [mut used, mut ended] = ["a", "a"].map(|name| binder(&room, name));
    used.bind(None, Some("used"), false).await;
    ended.bind(None, Some("ended"), false).await;
    ended.record_end().await;
    binder(&room, "a").bind(None, Some("unused"), false).await;
    let began = std::time::Instant::now();
    while began.elapsed() < ttl + ttl / 2 {
        let asked = std::time::Instant::now();
        let found = bound(&room, &[Subject::Task("used")]).await;
        // A machine that stalls for a ttl proves nothing.
        if asked.elapsed() < ttl / 8 {
            assert_eq!(found, Some(instance("a")), "after {:?}", began.elapsed());
        }
        // Not at its end: the row may be written later than memory has it, and is read again for a ttl.
        if began.elapsed() < ttl / 2 {
            bound(&room, &[Subject::Task("ended")]).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    room.tasks.flush().await;
    for room in [&room, &room.again()] {
        assert_eq!(
            bound(room, &[Subject::Task("used")]).await,
            Some(instance("a"))
        );
        for gone in ["ended", "unused"] {
            assert_eq!(bound(room, &[Subject::Task(gone)]).await, None, "{gone}");
        }
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_and_delays_an_answer_by_a_bounded_time() {
    let room = room_with("redis://127.0.0.1:1", |config| {
        config.stores.timeout = Duration::from_millis(200);
    })
    .await;
    run(&room);
    let began = std::time::Instant::now();
    binder(&room, "a").bind(None, Some("t"), false).await;
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        bound(&room, &[Subject::Task("t")]).await,
        Some(instance("a"))
    );
    let (target, unknown) = (life("dev"), [Subject::Task("x")]);
    let read = room.tasks.find_bindings(&target, &unknown, "ann").await;
    assert!(read.is_err());
}

#[tokio::test]
async fn only_what_is_gone_is_replaced_and_a_task_that_has_ended_is_written_once() {
    let room = room("memory").await;
    binder(&room, "c").bind(Some("ctx"), None, false).await;
    heir(&room, "b").bind(Some("ctx"), Some("t"), true).await;
    let at = async |subject| bound(&room, &[subject]).await;
    assert_eq!(
        at(Subject::Context("ctx")).await,
        Some(instance("c")),
        "it is not gone"
    );
    assert_eq!(at(Subject::Task("t")).await, Some(instance("b")));
    let queued = || room.metrics.queues.entries[kernel::metrics::Queue::TaskNotes].get();
    let before = queued();
    for _ in 0..10 {
        let mut asked = binder(&room, "b");
        asked.bind(None, Some("t"), false).await;
        asked.record_end().await;
        binder(&room, "b").bind(None, Some("t"), true).await;
    }
    assert_eq!(queued(), before, "a poll of a finished task writes nothing");
}

#[tokio::test]
async fn a_caller_has_a_bounded_number_of_bindings() {
    let room = room_with("memory", |config| config.a2a.tasks_per_caller = 100).await;
    run(&room);
    let mut binder = binder(&room, "a");
    for number in 0..300 {
        let context = format!("c-{number}");
        binder.bind(Some(&context), None, false).await;
        // Keep the queue of notes within its bound, and the order of the rows.
        room.tasks.flush().await;
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while bound(&room.again(), &[Subject::Context("c-1")])
        .await
        .is_some()
    {
        assert!(std::time::Instant::now() < deadline, "the oldest stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let last = Subject::Context("c-299");
    assert_eq!(bound(&room.again(), &[last]).await, Some(instance("a")));
}
