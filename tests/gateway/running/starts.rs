//! Agents that do not start, or not in time.

use super::*;
use crate::harness::ports::free_address;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_status_of_an_agent_that_ends_at_once_is_that_of_run() {
    let stage = Stage::new(Pair::Embedded).await;
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["true"], 0),
        (&["/nowhere/agent"], 127),
        (&["/etc/hostname"], 126),
        (&["sh", "-c", "kill -s KILL $$"], 128 + 9),
    ] {
        let arguments: Vec<_> = ["--"].iter().chain(command).copied().collect();
        let mut run = stage.run("one", &arguments);
        assert_eq!(run.code().await, Some(code), "{command:?}: {}", run.log());
    }
    assert_eq!(stage.view().await["status"], "provisioning");
    assert!(stage.token().starts_with("a2ae_"), "the token is used up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_never_serves_its_card_is_ended() {
    let stage = Stage::new(Pair::Embedded).await;
    let silent = "echo $$; exec sleep 600";
    // Deaf to SIGTERM, and with a child.
    let deaf = "trap '' TERM; echo $$; sleep 600; sleep 600";
    let other = "echo $$; exec python3 -m http.server --bind 127.0.0.1 $PORT";
    // It accepts, and does not answer.
    let mute = "import os, socket, time; print(os.getpid(), flush=True); \
                held = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); time.sleep(600)";
    for (within, command, said) in [
        (1, ["sh", silent], "nothing listens at http://127.0.0.1:"),
        (1, ["sh", deaf], "did not end in time"),
        (
            2,
            ["sh", other],
            "/.well-known/agent-card.json answered 404; --card",
        ),
        (2, ["python3", mute], "no answer from http://127.0.0.1:"),
    ] {
        let ready = format!("{within}s");
        let [program, script] = command;
        let clocks = ["--ready-within", &ready, "--grace", "500ms", "--"];
        let arguments = [&clocks[..], &[program, "-c", script]].concat();
        // On a machine that stalls Python may not be there in time.
        let ends_as_said = async || {
            let mut run = stage.run("one", &arguments);
            assert_eq!(run.code().await, Some(1), "{}", run.log());
            let log = run.log();
            let waited = format!("did not serve its card within {within}s");
            assert!(log.contains(&waited), "{log}");
            let number = |line: &&str| line.bytes().all(|byte| byte.is_ascii_digit());
            let process = log.lines().find(number);
            assert!(process.is_none_or(|process| !lives(process)), "{log}");
            process.is_some() && log.contains(said)
        };
        until_holds(said, ends_as_said).await;
    }
    assert!(stage.token().starts_with("a2ae_"), "the token is used up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_taken_ends_the_start_before_the_agents() {
    let stage = Stage::new(Pair::Embedded).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (port, guard) = (address.port().to_string(), address.to_string());
    for more in [["--port", &port], ["--guard", &guard]] {
        let arguments: Vec<_> = more.iter().chain(&["--", SCRIPT]).copied().collect();
        let mut run = stage.run("one", &arguments);
        assert_eq!(run.code().await, Some(1), "{more:?}");
        let log = run.log();
        assert!(log.contains(&guard) || log.contains(&port), "{log}");
        assert!(!log.contains("the agent starts"), "{log}");
    }
}

/// A program at the agent's port that `run` did not start, which serves a card.
struct Stranger(Child);

impl Stranger {
    fn at(port: &str) -> Self {
        let mut command = Command::new(SCRIPT);
        let command = command.env("PORT", port).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_takes_the_agents_port_is_not_registered_in_its_place() {
    let stage = Stage::of(Builder::new(Pair::Embedded), "3s").await;
    let port = free_address("127.0.0.1").port().to_string();
    let gate = stage.folder.path().join("gate");
    let gate_shown = gate.display();
    let late = format!(
        "echo 'the agent waits'; until [ -e '{gate_shown}' ]; do sleep 0.05; done; '{SCRIPT}' & \
         while :; do sleep 0.1; done"
    );
    let run = stage.run("one", &["--port", &port, "--", "sh", "-c", &late]);
    run.until_it_says("the agent waits").await;
    let taken_by = |stranger: &Stranger| {
        let id = stranger.0.id();
        format!("port {port} of 127.0.0.1 belongs to another program (process {id})")
    };
    let stranger = Stranger::at(&port);
    run.until_it_says(&taken_by(&stranger)).await;
    assert_eq!(stage.view().await["status"], "provisioning");
    assert!(stage.token().starts_with("a2ae_"), "the token is used up");
    drop(stranger);
    std::fs::write(&gate, "").unwrap();
    stage.until_status_of("one", "online", &run).await;
    // It takes the port when the agent no longer listens.
    let [process, ..] = stage.said().await;
    signal(&process, "KILL");
    until_holds("its port is free", async || !lives(&process)).await;
    let stranger = Stranger::at(&port);
    run.until_it_says(&taken_by(&stranger)).await;
    stage.until_status("offline").await;
    drop(run);
    // Asked for, it is taken for the agent.
    std::fs::remove_file(&gate).unwrap();
    drop(stranger);
    let waits = ["--any-listener", "--port", &port, "--", "sh", "-c", &late];
    let run = stage.run("two", &waits);
    run.until_it_says("the agent waits").await;
    let _stranger = Stranger::at(&port);
    stage.until_status_of("two", "online", &run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enrolment_token_is_kept_where_its_fruit_has_no_place() {
    let stage = Stage::new(Pair::Embedded).await;
    let enrolment = stage.token();
    std::fs::remove_file(stage.token_file()).unwrap();
    let nowhere = stage.folder.path().join("missing/token");
    // The stage names a file already.
    let child = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .args(["run", "--workspace", "target"])
        .args(["--gateway", &format!("http://{}", stage.gateway.public)])
        .args(["--enrolment-token", &enrolment, "--token-file"])
        .arg(&nowhere)
        .args(["--", SCRIPT])
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(stage.folder.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let log = stage.folder.path().join("log");
    let run = Run { child, log };
    run.until_it_says("would be used up in vain").await;
    assert!(!run.log().contains(&enrolment));
    // Once there is a place, the same process joins.
    std::fs::create_dir(nowhere.parent().unwrap()).unwrap();
    stage.until_status("online").await;
    // It is written once the gateway has answered.
    let own = async || std::fs::read_to_string(&nowhere).is_ok_and(|own| own.starts_with("a2aw_"));
    until_holds("its own token is written", own).await;
}
