//! `resolve: "each"`: the addresses of one name are the instances of an agent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::harness::dns::Dns;
use crate::harness::{Step, ok_json};
use crate::on_both_pairs;

const NAME: &str = "agents.test";

/// A DNS server for [`NAME`], whose addresses a case changes.
struct Name {
    dns: Dns,
    addresses: Arc<Mutex<Vec<IpAddr>>>,
}

impl Name {
    async fn of(addresses: &[&str]) -> Self {
        let shared = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&shared);
        let zone = move |name: &str, _| match name {
            NAME => asked.lock().unwrap().clone(),
            _ => Vec::new(),
        };
        let name = Self {
            dns: Dns::start(zone).await,
            addresses: shared,
        };
        name.lead(addresses);
        name
    }

    fn lead(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap());
        *self.addresses.lock().unwrap() = addresses.collect();
    }

    fn builder(&self, pair: Pair) -> Builder {
        let nameservers = self.dns.address.to_string();
        Builder::new(pair).set("address.nameservers", &nameservers)
    }

    async fn set(&self, pair: Pair) -> Set {
        Set::on(self.builder(pair)).await
    }
}

async fn agent_at(address: &str, port: u16) -> Agent {
    let answer = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#);
    let script = move |_: &_| vec![Step::Write(answer.clone())];
    Agent::scripted_at(&format!("{address}:{port}"), script).await
}

/// Three agents on one port of three addresses.
async fn three() -> [Agent; 3] {
    let first = agent_at("127.0.0.1", 0).await;
    let second = agent_at("127.0.0.2", first.port).await;
    let third = agent_at("127.0.0.3", first.port).await;
    [first, second, third]
}

fn body(port: u16) -> Value {
    json!({"id": "named", "name": "named", "liveness": "assumed", "resolve": "each",
        "url": format!("http://{NAME}:{port}/")})
}

async fn create(set: &Set, body: &Value) -> Answer {
    set.post("/workspaces", body.clone()).await
}

async fn call(set: &Set, body: &str) -> Answer {
    let request = Request::post("/workspaces/named/a2a", body).bearer(&set.caller.token);
    set.gateway.call(&request).await
}

/// Ids of the instances, each with its status and breaker.
async fn instances(set: &Set) -> BTreeMap<String, (String, String)> {
    let view = set.gateway.read("/workspaces/named").await;
    let all = view["instances"].as_array().into_iter().flatten();
    let text = |one: &Value, member: &str| one[member].as_str().unwrap().to_owned();
    let states = |one: &Value| (text(one, "status"), text(one, "breaker"));
    all.map(|one| (text(one, "instance_id"), states(one)))
        .collect()
}

fn in_context(context: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {
        "role": "user", "messageId": "m", "contextId": context, "parts": [{"kind": "text", "text": "hi"}]}}})
    .to_string()
}

on_both_pairs! {
    async fn each_address_of_a_name_is_an_instance(pair: Pair) {
        let agents = three().await;
        let name = Name::of(&["127.0.0.1", "127.0.0.2"]).await;
        let set = name.set(pair).await;
        let answer = create(&set, &body(agents[0].port)).await;
        assert_eq!((answer.status, &answer.json()["resolve"]), (201, &json!("each")), "{}", answer.text());
        let found = instances(&set).await;
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ip-127.0.0.1", "ip-127.0.0.2"]);
        assert!(found.values().all(|(status, breaker)| status == "online" && breaker == "closed"), "{found:?}");
        // Twenty calls at random: with one instance only in one of half a million runs.
        for _ in 0..20 {
            assert_eq!(call(&set, CALL).await.status, 200);
        }
        assert!(agents[0].calls() > 0 && agents[1].calls() > 0);
        assert_eq!(agents[0].calls() + agents[1].calls(), 20);
        // The name stays the host of the request, at each address.
        let host = format!("{NAME}:{}", agents[0].port);
        for agent in &agents[..2] {
            assert_eq!(agent.requests()[0].field("host"), Some(&*host));
        }
        // A context stays where it is.
        for _ in 0..6 {
            assert_eq!(call(&set, &in_context("c-7")).await.status, 200);
        }
        let got: Vec<usize> = agents[..2].iter().map(|agent| {
            let requests = agent.requests();
            requests.iter().filter(|one| one.text().contains("c-7")).count()
        }).collect();
        assert!(got == [6, 0] || got == [0, 6], "{got:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_comes_gets_calls_and_one_that_leaves_gets_none() {
    let agents = three().await;
    let name = Name::of(&["127.0.0.1", "127.0.0.2"]).await;
    let set = name.set(Pair::Embedded).await;
    assert_eq!(create(&set, &body(agents[0].port)).await.status, 201);
    assert_eq!(call(&set, CALL).await.status, 200);
    name.lead(&["127.0.0.2", "127.0.0.3"]);
    until_holds("the new address gets calls", async || {
        // Also while the name changes no call fails.
        call(&set, CALL).await.has(200);
        agents[2].calls() > 0
    })
    .await;
    let before = agents[0].calls();
    for _ in 0..20 {
        assert_eq!(call(&set, CALL).await.status, 200);
    }
    // The address that left gets none.
    assert_eq!(agents[0].calls(), before);
    let found = instances(&set).await;
    assert!(
        found.keys().eq(&["ip-127.0.0.2", "ip-127.0.0.3"]),
        "{found:?}"
    );
    // An address is taken out of the name, not drained.
    let body = json!({"workspace_id": "named", "instance_id": "ip-127.0.0.3"});
    let answer = set.post("/registry/drain", body).await;
    answer.refuses(409, "conflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_address_has_its_own_breaker() {
    let one = agent_at("127.0.0.1", 0).await;
    // Refuses connections.
    let name = Name::of(&["127.0.0.1", "127.0.0.9"]).await;
    let builder = name.builder(Pair::Embedded);
    let set = Set::on(builder.set("breaker.open", "60s")).await;
    assert_eq!(create(&set, &body(one.port)).await.status, 201);
    for _ in 0..40 {
        call(&set, CALL).await.has(200);
    }
    assert_eq!(one.calls(), 40);
    let found = instances(&set).await;
    assert_eq!(found["ip-127.0.0.9"].1, "open");
    assert_eq!(found["ip-127.0.0.1"].1, "closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_without_an_address_or_with_a_forbidden_one_is_refused_and_resolved_again() {
    let agents = three().await;
    let name = Name::of(&["127.0.0.1"]).await;
    let set = name.set(Pair::Embedded).await;
    assert_eq!(create(&set, &body(agents[0].port)).await.status, 201);
    let forbidden = ["127.0.0.1", "169.254.169.254"];
    let rows = [
        (&[][..], "agent_unreachable"),
        (&forbidden, "address_forbidden"),
    ];
    for (addresses, reason) in rows {
        name.lead(addresses);
        let is_refused = async || {
            let answer = call(&set, CALL).await;
            answer.status != 200 && answer.reason() == reason
        };
        until_holds(reason, is_refused).await;
    }
    name.lead(&["127.0.0.2"]);
    let gets_calls = async || {
        call(&set, CALL).await;
        agents[1].calls() > 0
    };
    until_holds("the address gets calls", gets_calls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_cannot_have_instances_is_refused() {
    let agent = agent_at("127.0.0.1", 0).await;
    let name = Name::of(&["127.0.0.1"]).await;
    let set = name.set(Pair::Embedded).await;
    let literal = agent.url();
    let named = body(agent.port)["url"].take();
    for (more, part) in [
        (json!({"liveness": "heartbeat"}), "assumed"),
        (json!({"url": literal}), "url with a name"),
        (json!({"url": null, "card_url": named}), "url with a name"),
        (json!({"url": null, "urls": [named]}), "no urls"),
        (json!({"delivery_mode": "poll", "url": null}), "push"),
    ] {
        let answer = create(&set, &merged(body(agent.port), &more)).await;
        answer.refuses_for(&more, 400, "invalid_params");
        assert!(answer.text().contains(part), "{more}: {}", answer.text());
    }
    let org = set.gateway.token("/orgs/acme/tokens", "{}").await;
    let request = Request::post("/workspaces", body(agent.port).to_string()).bearer(&org);
    let answer = set.gateway.call(&request).await;
    answer.refuses(403, "not_permitted");
    // A change is judged by all that is in force after it.
    let mut first = body(agent.port);
    first.as_object_mut().unwrap().remove("resolve");
    assert_eq!(create(&set, &first).await.status, 201);
    assert!(instances(&set).await.is_empty());
    let each = set.gateway.patch("named", json!({"resolve": "each"})).await;
    assert_eq!(each.status, 200);
    assert_eq!(each.json()["resolve"], "each");
    assert_eq!(instances(&set).await.len(), 1);
    for change in [
        json!({"url": literal}),
        json!({"liveness": "heartbeat"}),
        json!({"urls": [literal]}),
    ] {
        let answer = set.gateway.patch("named", change.clone()).await;
        answer.refuses_for(&change, 400, "invalid_params");
    }
    let back = json!({"resolve": null, "url": literal});
    set.gateway.patch("named", back).await.has(200);
    assert!(instances(&set).await.is_empty());
    assert_eq!(call(&set, CALL).await.status, 200);
}
