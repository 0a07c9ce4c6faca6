//! A gateway on real sockets and stores, and the ways to set it up. It runs on threads of the test process, where it
//! starts with a third of the CPU time, or as a process of its own, for what only a process has: signals, an
//! environment, an exit.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use a2a_gateway::server::in_process::ServerHandle;
use serde_json::{Value, json};
use sqlx::Row as _;

use super::agent::Agent;
use super::builder::Builder;
use super::cards::{card, card_of_both};
use super::client::{Answer, Connection, Request};
use super::planted;
use super::seat::Seat;
use super::spawned::until_listens;
use super::warm::{NEVER, until_found, until_holds};

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
                case($crate::harness::Pair::Embedded).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn external() {
                case($crate::harness::Pair::External).await;
            }
        }
    )*};
}

/// Runs cases on the embedded pair alone: what they test asks the stores for nothing that other cases do not.
#[macro_export]
macro_rules! on_embedded {
    ($($(#[$meta:meta])* async fn $name:ident() $body:block)*) => {$(
        $(#[$meta])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() $body
    )*};
}

/// A running gateway. Dropping it kills it.
pub(crate) struct Gateway {
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) dir: PathBuf,
    pub(super) running: Running,
    /// The secrets that were planted before.
    pub(super) planted: planted::Mark,
    pub(super) builder: Builder,
}

pub(super) enum Running {
    Process(Child),
    Here(ServerHandle),
}

impl Gateway {
    /// A gateway with defaults (rate limits off) on fresh stores.
    pub(crate) async fn start(pair: Pair) -> Self {
        Builder::new(pair).start().await
    }

    /// One on the embedded stores with settings: `rate.caller_per_second=1 rate.caller_burst=3`.
    pub(crate) async fn with(settings: &str) -> Self {
        Builder::new(Pair::Embedded).sets(settings).start().await
    }

    /// Its SQL store.
    pub(crate) fn sql_url(&self) -> String {
        self.builder.sql.clone()
    }

    /// A gateway with a process of its own, else as [`Gateway::start`].
    pub(crate) async fn process(pair: Pair) -> Self {
        Builder::new(pair).process().start().await
    }

    pub(crate) fn pid(&self) -> u32 {
        match &self.running {
            Running::Process(child) => child.id(),
            Running::Here(_) => panic!("this case needs a process: Builder::process()"),
        }
    }

    pub(super) fn await_port(&self) {
        until_listens(self.public, || self.log());
    }

    /// A size of its process in `/proc/PID/status`, such as `VmRSS`, in KiB.
    pub(crate) fn memory_kib(&self, size: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.split(':').next() == Some(size));
        let kib = line.unwrap().split_whitespace().nth(1).unwrap();
        kib.parse().unwrap()
    }

    /// Waits until `/readyz` reports ready.
    pub(crate) async fn await_ready(&self) {
        let deadline = Instant::now() + NEVER;
        loop {
            let answer = self.admin_get("/readyz").await;
            if answer.as_ref().is_some_and(|a| a.status == 200) {
                // It may report ready a moment before it listens.
                return self.await_port();
            }
            let log = self.log();
            assert!(Instant::now() < deadline, "not ready: {answer:?}\n{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it and starts it again on the same stores and addresses.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.running = self.builder.run(self.public, self.admin);
        self.await_port();
        self.await_ready().await;
    }

    /// SIGKILL, or the end of its threads.
    pub(crate) fn kill(&mut self) {
        match &mut self.running {
            Running::Process(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Running::Here(beside) => {
                beside.kill();
                let deadline = Instant::now() + NEVER;
                while beside.is_serving() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// SIGTERM, or what it does, without waiting.
    pub(crate) fn terminate(&self) {
        match &self.running {
            Running::Process(_) => self.signal("TERM"),
            Running::Here(beside) => beside.shut_down(),
        }
    }

    /// Any signal, without waiting.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &self.pid().to_string()]);
        assert!(kill.status().expect("kill runs").success());
    }

    /// Waits for it to end by itself.
    pub(crate) fn wait(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience.max(NEVER);
        loop {
            let ended = match &mut self.running {
                Running::Process(child) => child.try_wait().expect("a child"),
                Running::Here(beside) => (!beside.is_serving()).then(ExitStatus::default),
            };
            if let Some(status) = ended {
                return status;
            }
            assert!(Instant::now() < deadline, "no end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything it logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The access lines of one request, waiting for the first.
    pub(crate) async fn access_lines(&self, request_id: &str) -> Vec<Value> {
        until_found(request_id, async || {
            let lines: Vec<Value> = self
                .log()
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .filter(|line: &Value| line["target"] == "access")
                .filter(|line| line.to_string().contains(request_id))
                .collect();
            (!lines.is_empty()).then_some(lines)
        })
        .await
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

    /// A workspace as the operator sees it.
    pub(crate) async fn view(&self, id: &str) -> Value {
        let request = Request::get(format!("/workspaces/{id}"));
        self.as_operator(request).await.json()
    }

    /// The token that the operator makes at a path, such as `/orgs/acme/tokens`.
    pub(crate) async fn token(&self, path: &str, body: &str) -> String {
        let answer = self.as_operator(Request::post(path, body)).await.has(201);
        answer.json()["token"].as_str().unwrap().to_owned()
    }

    /// A column of a workspace's row, as `query` reads it by id.
    pub(crate) async fn stored(&self, query: &'static str, id: &str) -> Option<String> {
        sqlx::any::install_default_drivers();
        let pool = sqlx::any::AnyPoolOptions::new().max_connections(1);
        let pool = pool.connect(&self.builder.sql).await.unwrap();
        let row = sqlx::query(query).bind(id).fetch_one(&pool).await.unwrap();
        pool.close().await;
        row.try_get(0).unwrap()
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
        for name in names {
            until_holds(name, async || self.metric(name, &[]).await == 0.0).await;
        }
    }

    /// Creates a workspace; answers its enrolment token.
    pub(crate) async fn create(&self, workspace: Value) -> String {
        let request = Request::post("/workspaces", workspace.to_string());
        let answer = self.as_operator(request).await.has(201);
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
        let answer = answer.has(200);
        answer.json()["token"].as_str().expect("a token").to_owned()
    }

    /// A workspace whose agent polls; answers its token.
    pub(crate) async fn poller(&self, id: &str) -> String {
        let new = json!({"id": id, "name": id, "delivery_mode": "poll"});
        let enrolment = self.create(new).await;
        let body = json!({"id": id, "delivery_mode": "poll", "agent_card": card(id)});
        let request = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
        let answer = self.call(&request).await.has(200);
        answer.json()["token"].as_str().unwrap().to_owned()
    }

    /// A workspace with a registered agent in it. `parent` empty: a root.
    pub(crate) async fn seat(&self, id: &str, parent: &str, agent: Agent) -> Seat {
        self.seat_of(card_of_both(id), parent, agent).await
    }

    /// The same, with a card whose name is the id.
    pub(crate) async fn seat_of(&self, card: Value, parent: &str, agent: Agent) -> Seat {
        let id = &card["name"];
        let mut workspace = json!({"id": id, "name": id});
        if !parent.is_empty() {
            workspace["parent_id"] = parent.into();
        }
        self.settle(workspace, card, agent).await
    }

    /// The workspace that is described, with a registered agent in it.
    pub(crate) async fn settle(&self, workspace: Value, card: Value, agent: Agent) -> Seat {
        let id = workspace["id"].as_str().unwrap().to_owned();
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
            self.planted.assert_none_in(&self.log(), "the log");
            for (path, text) in shown {
                self.planted.assert_none_in(&text, path);
            }
        }
    }
}

impl Gateway {
    /// The output of its admin listener at the end, if it has one.
    fn shown(&mut self) -> Vec<(&'static str, String)> {
        let runs = match &mut self.running {
            Running::Process(child) => matches!(child.try_wait(), Ok(None)),
            Running::Here(beside) => beside.is_serving(),
        };
        if !runs {
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
