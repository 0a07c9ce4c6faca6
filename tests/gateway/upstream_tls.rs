//! TLS to agents: verified by the system's authorities or the workspace's own, for the host of the URL; a
//! certificate of the gateway's for those that ask; no connection of one workspace for another.

use serde_json::{Value, json};

use crate::harness::authority::{Authority, Issued, TlsAgent, self_signed};
use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Pair, Request, assert_refusal, card};
use crate::on_both_pairs;

async fn send(gateway: &Gateway, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL);
    let request = request.field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

/// A workspace whose agent is at `url`.
async fn assumed(gateway: &Gateway, id: &str, url: &str, tls: &Value) {
    let mut new = json!({"id": id, "name": id, "url": url, "liveness": "assumed"});
    if !tls.is_null() {
        new["upstream_tls"] = tls.clone();
    }
    gateway.create(new).await;
}

fn client(issued: &Issued) -> Value {
    json!({"client_cert": issued.pem, "client_key": issued.key})
}

/// Reads the column, as it stands in the table.
const STORED: &str = "SELECT upstream_tls FROM workspaces WHERE id = $1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_who_its_certificate_says_or_nothing_is_sent() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let gateway = Gateway::start(Pair::Embedded).await;
    let own = self_signed(&["localhost"]);
    let ca = |pem: &str| json!({"ca": pem});
    let bundle = format!("{}{}", theirs.pem(), ours.pem());
    let of = |name: &str| ours.issue(&[name]);
    let by_ours = || ca(&ours.pem());
    let (name, address) = ("localhost", "127.0.0.1");
    for (number, (certificate, host, tls, good)) in (0..).zip([
        // The right authority, for a name and for an address.
        (of(name), name, by_ours(), true),
        (of(address), address, by_ours(), true),
        (of(name), name, ca(&bundle), true),
        // That certificate and no other.
        (self_signed(&[name]), name, Value::Null, false),
        // The system trusts neither of ours.
        (of(name), name, Value::Null, false),
        (of(name), name, ca(&theirs.pem()), false),
        (of(name), name, ca(&own.pem), false),
        // Another name; a name where an address is asked for, and the reverse.
        (of("other.example"), name, by_ours(), false),
        (of(name), address, by_ours(), false),
        (of(address), name, by_ours(), false),
        (of("127.0.0.2"), address, by_ours(), false),
        (ours.issue_until(&[name], 2020), name, by_ours(), false),
    ]) {
        let agent = TlsAgent::start(&certificate, None).await;
        let id = format!("w-{number}");
        assumed(&gateway, &id, &agent.url(host), &tls).await;
        let answer = send(&gateway, &id).await;
        if good {
            assert_eq!(answer.status, 200, "{number}: {}", answer.text());
            assert_eq!(agent.agent.calls(), 1, "{number}");
        } else {
            assert_refusal(&answer, "/a2a", "seen", "agent_unreachable", &id);
            let delivered = answer.fact("delivered");
            assert_eq!(delivered.as_deref(), Some("false"), "{number}");
            assert!(agent.tried() > 0, "{number}: it was not even tried");
            assert_eq!(agent.agent.count(), 0, "{number}: something was sent");
        }
    }
    // A certificate that vouches for itself is trusted by whoever was given it.
    let agent = TlsAgent::start(&own, None).await;
    assumed(&gateway, "pinned", &agent.url("localhost"), &ca(&own.pem)).await;
    assert_eq!(send(&gateway, "pinned").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_asks_for_a_certificate_gets_that_of_the_workspace() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let certificate = servers.issue(&["localhost"]);
    let agent = TlsAgent::start(&certificate, Some(&clients)).await;
    // Each thread keeps connections of its own.
    let gateway = Gateway::with("server.threads=1").await;
    let url = agent.url("localhost");
    let with = |issued: &Issued| {
        let mut tls = client(issued);
        tls["ca"] = servers.pem().into();
        tls
    };
    let stranger = Authority::new("stranger").issue(&["gateway"]);
    for (id, tls) in [
        ("none", json!({"ca": servers.pem()})),
        ("stranger", with(&stranger)),
    ] {
        assumed(&gateway, id, &url, &tls).await;
        let answer = send(&gateway, id).await;
        assert_eq!(answer.status, 502, "{id}: {}", answer.text());
        assert_eq!(agent.agent.count(), 0, "{id}: something arrived");
    }
    assumed(&gateway, "known", &url, &with(&clients.issue(&["gateway"]))).await;
    for _ in 0..2 {
        send(&gateway, "known").await.has(200);
    }
    assert_eq!(agent.agent.connections(), 1, "it is kept for the next call");
    // What others may not do they may not do over the connection that is open.
    assert_eq!(send(&gateway, "none").await.status, 502);
    assert_eq!(send(&gateway, "stranger").await.status, 502);
    assert_eq!(agent.agent.calls(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_of_one_workspace_serves_another() {
    for threads in ["1", "4"] {
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let certificate = ours.issue(&["localhost"]);
        let agent = TlsAgent::start(&certificate, None).await;
        let gateway = Gateway::with(&format!("server.threads={threads}")).await;
        let url = agent.url("localhost");
        let ca = |authority: &Authority| json!({"ca": authority.pem()});
        let (good, bad) = (ca(&ours), ca(&theirs));
        for (id, tls) in [("a", &good), ("b", &bad), ("d", &Value::Null)] {
            assumed(&gateway, id, &url, tls).await;
        }
        for _ in 0..2 {
            assert_eq!(send(&gateway, "a").await.status, 200);
            // The same address and name, and a connection that is open and unused.
            for id in ["b", "d"] {
                let answer = send(&gateway, id).await;
                assert_eq!(answer.reason(), "agent_unreachable", "{id}");
            }
        }
        // With more, each thread makes its own.
        assert!(threads != "1" || agent.agent.connections() == 1);
        assumed(&gateway, "c", &url, &good).await;
        assert_eq!(send(&gateway, "c").await.status, 200);
        let connections = agent.agent.connections();
        assert!(threads != "1" || connections == 2, "each has its own");
        // Whoever is not trusted any more is not trusted on the open connection either.
        gateway
            .patch("a", json!({"upstream_tls": bad}))
            .await
            .has(200);
        assert_eq!(send(&gateway, "a").await.reason(), "agent_unreachable");
        assert_eq!(agent.agent.calls(), 3);
    }
}

on_both_pairs! {
    async fn certificates_are_sealed_shown_by_name_only_and_taken_back(pair: Pair) {
        let mut gateway = Builder::new(pair).start().await;
        let authority = Authority::new("the authority");
        let mine = authority.issue(&["gateway"]);
        let agent = TlsAgent::start(&authority.issue(&["localhost"]), Some(&authority)).await;
        let url = agent.url("localhost");
        assumed(&gateway, "a", &url, &Value::Null).await;
        let mut tls = client(&mine);
        tls["ca"] = authority.pem().into();
        let changed = gateway.patch("a", json!({"upstream_tls": tls})).await.has(200);
        let read = gateway.as_operator(Request::get("/workspaces/a")).await;
        assert_eq!(read.json()["upstream_tls"], changed.json()["upstream_tls"]);
        let about = &read.json()["upstream_tls"];
        assert!(about["ca"][0]["subject"].as_str().unwrap().contains("the authority"), "{about}");
        assert_eq!(about["client_cert"][0]["expires_at"], "2999-01-01T00:00:00Z");
        assert_eq!(about["client_cert"][0]["sha256"].as_str().map(str::len), Some(64));
        // Nothing of a key, and to nobody else anything.
        let secret = &mine.key.lines().nth(1).unwrap()[..20];
        let kept = gateway.stored(STORED, "a").await.unwrap();
        for text in [read.text(), changed.text(), kept, gateway.log()] {
            assert!(!text.contains(secret) && !text.contains("BEGIN"), "{text}");
        }
        let sibling = gateway.seat("b", "", Agent::json("{}").await).await;
        let read = gateway.call(&Request::get("/workspaces/a").bearer(&sibling.token)).await;
        assert!(read.status == 200 && read.json().get("upstream_tls").is_none(), "{}", read.text());
        // It outlives the process, and other changes.
        assert_eq!(gateway.patch("a", json!({"name": "A"})).await.status, 200);
        gateway.restart().await;
        send(&gateway, "a").await.has(200);
        gateway.patch("a", json!({"upstream_tls": null})).await.has(200);
        assert_eq!(gateway.stored(STORED, "a").await, None);
        let read = gateway.view("a").await;
        assert!(read.get("upstream_tls").is_none(), "{read}");
        assert_eq!(send(&gateway, "a").await.reason(), "agent_unreachable");
        // A removed workspace keeps no key.
        assert_eq!(gateway.patch("a", json!({"upstream_tls": client(&mine)})).await.status, 200);
        gateway.as_operator(Request::new("DELETE", "/workspaces/a")).await.has(200);
        assert_eq!(gateway.stored(STORED, "a").await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_when_it_is_said() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let authority = Authority::new("authority");
    let (one, other) = (authority.issue(&["gateway"]), authority.issue(&["gateway"]));
    let old = authority.issue_until(&["gateway"], 2020);
    let at_first = json!({"id": "a", "name": "a", "url": "https://localhost:9/"});
    gateway.create(at_first).await;
    let pair = |key: &str| json!({"client_cert": one.pem, "client_key": key});
    for (tls, part) in [
        (json!("s3cret"), "upstream_tls"),
        (json!({}), "upstream_tls"),
        (json!({"ca": "s3cret"}), "holds no certificate"),
        (json!({"ca": one.key}), "holds no certificate"),
        (json!({"ca": old.pem}), "has expired"),
        (json!({"ca": "s3cret".repeat(6000)}), "longer than 32 KiB"),
        (json!({"client_cert": one.pem}), "upstream_tls"),
        (pair("s3cret"), "no private key"),
        (pair(&other.key), "does not fit"),
        (client(&old), "has expired"),
        (json!({"ca": one.pem, "verify": false}), "upstream_tls"),
    ] {
        let new = json!({"id": "b", "name": "b", "upstream_tls": tls}).to_string();
        let request = Request::post("/workspaces", new).field("X-Request-Id", "seen");
        let created = gateway.as_operator(request).await;
        let change = json!({"name": "b", "upstream_tls": tls});
        for answer in [created, gateway.patch("a", change).await] {
            assert_refusal(&answer, "/workspaces", "seen", "invalid_params", part);
            answer.says(part);
            let text = answer.text();
            assert!(!text.contains("s3cret") && !text.contains("MII"), "{text}");
        }
    }
    // An org's token may change the workspace, but not whom it is believed to be.
    let org = gateway.token("/orgs/acme/tokens", "{}").await;
    let new = json!({"id": "c", "name": "c", "org": "acme"});
    gateway.create(new).await;
    let ca = json!({"ca": authority.pem()});
    let patch = |tls: &Value| json!({"upstream_tls": tls}).to_string();
    let new = json!({"name": "d", "upstream_tls": ca}).to_string();
    for request in [
        Request::patch("/workspaces/c", patch(&ca)),
        Request::patch("/workspaces/c", patch(&Value::Null)),
        Request::post("/workspaces", new),
    ] {
        let answer = gateway.call(&request.bearer(&org)).await;
        assert_eq!(answer.reason(), "not_permitted", "{}", answer.text());
    }
    assert!(!gateway.log().contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_in_the_clear_to_an_agent_with_certificates() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let tls = json!({"ca": Authority::new("authority").pem()});
    let agent = Agent::json("{}").await;
    let new = json!({"id": "a", "name": "a", "upstream_tls": tls});
    let enrolment = gateway.create(new).await;
    let body = json!({"id": "a", "url": agent.url(), "agent_card": card("a")}).to_string();
    let request = Request::post("/registry/register", body).bearer(&enrolment);
    let registered = gateway.call(&request).await;
    registered.says("https://");
    let moved = gateway.patch("a", json!({"url": agent.url()})).await;
    assumed(&gateway, "b", &agent.url(), &Value::Null).await;
    let trusted = gateway.patch("b", json!({"upstream_tls": tls})).await;
    for answer in [registered, moved, trusted] {
        assert_eq!(answer.reason(), "invalid_params", "{}", answer.text());
    }
    assert_eq!(agent.calls(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_key_that_sealed_them_nothing_is_sent() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let authority = Authority::new("authority");
    let agent = TlsAgent::start(&authority.issue(&["localhost"]), None).await;
    let tls = json!({"ca": authority.pem()});
    assumed(&gateway, "a", &agent.url("localhost"), &tls).await;
    assert_eq!(send(&gateway, "a").await.status, 200);
    std::fs::remove_file(gateway.dir.join("keys/seal.key")).unwrap();
    gateway.restart().await;
    let answer = send(&gateway, "a").await;
    assert_refusal(&answer, "/a2a", "seen", "store_unavailable", "another key");
    answer.says("upstream_tls");
    assert_eq!(agent.agent.calls(), 1);
}
