//! TLS to agents: verified by the system's authorities or the workspace's own, for the host of the URL; a
//! certificate of the gateway's for those that ask; no connection of one workspace for another.

use serde_json::{Value, json};
use sqlx::Row as _;

use crate::harness::authority::{Authority, Issued, TlsAgent, self_signed};
use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Pair, Request, assert_refusal, card};
use crate::on_both_pairs;

async fn send(gateway: &Gateway, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL);
    gateway
        .as_operator(request.field("X-Request-Id", "seen"))
        .await
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

/// The column, as it stands in the table.
async fn stored(sql: &str, id: &str) -> Option<String> {
    sqlx::any::install_default_drivers();
    let pool = sqlx::any::AnyPoolOptions::new().max_connections(1);
    let pool = pool.connect(sql).await.unwrap();
    let query = sqlx::query("SELECT upstream_tls FROM workspaces WHERE id = $1").bind(id);
    let row = query.fetch_one(&pool).await.unwrap();
    pool.close().await;
    row.try_get(0).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_who_its_certificate_says_or_nothing_is_sent() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let gateway = Gateway::start(Pair::Embedded).await;
    let own = self_signed(&["localhost"]);
    let ca = |pem: &str| json!({"ca": pem});
    let bundle = format!("{}{}", theirs.pem(), ours.pem());
    for (number, (certificate, host, tls, good)) in [
        // The right authority, for a name and for an address.
        (
            ours.issue(&["localhost"]),
            "localhost",
            ca(&ours.pem()),
            true,
        ),
        (
            ours.issue(&["127.0.0.1"]),
            "127.0.0.1",
            ca(&ours.pem()),
            true,
        ),
        (ours.issue(&["localhost"]), "localhost", ca(&bundle), true),
        // That certificate and no other.
        (self_signed(&["localhost"]), "localhost", Value::Null, false),
        // The system trusts neither of ours.
        (ours.issue(&["localhost"]), "localhost", Value::Null, false),
        (
            ours.issue(&["localhost"]),
            "localhost",
            ca(&theirs.pem()),
            false,
        ),
        (ours.issue(&["localhost"]), "localhost", ca(&own.pem), false),
        // Another name; a name where an address is asked for, and the reverse.
        (
            ours.issue(&["other.example"]),
            "localhost",
            ca(&ours.pem()),
            false,
        ),
        (
            ours.issue(&["localhost"]),
            "127.0.0.1",
            ca(&ours.pem()),
            false,
        ),
        (
            ours.issue(&["127.0.0.1"]),
            "localhost",
            ca(&ours.pem()),
            false,
        ),
        (
            ours.issue(&["127.0.0.2"]),
            "127.0.0.1",
            ca(&ours.pem()),
            false,
        ),
        (
            ours.issue_until(&["localhost"], 2020),
            "localhost",
            ca(&ours.pem()),
            false,
        ),
    ]
    .iter()
    .enumerate()
    {
        let agent = TlsAgent::start(certificate, None).await;
        let id = format!("w-{number}");
        assumed(&gateway, &id, &agent.url(host), tls).await;
        let answer = send(&gateway, &id).await;
        if *good {
            assert_eq!(answer.status, 200, "{number}: {}", answer.text());
            assert_eq!(agent.agent.count(), 1, "{number}");
        } else {
            let what = number.to_string();
            assert_refusal(&answer, "/a2a", "seen", "agent_unreachable", &what);
            assert_eq!(
                answer.fact("delivered").as_deref(),
                Some("false"),
                "{number}"
            );
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
    let builder = Builder::new(Pair::Embedded).set("server.threads", "1");
    let gateway = builder.start().await;
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
        let answer = send(&gateway, "known").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(agent.agent.connections(), 1, "it is kept for the next call");
    // What others may not do they may not do over the connection that is open.
    assert_eq!(send(&gateway, "none").await.status, 502);
    assert_eq!(send(&gateway, "stranger").await.status, 502);
    assert_eq!(agent.agent.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_of_one_workspace_serves_another() {
    for threads in ["1", "4"] {
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let certificate = ours.issue(&["localhost"]);
        let agent = TlsAgent::start(&certificate, None).await;
        let builder = Builder::new(Pair::Embedded);
        let gateway = builder.set("server.threads", threads).start().await;
        let url = agent.url("localhost");
        let ca = |authority: &Authority| json!({"ca": authority.pem()});
        for (id, tls) in [
            ("a", ca(&ours)),
            ("b", ca(&theirs)),
            ("c", ca(&ours)),
            ("d", Value::Null),
        ] {
            assumed(&gateway, id, &url, &tls).await;
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
        assert_eq!(send(&gateway, "c").await.status, 200);
        let connections = agent.agent.connections();
        assert!(threads != "1" || connections == 2, "each has its own");
        // Whoever is not trusted any more is not trusted on the open connection either.
        let answer = gateway
            .patch("a", json!({"upstream_tls": ca(&theirs)}))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(send(&gateway, "a").await.reason(), "agent_unreachable");
        assert_eq!(agent.agent.count(), 3);
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
        let changed = gateway.patch("a", json!({"upstream_tls": tls})).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        let read = gateway.as_operator(Request::get("/workspaces/a")).await;
        assert_eq!(read.json()["upstream_tls"], changed.json()["upstream_tls"]);
        let about = &read.json()["upstream_tls"];
        assert!(about["ca"][0]["subject"].as_str().unwrap().contains("the authority"), "{about}");
        assert_eq!(about["client_cert"][0]["expires_at"], "2999-01-01T00:00:00Z");
        assert_eq!(about["client_cert"][0]["sha256"].as_str().map(str::len), Some(64));
        // Nothing of a key, and to nobody else anything.
        let secret = &mine.key.lines().nth(1).unwrap()[..20];
        let kept = stored(&gateway.sql_url(), "a").await.unwrap();
        for text in [read.text(), changed.text(), kept, gateway.log()] {
            assert!(!text.contains(secret) && !text.contains("BEGIN"), "{text}");
        }
        let sibling = gateway.seat("b", "", Agent::json("{}").await).await;
        let read = gateway.call(&Request::get("/workspaces/a").bearer(&sibling.token)).await;
        assert!(read.status == 200 && read.json().get("upstream_tls").is_none(), "{}", read.text());
        // It outlives the process, and other changes.
        assert_eq!(gateway.patch("a", json!({"name": "A"})).await.status, 200);
        gateway.restart().await;
        let answer = send(&gateway, "a").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(gateway.patch("a", json!({"upstream_tls": null})).await.status, 200);
        assert_eq!(stored(&gateway.sql_url(), "a").await, None);
        let read = gateway.as_operator(Request::get("/workspaces/a")).await;
        assert!(read.json().get("upstream_tls").is_none(), "{}", read.text());
        assert_eq!(send(&gateway, "a").await.reason(), "agent_unreachable");
        // A removed workspace keeps no key.
        assert_eq!(gateway.patch("a", json!({"upstream_tls": client(&mine)})).await.status, 200);
        let gone = gateway.as_operator(Request::new("DELETE", "/workspaces/a")).await;
        assert_eq!(gone.status, 200, "{}", gone.text());
        assert_eq!(stored(&gateway.sql_url(), "a").await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_when_it_is_said() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let authority = Authority::new("authority");
    let (one, other) = (authority.issue(&["gateway"]), authority.issue(&["gateway"]));
    let old = authority.issue_until(&["gateway"], 2020);
    gateway
        .create(json!({"id": "a", "name": "a", "url": "https://localhost:9/"}))
        .await;
    for (tls, part) in [
        (json!("s3cret"), "upstream_tls"),
        (json!({}), "upstream_tls"),
        (json!({"ca": "s3cret"}), "holds no certificate"),
        (json!({"ca": one.key}), "holds no certificate"),
        (json!({"ca": old.pem}), "has expired"),
        (json!({"ca": "s3cret".repeat(6000)}), "longer than 32 KiB"),
        (json!({"client_cert": one.pem}), "upstream_tls"),
        (
            json!({"client_cert": one.pem, "client_key": "s3cret"}),
            "no private key",
        ),
        (
            json!({"client_cert": one.pem, "client_key": other.key}),
            "does not fit",
        ),
        (client(&old), "has expired"),
        (json!({"ca": one.pem, "verify": false}), "upstream_tls"),
    ] {
        let new = json!({"id": "b", "name": "b", "upstream_tls": tls}).to_string();
        let request = Request::post("/workspaces", new).field("X-Request-Id", "seen");
        let created = gateway.as_operator(request).await;
        let changed = gateway
            .patch("a", json!({"name": "b", "upstream_tls": tls}))
            .await;
        for answer in [created, changed] {
            assert_refusal(&answer, "/workspaces", "seen", "invalid_params", part);
            let text = answer.text();
            assert!(text.contains(part), "{part}: {text}");
            assert!(!text.contains("s3cret") && !text.contains("MII"), "{text}");
        }
    }
    // An org's token may change the workspace, but not whom it is believed to be.
    let org = Request::post("/orgs/acme/tokens", "{}");
    let org = gateway.as_operator(org).await.json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    gateway
        .create(json!({"id": "c", "name": "c", "org": "acme"}))
        .await;
    for tls in [json!({"ca": authority.pem()}), Value::Null] {
        let request = Request::patch("/workspaces/c", json!({"upstream_tls": tls}).to_string());
        let answer = gateway.call(&request.bearer(&org)).await;
        assert_eq!(answer.reason(), "not_permitted", "{}", answer.text());
    }
    let new = json!({"name": "d", "upstream_tls": {"ca": authority.pem()}}).to_string();
    let answer = gateway
        .call(&Request::post("/workspaces", new).bearer(&org))
        .await;
    assert_eq!(answer.reason(), "not_permitted", "{}", answer.text());
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
    let answer = gateway.call(&request).await;
    assert_eq!(answer.reason(), "invalid_params", "{}", answer.text());
    answer.says("https://");
    let answer = gateway.patch("a", json!({"url": agent.url()})).await;
    assert_eq!(answer.reason(), "invalid_params", "{}", answer.text());
    assumed(&gateway, "b", &agent.url(), &Value::Null).await;
    let answer = gateway.patch("b", json!({"upstream_tls": tls})).await;
    assert_eq!(answer.reason(), "invalid_params", "{}", answer.text());
    assert_eq!(agent.connections(), 0);
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
    assert_eq!(agent.agent.count(), 1);
}
