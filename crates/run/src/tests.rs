//! The command line of `run`: what it derives from its arguments.

use clap::Parser as _;
use serde_json::json;

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn parsed(more: &[&str]) -> Arguments {
    let line = ["run", "--workspace", "pm"].iter().chain(more);
    let line = line.chain(&["--", "agent", "--flag"]);
    Line::try_parse_from(line).unwrap().arguments
}

fn url(more: &[&str]) -> Result<String, String> {
    let (plan, _) = parsed(more)
        .build_plan(8001)
        .map_err(|error| error.to_string())?;
    let card = json!({"url": "http://localhost:9999/a2a", "preferredTransport": "JSONRPC"});
    Ok(plan.member.location.rpc_url(&card).to_string())
}

#[test]
fn the_agent_is_reached_where_the_gateway_can() {
    for (more, expected) in [
        (&[][..], "http://127.0.0.1:8001/a2a"),
        (
            &["--gateway", "http://localhost:1"],
            "http://127.0.0.1:8001/a2a",
        ),
        (&["--guard", "0.0.0.0:8081"], "http://127.0.0.1:8081/a2a"),
        (&["--guard", "[::]:8081"], "http://[::1]:8081/a2a"),
        (
            &["--guard", "10.0.0.7:8081", "--gateway", "https://gw.test"],
            "http://10.0.0.7:8081/a2a",
        ),
        (
            &[
                "--advertise",
                "https://agent.test",
                "--gateway",
                "https://gw.test",
            ],
            "https://agent.test/a2a",
        ),
        (
            &[
                "--advertise",
                "https://agent.test/other",
                "--gateway",
                "https://gw.test",
            ],
            "https://agent.test/other",
        ),
    ] {
        assert_eq!(url(more).as_deref(), Ok(expected), "{more:?}");
    }
}

#[test]
fn what_no_gateway_could_reach_is_refused() {
    for (more, part) in [
        (&["--gateway", "https://gw.test"][..], "--advertise"),
        (
            &["--gateway", "https://gw.test", "--guard", "0.0.0.0:8081"],
            "--advertise",
        ),
        (
            &["--advertise", "http://ada:secret@agent.test"],
            "--advertise",
        ),
        (&["--guard", "127.0.0.1:0"], "--guard needs a port"),
        (&["--guard", "127.0.0.1:8001"], "the agent's own address"),
        (&["--instance", "a b"], "--instance"),
        (&["--workspace", "a:b"], "--workspace"),
        (&["--card", "card.json"], "--card"),
        (&["--grace", "0s"], "--grace"),
        (
            &[
                "--guard",
                "127.0.0.1:1",
                "--gateway",
                "http://gw.test",
                "--advertise",
                "http://a.test",
            ],
            "--plain-http",
        ),
    ] {
        let mut arguments = parsed(&[]);
        if let Some(at) = more.iter().position(|word| *word == "--workspace") {
            arguments.workspace = more[at + 1].to_owned();
            let error = arguments
                .build_plan(8001)
                .map(drop)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
            continue;
        }
        let error = url(more).unwrap_err();
        assert!(error.contains(part), "{more:?}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn the_path_of_json_rpc_is_that_of_the_card() {
    let (plan, _) = parsed(&[]).build_plan(8001).unwrap();
    for (card, path) in [
        (json!({"url": "http://a.test/rpc"}), "/rpc"),
        (json!({"url": "http://a.test"}), "/"),
        (json!({"url": "no url"}), "/"),
        (json!({}), "/"),
        (
            json!({"supportedInterfaces": [
                {"url": "http://a.test/rest", "protocolBinding": "HTTP+JSON"},
                {"url": "http://a.test/rpc", "protocolBinding": "JSONRPC"}]}),
            "/rpc",
        ),
        (
            json!({"url": "http://a.test/grpc", "preferredTransport": "GRPC", "additionalInterfaces": [
                {"url": "http://a.test/v1/rpc", "transport": "JSONRPC"}]}),
            "/v1/rpc",
        ),
    ] {
        assert_eq!(plan.member.location.rpc_url(&card).path(), path, "{card}");
    }
}

#[test]
fn an_instance_is_named_by_host_and_port() {
    let name = own_instance(8001);
    assert!(
        name.ends_with("-8001") && InstanceId::parse(&name).is_ok(),
        "{name}"
    );
}

#[test]
fn a_port_at_which_something_listens_is_refused() {
    // Another process may take a port as soon as it is free.
    let is_free_again = (0..20).any(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = free_port(Some(port)).unwrap_err().to_string();
        assert!(error.contains("--port"), "{error}");
        drop(listener);
        free_port(Some(port)).ok() == Some(port)
    });
    assert!(is_free_again);
    assert_ne!(free_port(None).unwrap(), 0);
}
