//! The SDKs that A2A clients and agents are made with, both generations for Python and JavaScript, that for Rust, and
//! google-adk, against the real gateway. `tests/clients/run.py` does it and prints a table; with `--nocapture` it is
//! seen also when all is well.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the tables are what is to be shown")]

#[path = "gateway/harness/agent.rs"]
#[allow(dead_code, reason = "the collector needs a part of it")]
mod agent;
#[path = "gateway/harness/collector.rs"]
#[allow(dead_code, reason = "one part of it is needed here")]
mod collector;
mod common;
#[path = "gateway/harness/packages.rs"]
mod packages;
#[path = "gateway/harness/planted.rs"]
#[allow(dead_code, reason = "the collector needs a part of it")]
mod planted;
#[path = "common/ports.rs"]
#[allow(dead_code, reason = "agents need a part of it")]
mod ports;

use std::path::Path;
use std::process::Command;

use self::collector::{Collector, Span};

/// Runs one part.
fn run(part: &str) {
    run_with(part, &[]);
}

/// Runs one part, with variables of its environment.
fn run_with(part: &str, variables: &[(&str, String)]) {
    let packages = packages::installed("scripts/clients");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    println!("{part}");
    common::assert_passes(
        Command::new(packages.join("py13/python/bin/python"))
            .arg("-B")
            .arg(folder.join("run.py"))
            .arg(env!("CARGO_BIN_EXE_a2a-gateway"))
            .arg(&packages)
            .arg(part)
            .envs(variables.iter().map(|(name, value)| (name, value))),
    );
}

#[test]
fn every_sdk_reaches_every_agent_through_the_gateway_as_it_does_direct() {
    run("matrix");
}

#[test]
fn stubs_of_the_sdk_reach_every_agent_by_grpc() {
    run("grpc_front");
}

#[test]
fn clients_of_all_forms_reach_an_agent_that_speaks_grpc_alone() {
    run("grpc_behind");
}

#[test]
fn a_pocketpaw_style_agent_serves_platform_clients_and_sdks() {
    run("pocketpaw");
}

#[test]
fn no_caller_touches_the_task_of_another() {
    run("owners");
}

#[test]
fn many_streams_long_ones_large_events_and_zombies_pass() {
    run("load");
}

#[test]
fn sdk_agents_accept_what_the_gateway_completes() {
    run("completion");
}

#[test]
fn the_documented_clients_work() {
    run("documents");
}

#[test]
fn agents_that_poll_serve_every_sdk() {
    run("polling");
}

#[test]
fn every_sdk_and_google_adk_reach_agents_of_each_generation_added_in_each_way() {
    let driver = packages::installed("scripts/rust-client");
    let variables = [("RUST_CLIENT", driver.display().to_string())];
    run_with("generations", &variables);
}

#[test]
fn every_sdk_shows_why_the_gateway_refused_or_cut() {
    run("refusals");
}

#[test]
fn conversations_stay_with_their_instance_of_an_sdk_agent() {
    run("instances");
}

/// Every span hangs on the one before it, from the client's code to the agent's.
fn assert_one_tree(spans: &[Span]) {
    let told = || format!("{spans:#?}");
    let above = |span: &Span| spans.iter().find(|other| other.id == span.parent);
    let roots: Vec<_> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    let [root] = roots.as_slice() else {
        panic!("{} roots: {}", roots.len(), told());
    };
    assert_eq!(root.service(), "client", "{}", told());
    for span in spans.iter().filter(|span| !span.parent.is_empty()) {
        assert!(
            above(span).is_some(),
            "no parent of {span:#?} in {}",
            told()
        );
    }
    let of_gateway = |span: &&Span| span.service() == "a2a-gateway";
    let servers: Vec<_> = spans
        .iter()
        .filter(of_gateway)
        .filter(|s| s.is_server())
        .collect();
    assert!(!servers.is_empty(), "{}", told());
    for server in servers {
        assert_eq!(above(server).unwrap().service(), "client", "{}", told());
        let below = |span: &&Span| span.parent == server.id;
        let [call] = spans.iter().filter(below).collect::<Vec<_>>()[..] else {
            panic!("not one call below {server:#?} in {}", told());
        };
        assert!(of_gateway(&call) && call.is_client(), "{}", told());
        let below = |span: &&Span| span.parent == call.id;
        let [agent] = spans.iter().filter(below).collect::<Vec<_>>()[..] else {
            panic!("not one span below {call:#?} in {}", told());
        };
        assert!(
            agent.service() == "agent" && agent.is_server(),
            "{}",
            told()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_from_an_sdk_client_to_an_sdk_agent_is_one_tree() {
    let collector = Collector::start().await;
    let variables = [
        ("COLLECTOR_HTTP", collector.http()),
        ("COLLECTOR_GRPC", collector.grpc()),
    ];
    let part = tokio::task::spawn_blocking(move || run_with("traces", &variables));
    part.await.unwrap();
    let scenario = |span: &Span| span.service() == "client" && span.name.starts_with("py");
    let scenarios = collector.await_spans(6, scenario).await;
    assert_eq!(scenarios.len(), 6);
    for root in scenarios {
        let of_trace = |span: &Span| span.trace == root.trace;
        let spans = collector.await_spans(1, of_trace).await;
        println!(
            "{}: {} spans in the trace {}",
            root.name,
            spans.len(),
            root.trace
        );
        assert_one_tree(&spans);
    }
}
