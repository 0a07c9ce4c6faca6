//! Every real change, made through the routes of one of three replicas: on each replica everybody who
//! may know hears of it, once and in one order; nobody else hears anything, and no frame has a secret.
//! Lapses are in `beats_events`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Replicas, seat, token, until_heard};
use crate::answers::words;
use crate::harness::watcher::{Feed, Socket, handshake};
use crate::harness::{ADMIN, Agent, CALL, Gateway, Request, card, holds_for, until_holds};

const WHO: [&str; 12] = [
    "operator", "acme", "other", "ada", "bob", "list", "dev", "pm", "qa", "far", "ext", "friend",
];

/// What one of `WHO` has heard on one replica.
struct Watcher {
    who: &'static str,
    replica: usize,
    frames: Arc<Mutex<Vec<Value>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Watcher {
    /// Half of them by a socket, the others by a stream.
    async fn open(gateway: &Gateway, replica: usize, who: &'static str, token: &str) -> Self {
        let frames = Arc::new(Mutex::new(Vec::new()));
        let (heard, at) = (Arc::clone(&frames), gateway.public);
        let task = if replica == 1 {
            let mut socket = Socket::open(at, &handshake("/ws").bearer(token)).await;
            tokio::spawn(async move {
                loop {
                    match timeout(Duration::from_secs(60), socket.next()).await {
                        Err(_) => {}
                        Ok(Ok(frame)) => heard.lock().unwrap().push(frame),
                        Ok(Err(_)) => return,
                    }
                }
            })
        } else {
            let mut feed = Feed::open(at, &Request::get("/events").bearer(token)).await;
            tokio::spawn(async move {
                // Comments come while nothing happens.
                while let Some(event) = feed.next().await {
                    if event.event.as_deref() != Some("end") {
                        heard.lock().unwrap().push(event.data);
                    }
                }
            })
        };
        Self {
            who,
            replica,
            frames,
            task,
        }
    }

    fn frames(&self) -> Vec<Value> {
        self.frames.lock().unwrap().clone()
    }

    /// What it heard, in order: what is kept, and what passes sorted behind it.
    fn heard(&self) -> Vec<String> {
        in_order(self.frames().iter().map(line).collect())
    }
}

/// What passes by has no fixed place among the others.
fn in_order(lines: Vec<String>) -> Vec<String> {
    let passes = |line: &String| {
        ["TASK_", "WORKSPACE_HEARTBEAT", "A2A_"]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let (mut passing, mut kept): (Vec<_>, Vec<_>) = lines.into_iter().partition(passes);
    passing.sort();
    kept.extend(passing);
    kept
}

/// An event, without what differs from run to run.
fn line(frame: &Value) -> String {
    assert_eq!(frame.as_object().unwrap().len(), 5, "{frame}");
    let mut payload = frame["payload"].clone();
    let members = payload.as_object_mut().unwrap();
    if let Some(card) = members.remove("agent_card") {
        members.insert("card".into(), card["version"].clone());
    }
    if let Some(duration) = members.remove("duration_ms") {
        assert!(duration.is_u64());
    }
    let text = |name: &str| frame[name].as_str().unwrap().to_owned();
    format!("{} {} {payload}", text("event"), text("workspace_id"))
}

/// The watchers, and what each of `WHO` should have heard.
struct Stage {
    watchers: Vec<Watcher>,
    due: Vec<(&'static str, Vec<String>)>,
}

impl Stage {
    /// `event` of `workspace` is due for each of `who`.
    fn due(&mut self, event: &str, workspace: &str, payload: &Value, who: &[&str]) {
        for (name, due) in &mut self.due {
            if who.contains(name) {
                due.push(format!("{event} {workspace} {payload}"));
            }
        }
    }

    fn due_of(&self, watcher: &Watcher) -> &[String] {
        let due = self.due.iter().find(|(who, _)| *who == watcher.who);
        &due.unwrap().1
    }

    /// Waits until all of them have heard as much as they should. That it is nothing else, and nothing
    /// more, is asserted in the end.
    async fn settle(&self) {
        for watcher in &self.watchers {
            let (who, replica, due) = (watcher.who, watcher.replica, self.due_of(watcher));
            let heard = async || watcher.frames.lock().unwrap().len() >= due.len();
            until_holds(&format!("{who} on {replica} hears {due:#?}"), heard).await;
        }
    }

    async fn over_for(&self, who: &str) {
        for watcher in self.watchers.iter().filter(|w| w.who == who) {
            until_holds("the watcher is cut", async || watcher.task.is_finished()).await;
        }
    }

    fn assert_heard(&self) {
        for watcher in &self.watchers {
            let due = in_order(self.due_of(watcher).to_vec());
            let (who, replica) = (watcher.who, watcher.replica);
            assert_eq!(watcher.heard(), due, "{who} on {replica}");
        }
    }
}

async fn done(gateway: &Gateway, method: &str, path: &str, body: Value, token: &str) -> Value {
    let mut request = Request::new(method, path);
    if body != Value::Null {
        request = request.field("Content-Type", "application/json");
        request.body = body.to_string().into();
    }
    let answer = gateway.call(&request.bearer(token)).await;
    let status = answer.status;
    assert!((200..300).contains(&status), "{path}: {}", answer.text());
    answer.json()
}

/// Waits until a change by which `caller` may not call `dev` any more is in force on each replica.
async fn until_refused(replicas: &Replicas, caller: &str) {
    // A call would be an event as long as it is let through.
    let question = format!("/explain?caller={caller}&target=dev");
    for gateway in &replicas.all {
        let explained = async || gateway.admin_get(&question).await.unwrap().json();
        let is_in_force = async || explained().await["admitted"] == false;
        until_holds("the change is in force", is_in_force).await;
    }
}

fn edition(number: &str) -> Value {
    let mut card = card("dev");
    card["version"] = number.into();
    card
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_is_heard_once_on_each_replica_by_those_who_may_know_and_by_nobody_else() {
    let replicas = Replicas::start(3, &[("registry.heartbeat_ttl", "1h")]).await;
    let [one, two, three] = &replicas.all[..] else {
        panic!("three");
    };
    let pm = seat(one, "pm", None, Some("acme")).await;
    let dev = seat(one, "dev", Some("pm"), Some("acme")).await;
    let far = seat(one, "far", None, Some("acme")).await;
    let ext = seat(one, "ext", None, Some("other")).await;
    let friend = seat(one, "friend", None, Some("other")).await;
    seat(one, "qa", Some("pm"), Some("acme")).await;
    let (qa, qa_id) = token(one, "/workspaces/qa/tokens", json!({})).await;
    let canvas = |org: Value, list: Value| json!({"user": "ada", "org": org, "workspaces": list});
    let acme = one.token("/orgs/acme/tokens", "{}").await;
    let other = one.token("/orgs/other/tokens", "{}").await;
    let canvas = async |org, list| {
        one.token("/canvas/tokens", &canvas(org, list).to_string())
            .await
    };
    let ada = canvas(json!("acme"), json!(null)).await;
    let bob = canvas(json!("other"), json!(null)).await;
    let list = canvas(json!(null), json!(["dev"])).await;
    let grant = json!({"caller_id": "friend", "target_id": "dev"});
    let grant = done(one, "POST", "/grants", grant, ADMIN).await;
    let tokens = [
        ADMIN, &acme, &other, &ada, &bob, &list, &dev, &pm, &qa, &far, &ext, &friend,
    ];
    for gateway in &replicas.all {
        until_heard(gateway, "WORKSPACE_OFFLINE", "qa").await;
    }
    replicas
        .redis
        .until_subscribed("gw:events:passing", 3)
        .await;
    let mut stage = Stage {
        watchers: Vec::new(),
        due: WHO.iter().map(|who| (*who, Vec::new())).collect(),
    };
    for (n, gateway) in replicas.all.iter().enumerate() {
        for (who, token) in WHO.into_iter().zip(tokens) {
            let watcher = Watcher::open(gateway, n, who, token).await;
            stage.watchers.push(watcher);
        }
    }
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{"secret":"ANSWER"}}"#).await;
    let status = |word: &str| json!({"status": word});
    let near = ["operator", "acme", "ada", "dev", "pm", "qa"];
    let all: [_; 8] = words("operator acme ada dev pm qa list friend");

    // Created below `pm`, so a sibling of `dev` and `qa`.
    let kid = json!({"id": "kid", "name": "kid", "parent_id": "pm", "org": "acme"});
    done(two, "POST", "/workspaces", kid, &acme).await;
    stage.due("WORKSPACE_OFFLINE", "kid", &status("provisioning"), &near);
    stage.settle().await;

    // Registered; again with the same card; another card.
    let register = async |at: &Gateway| {
        let body = json!({"id": "dev", "url": agent.url(), "agent_card": edition("1")});
        done(at, "POST", "/registry/register", body, &dev).await;
    };
    register(three).await;
    stage.due("WORKSPACE_ONLINE", "dev", &status("online"), &all);
    stage.due("AGENT_CARD_UPDATED", "dev", &json!({"card": "1"}), &all);
    stage.settle().await;
    register(one).await;
    stage.due("WORKSPACE_ONLINE", "dev", &status("online"), &all);
    stage.settle().await;
    let update = |number: &str| json!({"workspace_id": "dev", "agent_card": edition(number)});
    done(two, "POST", "/registry/update-card", update("2"), &dev).await;
    stage.due("AGENT_CARD_UPDATED", "dev", &json!({"card": "2"}), &all);
    stage.settle().await;

    // Heartbeats: in trouble, well, and at work.
    let beats = [
        json!({"workspace_id": "dev", "error_rate": 0.75}),
        json!({"workspace_id": "dev", "uptime_seconds": 17}),
        json!({"workspace_id": "dev", "active_tasks": 3, "current_task": "builds"}),
    ];
    for (n, beat) in beats.into_iter().enumerate() {
        done(one, "POST", "/registry/heartbeat", beat, &dev).await;
        let (mut tasks, mut uptime) = (0, Value::Null);
        match n {
            0 => {
                let payload = json!({"status": "degraded", "error_rate": 0.75});
                stage.due("WORKSPACE_DEGRADED", "dev", &payload, &all);
            }
            1 => {
                uptime = 17.into();
                stage.due("WORKSPACE_ONLINE", "dev", &status("online"), &all);
            }
            _ => {
                tasks = 3;
                let payload = json!({"current_task": "builds", "active_tasks": 3});
                stage.due("TASK_UPDATED", "dev", &payload, &all);
            }
        }
        let payload = json!({"active_tasks": tasks, "uptime_seconds": uptime});
        stage.due("WORKSPACE_HEARTBEAT", "dev", &payload, &all);
        stage.settle().await;
    }

    // Paused, twice, and resumed.
    done(two, "POST", "/workspaces/dev/pause", Value::Null, &acme).await;
    done(three, "POST", "/workspaces/dev/pause", Value::Null, ADMIN).await;
    stage.due("WORKSPACE_OFFLINE", "dev", &status("paused"), &all);
    stage.settle().await;
    done(one, "POST", "/workspaces/dev/resume", Value::Null, ADMIN).await;
    stage.due("WORKSPACE_ONLINE", "dev", &status("online"), &all);
    stage.settle().await;

    // A message, and one that is refused.
    let call = CALL.replace("\"hi\"", "\"QUESTION\"");
    let refused = Request::post("/workspaces/dev/a2a", &call).bearer(&far);
    assert_eq!(three.call(&refused).await.status, 403);
    let passes = Request::post("/workspaces/dev/a2a", &call).bearer(&qa);
    let is_resumed = async || three.call(&passes).await.status == 200;
    until_holds("it is resumed there, too", is_resumed).await;
    let payload = json!({"method": "send_message", "outcome": "answered"});
    stage.due("A2A_RESPONSE", "dev", &payload, &all);
    stage.settle().await;

    // What changes neither state nor place is no event, a secret least of all.
    let silent = json!({"role": "ROLE", "upstream_auth": "SECRET", "internal_url": "http://127.0.0.1:9/INTERNAL"});
    done(one, "PATCH", "/workspaces/dev", silent, ADMIN).await;

    // The grant is taken back.
    let grant = format!("/grants/{}", grant["id"].as_str().unwrap());
    done(two, "DELETE", &grant, Value::Null, ADMIN).await;
    until_refused(&replicas, "friend").await;
    let rest = ["operator", "acme", "ada", "dev", "pm", "qa", "list"];
    done(three, "POST", "/registry/update-card", update("3"), &dev).await;
    stage.due("AGENT_CARD_UPDATED", "dev", &json!({"card": "3"}), &rest);
    stage.settle().await;

    // Moved to another org: those who saw it hear that it went, and not where to.
    let there = json!({"parent_id": "ext", "org": "other"});
    done(one, "PATCH", "/workspaces/dev", there.clone(), ADMIN).await;
    let stay = ["operator", "other", "bob", "dev", "ext", "list"];
    let left = ["acme", "ada", "pm", "qa"];
    stage.due("WORKSPACE_MOVED", "dev", &there, &stay);
    stage.due("WORKSPACE_MOVED", "dev", &json!({}), &left);
    stage.settle().await;
    until_refused(&replicas, "qa").await;
    done(two, "POST", "/registry/update-card", update("4"), &dev).await;
    stage.due("AGENT_CARD_UPDATED", "dev", &json!({"card": "4"}), &stay);
    stage.settle().await;

    // A revoked token hears nothing more.
    let path = format!("/workspaces/qa/tokens/{qa_id}");
    done(three, "DELETE", &path, Value::Null, ADMIN).await;
    stage.over_for("qa").await;
    let kid = json!({"id": "kid-2", "name": "kid", "parent_id": "pm", "org": "acme"});
    done(one, "POST", "/workspaces", kid, ADMIN).await;
    let near = ["operator", "acme", "ada", "pm"];
    stage.due("WORKSPACE_OFFLINE", "kid-2", &status("provisioning"), &near);
    stage.settle().await;

    // It leaves, twice, and is removed.
    for _ in 0..2 {
        let body = json!({"workspace_id": "dev"});
        done(two, "POST", "/registry/deregister", body, &dev).await;
    }
    stage.due("WORKSPACE_OFFLINE", "dev", &status("offline"), &stay);
    stage.settle().await;
    // Whether it still hears of its own end is a race with the end of its token.
    stage.watchers.retain(|watcher| {
        if watcher.who == "dev" {
            let due = stage.due.iter().find(|(who, _)| *who == "dev").unwrap();
            assert_eq!(watcher.heard(), in_order(due.1.clone()), "dev");
            watcher.task.abort();
        }
        watcher.who != "dev"
    });
    done(three, "DELETE", "/workspaces/dev", Value::Null, ADMIN).await;
    let stay = ["operator", "other", "bob", "ext", "list"];
    stage.due("WORKSPACE_REMOVED", "dev", &json!({}), &stay);
    stage.settle().await;
    let heard_no_more = async || {
        let mut watchers = stage.watchers.iter();
        watchers.all(|watcher| watcher.frames().len() <= stage.due_of(watcher).len())
    };
    let span = Duration::from_millis(500);
    holds_for(span, "nothing more is heard", heard_no_more).await;
    stage.assert_heard();

    let operators = stage.watchers.iter().filter(|w| w.who == "operator");
    let mut order = operators.map(|watcher| {
        let frames = watcher.frames();
        let kept = frames.iter().filter(|frame| {
            let event = frame["event"].as_str().unwrap();
            event.starts_with("WORKSPACE_") && event != "WORKSPACE_HEARTBEAT"
        });
        kept.map(|frame| frame["id"].clone()).collect::<Vec<_>>()
    });
    let first = order.next().unwrap();
    assert!(order.all(|ids| ids == first), "one order, and the same ids");

    // Whoever comes back hears what it may know now, not what it could have heard then.
    let everything = format!("/events?last_event_id={}", first[0].as_str().unwrap());
    let mut again = Feed::open(two.public, &Request::get(everything).bearer(&friend)).await;
    assert!(again.is_silent(Duration::from_millis(300)).await);

    let address = agent.url().trim_start_matches("http://").to_owned();
    for frame in stage.watchers.iter().flat_map(Watcher::frames) {
        // A card has the gateway's own base in it.
        let bases = [one, two, three].map(|at| format!("http://{}/workspaces/dev/a2a", at.public));
        let text = frame.to_string();
        let text = bases.iter().fold(text, |text, base| text.replace(base, ""));
        for secret in [
            "ANSWER", "QUESTION", "SECRET", "INTERNAL", "ROLE", "/a2a", "a2aw_", "a2ao_", "a2aa_",
            "a2ae_", "a2ax_", &address,
        ]
        .into_iter()
        .chain(tokens)
        {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}
