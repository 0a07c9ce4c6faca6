//! The real binary as a child process, and the ways to set it up.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::agent::Agent;
use super::cards::card_of_both;
use super::client::{Answer, Connection, Request};
use super::planted;
use super::seat::Seat;
use super::servers::Redis;
use super::{roots, schema};

/// The operator's token in all tests.
pub(crate) const ADMIN: &str = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";

/// Which stores a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    /// SQLite and memory.
    Embedded,
    /// A real PostgreSQL and a real Redis.
    External,
}

/// Runs one case on both pairs of stores.
#[macro_export]
macro_rules! on_both_pairs {
    ($($(#[$meta:meta])* async fn $name:ident($pair:ident: Pair) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "a case may need none of its parent's names")]
            use super::*;

            $(#[$meta])*
            async fn case($pair: $crate::harness::Pair) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                $crate::harness::calmly(|| case($crate::harness::Pair::Embedded)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn external() {
                $crate::harness::calmly(|| case($crate::harness::Pair::External)).await;
            }
        }
    )*};
}

/// A gateway under construction.
pub(crate) struct Builder {
    sets: Vec<(String, String)>,
    /// A configuration file below everything that is set.
    file: Option<PathBuf>,
    program: PathBuf,
    env: Vec<(String, String)>,
    dir: tempfile::TempDir,
    sql: String,
    shared: String,
    host: String,
    /// A Redis of its own: databases of one server share channels and watched keys.
    redis: Option<Redis>,
}

/// A running gateway. Dropping it kills it.
pub(crate) struct Gateway {
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: PathBuf,
    child: Child,
    builder: Builder,
}

impl Builder {
    /// A gateway on fresh stores of the pair.
    pub(crate) fn new(pair: Pair) -> Self {
        super::timed::begin_case();
        let dir = tempfile::tempdir().expect("a folder");
        let (sql, redis) = match pair {
            Pair::Embedded => (schema::sqlite_in(dir.path()), None),
            Pair::External => (schema::postgres(), Some(Redis::start())),
        };
        let shared = redis.as_ref().map_or("memory".to_owned(), Redis::url);
        Self {
            sets: Vec::new(),
            file: None,
            program: env!("CARGO_BIN_EXE_a2a-gateway").into(),
            env: Vec::new(),
            dir,
            sql,
            shared,
            host: "127.0.0.1".into(),
            redis,
        }
        .set("rate.caller_per_second", "0")
        .set("rate.failures_per_second", "0")
        .set("rate.cards_per_second", "0")
        .set("registry.shared_origins", "http://127.0.0.1:9")
    }

    /// One that listens beyond loopback. It is also reached at 127.0.0.1.
    pub(crate) fn on_every_interface(pair: Pair) -> Self {
        let mut builder = Self::new(pair);
        builder.host = "0.0.0.0".into();
        builder
    }

    /// Sets one configuration key.
    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        self.sets.push((key.into(), value.into()));
        self
    }

    /// Starts it with a configuration file. Keys of the file are not set here, rates included.
    pub(crate) fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.sets.clear();
        self.file = Some(path.into());
        self
    }

    /// Starts another program than the one that was built.
    pub(crate) fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = path.into();
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Other stores than those of the pair.
    pub(crate) fn stores(mut self, sql: &str, shared: &str) -> Self {
        self.sql = sql.into();
        self.shared = shared.into();
        self
    }

    /// Starts it and waits until it is ready, and linked where it is on a Redis of its own.
    pub(crate) async fn start(self) -> Gateway {
        let gateway = self.spawn();
        gateway.await_ready().await;
        let redis = gateway.builder.redis.as_ref().map(Redis::url);
        if redis.is_some_and(|url| url == gateway.builder.shared) {
            gateway.until_coherent().await;
        }
        gateway
    }

    /// Starts it and waits only until it listens.
    pub(crate) fn spawn(self) -> Gateway {
        let public = free_address(&self.host);
        let admin = free_address("127.0.0.1");
        let child = self
            .command(public, admin)
            .spawn()
            .expect("the gateway starts");
        let dir = self.dir.path().to_owned();
        let gateway = Gateway {
            public,
            admin,
            dir,
            child,
            builder: self,
        };
        gateway.await_port();
        gateway
    }

    fn command(&self, public: SocketAddr, admin: SocketAddr) -> Command {
        let mut command = Command::new(&self.program);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .expect("a log file");
        command
            .current_dir(self.dir.path())
            .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN)
            .envs(roots::one_root())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .arg("serve")
            .args(["--set", &format!("server.listen={public}")])
            .args(["--set", &format!("admin.listen={admin}")])
            .args(["--set", &format!("stores.sql={}", self.sql)])
            .args(["--set", &format!("stores.shared={}", self.shared)])
            .args([
                "--set",
                &format!("keys.dir={}", self.dir.path().join("keys").display()),
            ]);
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        for (name, value) in &self.env {
            command.env(name, value);
        }
        for (key, value) in &self.sets {
            command.args(["--set", &format!("{key}={value}")]);
        }
        command
    }
}

impl Gateway {
    /// A gateway with defaults (rate limits off) on fresh stores.
    pub(crate) async fn start(pair: Pair) -> Self {
        Builder::new(pair).start().await
    }

    /// Its SQL store.
    pub(crate) fn sql_url(&self) -> String {
        self.builder.sql.clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn await_port(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(self.public).is_err() {
            assert!(
                Instant::now() < deadline,
                "the gateway does not listen:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until `/readyz` reports ready.
    pub(crate) async fn await_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.admin_get("/readyz").await;
            if answer.as_ref().is_some_and(|a| a.status == 200) {
                // It may report ready a moment before it listens.
                return self.await_port();
            }
            assert!(
                Instant::now() < deadline,
                "not ready: {answer:?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it and starts it again on the same stores and addresses.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.child = self
            .builder
            .command(self.public, self.admin)
            .spawn()
            .expect("it starts");
        self.await_port();
        self.await_ready().await;
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, without waiting.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Any signal, without waiting.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.child.id().to_string()]);
        assert!(kill.status().expect("kill runs").success());
    }

    /// Waits for the process to end by itself.
    pub(crate) fn wait(&mut self, patience: Duration) -> std::process::ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the gateway did not end:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The access lines of one request, waiting for the first.
    pub(crate) async fn access_lines(&self, request_id: &str) -> Vec<Value> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let lines: Vec<Value> = self
                .log()
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .filter(|line: &Value| line["target"] == "access")
                .filter(|line| line.to_string().contains(request_id))
                .collect();
            if !lines.is_empty() || Instant::now() > deadline {
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One request on a connection of its own.
    pub(crate) async fn call(&self, request: &Request) -> Answer {
        Connection::open(self.public).await.call(request).await
    }

    /// A request as the operator.
    pub(crate) async fn as_operator(&self, request: Request) -> Answer {
        self.call(&request.bearer(ADMIN)).await
    }

    /// A change of a workspace by the operator, as the request `seen`.
    pub(crate) async fn patch(&self, id: &str, body: Value) -> Answer {
        let request = Request::patch(format!("/workspaces/{id}"), body.to_string());
        self.as_operator(request.field("X-Request-Id", "seen"))
            .await
    }

    /// A GET on the admin listener.
    pub(crate) async fn admin_get(&self, path: &str) -> Option<Answer> {
        let stream = tokio::net::TcpStream::connect(self.admin).await.ok()?;
        let mut connection = Connection::over(stream);
        let wire = Request::get(path).wire(&self.admin.to_string());
        connection.try_send(&wire).await.ok()?;
        connection.try_answer().await
    }

    /// The sum of a metric over all series that contain every one of `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.admin_get("/metrics").await.expect("metrics").text();
        text.lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && labels.iter().all(|label| line.contains(label))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Waits until nothing is open: no exchange, no stream, no slot of a target.
    pub(crate) async fn assert_idle(&self) {
        let names = [
            "a2a_gateway_open_exchanges",
            "a2a_gateway_open_streams",
            "a2a_gateway_target_permits",
        ];
        let deadline = Instant::now() + Duration::from_secs(5);
        for name in names {
            while self.metric(name, &[]).await != 0.0 {
                assert!(Instant::now() < deadline, "{name} stays above zero");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Creates a workspace; answers its enrolment token.
    pub(crate) async fn create(&self, workspace: Value) -> String {
        let request = Request::post("/workspaces", workspace.to_string());
        let answer = self.as_operator(request).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let token = answer.json()["enrolment_token"].as_str().map(str::to_owned);
        token.expect("an enrolment token")
    }

    /// Registers with the enrolment token; answers the workspace's own token.
    pub(crate) async fn register(
        &self,
        id: &str,
        enrolment: &str,
        url: &str,
        card: Value,
    ) -> String {
        let body = json!({"id": id, "url": url, "agent_card": card});
        let request = Request::post("/registry/register", body.to_string()).bearer(enrolment);
        let mut answer = self.call(&request).await;
        if answer.status == 409 && self.patch(id, json!({"url": url})).await.status == 200 {
            // Cases share an agent on purpose, as operators may.
            answer = self.call(&request).await;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["token"].as_str().expect("a token").to_owned()
    }

    /// A workspace with a registered agent in it. `parent` empty: a root.
    pub(crate) async fn seat(&self, id: &str, parent: &str, agent: Agent) -> Seat {
        self.seat_of(card_of_both(id), parent, agent).await
    }

    /// The same, with a card whose name is the id.
    pub(crate) async fn seat_of(&self, card: Value, parent: &str, agent: Agent) -> Seat {
        let id = card["name"].as_str().unwrap().to_owned();
        let mut workspace = json!({"id": id, "name": id});
        if !parent.is_empty() {
            workspace["parent_id"] = parent.into();
        }
        let enrolment = self.create(workspace).await;
        let token = self.register(&id, &enrolment, &agent.url(), card).await;
        Seat { id, token, agent }
    }

    /// Two siblings: a caller `caller` and a target `target` with the given agent.
    pub(crate) async fn pair(&self, agent: Agent) -> (Seat, Seat) {
        let idle = Agent::json("{}").await;
        let caller = self.seat("caller", "", idle).await;
        let target = self.seat("target", "", agent).await;
        (caller, target)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let shown = self.shown();
        self.kill();
        if !std::thread::panicking() {
            planted::assert_none_in(&self.log(), "the log");
            for (path, text) in shown {
                planted::assert_none_in(&text, path);
            }
        }
    }
}

impl Gateway {
    /// The output of its admin listener at the end, if it has one.
    fn shown(&mut self) -> Vec<(&'static str, String)> {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return Vec::new();
        }
        let read = |path: &'static str| {
            let patience = Duration::from_secs(1);
            let mut stream = std::net::TcpStream::connect_timeout(&self.admin, patience).ok()?;
            stream.set_read_timeout(Some(patience)).ok()?;
            let head =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).ok()?;
            let mut text = Vec::new();
            stream.read_to_end(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text);
            Some((path, planted::without_statements(&text)))
        };
        ["/metrics", "/config", "/audit?limit=500"]
            .into_iter()
            .map_while(read)
            .collect()
    }
}

/// A well-formed 0.3 call.
pub(crate) const CALL: &str = r#"{"jsonrpc":"2.0","id":"c-1","method":"message/send","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// A port below the ephemeral range, so that no outgoing connection of another test takes it
/// between this look and the gateway's own.
pub(crate) fn free_address(host: &str) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Far from the range of a process that began a moment before or after.
        let spread = std::process::id().wrapping_mul(7919) % 20_000;
        let offset = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(12_000 + (spread + offset) % 20_000).expect("a port");
        if let Ok(listener) = TcpListener::bind((host, port)) {
            return listener.local_addr().expect("bound");
        }
    }
}
