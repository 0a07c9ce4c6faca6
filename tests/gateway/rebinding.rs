//! Names that come to mean another server than they were registered for: another workspace's agent is not reached by
//! them, and an agent that moves is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::dns::Dns;
use crate::harness::servers::{self, Redis};
use crate::harness::{
    Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, Stores, answering, card,
    until_found, until_holds,
};
use crate::{on_both_pairs, on_embedded};

const HERE: &str = "127.0.0.1";
/// Public, and nobody is there.
const FAR: &str = "2e00::1";

/// Names that a case leads elsewhere while the gateway runs.
struct Names {
    dns: Dns,
    zone: Arc<Mutex<HashMap<String, Vec<IpAddr>>>>,
}

impl Names {
    async fn start() -> Self {
        let zone = Arc::<Mutex<HashMap<String, Vec<IpAddr>>>>::default();
        let asked = Arc::clone(&zone);
        let answer = move |name: &str, _| {
            let zone = asked.lock().unwrap();
            zone.get(name).cloned().unwrap_or_default()
        };
        Self {
            dns: Dns::start(answer).await,
            zone,
        }
    }

    fn lead(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        let mut zone = self.zone.lock().unwrap();
        zone.insert(name.to_owned(), addresses.collect());
    }

    fn builder(&self, pair: Pair) -> Builder {
        self.configure(Builder::new(pair))
    }

    fn configure(&self, builder: Builder) -> Builder {
        builder
            .set("address.nameservers", &self.dns.address.to_string())
            // Agents are called in vain until their addresses change.
            .sets("timeouts.connect=300ms breaker.failures=0 breaker.ratio=0")
    }
}

/// The URL of an agent by a name.
fn at(name: &str, agent: &Agent) -> String {
    format!("http://{name}:{}/", agent.port)
}

async fn register(gateway: &Gateway, id: &str, token: &str, url: &str) -> Answer {
    let body = json!({"id": id, "url": url, "agent_card": card(id)});
    let request = Request::post("/registry/register", body.to_string()).bearer(token);
    gateway.call(&request).await
}

/// A workspace whose agent is registered at `url`, with its token.
async fn join(gateway: &Gateway, id: &str, url: &str) -> String {
    let enrolment = gateway.create(json!({"id": id, "name": id})).await;
    let answer = register(gateway, id, &enrolment, url).await.has(200);
    answer.json()["token"].as_str().unwrap().to_owned()
}

/// One call of the workspace to itself.
async fn call(gateway: &Gateway, id: &str, token: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(token);
    gateway.call(&request).await
}

/// Calls until it is answered as expected: `sent`, or a reason.
async fn until(gateway: &Gateway, id: &str, token: &str, expected: &str) -> Answer {
    until_found(expected, async || {
        let answer = call(gateway, id, token).await;
        let came = match answer.status {
            200 => "sent".to_owned(),
            // Which of the two it is depends on the network of this machine.
            _ if answer.reason() == "agent_timeout" => "agent_unreachable".to_owned(),
            _ => answer.reason(),
        };
        (came == expected).then_some(answer)
    })
    .await
}

async fn deregister(gateway: &Gateway, seat: &Seat) {
    let body = json!({"workspace_id": seat.id}).to_string();
    let leave = Request::post("/registry/deregister", body).bearer(&seat.token);
    assert_eq!(gateway.call(&leave).await.status, 200);
}

on_both_pairs! {
    /// Of two at the same moment none waits for the other one's servers in vain.
    async fn two_agents_that_change_places_at_once_go_on(pair: Pair) {
        let names = Names::start().await;
        let gateway = names.builder(pair).start().await;
        let (one, other) = ("10.0.0.1", "10.0.0.2");
        names.lead("a.test", &[one]);
        names.lead("b.test", &[other]);
        let a = join(&gateway, "a", "http://a.test:9/").await;
        let b = join(&gateway, "b", "http://b.test:9/").await;
        for round in 0..6 {
            let (at_a, at_b) = if round % 2 == 0 { (other, one) } else { (one, other) };
            names.lead("a.test", &[at_a]);
            names.lead("b.test", &[at_b]);
            let (first, second) = tokio::join!(
                register(&gateway, "a", &a, "http://a.test:9/"),
                register(&gateway, "b", &b, "http://b.test:9/"),
            );
            assert_eq!((first.status, second.status), (200, 200), "{} {}", first.text(), second.text());
        }
    }

    async fn a_dry_run_releases_no_server_of_another_workspace(pair: Pair) {
        let names = Names::start().await;
        let gateway = names.builder(pair).start().await;
        let moving = answering().await;
        let url = at("moving.test", &moving);
        names.lead("moving.test", &[HERE]);
        let token = join(&gateway, "moving", &url).await;
        until(&gateway, "moving", &token, "sent").await;
        gateway.create(json!({"id": "other", "name": "other", "org": "acme"})).await;
        let org = &gateway.token("/orgs/acme/tokens", "{}").await;
        let patch = async |query: &str, change: Value| {
            let request = Request::patch(format!("/workspaces/other{query}"), change.to_string());
            gateway.call(&request.bearer(org)).await
        };
        let create = async |query: &str| {
            let new = json!({"id": "new", "name": "new", "url": moving.url()}).to_string();
            gateway.call(&Request::post(format!("/workspaces{query}"), new).bearer(org)).await
        };
        let to_there = || json!({"url": moving.url()});
        names.lead("moving.test", &[FAR]);
        // The server is free, as far as dry runs tell.
        assert_eq!(patch("?dry_run=true", to_there()).await.status, 200);
        assert_eq!(create("?dry_run=true").await.status, 201);
        // Nor does a change release it that is refused.
        let circle = patch("", json!({"url": moving.url(), "parent_id": "other"})).await;
        assert!(circle.status >= 400, "{}", circle.text());
        names.lead("moving.test", &[HERE]);
        for answer in [patch("", to_there()).await, create("").await] {
            assert_eq!(answer.reason(), "conflict", "{}", answer.text());
        }
        until(&gateway, "moving", &token, "sent").await;
        let before = moving.count();
        names.lead("moving.test", &[FAR]);
        assert_eq!(create("").await.status, 201);
        // Its former holder is not called there any more, though the name leads there again.
        names.lead("moving.test", &[HERE]);
        until(&gateway, "moving", &token, "address_forbidden").await;
        assert_eq!(moving.count(), before);
    }
}

on_embedded! {
    async fn a_name_that_is_led_to_another_agent_reaches_it_not() {
        let names = Names::start().await;
        let gateway = names.builder(Pair::Embedded).start().await;
        let victim = gateway.seat("victim", "", answering().await).await;
        let url = at("thief.test", &victim.agent);
        names.lead("thief.test", &[FAR]);
        let thief = join(&gateway, "thief", &url).await;
        // An answer that is in memory since does not count at a registration.
        names.lead("thief.test", &[HERE]);
        let again = register(&gateway, "thief", &thief, &url).await;
        assert_eq!(again.reason(), "conflict", "{}", again.text());
        let refused = until(&gateway, "thief", &thief, "address_forbidden").await;
        assert_eq!(refused.status, 502);
        refused.says("another workspace's agent");
        assert!(!refused.text().contains("victim"), "{}", refused.text());
        let told = "has come to mean the server of another workspace's agent";
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains(told));
        assert!(line.is_some_and(|line| line.contains("thief") && line.contains("victim")), "{log}");
        // Nor by one address of several, nor for a card, nor for a call that is kept.
        names.lead("thief.test", &[FAR, HERE]);
        for _ in 0..5 {
            call(&gateway, "thief", &thief).await;
        }
        let card = Request::get("/workspaces/thief/a2a/.well-known/agent-card.json").bearer(&thief);
        gateway.call(&card).await;
        let explained = gateway.admin_get("/explain?caller=thief&target=thief").await;
        explained.unwrap().says("another workspace's agent");
        assert_eq!(victim.agent.count(), 0, "it was called");
        assert_eq!(call(&gateway, "victim", &victim.token).await.status, 200);
        // Its server is free once the other one leaves.
        names.lead("thief.test", &[HERE]);
        deregister(&gateway, &victim).await;
        until(&gateway, "thief", &thief, "sent").await;
        let back = register(&gateway, "victim", &victim.token, &victim.agent.url()).await;
        assert_eq!(back.reason(), "conflict", "{}", back.text());
    }

    async fn an_agent_that_moves_is_called_at_its_new_address() {
        let names = Names::start().await;
        let gateway = names.builder(Pair::Embedded).start().await;
        let moving = answering().await;
        let url = at("moving.test", &moving);
        names.lead("moving.test", &[FAR]);
        let token = join(&gateway, "moving", &url).await;
        names.lead("moving.test", &[HERE]);
        until(&gateway, "moving", &token, "sent").await;
        // The new address is its own from now on, and the one before is not.
        let other = gateway.create(json!({"id": "other", "name": "other"})).await;
        let taken = register(&gateway, "other", &other, &moving.url()).await;
        assert_eq!(taken.reason(), "conflict", "{}", taken.text());
        let free = format!("http://[{FAR}]:{}/", moving.port);
        register(&gateway, "other", &other, &free).await.has(200);
        // Its entry was dropped with the former address: the next call reads it, and those after it nothing.
        assert_eq!(call(&gateway, "moving", &token).await.status, 200);
        let claims = async || {
            let of = ["operation=\"workspace_claim\""];
            gateway.metric("a2a_gateway_store_seconds_count", &of).await
        };
        let before = claims().await;
        for _ in 0..100 {
            assert_eq!(call(&gateway, "moving", &token).await.status, 200);
        }
        assert_eq!(claims().await, before);
    }

    /// As containers do that are started anew.
    async fn two_agents_that_change_places_go_on() {
        let names = Names::start().await;
        let gateway = names.builder(Pair::Embedded).start().await;
        let here = answering().await;
        let url = |name: &str| at(name, &here);
        names.lead("a.test", &[HERE]);
        names.lead("b.test", &[FAR]);
        let a = join(&gateway, "a", &url("a.test")).await;
        let b = join(&gateway, "b", &url("b.test")).await;
        until(&gateway, "a", &a, "sent").await;
        names.lead("a.test", &[FAR]);
        names.lead("b.test", &[HERE]);
        until(&gateway, "b", &b, "sent").await;
        register(&gateway, "a", &a, &url("a.test")).await.has(200);
        // Back, by registrations.
        names.lead("a.test", &[HERE]);
        names.lead("b.test", &[FAR]);
        for (id, token) in [("a", &a), ("b", &b)] {
            let answer = register(&gateway, id, token, &url(&format!("{id}.test"))).await;
            assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        }
        until(&gateway, "a", &a, "sent").await;
    }

    async fn a_name_has_so_many_addresses_and_no_more() {
        let names = Names::start().await;
        let gateway = names.builder(Pair::Embedded).start().await;
        let agent = answering().await;
        let addresses: Vec<String> = (1..=65).map(|n| format!("127.0.0.{n}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let url = at("many.test", &agent);
        let enrolment = gateway.create(json!({"id": "many", "name": "many"})).await;
        names.lead("many.test", &addresses);
        let refused = register(&gateway, "many", &enrolment, &url).await;
        assert_eq!(refused.reason(), "address_forbidden", "{}", refused.text());
        let too_many = "has 65 addresses, and an agent has at most 64";
        refused.says(too_many);
        names.lead("many.test", &addresses[..64]);
        let answer = register(&gateway, "many", &enrolment, &url).await.has(200);
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        until(&gateway, "many", &token, "sent").await;
        names.lead("many.test", &addresses);
        until(&gateway, "many", &token, "address_forbidden").await.says(too_many);
    }
}

/// Without SQL an agent goes on at the addresses that are known to be its own, and at no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sql_settled_addresses_go_on() {
    let names = Names::start().await;
    let (relay, sql) = servers::postgres().relayed();
    let redis = Redis::start();
    let builder = names.builder(Pair::Embedded).stores(&sql, &redis.url());
    let gateway = builder.set("stores.timeout", "1s").start().await;
    let (steady, moving) = (answering().await, answering().await);
    names.lead("steady.test", &[HERE]);
    names.lead("moving.test", &[FAR]);
    let one = join(&gateway, "steady", &at("steady.test", &steady)).await;
    let other = join(&gateway, "moving", &at("moving.test", &moving)).await;
    until(&gateway, "steady", &one, "sent").await;
    assert!(call(&gateway, "moving", &other).await.status >= 500);
    let lookups = names.dns.lookups("steady.test");
    relay.cut();
    names.lead("moving.test", &[HERE]);
    until(&gateway, "moving", &other, "store_unavailable").await;
    // Also by an answer of the DNS that came since.
    until_holds("the name is looked up again", async || {
        call(&gateway, "steady", &one).await.has(200);
        names.dns.lookups("steady.test") > lookups
    })
    .await;
    assert_eq!(call(&gateway, "steady", &one).await.status, 200);
    assert_eq!(moving.count(), 0);
    relay.resume();
    until(&gateway, "moving", &other, "sent").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_learns_that_an_address_was_left() {
    let names = Names::start().await;
    let stores = Stores::start();
    let replica = || names.configure(stores.builder()).start();
    let (one, two) = (replica().await, replica().await);
    let victim = answering().await;
    names.lead("thief.test", &[HERE]);
    let url = at("thief.test", &victim);
    let thief = join(&one, "thief", &url).await;
    until(&two, "thief", &thief, "sent").await;
    names.lead("thief.test", &[FAR]);
    until(&one, "thief", &thief, "agent_unreachable").await;
    join(&one, "victim", &victim.url()).await;
    let before = victim.count();
    names.lead("thief.test", &[HERE]);
    until(&two, "thief", &thief, "address_forbidden").await;
    assert_eq!(victim.count(), before, "it was called");
}
