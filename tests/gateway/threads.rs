//! Threads that serve callers: connections spread over them, each keeps its own connections to agents, and none is held
//! up by a long body.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, calmly, ok_json,
};

/// For what takes a moment on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);

const CALLERS: usize = 8;

/// A gateway with so many threads, and callers' connections that stay open.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn new(builder: Builder, threads: &str, agent: Agent) -> Self {
        let gateway = builder.set("server.threads", threads).start().await;
        let (caller, target) = gateway.pair(agent).await;
        // The connections that the set-up closed are gone.
        sleep(Duration::from_millis(200)).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    fn request(&self) -> Request {
        Request::post(self.target.path(), CALL).bearer(&self.caller.token)
    }

    async fn open(&self, count: usize) -> Vec<Connection> {
        let mut open = Vec::new();
        for _ in 0..count {
            open.push(Connection::open(self.gateway.public).await);
        }
        open
    }
}

async fn agent() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_spread_and_a_call_uses_the_connection_of_its_thread() {
    const THREADS: usize = 2;
    calmly(async || {
        let case = Case::new(Builder::new(Pair::Embedded), "2", agent().await).await;
        let mut callers = case.open(CALLERS).await;
        let mut used: Vec<Vec<usize>> = vec![Vec::new(); CALLERS];
        for _ in 0..3 {
            for (caller, used) in callers.iter_mut().zip(&mut used) {
                let answer = caller.call(&case.request()).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                used.push(case.target.agent.take().connection);
            }
        }
        assert_eq!(case.target.agent.connections(), THREADS, "one a thread");
        let mut callers_of: BTreeMap<usize, usize> = BTreeMap::new();
        for used in &used {
            assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
            *callers_of.entry(used[0]).or_default() += 1;
        }
        let callers_of: Vec<_> = callers_of.into_values().collect();
        assert_eq!(callers_of, [CALLERS / THREADS; THREADS]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_make_room_on_their_thread() {
    calmly(async || {
        let case = Case::new(Builder::new(Pair::Embedded), "2", agent().await).await;
        let mut callers = case.open(CALLERS).await;
        let mut on_first = Vec::new();
        for mut caller in callers.drain(..) {
            assert_eq!(caller.call(&case.request()).await.status, 200);
            // One thread is left with half of the callers, the other with none.
            if case.target.agent.take().connection == 0 {
                on_first.push(caller);
            }
        }
        sleep(Duration::from_millis(200)).await;
        for mut caller in case.open(on_first.len()).await {
            assert_eq!(caller.call(&case.request()).await.status, 200);
            let connection = case.target.agent.take().connection;
            assert_eq!(connection, 1, "the thread that has fewer");
            on_first.push(caller);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_all_threads_are_closed_without_a_call() {
    let builder = Builder::new(Pair::Embedded).set("upstream.idle", "1s");
    let agent = Agent::scripted(|_| {
        let answer = Step::Write(ok_json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        vec![Step::Wait(Duration::from_millis(300)), answer]
    })
    .await;
    let case = Case::new(builder, "2", agent).await;
    let mut calls = JoinSet::new();
    for mut caller in case.open(CALLERS).await {
        let request = case.request();
        calls.spawn(async move { (caller.call(&request).await.status, caller) });
    }
    // The callers stay.
    let callers = calls.join_all().await;
    assert!(callers.iter().all(|(status, _)| *status == 200));
    let agent = &case.target.agent;
    assert!(agent.connections() <= CALLERS, "{}", agent.connections());
    let closed = async {
        while agent.open() > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, closed).await.expect("all are closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_body_does_not_hold_up_other_callers_of_its_thread() {
    calmly(async || {
        let case = Case::new(Builder::new(Pair::Embedded), "1", agent().await).await;
        // As much to walk as fits into a body.
        let data = "{},".repeat((10 << 20) / 3 - 200);
        let part = format!("{{\"kind\":\"data\",\"data\":{{\"all\":[{data}0]}}}}");
        let part = format!("\"parts\":[{part},");
        let mut long = case.request();
        long.body = CALL.replace("\"parts\":[", &part).into();
        assert!(long.body.len() > 10_000_000, "{}", long.body.len());
        let (to, short) = (case.gateway.public, case.request());
        let longs = tokio::spawn(async move {
            let mut caller = Connection::open(to).await;
            let begun = Instant::now();
            let mut took = Vec::new();
            while begun.elapsed() < Duration::from_secs(3) {
                let began = Instant::now();
                let answer = caller.call(&long).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                took.push(began.elapsed());
            }
            took
        });
        let mut caller = Connection::open(to).await;
        let mut shorts = Vec::new();
        while !longs.is_finished() {
            let began = Instant::now();
            assert_eq!(caller.call(&short).await.status, 200);
            shorts.push(began.elapsed());
        }
        let mut longs = longs.await.unwrap();
        longs.sort();
        shorts.sort();
        let (long, worst) = (longs[longs.len() / 2], shorts[shorts.len() * 99 / 100]);
        println!(
            "a long call takes {long:?}, of {} short ones p99 {worst:?}",
            shorts.len()
        );
        assert!(worst < long / 3, "{worst:?} beside {long:?}");
    })
    .await;
}

/// Counts of failed accepts in the log of a gateway, a log line each.
fn failed_accepts(gateway: &Gateway, listener: &str) -> Vec<u64> {
    let log = gateway.log();
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["listener"] == listener);
    lines
        .map(|line| line["failures"].as_u64().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_files_the_log_has_a_line_a_second_and_operators_get_in() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let files = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap();
    let limit = files.count() + 20;
    let lower = |limit: String| {
        let pid = gateway.pid().to_string();
        let lowered = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(lowered.unwrap().success(), "prlimit sets the soft limit");
    };
    lower(format!("--nofile={limit}:"));
    let began = Instant::now();
    let mut open = Vec::new();
    for _ in 0..60 {
        open.push(Connection::open(gateway.public).await);
    }
    while failed_accepts(&gateway, "public").iter().sum::<u64>() < 6 {
        assert!(began.elapsed() < PATIENCE, "{}", gateway.log());
        sleep(Duration::from_millis(50)).await;
    }
    let lines = failed_accepts(&gateway, "public").len() as u64;
    let span = began.elapsed().as_secs();
    assert!(lines <= span + 1, "{lines} lines in {span} s");
    for _ in 0..40 {
        let health = gateway.admin_get("/healthz").await;
        assert_eq!(health.expect("an answer").status, 200);
    }
    assert!(!failed_accepts(&gateway, "admin").is_empty());
    drop(open);
    while gateway.call(&Request::get("/")).await.status != 404 {
        assert!(began.elapsed() < PATIENCE, "callers get in again");
        sleep(Duration::from_millis(50)).await;
    }
}
