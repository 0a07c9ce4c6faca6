//! What becomes of the agent's place when the agent, `run` or the store of leases dies.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_is_deregistered_and_ends_run() {
    let stage = Stage::new(Pair::Embedded).await;
    let mut run = stage.joined("one", &[]).await;
    let [process, ..] = stage.said().await;
    signal(&process, "KILL");
    assert_eq!(run.code().await, Some(128 + 9), "{}", run.log());
    assert_eq!(stage.view().await["status"], "offline");
    assert_eq!(stage.call().await.reason(), "workspace_offline");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_run_is_killed_is_offline_when_its_lease_ends() {
    let stage = Stage::of(Builder::new(Pair::Embedded), "2s").await;
    let mut run = stage.joined("one", &[]).await;
    let [process, ..] = stage.said().await;
    run.signal("KILL");
    run.ended().await;
    stage.until_status("offline").await;
    // Nothing ended the agent: that is the work of the supervisor.
    signal(&process, "KILL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_an_agent_left_behind_are_ended() {
    let stage = Stage::new(Pair::Embedded).await;
    let crowd = format!("echo \"crowd $$\"; '{SCRIPT}' & wait");
    for (by, code) in [("TERM", 128 + 15), ("KILL", 128 + 9)] {
        let mut run = stage.run("one", &["--", "sh", "-c", &crowd]);
        stage.until_status_of("one", "online", &run).await;
        let [process, ..] = stage.said().await;
        if by == "TERM" {
            run.signal("TERM");
        } else {
            let log = run.log();
            let leader = log.lines().find_map(|line| line.strip_prefix("crowd "));
            signal(leader.unwrap(), "KILL");
        }
        assert_eq!(run.code().await, Some(code), "{}", run.log());
        // Killed, and then taken by the system.
        until_holds(by, async || !lives(&process)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_that_end_nothing_are_passed_on() {
    let stage = Stage::new(Pair::Embedded).await;
    // The agent itself ignores it, as what started it did.
    let command =
        format!("trap '' HUP; '{SCRIPT}' & trap 'echo reloaded' HUP; echo trapped; wait; wait");
    let run = stage.run("one", &["--", "sh", "-c", &command]);
    stage.until_status_of("one", "online", &run).await;
    run.until_it_says("trapped").await;
    run.signal("HUP");
    run.until_it_says("reloaded").await;
}
