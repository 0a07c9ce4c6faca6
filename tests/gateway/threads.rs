//! Threads that serve callers: connections spread over them, each keeps its own connections to agents, and none is held
//! up by a long body.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;

use crate::harness::{
    Agent, Builder, CALL, Connection, Gateway, Pair, Request, Seat, Step, answering, ok_json,
    until_holds,
};

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
        Self {
            gateway,
            caller,
            target,
        }
    }

    fn request(&self) -> Request {
        self.caller.calls(&self.target)
    }

    /// The agent's connection on which a call of this caller reaches it.
    async fn connection_of(&self, caller: &mut Connection) -> usize {
        caller.call(&self.request()).await.has(200);
        self.target.agent.take().connection
    }

    async fn open(&self, count: usize) -> Vec<Connection> {
        let mut open = Vec::new();
        for _ in 0..count {
            open.push(Connection::open(self.gateway.public).await);
        }
        open
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_spread_and_a_call_uses_the_connection_of_its_thread() {
    const THREADS: usize = 2;
    let builder = Builder::new(Pair::Embedded).set("upstream.idle", "10m");
    let case = Case::new(builder, "2", answering().await).await;
    // Connections that were closed before count until the gateway sees their end.
    let spread = async || {
        let mut callers = case.open(CALLERS).await;
        let mut used: Vec<Vec<usize>> = vec![Vec::new(); CALLERS];
        for _ in 0..3 {
            for (caller, used) in callers.iter_mut().zip(&mut used) {
                used.push(case.connection_of(caller).await);
            }
        }
        let mut callers_of: BTreeMap<usize, usize> = BTreeMap::new();
        for used in &used {
            assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
            *callers_of.entry(used[0]).or_default() += 1;
        }
        callers_of.into_values().collect::<Vec<_>>() == [CALLERS / THREADS; THREADS]
    };
    until_holds("callers are spread", spread).await;
    assert_eq!(case.target.agent.connections(), THREADS, "one a thread");
    // Connections that end make room on their thread.
    let room = async || {
        let mut on_first = Vec::new();
        for mut caller in case.open(CALLERS).await {
            // One thread is left with half of the callers, the other with none.
            if case.connection_of(&mut caller).await == 0 {
                on_first.push(caller);
            }
        }
        let mut on_second = 0;
        for mut caller in case.open(on_first.len()).await {
            on_second += case.connection_of(&mut caller).await;
        }
        on_second == on_first.len() && on_second > 0
    };
    until_holds("the thread that has fewer gets them", room).await;
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
    until_holds("all are closed", async || agent.open() == 0).await;
    drop(callers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_body_does_not_hold_up_other_callers_of_its_thread() {
    const LONGS: usize = 2;
    const MOST: usize = 20 * LONGS;
    let builder = Builder::new(Pair::Embedded);
    let case = Case::new(builder, "1", answering().await).await;
    // As much to walk as fits into a body.
    let data = "{},".repeat((10 << 20) / 3 - 200);
    let part = format!("{{\"kind\":\"data\",\"data\":{{\"all\":[{data}0]}}}}");
    let part = format!("\"parts\":[{part},");
    let mut long = case.request();
    long.body = CALL.replace("\"parts\":[", &part).into();
    assert!(long.body.len() > 10_000_000, "{}", long.body.len());
    let (to, short) = (case.gateway.public, case.request());
    let longs = Arc::new(AtomicUsize::new(0));
    let done = Arc::clone(&longs);
    let calling = tokio::spawn(async move {
        let mut caller = Connection::open(to).await;
        while done.load(Ordering::SeqCst) < MOST {
            caller.call(&long).await.has(200);
            done.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut caller = Connection::open(to).await;
    let (mut shorts, mut beside) = (0, 0);
    while beside < LONGS || shorts <= 5 * beside {
        assert_eq!(caller.call(&short).await.status, 200);
        shorts += 1;
        beside = longs.load(Ordering::SeqCst);
        // Behind each other they would take turns, however many there are.
        assert!(beside < MOST, "{shorts} beside {beside}");
        assert!(!calling.is_finished(), "a long one failed");
    }
    calling.abort();
}

/// Counts of failed accepts in the log of a gateway, a log line each.
fn failed_accepts(gateway: &Gateway, listener: &str) -> Vec<u64> {
    let log = gateway.log();
    let lines = log.lines();
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["listener"] == listener);
    let failures = lines.map(|line| line["failures"].as_u64().unwrap());
    failures.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_files_the_log_has_a_line_a_second_and_operators_get_in() {
    let gateway = Gateway::process(Pair::Embedded).await;
    let files = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap();
    let limit = files.count() + 20;
    let (pid, limit) = (gateway.pid().to_string(), format!("--nofile={limit}:"));
    let mut lower = Command::new("prlimit");
    let lowered = lower.args(["--pid", &pid, &limit]).status();
    assert!(lowered.unwrap().success(), "prlimit sets the soft limit");
    let began = Instant::now();
    let mut open = Vec::new();
    for _ in 0..60 {
        open.push(Connection::open(gateway.public).await);
    }
    let failed = async || failed_accepts(&gateway, "public").iter().sum::<u64>() >= 6;
    until_holds("accepts fail", failed).await;
    let lines = failed_accepts(&gateway, "public").len() as u64;
    let span = began.elapsed().as_secs();
    assert!(lines <= span + 1, "{lines} lines in {span} s");
    for _ in 0..40 {
        let health = gateway.admin_get("/healthz").await;
        assert_eq!(health.expect("an answer").status, 200);
    }
    let told = async || !failed_accepts(&gateway, "admin").is_empty();
    until_holds("it is told that operators waited", told).await;
    drop(open);
    let served = async || gateway.call(&Request::get("/")).await.status == 404;
    until_holds("callers get in again", served).await;
}
