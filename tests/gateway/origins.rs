//! Whose server is it: a workspace registers neither another workspace's agent as its own nor the gateway itself.

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, card};
use crate::{on_both_pairs, on_embedded};

const OK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

async fn register(gateway: &Gateway, token: &str, body: Value) -> Answer {
    let request = Request::post("/registry/register", body.to_string()).bearer(token);
    gateway.call(&request).await
}

fn at(id: &str, url: &str) -> Value {
    json!({"id": id, "url": url, "agent_card": card(id)})
}

fn conflicts(answer: &Answer, what: &str) {
    let shown = format!("{what}: {}", answer.text());
    assert_eq!(answer.status, 409, "{shown}");
    assert_eq!(answer.reason(), "conflict", "{shown}");
    assert!(answer.text().contains("registry.shared_origins"), "{shown}");
    // It does not say whose it is.
    assert!(!answer.text().contains("victim"), "{shown}");
}

async fn call(gateway: &Gateway, seat: &Seat) -> Answer {
    let request = Request::post(seat.path(), CALL).bearer(&seat.token);
    gateway.call(&request).await
}

/// One server under other names.
fn spellings(port: u16) -> Vec<String> {
    let hosts = "127.0.0.1 localhost 2130706433 127.1 [::ffff:127.0.0.1] [64:ff9b::7f00:1] [::1] \
        127.0.0.2";
    let urls = hosts
        .split(' ')
        .map(|host| format!("http://{host}:{port}/"));
    let mut urls: Vec<String> = urls.collect();
    urls.push(format!("http://127.0.0.1:{port}/another/path?x=1"));
    urls
}

on_both_pairs! {
    /// Of two that register one server at the same moment, one has it.
    async fn of_two_at_once_one_has_the_server(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        for round in 0..5 {
            let url = format!("http://127.0.0.1:{}/", 20_000 + round);
            let mut asked = Vec::new();
            for name in ["a", "b", "c", "d"] {
                let id = format!("{name}-{round}");
                let enrolment = gateway.create(json!({"id": id, "name": id})).await;
                asked.push((enrolment, at(&id, &url)));
            }
            let answers = asked.iter().map(|(token, body)| register(&gateway, token, body.clone()));
            let answers = futures_util::future::join_all(answers).await;
            let done = answers.iter().filter(|answer| answer.status == 200).count();
            let refused = answers.iter().filter(|answer| answer.status == 409).count();
            let shown: Vec<_> = answers.iter().map(Answer::text).collect();
            assert_eq!((done, refused), (1, 3), "{shown:?}");
        }
    }
}

on_embedded! {
    async fn no_workspace_registers_the_agent_of_another_one() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let victim = gateway.seat("victim", "", Agent::json(OK).await).await;
        let enrolment = gateway.create(json!({"id": "thief", "name": "thief", "org": "other"})).await;
        for url in spellings(victim.agent.port) {
            conflicts(&register(&gateway, &enrolment, at("thief", &url)).await, &url);
        }
        let own = Agent::json(OK).await;
        let mut hidden = at("thief", &own.url());
        hidden["internal_url"] = json!(victim.agent.url());
        conflicts(&register(&gateway, &enrolment, hidden).await, "internal_url");
        let answer = register(&gateway, &enrolment, at("thief", &own.url())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let thief = Seat { id: "thief".into(), token, agent: own };
        for url in spellings(victim.agent.port) {
            conflicts(&register(&gateway, &thief.token, at("thief", &url)).await, &url);
        }
        assert_eq!(call(&gateway, &thief).await.status, 200);
        assert_eq!((victim.agent.count(), thief.agent.count()), (0, 1));
        // An org token does not share, either.
        let org = gateway.token("/orgs/other/tokens", "{}").await;
        let patch = Request::patch("/workspaces/thief", json!({"url": victim.agent.url()}).to_string());
        conflicts(&gateway.call(&patch.bearer(&org)).await, "PATCH");
        let new = json!({"name": "n", "card_url": victim.agent.url(), "liveness": "assumed"});
        let new = Request::post("/workspaces", new.to_string());
        conflicts(&gateway.call(&new.bearer(&org)).await, "POST");
        conflicts(&register(&gateway, &org, at("made", &victim.agent.url())).await, "created");
        let left = gateway.as_operator(Request::get("/workspaces/made")).await;
        assert_eq!(left.reason(), "workspace_not_found", "a refusal leaves nothing behind");
        // What is one's own stays so, by any path.
        let again = register(&gateway, &victim.token, at("victim", &format!("{}v2", victim.agent.url()))).await;
        assert_eq!(again.status, 200, "{}", again.text());
        // Operators share on purpose, and then both register on.
        let shared = gateway.patch("thief", json!({"url": victim.agent.url()})).await;
        assert_eq!(shared.status, 200, "{}", shared.text());
        for seat in [&thief, &victim] {
            let answer = register(&gateway, &seat.token, at(&seat.id, &victim.agent.url())).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    async fn whoever_leaves_frees_its_server() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let one = gateway.seat("one", "", Agent::json(OK).await).await;
        let two = gateway.seat("two", "", Agent::json(OK).await).await;
        let url = one.agent.url();
        conflicts(&register(&gateway, &two.token, at("two", &url)).await, "taken");
        let leave = Request::post("/registry/deregister", r#"{"workspace_id":"one"}"#).bearer(&one.token);
        assert_eq!(gateway.call(&leave).await.status, 200);
        assert_eq!(register(&gateway, &two.token, at("two", &url)).await.status, 200);
        conflicts(&register(&gateway, &one.token, at("one", &url)).await, "taken by the other");
        // Another address frees the one before.
        assert_eq!(register(&gateway, &one.token, at("one", &two.agent.url())).await.status, 200);
        let removed = gateway.as_operator(Request::new("DELETE", "/workspaces/two")).await;
        assert_eq!(removed.status, 200);
        assert_eq!(register(&gateway, &one.token, at("one", &url)).await.status, 200);
    }

    async fn servers_that_are_listed_are_shared() {
        let agent = Agent::json(OK).await;
        let listed = format!("http://127.0.0.1:{}", agent.port);
        let gateway = Builder::new(Pair::Embedded).set("registry.shared_origins", &listed).start().await;
        for (id, host) in [("a", "127.0.0.1"), ("b", "localhost"), ("c", "127.0.0.1")] {
            let enrolment = gateway.create(json!({"id": id, "name": id})).await;
            let url = format!("http://{host}:{}/{id}", agent.port);
            register(&gateway, &enrolment, at(id, &url)).await.has(200);
        }
    }

    /// By every spelling, for operators too, and for what a name means later.
    async fn the_gateway_itself_is_no_agent() {
        let gateway = Builder::on_every_interface(Pair::Embedded).start().await;
        let one = gateway.seat("one", "", Agent::json(OK).await).await;
        for port in [gateway.public.port(), gateway.admin.port()] {
            let mut hosts = vec!["127.0.0.1", "localhost", "2130706433", "[::ffff:7f00:1]"];
            if port == gateway.public.port() {
                hosts.extend(["127.0.0.2", "[::1]"]);
            }
            for host in hosts {
                let url = format!("http://{host}:{port}/workspaces/one/a2a");
                let refused = |answer: &Answer| {
                    assert_eq!(answer.reason(), "address_forbidden", "{url}: {}", answer.text());
                };
                refused(&register(&gateway, &one.token, at("one", &url)).await);
                refused(&register(&gateway, ADMIN, at("one", &url)).await);
                for member in ["url", "internal_url", "card_url"] {
                    refused(&gateway.patch("one", json!({member: url})).await);
                }
                let new = json!({"name": "n", "url": url, "liveness": "assumed"});
                refused(&gateway.as_operator(Request::post("/workspaces", new.to_string())).await);
            }
        }
        assert_eq!(call(&gateway, &one).await.status, 200);
    }

    async fn a_credential_stays_at_the_server_that_it_was_set_for() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let one = gateway.seat("one", "", Agent::json(OK).await).await;
        assert_eq!(gateway.patch("one", json!({"upstream_auth": "their-secret"})).await.status, 200);
        let got = |agent: &Agent| agent.take().head.contains("their-secret");
        assert_eq!(call(&gateway, &one).await.status, 200);
        assert!(got(&one.agent));
        let elsewhere = Agent::json(OK).await;
        assert_eq!(register(&gateway, &one.token, at("one", &elsewhere.url())).await.status, 200);
        assert_eq!(call(&gateway, &one).await.status, 200);
        assert!(!got(&elsewhere), "it was read at an address that the workspace chose");
        let card = Request::get(format!("{}/.well-known/agent-card.json", one.path())).bearer(&one.token);
        gateway.call(&card).await;
        assert!(elsewhere.requests().iter().all(|request| !request.head.contains("their-secret")));
        let explained = gateway.admin_get("/explain?caller=one&target=one").await.unwrap();
        assert!(explained.text().contains("credential_withheld"), "{}", explained.text());
        // Back at the first, by another path, it counts; and elsewhere once an operator says so.
        let back = format!("{}v2", one.agent.url());
        assert_eq!(register(&gateway, &one.token, at("one", &back)).await.status, 200);
        assert_eq!(call(&gateway, &one).await.status, 200);
        assert!(got(&one.agent));
        assert_eq!(register(&gateway, &one.token, at("one", &elsewhere.url())).await.status, 200);
        assert_eq!(gateway.patch("one", json!({"upstream_auth": "their-secret"})).await.status, 200);
        let before = elsewhere.count();
        assert_eq!(call(&gateway, &one).await.status, 200);
        assert!(elsewhere.requests()[before].head.contains("their-secret"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_at_two_replicas_one_has_the_server() {
    let redis = Redis::start();
    let (sql, shared) = (servers::postgres().database(), redis.url());
    let replica = || Builder::new(Pair::Embedded).stores(&sql, &shared).start();
    let (one, other) = (replica().await, replica().await);
    for round in 0..5 {
        let url = format!("http://localhost:{}/", 21_000 + round);
        let (a, b) = (format!("a-{round}"), format!("b-{round}"));
        let first = one.create(json!({"id": a, "name": a})).await;
        let second = one.create(json!({"id": b, "name": b})).await;
        let (first, second) = tokio::join!(
            register(&one, &first, at(&a, &url)),
            register(&other, &second, at(&b, &url)),
        );
        let mut statuses = [first.status, second.status];
        statuses.sort_unstable();
        let shown = format!("{} {}", first.text(), second.text());
        assert_eq!(statuses, [200, 409], "{shown}");
    }
}

/// Both URLs of a workspace are hidden from whoever reaches it by the gateway alone, in discovery too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_tells_users_and_integrations_no_address() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent = Agent::json(OK).await;
    let new = json!({"id": "one", "name": "one", "org": "acme", "url": agent.url(), "liveness": "assumed"});
    gateway.create(new).await;
    let ada = r#"{"user":"ada","org":"acme"}"#;
    let canvas = gateway.token("/canvas/tokens", ada).await;
    let org = gateway.token("/orgs/acme/tokens", "{}").await;
    for token in [&canvas, &org] {
        let request = Request::get("/registry/discover/one").bearer(token);
        let answer = gateway.call(&request).await;
        if answer.status == 200 {
            let found = answer.json();
            assert_eq!(found["url"], Value::Null, "{found}");
            let proxy = found["proxy_url"].as_str().unwrap();
            assert!(proxy.ends_with("/workspaces/one/a2a"));
        }
        let (text, port) = (answer.text(), agent.port.to_string());
        assert!(!text.contains(&port), "{text}");
    }
    let found = gateway.read("/registry/discover/one").await;
    assert_eq!(found["url"], agent.url());
}
