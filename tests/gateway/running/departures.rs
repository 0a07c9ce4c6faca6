//! An agent leaves without a lost call, guarded or not. It does nothing for that: it dies at SIGTERM.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::harness::ports::free_address;
use crate::harness::{Step, holds_for, ok_json};

/// Callers at the same time.
const CALLERS: usize = 8;

/// Calls without a pause until `stop`; answers the number of calls, and what was no answer.
async fn load(stage: &Stage, stop: &AtomicBool) -> (usize, Vec<String>) {
    let (mut calls, mut lost) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let answer = stage.call().await;
        calls += 1;
        if answer.status != 200 {
            lost.push(format!("{} {}", answer.status, answer.text()));
        }
    }
    (calls, lost)
}

/// Starts two instances one after the other, ends the first under load.
async fn no_call_is_lost(guards: bool) {
    let stage = Arc::new(Stage::new(Pair::Embedded).await);
    let start = async |name| {
        let address = free_address("127.0.0.1").to_string();
        let all = ["--guard", &address, "--", "env", "PAUSE=0.2", SCRIPT];
        let run = stage.run(name, if guards { &all } else { &all[2..] });
        stage.until_status_of(name, "online", &run).await;
        run
    };
    let mut old = start("old").await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers = (0..CALLERS).map(|_| {
        let (stage, stop) = (Arc::clone(&stage), Arc::clone(&stop));
        tokio::spawn(async move { load(&stage, &stop).await })
    });
    let callers: Vec<_> = callers.collect();
    let new = start("new").await;
    old.signal("TERM");
    assert_eq!(old.code().await, Some(128 + 15), "{}", old.log());
    stop.store(true, Ordering::Relaxed);
    let mut all = 0;
    for caller in callers {
        let (calls, lost) = caller.await.unwrap();
        all += calls;
        assert!(lost.is_empty(), "{lost:?}\n{}", old.log());
    }
    assert!(all >= CALLERS, "{all} calls are no load");
    assert_eq!(stage.status_of("old").await, None, "{}", old.log());
    drop(new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_leaves_under_load_without_a_lost_call() {
    tokio::join!(no_call_is_lost(false), no_call_is_lost(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_call_of_an_agent_is_answered_before_it_ends() {
    let stage = Arc::new(Stage::new(Pair::Embedded).await);
    let guard = free_address("127.0.0.1").to_string();
    for more in [&[][..], &["--guard", &guard]] {
        let slow = ["--", "env", "PAUSE=1", SCRIPT];
        let arguments: Vec<_> = more.iter().chain(&slow).copied().collect();
        let mut run = stage.run("one", &arguments);
        stage.until_status_of("one", "online", &run).await;
        let calling = stage.calling().await;
        run.signal("INT");
        // Python answers SIGINT with a traceback.
        assert_eq!(run.code().await, Some(128 + 2), "{}", run.log());
        let answer = calling.await.unwrap();
        assert_eq!(said(&answer)[2], "caller", "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_or_the_end_of_the_grace_ends_the_wait_for_calls() {
    let stage = Arc::new(Stage::new(Pair::Embedded).await);
    // Neither the call nor the longer grace ends while a case runs. The agent has a fifth of the other to end.
    for (grace, twice) in [("10m", true), ("20s", false)] {
        let slow = ["--grace", grace, "--", "env", "PAUSE=600", SCRIPT];
        let mut run = stage.run("one", &slow);
        stage.until_status_of("one", "online", &run).await;
        let calling = stage.calling().await;
        run.signal("TERM");
        if twice {
            run.until_it_says("draining the agent").await;
            run.signal("TERM");
        }
        assert_eq!(run.code().await, Some(128 + 15), "{}", run.log());
        assert_eq!(calling.await.unwrap().status, 502);
        assert_eq!(stage.view().await["status"], "offline");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_heartbeat_comes_after_the_deregistration() {
    let mut stage = Stage::new(Pair::Embedded).await;
    let (gate, held) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (places, holds) = (Arc::clone(&gate), Arc::clone(&held));
    let gateway = Agent::scripted(move |request| {
        let token = ADMIN.replace("a2aa_", "a2aw_");
        let answer =
            json!({"status": "registered", "token": token, "expires_in": 1.5, "instances": []});
        let answer = Step::Write(ok_json(&answer.to_string()));
        let is_beat = request.head.starts_with("POST /registry/heartbeat");
        match is_beat && holds.load(Ordering::SeqCst) {
            true => vec![Step::Held(Arc::clone(&places)), answer],
            false => vec![answer],
        }
    });
    let gateway = gateway.await;
    stage.url = gateway.url();
    let mut run = stage.run("one", &["--", SCRIPT]);
    run.until_it_says("the agent has joined").await;
    let asked = |path: &str| {
        let requests = gateway.requests();
        requests
            .iter()
            .filter(|one| one.head.contains(path))
            .count()
    };
    held.store(true, Ordering::SeqCst);
    let beats = asked("/registry/heartbeat");
    until_holds("a heartbeat", async || asked("/registry/heartbeat") > beats).await;
    run.signal("TERM");
    // It asks for its calls in progress before it leaves.
    until_holds("calls are over", async || {
        asked("GET /workspaces/target") >= 4
    })
    .await;
    let waits = async || asked("/registry/deregister") == 0;
    holds_for(
        Duration::from_millis(500),
        "the heartbeat is waited for",
        waits,
    )
    .await;
    held.store(false, Ordering::SeqCst);
    gate.add_permits(9);
    assert_eq!(run.code().await, Some(128 + 15), "{}", run.log());
    assert_eq!(asked("/registry/deregister"), 1, "{}", run.log());
}
