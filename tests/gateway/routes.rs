//! Paths and methods that no route has, and HEAD: refused like everything else, before a credential
//! is asked for.

use std::collections::{BTreeMap, BTreeSet};

use a2a_gateway::control::ROUTES;
use a2a_gateway::proxy::A2A_ROUTES;
use serde_json::json;

use crate::harness::{Agent, Connection, Gateway, Pair, Request, assert_refusal};

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

#[tokio::test]
async fn a_method_that_a_route_lacks_is_405_and_allow_names_the_others() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let mut taken: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // Where nobody's card is the default one there is no such path.
    let a2a = A2A_ROUTES.iter().filter(|(_, path)| path.contains("{id}"));
    for (method, path) in ROUTES.iter().chain(a2a) {
        let methods = taken.entry(path).or_default();
        methods.insert(method);
        if *method == "GET" {
            methods.insert("HEAD");
        }
    }
    let base = taken["/workspaces/{id}/a2a"].clone();
    taken.insert("/workspaces/{id}/a2a/", base);
    for (pattern, methods) in taken {
        let named = |segment: &str| segment.starts_with('{');
        let segments = pattern
            .split('/')
            .map(|one| if named(one) { "x" } else { one });
        let path = segments.collect::<Vec<_>>().join("/");
        for method in METHODS.iter().filter(|m| !methods.contains(*m)) {
            let request = Request::new(method, &path).field("X-Request-Id", "seen");
            let mut connection = Connection::open(gateway.public).await;
            connection.send(&request.wire("127.0.0.1")).await;
            let head = connection.read_head().await.unwrap();
            let what = format!("{method} {path}");
            let allow = head
                .field("allow")
                .unwrap_or_else(|| panic!("{what}: {head:?}"));
            let allow = allow.split(',').map(str::trim);
            let allow: BTreeSet<_> = allow.filter(|m| *m != "OPTIONS").collect();
            assert_eq!(allow, methods, "{what}");
            if *method == "HEAD" {
                assert_eq!(head.status, 405, "{what}");
            } else {
                let answer = connection.read_body(head).await;
                assert_refusal(&answer, &path, "seen", "method_not_allowed", &what);
                let named = methods.iter().filter(|m| answer.text().contains(**m));
                let read_only = methods.iter().all(|m| ["GET", "HEAD"].contains(m));
                let all = methods.len() - usize::from(methods.contains("HEAD"));
                let wanted = if read_only { 1 } else { all };
                assert!(named.count() >= wanted, "{what}: {}", answer.text());
            }
        }
    }
}

#[tokio::test]
async fn a_path_that_no_route_has_is_not_found_in_json() {
    let gateway = Gateway::start(Pair::Embedded).await;
    for path in "/ /workspace /workspaces/ /workspaces/x/ /workspaces/x/a2ax \
        /workspaces/x/unknown /workspaces/x/a2a/unknown /registry /registry/register/ /metrics \
        /readyz /../etc/passwd /index.html"
        .split(' ')
    {
        for request in [Request::get(path), Request::post(path, "{}")] {
            // Calls are made there, by tenant (tenants.rs).
            if path == "/" && request.method == "POST" {
                continue;
            }
            let answer = gateway.call(&request.field("X-Request-Id", "seen")).await;
            assert_refusal(&answer, path, "seen", "not_found", path);
        }
    }
    for (path, hint) in [
        ("/", "admin listener"),
        ("/console/", "admin listener"),
        ("/canvas", "canvas.enabled"),
        ("/canvas/", "canvas.enabled"),
    ] {
        let text = gateway.call(&Request::get(path)).await.text();
        assert!(text.contains(hint), "{path}: {text}");
    }
}

#[tokio::test]
async fn head_is_get_without_a_body_and_keeps_the_connection_in_step() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let seat = gateway.seat("dev", "", Agent::json("{}").await).await;
    let mut connection = Connection::open(gateway.public).await;
    for (token, status) in [(seat.token.as_str(), 200), ("a2aw_wrong", 401)] {
        let endless = ["/ws", "/events"];
        let gets = ROUTES.iter().filter(|(method, _)| *method == "GET");
        for (_, path) in gets.filter(|(_, path)| !endless.contains(path)) {
            let path = path.replace("{id}", "dev").replace("{org}", "acme");
            let of_nothing = path.contains('{');
            let path = path.replace(['{', '}'], "");
            let operators =
                "/access /orgs /operators /grants /policy /stops /revocations /caps /usage";
            let for_operators = operators.split(' ').any(|start| path.starts_with(start));
            let status = match status {
                // Open to all, but not to a credential that proves nothing.
                401 if ["/.well-known/ard.json", "/.well-known/ai-catalog.json"]
                    .contains(&&*path) =>
                {
                    401
                }
                _ if path.starts_with("/.well-known/") => 200,
                // Off, unless canvas.enabled says otherwise.
                _ if path.starts_with("/canvas") => 404,
                200 if for_operators => 403,
                // It is no name of an agent.
                200 if path == "/agents/urn" => 400,
                // Of nothing that there is.
                200 if of_nothing => 404,
                status => status,
            };
            let head = Request::new("HEAD", &path).bearer(token);
            let head = head.field("Content-Length", "0").wire("127.0.0.1");
            connection.send(&head).await;
            let answer = connection.read_head().await.unwrap();
            assert_eq!(answer.status, status, "HEAD {path}");
            // Were there a body, it would be taken for the head of the next answer.
            let next = connection.call(&Request::get(&path).bearer(token)).await;
            assert_eq!(next.status, status, "GET {path} after HEAD");
            let json = next.json();
            assert!(next.whole && (json.is_object() || json.is_array()));
        }
    }
}

#[tokio::test]
async fn an_encoded_id_names_no_workspace_on_any_route() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway.create(json!({"id": "dev", "name": "dev"})).await;
    for path in "/workspaces/d%65v /workspaces/d%65v/tokens /registry/discover/d%65v".split(' ') {
        let answer = gateway.as_operator(Request::get(path)).await;
        answer.refuses_for(&path, 400, "invalid_workspace_id");
    }
}

#[tokio::test]
async fn a_second_gateway_on_one_sqlite_file_does_not_start() {
    let first = Gateway::start(Pair::Embedded).await;
    let file = first.dir.join("gateway.db");
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let arguments = "serve --set server.listen=127.0.0.1:0 --set admin.listen=127.0.0.1:0 --set";
    second.current_dir(&first.dir).args(arguments.split(' '));
    second.arg(format!("stores.sql=sqlite:{}", file.display()));
    let second = second.output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    let why = "another gateway serves from this SQLite file";
    assert!(said.contains(why), "{said}");
    assert!(!said.contains("would block"), "{said}");
}
