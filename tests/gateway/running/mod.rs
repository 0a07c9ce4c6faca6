//! `a2a-gateway run`: a script that knows of no gateway joins one, is called, and leaves.

mod deaths;
mod departures;
mod faults;
mod guarded;
mod starts;

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, until_found, until_holds,
};

/// The agent: a script of the shell.
const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/gateway/running/agent.sh"
);

/// Longest wait for a step.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway with a caller, and a workspace `target` for the agent.
struct Stage {
    gateway: Gateway,
    caller: Seat,
    folder: tempfile::TempDir,
    /// Where `run` finds the gateway.
    url: String,
}

impl Stage {
    async fn new(pair: Pair) -> Self {
        Self::of(Builder::new(pair), "60s").await
    }

    /// With leases that last so long; a third of that is between two heartbeats.
    async fn of(builder: Builder, lease: &str) -> Self {
        let builder = builder.set("registry.heartbeat_ttl", lease);
        let gateway = builder.start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let folder = tempfile::tempdir().unwrap();
        let made = gateway.create(json!({"id": "target", "name": "target"}));
        std::fs::write(folder.path().join("token"), made.await).unwrap();
        let url = format!("http://{}", gateway.public);
        Self {
            gateway,
            caller,
            folder,
            url,
        }
    }

    fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.token_file()).unwrap()
    }

    /// Starts `run` with these arguments, the last ones the command.
    fn run(&self, name: &str, arguments: &[&str]) -> Run {
        let log = self.folder.path().join(format!("{name}.log"));
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
            .args(["run", "--workspace", "target", "--instance", name])
            .args(["--token-file", self.token_file().to_str().unwrap()])
            .args(["--gateway", &self.url])
            .args(arguments)
            .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN)
            .env("A2A_GATEWAY_TOKEN", ADMIN)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Run { child, log }
    }

    /// Starts the agent, and waits until it is there and has its token, which is made after it is online.
    async fn joined(&self, name: &str, more: &[&str]) -> Run {
        let arguments: Vec<_> = more.iter().chain(&["--", SCRIPT]).copied().collect();
        let run = self.run(name, &arguments);
        self.until_status_of(name, "online", &run).await;
        run.until_it_says("the agent has joined").await;
        run
    }

    async fn view(&self) -> Value {
        self.gateway.view("target").await
    }

    async fn status_of(&self, name: &str) -> Option<String> {
        let view = self.view().await;
        let instances = view["instances"].as_array().cloned().unwrap_or_default();
        let own = instances.iter().find(|one| one["instance_id"] == name)?;
        own["status"].as_str().map(str::to_owned)
    }

    async fn until_status_of(&self, name: &str, wanted: &str, run: &Run) {
        let deadline = Instant::now() + PATIENCE;
        let is_so = async || {
            assert!(Instant::now() < deadline, "{wanted}: {}", run.log());
            self.status_of(name).await.as_deref() == Some(wanted)
        };
        until_holds(wanted, is_so).await;
    }

    async fn until_status(&self, wanted: &str) {
        until_holds(wanted, async || self.view().await["status"] == wanted).await;
    }

    async fn call(&self) -> Answer {
        let request = Request::post("/workspaces/target/a2a", CALL).bearer(&self.caller.token);
        self.gateway.call(&request).await
    }

    /// The agent's process, the path at which it was called, and its caller.
    async fn said(&self) -> [String; 3] {
        // A lease may end for a moment on a machine that stalls.
        let answers = async || Some(self.call().await).filter(|answer| answer.status == 200);
        said(&until_found("the agent answers", answers).await)
    }

    /// Starts a call, and waits until the agent has it.
    async fn calling(self: &Arc<Self>) -> tokio::task::JoinHandle<Answer> {
        let caller = Arc::clone(self);
        let calling = tokio::spawn(async move { caller.call().await });
        // On a machine that stalls it may be over before anybody looks.
        let has_it =
            async || calling.is_finished() || self.view().await["instances"][0]["in_flight"] == 1;
        until_holds("the agent has the call", has_it).await;
        calling
    }
}

/// The words of the agent in its answer.
fn said(answer: &Answer) -> [String; 3] {
    let text = answer.clone().has(200).json()["result"]["parts"][0]["text"].clone();
    let words = text.as_str().unwrap().split(' ').map(str::to_owned);
    words.collect::<Vec<_>>().try_into().unwrap()
}

/// A running `a2a-gateway run`. Dropping it kills it, after it has ended its agent.
struct Run {
    child: Child,
    log: PathBuf,
}

impl Run {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, name: &str) {
        signal(&self.child.id().to_string(), name);
    }

    /// Waits until it ends by itself.
    async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        until_found("it ends", async || {
            assert!(Instant::now() < deadline, "it does not end: {}", self.log());
            self.child.try_wait().unwrap()
        })
        .await
    }

    async fn code(&mut self) -> Option<i32> {
        self.ended().await.code()
    }

    async fn until_it_says(&self, text: &str) {
        self.until_it_says_times(text, 1).await;
    }

    async fn until_it_says_times(&self, text: &str, times: usize) {
        let said = async || self.log().matches(text).count() >= times;
        until_holds(text, said).await;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Twice: at once.
            self.signal("TERM");
            self.signal("TERM");
            let _ = self.child.wait();
        }
    }
}

fn signal(process: &str, name: &str) {
    let sent = Command::new("kill").args(["-s", name, process]).status();
    assert!(sent.unwrap().success());
}

/// True if a process is there, and no zombie.
fn lives(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_token_is_neither_in_the_agents_environment_nor_in_that_of_run() {
    let stage = Stage::new(Pair::Embedded).await;
    std::fs::set_permissions(stage.token_file(), std::fs::Permissions::from_mode(0o604)).unwrap();
    let reads = format!("cat /proc/$PPID/environ /proc/$$/environ; echo; exec '{SCRIPT}'");
    let run = stage.run("one", &["--", "sh", "-c", &reads]);
    run.until_it_says("the agent has joined").await;
    let log = run.log();
    assert!(log.contains("PATH=") && !log.contains(ADMIN), "{log}");
    // What is in the file is the agent's alone.
    assert!(log.contains("chmod 600") && !log.contains("a2ae_"), "{log}");
}

crate::on_both_pairs! {
    async fn a_gateway_that_was_away_or_killed_is_joined_again(pair: Pair) {
        let mut stage = Stage::of(Builder::new(pair).process(), "2s").await;
        stage.gateway.kill();
        let run = stage.run("one", &["--", SCRIPT]);
        run.until_it_says("The gateway does not hear the agent").await;
        stage.gateway.restart().await;
        stage.until_status_of("one", "online", &run).await;
        stage.gateway.kill();
        stage.gateway.restart().await;
        stage.until_status_of("one", "online", &run).await;
        assert_eq!(stage.said().await[2], "caller");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_of_the_shell_joins_and_leaves_without_code() {
    let stage = Stage::new(Pair::Embedded).await;
    let mut run = stage.joined("one", &[]).await;
    let [process, path, caller] = stage.said().await;
    assert_eq!((path.as_str(), caller.as_str()), ("/rpc", "caller"));
    let log = run.log();
    assert!(
        log.contains("the agent starts with 0 arguments, \n"),
        "{log}"
    );
    let token = stage.token();
    let is_own = token.starts_with("a2aw_");
    assert!(is_own, "the enrolment token was not replaced");
    let mode = stage.token_file().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!run.log().contains(&token), "the token is in the log");
    run.signal("TERM");
    // Python ends by SIGTERM.
    assert_eq!(run.code().await, Some(128 + 15), "{}", run.log());
    assert_eq!(stage.view().await["status"], "offline");
    assert!(!lives(&process));
    // A later start needs nothing else.
    let again = stage.joined("two", &[]).await;
    assert_ne!(stage.said().await[0], process);
    drop(again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_rotated_counts_at_once() {
    let stage = Stage::of(Builder::new(Pair::Embedded), "3s").await;
    let run = stage.joined("one", &[]).await;
    let tokens = "/workspaces/target/tokens";
    let old = stage.gateway.as_operator(Request::get(tokens)).await.json();
    let new = stage.gateway.token(tokens, "{}").await;
    // Revoked first: the agent is refused until it finds the new one.
    for token in old["tokens"].as_array().unwrap() {
        let path = format!("{tokens}/{}", token["id"].as_str().unwrap());
        let revoke = Request::new("DELETE", path);
        stage.gateway.as_operator(revoke).await.has(200);
    }
    run.until_it_says("no good token in").await;
    std::fs::write(stage.token_file(), new).unwrap();
    run.until_it_says_times("the agent has joined", 2).await;
    stage.until_status("online").await;
    assert_eq!(stage.said().await[2], "caller");
}
