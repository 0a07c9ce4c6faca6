//! Probes: agents with assumed liveness are asked whether they live, never more often than said.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::ports::free_address;
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, CALL, Gateway, Pair, Recorded, Request, Step, Stores, assert_refusal,
    card, ok_json, until_holds,
};

/// The shortest period.
const EVERY: Duration = Duration::from_secs(5);

/// An agent that answers probes with the statuses of the case, the last one again and again, and calls with a result.
struct Probed {
    agent: Agent,
    began: Instant,
    statuses: Arc<Mutex<VecDeque<u16>>>,
    times: Arc<Mutex<Vec<Instant>>>,
}

/// True unless the agent is called, or asked for its card, which names the request.
fn is_probe(request: &Recorded) -> bool {
    request.head.starts_with("GET ") && request.field("x-request-id").is_none()
}

impl Probed {
    async fn new() -> Self {
        Self::at("127.0.0.1:0").await
    }

    async fn at(address: &str) -> Self {
        let statuses = Arc::new(Mutex::new(VecDeque::from([200])));
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let (says, notes) = (Arc::clone(&statuses), Arc::clone(&times));
        let agent = Agent::scripted_at(address, move |request| {
            if request.head.starts_with("POST ") {
                let answer = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{"ok":true}}"#);
                return vec![Step::Write(answer)];
            }
            if !is_probe(request) {
                return vec![Step::write("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")];
            }
            notes.lock().unwrap().push(Instant::now());
            let mut says = says.lock().unwrap();
            let status = says[0];
            if says.len() > 1 {
                says.pop_front();
            }
            let location = if status == 302 {
                "Location: /elsewhere\r\n"
            } else {
                ""
            };
            let head = format!("HTTP/1.1 {status} Said\r\n{location}");
            vec![Step::write(head + "Content-Length: 0\r\n\r\n")]
        });
        Self {
            began: Instant::now(),
            agent: agent.await,
            statuses,
            times,
        }
    }

    fn says(&self, statuses: &[u16]) {
        *self.statuses.lock().unwrap() = statuses.iter().copied().collect();
    }

    /// The first probe.
    fn first(&self) -> Recorded {
        let mut requests = self.agent.requests().into_iter();
        requests.find(is_probe).expect("a probe")
    }

    /// Number of probes so far.
    fn probes(&self) -> usize {
        self.times.lock().unwrap().len()
    }

    async fn until_probed(&self, times: usize) {
        until_holds("it is probed", async || self.probes() >= times).await;
    }

    fn assert_never_too_often(&self) {
        for (n, time) in (0..).zip(&*self.times.lock().unwrap()) {
            let span = *time - self.began;
            assert!(span >= EVERY * n, "probe {n} after {span:?}");
        }
    }
}

fn plain(id: &str, url: &str, probe: Value) -> Value {
    json!({"id": id, "name": id, "liveness": "assumed", "url": url, "probe": probe})
}

async fn post(gateway: &Gateway, path: &str, body: Value) -> Answer {
    let request = Request::post(path, body.to_string()).field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

/// A request of the operator that passes.
async fn done(gateway: &Gateway, path: &str, body: Value) {
    let answer = post(gateway, path, body).await;
    assert!(answer.status < 300, "{}", answer.text());
}

async fn until_status(gateway: &Gateway, id: &str, status: &str) {
    let said = async || gateway.view(id).await["status"] == status;
    until_holds(&format!("{id} is {status}"), said).await;
}

async fn watched(gateway: &Gateway) -> Feed {
    Feed::open(gateway.public, &Request::get("/events").bearer(ADMIN)).await
}

/// The next event of a probe of the workspace.
async fn told(feed: &mut Feed, id: &str) -> Value {
    loop {
        let event = feed.event().await.data;
        if event["workspace_id"] == id && !event["payload"]["probe"].is_null() {
            return event;
        }
    }
}

/// The cause of the next event of a probe, which is that the workspace is offline.
async fn told_offline(feed: &mut Feed, id: &str) -> String {
    let event = told(feed, id).await;
    assert_eq!(event["event"], "WORKSPACE_OFFLINE");
    assert_eq!(event["payload"]["probe"], "failed");
    event["payload"]["cause"].as_str().unwrap().to_owned()
}

async fn failures_in_a_row_make_it_offline_and_a_success_online(gateway: &Gateway) {
    let probed = Probed::new().await;
    let mut feed = watched(gateway).await;
    let call = async || {
        let request = Request::post("/workspaces/plain/a2a", CALL).field("X-Request-Id", "seen");
        gateway.as_operator(request).await
    };
    let probe = json!({"path": "/healthz?deep=1", "every_seconds": 5, "failures": 2});
    let url = format!("{}agents/plain", probed.agent.url());
    let mut body = plain("plain", &url, probe.clone());
    body["upstream_auth"] = json!({"type": "bearer", "token": "geheim"});
    done(gateway, "/workspaces", body).await;
    assert_eq!(gateway.view("plain").await["probe"], probe);
    probed.until_probed(1).await;
    let asked = probed.first();
    let line = "GET /healthz?deep=1 HTTP/1.1\r\n";
    assert!(asked.head.starts_with(line), "{}", asked.head);
    assert_eq!(asked.field("authorization"), Some("Bearer geheim"));
    assert_eq!(asked.field("user-agent"), Some("a2a-gateway"));
    assert_eq!(call().await.status, 200);
    // A redirect is a failure, which is not followed; one failure is not enough.
    probed.says(&[302, 503]);
    let cause = told_offline(&mut feed, "plain").await;
    assert!(cause.contains("503"), "{cause}");
    until_status(gateway, "plain", "offline").await;
    let refused = call().await;
    let why = "its probe fails";
    assert_refusal(&refused, "/a2a", "seen", "workspace_offline", why);
    refused.says(why);
    probed.says(&[204]);
    until_status(gateway, "plain", "online").await;
    let event = told(&mut feed, "plain").await;
    assert_eq!(event["event"], "WORKSPACE_ONLINE");
    assert_eq!(call().await.status, 200);
    for line in [
        "Workspace offline: its probe fails",
        "Workspace online: its agent answers the probe",
    ] {
        gateway.until_told(line, 1).await;
    }
    let mut requests = probed.agent.requests().into_iter();
    assert!(requests.all(|one| !one.head.contains("/elsewhere")));
    probed.assert_never_too_often();
}

async fn a_deregistered_one_comes_back_and_a_paused_one_is_not_asked(gateway: &Gateway) {
    let (probed, dropped) = (Probed::new().await, Probed::new().await);
    let other = Probed::new().await;
    let card = json!({"card": true, "every_seconds": 5});
    let back = plain("back", &probed.agent.url(), card);
    done(gateway, "/workspaces", back).await;
    for (id, one) in [("dropped", &dropped), ("other", &other)] {
        let probe = json!({"path": "/", "every_seconds": 5});
        done(gateway, "/workspaces", plain(id, &one.agent.url(), probe)).await;
        one.until_probed(1).await;
    }
    let shown = json!({"card": true, "every_seconds": 5, "failures": 3});
    assert_eq!(gateway.view("back").await["probe"], shown);
    probed.until_probed(1).await;
    let line = "GET /.well-known/agent-card.json HTTP/1.1\r\n";
    assert!(probed.first().head.starts_with(line));
    let mut feed = watched(gateway).await;
    let body = json!({"workspace_id": "back"});
    done(gateway, "/registry/deregister", body).await;
    let event = told(&mut feed, "back").await;
    assert_eq!(event["event"], "WORKSPACE_ONLINE");
    until_status(gateway, "back", "online").await;
    // One that is paused is not asked, nor one without a probe. The probes of another show that their time has passed.
    done(gateway, "/workspaces/back/pause", json!({})).await;
    dropped.says(&[500]);
    let answer = gateway.patch("dropped", json!({"probe": null})).await;
    assert_eq!(answer.has(200).json().get("probe"), None);
    let before = [probed.probes(), dropped.probes()];
    other.until_probed(other.probes() + 2).await;
    let after = [probed.probes(), dropped.probes()];
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + 1, "one may have been on its way");
    }
    assert_eq!(gateway.view("back").await["status"], "paused");
    assert_eq!(gateway.view("dropped").await["status"], "online");
    done(gateway, "/workspaces/back/resume", json!({})).await;
    probed.until_probed(after[0] + 1).await;
    let delete = Request::new("DELETE", "/workspaces/other");
    gateway.as_operator(delete).await.has(200);
    for one in [probed, dropped, other] {
        one.assert_never_too_often();
    }
}

async fn one_instance_that_lives_is_enough(gateway: &Gateway) {
    let probed = Probed::new().await;
    let dead = free_address("127.0.0.1");
    let mut feed = watched(gateway).await;
    let probe = json!({"path": "/healthz", "every_seconds": 5, "failures": 1});
    let mut body = plain("several", "", probe);
    body.as_object_mut().unwrap().remove("url");
    body["urls"] = json!([format!("http://{dead}/"), probed.agent.url()]);
    probed.says(&[200, 404]);
    done(gateway, "/workspaces", body).await;
    told_offline(&mut feed, "several").await;
    assert!(probed.probes() > 1, "with one instance the first is none");
    // Both are gone, and one comes to life.
    let revived = Probed::at(&dead.to_string()).await;
    until_status(gateway, "several", "online").await;
    assert!(revived.probes() > 0);
    probed.assert_never_too_often();
    revived.assert_never_too_often();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_decide_whether_a_workspace_is_online() {
    let gateway = Gateway::start(Pair::Embedded).await;
    tokio::join!(
        failures_in_a_row_make_it_offline_and_a_success_online(&gateway),
        a_deregistered_one_comes_back_and_a_paused_one_is_not_asked(&gateway),
        one_instance_that_lives_is_enough(&gateway),
    );
}

#[tokio::test]
async fn a_probe_that_cannot_be_is_refused() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let token = gateway.token("/orgs/acme/tokens", "{}").await;
    let url = "http://127.0.0.1:9/";
    let good = json!({"path": "/healthz"});
    let as_org = async |request: Request| {
        let request = request.bearer(&token).field("X-Request-Id", "seen");
        gateway.call(&request).await
    };
    let refused = |answer: &Answer, reason: &str, what: &str| {
        assert_refusal(answer, "", "seen", reason, what);
    };
    let create = Request::post("/workspaces", plain("plain", url, good.clone()).to_string());
    refused(&as_org(create).await, "not_permitted", "created by an org");
    for probe in [
        json!("/healthz"),
        json!({}),
        json!({"path": "/", "card": true}),
        json!({"path": "healthz"}),
        json!({"path": "/a#b"}),
        json!({"path": "/a\nb"}),
        json!({"path": "/", "every_seconds": 4}),
        json!({"path": "/", "every_seconds": 3601}),
        json!({"path": "/", "failures": 0}),
        json!({"path": "/", "failures": 21}),
        json!({"path": "/", "other": 1}),
    ] {
        let answer = post(&gateway, "/workspaces", plain("plain", url, probe.clone())).await;
        refused(&answer, "invalid_params", &probe.to_string());
    }
    for (member, value) in [("liveness", "heartbeat"), ("delivery_mode", "poll")] {
        let mut body = plain("plain", url, good.clone());
        body[member] = value.into();
        refused(
            &post(&gateway, "/workspaces", body).await,
            "invalid_params",
            member,
        );
    }
    let new = json!({"id": "plain", "name": "plain", "org": "acme"});
    gateway.create(new).await;
    let answer = gateway.patch("plain", json!({"probe": good})).await;
    refused(&answer, "invalid_params", "its agent registers");
    let both = json!({"probe": good, "liveness": "assumed", "url": url});
    let patch = Request::patch("/workspaces/plain", both.to_string());
    refused(&as_org(patch).await, "not_permitted", "changed by an org");
    gateway.patch("plain", both).await.has(200);
    let answer = gateway.patch("plain", json!({"liveness": "heartbeat"}));
    refused(&answer.await, "invalid_params", "it has a probe");
    let read = as_org(Request::get("/workspaces/plain")).await.json();
    assert_eq!(read.get("probe"), None, "for operators only");
    // Its agent registers after all: the probe is kept, and rests.
    let register =
        json!({"id": "plain", "url": url, "liveness": "heartbeat", "agent_card": card("plain")});
    post(&gateway, "/registry/register", register)
        .await
        .has(200);
    let answer = gateway.patch("plain", json!({"name": "renamed"})).await;
    assert_eq!(answer.has(200).json()["probe"]["path"], "/healthz");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_together_probe_no_more_often_than_said() {
    let stores = Stores::start();
    let start = || stores.builder().start();
    let replicas: [Gateway; 2] = tokio::join!(start(), start()).into();
    let probed = Probed::new().await;
    let probe = json!({"path": "/healthz", "every_seconds": 5, "failures": 2});
    // Failures count, whichever replica finds them.
    probed.says(&[500, 503]);
    let mut feed = watched(&replicas[1]).await;
    let body = plain("plain", &probed.agent.url(), probe);
    done(&replicas[0], "/workspaces", body).await;
    let cause = told_offline(&mut feed, "plain").await;
    assert!(cause.contains("503"), "{cause}");
    until_status(&replicas[1], "plain", "offline").await;
    // Without the shared state it is not known who asks.
    stores.redis.kill();
    let before = probed.probes();
    for replica in &replicas {
        let name = "a2a_gateway_probes_total";
        replica.until_counted(name, &["not_made"], 1.0).await;
    }
    assert!(probed.probes() <= before + 1);
    stores.redis.restart();
    probed.until_probed(probed.probes() + 1).await;
    probed.assert_never_too_often();
}
