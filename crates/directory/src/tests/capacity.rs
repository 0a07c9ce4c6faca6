//! Slots, breaker, learned limit and queue of a target, by the directory.

use tokio::task::yield_now;
use tokio::time::Instant;

use super::*;
use kernel::metrics::AgentFailure;

const FAILED: CallOutcome = CallOutcome::from_failure(AgentFailure::Connect);

fn account(own: u64) -> Account {
    Account::without_group(own)
}

/// Calls `name` once, with this outcome.
async fn call(room: &Room, name: &str, outcome: CallOutcome) -> Result<(), NoSlot> {
    call_of(1, room, name, outcome).await
}

async fn call_of(own: u64, room: &Room, name: &str, outcome: CallOutcome) -> Result<(), NoSlot> {
    let agent = room.agent(name).await;
    let mut slot = agent.slots.take(account(own), CallKind::Unary)?;
    slot.finish(outcome);
    Ok(())
}

/// Opens the breaker for all, by failures of two callers.
async fn open(room: &Room, name: &str) {
    for own in [1, 1, 1, 1, 2] {
        call_of(own, room, name, FAILED).await.unwrap();
    }
    let refused = call(room, name, FAILED).await.unwrap_err().why;
    assert_eq!(refused.reason, Reason::AgentBusy);
    let mut facts = refused.facts();
    assert!(facts.any(|fact| fact == ("breaker", "open")));
}

#[tokio::test]
async fn slots_are_counted_across_reloads_and_given_back_whatever_ends_them() {
    let room = room().await;
    room.online("a").await;
    let agent = room.agent("a").await;
    let one = agent.slots.take(account(1), CallKind::Unary).unwrap();
    room.coherence.apply(&Invalidation::Everything).await;
    let agent = room.agent("a").await;
    let two = agent.slots.take(account(2), CallKind::Unary).unwrap();
    let busy = agent
        .slots
        .take(account(3), CallKind::Unary)
        .unwrap_err()
        .why;
    assert_eq!(
        (busy.reason, busy.retry_after),
        (Reason::AgentBusy, Some(1))
    );
    assert_eq!(room.metrics.target_permits.get(), 2);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = two;
        panic!("a bug");
    }));
    assert!(panicked.is_err());
    drop(one);
    assert_eq!(room.metrics.target_permits.get(), 0);
    assert!(agent.slots.take(account(1), CallKind::Unary).is_ok());
}

#[tokio::test]
async fn a_breaker_survives_reloads_and_a_heartbeat_lets_one_call_try() {
    let room = room().await;
    room.online("a").await;
    open(&room, "a").await;
    room.coherence.apply(&Invalidation::Everything).await;
    assert!(call(&room, "a", FAILED).await.is_err());
    assert_eq!(room.metrics.capacity.breakers_open.get(), 1);
    pass(Duration::from_secs(1)).await;
    room.directory
        .heartbeats
        .record(&id("a"), &Heartbeat::default())
        .await
        .unwrap();
    let agent = room.agent("a").await;
    let one = agent.slots.take(account(1), CallKind::Unary).unwrap();
    assert!(
        agent.slots.take(account(2), CallKind::Unary).is_err(),
        "one at a time"
    );
    // Its caller left: a call of another one tries.
    drop(one);
    assert!(
        agent.slots.take(account(1), CallKind::Unary).is_err(),
        "its call told nothing"
    );
    let mut two = agent.slots.take(account(2), CallKind::Unary).unwrap();
    two.finish(CallOutcome::ANSWERED);
    drop(two);
    assert_eq!(room.metrics.capacity.breakers_open.get(), 0);
    call(&room, "a", FAILED).await.unwrap();
    call(&room, "a", FAILED).await.unwrap();
}

#[tokio::test]
async fn a_workspace_of_assumed_liveness_is_degraded_while_its_breaker_is_open() {
    let room = room().await;
    let outsider = creation_with("x", |said| {
        said.liveness = Some(Liveness::Assumed);
        said.url = Some(registration("x").url);
        said.max_concurrent = Some(Some(10));
    });
    room.directory
        .registrations
        .create(&outsider, Run::Real)
        .await
        .unwrap();
    let status = async || room.directory.views.find(&id("x")).await.unwrap().status;
    open(&room, "x").await;
    assert_eq!(status().await, Status::Degraded);
    pass(Duration::from_secs(5)).await;
    call(&room, "x", CallOutcome::ANSWERED).await.unwrap();
    assert_eq!(status().await, Status::Online);
}

#[tokio::test]
async fn a_breaker_that_is_open_to_one_caller_is_the_agent_s_while_there_is_no_other() {
    let room = room().await;
    room.online("a").await;
    let agent = room.agent("a").await;
    for _ in 0..5 {
        call(&room, "a", FAILED).await.unwrap();
    }
    let seen = || {
        let open = room.metrics.capacity.breakers_open.get();
        (
            open,
            [1, 2].map(|own| agent.slots.is_available(account(own))),
        )
    };
    assert_eq!(seen(), (1, [false, true]));
    call_of(2, &room, "a", CallOutcome::ANSWERED).await.unwrap();
    assert_eq!(seen(), (0, [false, true]));
    pass(Duration::from_secs(1)).await;
    let (heartbeats, beat) = (&room.directory.heartbeats, Heartbeat::default());
    heartbeats.record(&id("a"), &beat).await.unwrap();
    for outcome in [CallOutcome::ANSWERED, FAILED, FAILED, FAILED, FAILED] {
        call(&room, "a", outcome).await.unwrap();
    }
    // A probe is one more.
    agent.slots.probe_failed(AgentFailure::Connect);
    assert_eq!(seen(), (1, [false, false]));
}

#[tokio::test]
async fn calls_wait_in_order_leave_with_their_callers_and_are_refused_in_time() {
    let room = room_with(|config| {
        config.limits.target_concurrency = 1;
        config.limits.target_queue = 4;
    })
    .await;
    room.online("a").await;
    let agent = room.agent("a").await;
    let slots = &agent.slots;
    let held = slots.take(account(1), CallKind::Unary).unwrap();
    let far = Instant::now() + Duration::from_secs(60);
    let wait = async |own| {
        let refused = slots.take(account(own), CallKind::Unary).unwrap_err();
        slots
            .wait(refused, account(own), CallKind::Unary, far)
            .await
    };
    let mut first = Box::pin(wait(2));
    let mut second = Box::pin(wait(3));
    let mut third = Box::pin(wait(4));
    for waits in [&mut first, &mut second, &mut third] {
        assert!(futures_util::poll!(waits).is_pending());
    }
    assert_eq!(room.metrics.capacity.queued.get(), 3);
    drop(first);
    assert_eq!(room.metrics.capacity.queued.get(), 2);
    drop(held);
    yield_now().await;
    assert!(
        futures_util::poll!(&mut third).is_pending(),
        "behind the second"
    );
    let slot = second.await.unwrap();
    pass(Duration::from_secs(5)).await;
    let late = third.await.unwrap_err();
    assert_eq!(late.reason, Reason::AgentBusy);
    assert!(
        late.message.contains("limits.target_queue_wait"),
        "{}",
        late.message
    );
    drop(slot);
    assert_eq!(room.metrics.capacity.queued.get(), 0);
    assert!(slots.take(account(5), CallKind::Unary).is_ok());
}

#[tokio::test]
async fn a_breaker_that_opens_refuses_the_calls_that_wait() {
    let room = room_with(|config| {
        config.limits.target_concurrency = 1;
        config.limits.target_queue = 4;
        config.breaker.failures = 1;
    })
    .await;
    room.online("a").await;
    let agent = room.agent("a").await;
    let slots = &agent.slots;
    let mut held = slots.take(account(1), CallKind::Unary).unwrap();
    let refused = slots.take(account(1), CallKind::Unary).unwrap_err();
    let far = Instant::now() + Duration::from_secs(60);
    let mut waits = Box::pin(slots.wait(refused, account(1), CallKind::Unary, far));
    assert!(futures_util::poll!(&mut waits).is_pending());
    held.finish(FAILED);
    drop(held);
    let why = waits.await.unwrap_err();
    assert!(
        why.facts().any(|fact| fact == ("breaker", "open")),
        "{why:?}"
    );
}

/// Fills `many` places with a call of each caller, all of which the agent refuses for its load.
async fn refuse(room: &Room, name: &str, many: u64) {
    let agent = room.agent(name).await;
    let calls: Vec<_> = (1..=many)
        .map(|own| agent.slots.take(account(own), CallKind::Unary).unwrap())
        .collect();
    for mut call in calls {
        call.finish(CallOutcome::from_status(429));
    }
}

#[tokio::test]
async fn an_agent_that_refuses_calls_gets_fewer_and_streams_are_counted_apart() {
    let room = room_with(|config| config.limits.target_concurrency = 256).await;
    room.online("a").await;
    call(&room, "a", CallOutcome::from_status(429))
        .await
        .unwrap();
    let view = || room.directory.slots.capacity_views(&id("a")).remove(0);
    assert_eq!(
        view().learned_limit,
        None,
        "a call that was alone tells nothing"
    );
    refuse(&room, "a", 10).await;
    assert_eq!(
        (view().learned_limit, view().learned_limit_streams),
        (Some(6), None)
    );
    let agent = room.agent("a").await;
    let mut held: Vec<_> = (0..6)
        .map(|_| agent.slots.take(account(1), CallKind::Unary).unwrap())
        .collect();
    let refused = agent
        .slots
        .take(account(2), CallKind::Unary)
        .unwrap_err()
        .why;
    assert!(refused.facts().any(|fact| fact == ("learned_limit", "6")));
    assert!(agent.slots.take(account(2), CallKind::Stream).is_ok());
    // Another caller is there: the first one may have half from now on.
    held.truncate(5);
    assert!(agent.slots.take(account(1), CallKind::Unary).is_err());
    let other = agent.slots.take(account(2), CallKind::Unary).unwrap();
    drop((held, other));
    // It registers: it was started again.
    let (again, itself) = (registration("a"), Registrar::Itself);
    let registered = room.directory.registrations.register(&again, &itself);
    registered.await.unwrap();
    assert_eq!(view().learned_limit, None);
}

#[tokio::test]
async fn calls_that_wait_for_their_share_leave_free_places_to_others() {
    let room = room_with(|config| {
        config.limits.target_concurrency = 4;
        config.limits.target_queue = 4;
    })
    .await;
    room.online("a").await;
    let agent = room.agent("a").await;
    let slots = &agent.slots;
    let _held = [1, 1].map(|own| slots.take(account(own), CallKind::Unary).unwrap());
    let refused = slots.take(account(1), CallKind::Unary).unwrap_err();
    let far = Instant::now() + Duration::from_secs(60);
    let mut waits = Box::pin(slots.wait(refused, account(1), CallKind::Unary, far));
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert!(slots.take(account(2), CallKind::Unary).is_ok());
}

#[tokio::test]
async fn a_breaker_and_a_limit_that_are_switched_off_let_calls_pass() {
    let room = room_with(|config| config.limits.target_concurrency = 8).await;
    room.online("a").await;
    refuse(&room, "a", 4).await;
    open(&room, "a").await;
    let mut config = Config::clone(&room.config.get());
    (config.breaker.failures, config.breaker.ratio.0) = (0, 0.0);
    config.concurrency.adaptive = false;
    let slots = room
        .directory
        .slots
        .for_target((&id("a"), None), 8, &config);
    for _ in 0..20 {
        let mut slot = slots.take(account(1), CallKind::Unary).unwrap();
        slot.finish(FAILED);
    }
    assert_eq!(room.metrics.capacity.breakers_open.get(), 0);
    assert_eq!(
        room.directory
            .slots
            .capacity_views(&id("a"))
            .remove(0)
            .learned_limit,
        None
    );
}

#[tokio::test]
async fn the_budget_of_retries_is_a_fifth_of_the_calls_and_one_a_second() {
    let room = room_with(|config| config.limits.target_concurrency = 8).await;
    room.online("a").await;
    let agent = room.agent("a").await;
    let slot = agent.slots.take(account(1), CallKind::Unary).unwrap();
    let retries = || {
        std::iter::repeat_with(|| slot.may_retry())
            .take_while(|may| *may)
            .count()
    };
    assert_eq!(retries(), 10, "saved at most");
    pass(Duration::from_secs(3)).await;
    assert_eq!(retries(), 3);
    for _ in 0..26 {
        call(&room, "a", CallOutcome::ANSWERED).await.unwrap();
    }
    assert_eq!(retries(), 5);
}
