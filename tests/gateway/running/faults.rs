//! Token files that are bad for a while, answers that are late, and a gateway that hangs.

use super::*;
use crate::harness::ports::free_address;
use crate::harness::relay::Relay;

/// The file is bad before the signal and at its beginning.
async fn no_call_is_lost_to_a_bad_token_file(guard: &[&str]) {
    let stage = Arc::new(Stage::of(Builder::new(Pair::Embedded).process(), "12s").await);
    // A heartbeat finds the bad file before the call is over.
    let slow = ["--", "env", "PAUSE=8", SCRIPT];
    let arguments: Vec<_> = guard.iter().chain(&slow).copied().collect();
    let mut run = stage.run("one", &arguments);
    stage.until_status_of("one", "online", &run).await;
    run.until_it_says("the agent has joined").await;
    let good = stage.token();
    let calling = stage.calling().await;
    std::fs::write(stage.token_file(), "garbage").unwrap();
    run.until_it_says("no good token in").await;
    run.signal("TERM");
    run.until_it_says("draining the agent").await;
    std::fs::write(stage.token_file(), good).unwrap();
    assert_eq!(run.code().await, Some(128 + 15), "{}", run.log());
    assert_eq!(calling.await.unwrap().status, 200, "{}", run.log());
    assert_eq!(stage.view().await["status"], "offline", "{}", run.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_file_that_is_bad_for_a_while_loses_no_call() {
    let guard = free_address("127.0.0.1").to_string();
    let guarded = ["--guard", guard.as_str()];
    tokio::join!(
        no_call_is_lost_to_a_bad_token_file(&[]),
        no_call_is_lost_to_a_bad_token_file(&guarded),
    );
}

/// The agent ends, or `run` is told to at once, before the answer to the registration is there.
async fn the_own_token_is_kept(agent_ends: bool) {
    let address = free_address("127.0.0.1");
    let builder = Builder::new(Pair::Embedded).set("server.hosts", &address.to_string());
    let mut stage = Stage::of(builder, "60s").await;
    let relay = Relay::at(address, stage.gateway.public);
    relay.delay(Duration::from_millis(700));
    stage.url = format!("http://{}", relay.address());
    let mut run = stage.run("one", &["--", SCRIPT]);
    stage.until_status_of("one", "online", &run).await;
    if agent_ends {
        let [process, ..] = stage.said().await;
        signal(&process, "TERM");
    } else {
        run.signal("TERM");
        run.until_it_says("draining the agent").await;
        run.signal("TERM");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    relay.resume();
    assert_eq!(run.code().await, Some(128 + 15), "{}", run.log());
    assert!(stage.token().starts_with("a2aw_"), "{}", run.log());
    assert_eq!(stage.view().await["status"], "offline", "{}", run.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_on_its_way_is_kept_though_the_agent_leaves() {
    tokio::join!(the_own_token_is_kept(true), the_own_token_is_kept(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_gateway_nor_a_file_that_hangs_takes_the_agents_time() {
    for is_pipe in [true, false] {
        let stage = Stage::of(Builder::new(Pair::Embedded).process(), "60s").await;
        let patient = format!("trap 'sleep 0.2; exit 3' TERM; '{SCRIPT}' & while :; do wait; done");
        let arguments = ["--grace", "20s", "--", "sh", "-c", &patient];
        let mut run = stage.run("one", &arguments);
        stage.until_status_of("one", "online", &run).await;
        run.until_it_says("the agent has joined").await;
        if is_pipe {
            std::fs::remove_file(stage.token_file()).unwrap();
            let made = Command::new("mkfifo").arg(stage.token_file()).status();
            assert!(made.unwrap().success());
        } else {
            stage.gateway.signal("STOP");
        }
        run.signal("TERM");
        // Its own status: it was not killed when the grace was over.
        let code = run.code().await;
        stage.gateway.signal("CONT");
        assert_eq!(code, Some(3), "{}", run.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_further_signal_is_passed_on() {
    let stage = Stage::new(Pair::Embedded).await;
    let stubborn = format!(
        "trap 'echo interrupted' INT; trap 'echo asked to quit' QUIT; trap 'exit 3' TERM; '{SCRIPT}' & \
         while :; do wait; done"
    );
    let mut run = stage.run("one", &["--grace", "10m", "--", "sh", "-c", &stubborn]);
    stage.until_status_of("one", "online", &run).await;
    for (name, said) in [("INT", "interrupted"), ("QUIT", "asked to quit")] {
        run.signal(name);
        run.until_it_says(said).await;
    }
    run.signal("TERM");
    assert_eq!(run.code().await, Some(3), "{}", run.log());
}
