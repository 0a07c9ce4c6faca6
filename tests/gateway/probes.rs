//! Probes: agents with assumed liveness are asked whether they live, never more often than said.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::builder::free_address;
use crate::harness::servers::{self, Redis};
use crate::harness::watcher::Feed;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Step, assert_refusal, card,
    ok_json, until_holds,
};
use crate::on_both_pairs;

/// The shortest period.
const EVERY: Duration = Duration::from_secs(5);

/// Accuracy of arrival times at an agent, on a machine that others use, too.
const TOLERANCE: Duration = Duration::from_millis(500);

/// An agent that answers probes with a status of the test's, and calls with a result.
struct Probed {
    agent: Agent,
    status: Arc<AtomicU16>,
    times: Arc<Mutex<Vec<Instant>>>,
}

impl Probed {
    async fn new() -> Self {
        Self::at("127.0.0.1:0").await
    }

    async fn at(address: &str) -> Self {
        let status = Arc::new(AtomicU16::new(200));
        let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let (says, notes) = (Arc::clone(&status), Arc::clone(&times));
        let agent = Agent::scripted_at(address, move |request| {
            if request.head.starts_with("POST ") {
                let answer = ok_json(r#"{"jsonrpc":"2.0","id":"c-1","result":{"ok":true}}"#);
                return vec![Step::Write(answer)];
            }
            notes.lock().unwrap().push(Instant::now());
            let status = says.load(Ordering::SeqCst);
            let more = if status == 302 {
                "Location: /elsewhere\r\n"
            } else {
                ""
            };
            vec![Step::write(format!(
                "HTTP/1.1 {status} Said\r\n{more}Content-Length: 0\r\n\r\n"
            ))]
        });
        Self {
            agent: agent.await,
            status,
            times,
        }
    }

    fn says(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Number of probes so far.
    fn probes(&self) -> usize {
        self.times.lock().unwrap().len()
    }

    async fn until_probed(&self, times: usize) {
        until_holds("it is probed", async || self.probes() >= times).await;
    }

    fn assert_never_too_often(&self) {
        let times = self.times.lock().unwrap();
        for pair in times.windows(2) {
            let span = pair[1] - pair[0];
            assert!(span + TOLERANCE >= EVERY, "{span:?} between two probes");
        }
    }
}

fn plain(url: &str, probe: Value) -> Value {
    json!({"id": "plain", "name": "plain", "liveness": "assumed", "url": url, "probe": probe})
}

async fn post(gateway: &Gateway, path: &str, body: Value) -> Answer {
    let request = Request::post(path, body.to_string()).field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

async fn create(gateway: &Gateway, body: Value) {
    let answer = post(gateway, "/workspaces", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

async fn view(gateway: &Gateway) -> Value {
    let request = Request::get("/workspaces/plain");
    gateway.as_operator(request).await.json()
}

async fn until_status(gateway: &Gateway, status: &str) {
    until_holds(status, async || view(gateway).await["status"] == status).await;
}

async fn call(gateway: &Gateway) -> Answer {
    let request = Request::post("/workspaces/plain/a2a", CALL).field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

/// The next event of a probe.
async fn told(feed: &mut Feed) -> Value {
    loop {
        let event = feed.event().await;
        if !event.data["payload"]["probe"].is_null() {
            return event.data;
        }
    }
}

on_both_pairs! {
    async fn failures_in_a_row_make_it_offline_and_a_success_online(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let probed = Probed::new().await;
        let events = Request::get("/events").bearer(ADMIN);
        let mut feed = Feed::open(gateway.public, &events).await;
        let probe = json!({"path": "/healthz?deep=1", "every_seconds": 5, "failures": 2});
        let mut body = plain(&format!("{}agents/plain", probed.agent.url()), probe.clone());
        body["upstream_auth"] = json!({"type": "bearer", "token": "geheim"});
        create(&gateway, body).await;
        assert_eq!(view(&gateway).await["probe"], probe);
        probed.until_probed(1).await;
        let asked = probed.agent.requests()[0].clone();
        assert!(asked.head.starts_with("GET /healthz?deep=1 HTTP/1.1\r\n"), "{}", asked.head);
        assert_eq!(asked.field("authorization"), Some("Bearer geheim"));
        assert_eq!(asked.field("user-agent"), Some("a2a-gateway"));
        assert_eq!(call(&gateway).await.status, 200);
        // A redirect is a failure, which is not followed; one failure is not enough.
        probed.says(302);
        probed.until_probed(2).await;
        gateway.until_counted("a2a_gateway_probes_total", &["failed"], 1.0).await;
        assert_eq!(view(&gateway).await["status"], "online");
        probed.says(503);
        until_status(&gateway, "offline").await;
        assert_eq!(probed.probes(), 3);
        let event = told(&mut feed).await;
        assert_eq!(event["event"], "WORKSPACE_OFFLINE");
        assert_eq!(event["payload"]["probe"], "failed");
        let cause = event["payload"]["cause"].as_str().unwrap();
        assert!(cause.contains("503"), "{cause}");
        let refused = call(&gateway).await;
        assert_refusal(&refused, "/a2a", "seen", "workspace_offline", "its probe fails");
        assert!(refused.text().contains("its probe fails"), "{}", refused.text());
        probed.says(204);
        until_status(&gateway, "online").await;
        assert_eq!(told(&mut feed).await["event"], "WORKSPACE_ONLINE");
        assert_eq!(call(&gateway).await.status, 200);
        gateway.until_told("Workspace offline: its probe fails", 1).await;
        gateway.until_told("Workspace online: its agent answers the probe", 1).await;
        assert!(probed.agent.requests().iter().all(|one| !one.head.contains("/elsewhere")));
        probed.assert_never_too_often();
    }

    async fn a_deregistered_one_comes_back_and_a_paused_one_is_not_asked(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let probed = Probed::new().await;
        let card_path = "GET /.well-known/agent-card.json HTTP/1.1\r\n";
        create(&gateway, plain(&probed.agent.url(), json!({"card": true, "every_seconds": 5}))).await;
        let shown = json!({"card": true, "every_seconds": 5, "failures": 3});
        assert_eq!(view(&gateway).await["probe"], shown);
        probed.until_probed(1).await;
        assert!(probed.agent.requests()[0].head.starts_with(card_path));
        let answer = post(&gateway, "/registry/deregister", json!({"workspace_id": "plain"})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(view(&gateway).await["status"], "offline");
        until_status(&gateway, "online").await;
        let answer = post(&gateway, "/workspaces/plain/pause", json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The probes of another workspace show that the time of a probe has passed.
        let other = Probed::new().await;
        let mut body = plain(&other.agent.url(), json!({"path": "/", "every_seconds": 5}));
        body["id"] = "other".into();
        create(&gateway, body).await;
        let before = probed.probes();
        other.until_probed(3).await;
        assert_eq!(probed.probes(), before);
        assert_eq!(view(&gateway).await["status"], "paused");
        let answer = post(&gateway, "/workspaces/plain/resume", json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        probed.until_probed(before + 1).await;
        // Without a probe it stays as it is.
        probed.says(500);
        let answer = gateway.patch("plain", json!({"probe": null})).await;
        assert_eq!((answer.status, answer.json().get("probe")), (200, None));
        let (before, others) = (probed.probes(), other.probes());
        other.until_probed(others + 2).await;
        assert!(probed.probes() <= before + 1, "one may have been on its way");
        assert_eq!(view(&gateway).await["status"], "online");
        let answer = gateway.as_operator(Request::new("DELETE", "/workspaces/other")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        probed.assert_never_too_often();
        other.assert_never_too_often();
    }

    async fn one_instance_that_lives_is_enough(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let probed = Probed::new().await;
        let dead = free_address("127.0.0.1");
        let body = json!({
            "id": "plain", "name": "plain", "liveness": "assumed",
            "urls": [format!("http://{dead}/"), probed.agent.url()],
            "probe": {"path": "/healthz", "every_seconds": 5, "failures": 1},
        });
        create(&gateway, body).await;
        gateway.until_counted("a2a_gateway_probes_total", &["succeeded"], 2.0).await;
        assert_eq!(view(&gateway).await["status"], "online");
        assert_eq!(gateway.metric("a2a_gateway_probes_total", &["failed"]).await, 0.0);
        probed.says(404);
        until_status(&gateway, "offline").await;
        // Both are gone, and one comes to life.
        let revived = Probed::at(&dead.to_string()).await;
        until_status(&gateway, "online").await;
        assert!(revived.probes() > 0);
        probed.assert_never_too_often();
        revived.assert_never_too_often();
    }

    async fn a_probe_that_cannot_be_is_refused(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let token = post(&gateway, "/orgs/acme/tokens", json!({})).await;
        let token = token.json()["token"].as_str().unwrap().to_owned();
        let url = "http://127.0.0.1:9/";
        let good = json!({"path": "/healthz"});
        let as_org = Request::post("/workspaces", plain(url, good.clone()).to_string()).bearer(&token);
        let answer = gateway.call(&as_org.field("X-Request-Id", "seen")).await;
        assert_refusal(&answer, "", "seen", "not_permitted", "created by an org");
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
            let answer = post(&gateway, "/workspaces", plain(url, probe.clone())).await;
            assert_refusal(&answer, "", "seen", "invalid_params", &probe.to_string());
        }
        for (member, value) in [("liveness", "heartbeat"), ("delivery_mode", "poll")] {
            let mut body = plain(url, good.clone());
            body[member] = value.into();
            let answer = post(&gateway, "/workspaces", body).await;
            assert_refusal(&answer, "", "seen", "invalid_params", member);
        }
        gateway.create(json!({"id": "plain", "name": "plain", "org": "acme"})).await;
        let answer = gateway.patch("plain", json!({"probe": good})).await;
        assert_refusal(&answer, "", "seen", "invalid_params", "its agent registers");
        let both = json!({"probe": good, "liveness": "assumed", "url": url});
        let patch = Request::patch("/workspaces/plain", both.to_string()).bearer(&token);
        let answer = gateway.call(&patch.field("X-Request-Id", "seen")).await;
        assert_refusal(&answer, "", "seen", "not_permitted", "changed by an org");
        let answer = gateway.patch("plain", both).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = gateway.patch("plain", json!({"liveness": "heartbeat"})).await;
        assert_refusal(&answer, "", "seen", "invalid_params", "it has a probe");
        let read = Request::get("/workspaces/plain").bearer(&token);
        assert_eq!(gateway.call(&read).await.json().get("probe"), None, "for operators only");
        // Its agent registers after all: the probe is kept, and rests.
        let register = json!({"id": "plain", "url": url, "liveness": "heartbeat", "agent_card": card("plain")});
        let answer = post(&gateway, "/registry/register", register).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = gateway.patch("plain", json!({"name": "renamed"})).await;
        assert_eq!((answer.status, &answer.json()["probe"]["path"]), (200, &json!("/healthz")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_together_probe_no_more_often_than_said() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let start = async || {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        builder.start().await
    };
    let replicas = [start().await, start().await];
    let probed = Probed::new().await;
    let probe = json!({"path": "/healthz", "every_seconds": 5, "failures": 2});
    create(&replicas[0], plain(&probed.agent.url(), probe)).await;
    probed.until_probed(2).await;
    // Failures count, whichever replica finds them.
    probed.says(500);
    until_holds("offline", async || {
        view(&replicas[1]).await["status"] == "offline"
    })
    .await;
    probed.assert_never_too_often();
    assert_eq!(probed.probes(), 4);
    // Without the shared state it is not known who asks.
    let before = probed.probes();
    redis.kill();
    for replica in &replicas {
        replica
            .until_counted("a2a_gateway_probes_total", &["not_made"], 1.0)
            .await;
    }
    assert!(probed.probes() <= before + 1);
    redis.restart();
    probed.until_probed(before + 1).await;
}
