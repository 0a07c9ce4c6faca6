//! A task belongs to the caller that started it, also where it is asked for without JSON-RPC.

use serde_json::{Value, json};

use super::raw::with_rest;
use super::{asking, cardless};
use crate::harness::{
    ADMIN, Agent, Answer, Gateway, Pair, Seat, Step, assert_refusal, card, ok_json,
};

/// An agent that makes the task `t-ann`, lists two, and answers with "served" to everything else.
async fn lister() -> Agent {
    cardless(|request| {
        let line = request.head.lines().next().unwrap();
        let call: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let method = call["method"].as_str().unwrap_or_default();
        let task = json!({"id": "t-ann", "contextId": "c", "status": {"state": "working"}});
        let result = if line.contains("message:send") {
            json!({"task": task})
        } else if method == "SendMessage" || method == "message/send" {
            task
        } else if method == "ListTasks" || line.starts_with("GET /rest/tasks ") {
            json!({"tasks": [task, {"id": "t-nobodys"}], "totalSize": 2})
        } else {
            json!({"served": true})
        };
        let body = if method.is_empty() {
            result.to_string()
        } else {
            json!({"jsonrpc": "2.0", "id": call["id"], "result": result}).to_string()
        };
        vec![Step::Write(ok_json(&body))]
    })
    .await
}

struct Team {
    gateway: Gateway,
    boss: Seat,
    ann: Seat,
    bob: Seat,
    dev: Seat,
}

impl Team {
    async fn new(card: Value) -> Self {
        let gateway = Gateway::start(Pair::Embedded).await;
        let idle = async || Agent::json("{}").await;
        let boss = gateway.seat("boss", "", idle().await).await;
        let ann = gateway.seat("ann", "boss", idle().await).await;
        let bob = gateway.seat("bob", "boss", idle().await).await;
        let made = json!({"id": "dev", "name": "dev", "parent_id": "boss"});
        let dev = super::seat(&gateway, made, card, lister().await).await;
        Self {
            gateway,
            boss,
            ann,
            bob,
            dev,
        }
    }

    async fn ask(&self, verb: &str, path: &str, token: &str, body: &str) -> Answer {
        self.gateway.call(&asking(verb, path, token, body)).await
    }

    /// Ann may, and who is above her; Bob is told that there is no such task, and the agent hears nothing.
    async fn is_anns(&self, verb: &str, path: &str, body: &str) {
        let what = format!("{verb} {path} {body}");
        for token in [&self.ann.token, &self.boss.token, ADMIN] {
            let answer = self.ask(verb, path, token, body).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        }
        let before = self.dev.agent.count();
        let answer = self.ask(verb, path, &self.bob.token, body).await;
        assert_refusal(&answer, path, "r-1", "task_not_found", &what);
        assert_eq!(answer.status, 404, "{what}");
        assert_eq!(self.dev.agent.count(), before, "{what}");
    }
}

fn ids(list: &Value) -> Vec<&str> {
    let tasks = list["tasks"].as_array().unwrap().iter();
    tasks.map(|task| task["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn by_the_http_json_binding() {
    let team = Team::new(with_rest(true)).await;
    let base = team.dev.path();
    let message = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    let send = format!("{base}/message:send");
    team.ask("POST", &send, &team.ann.token, message)
        .await
        .has(200);
    let continued =
        r#"{"message":{"messageId":"m","taskId":"t-ann","role":"ROLE_USER","parts":[]}}"#;
    for (verb, tail, body) in [
        ("GET", "tasks/t-ann", ""),
        ("GET", "v1/tasks/t-ann", ""),
        ("GET", "tasks/t-ann?historyLength=1", ""),
        ("POST", "tasks/t-ann:cancel", "{}"),
        ("POST", "tasks/t-ann%3Acancel", ""),
        ("POST", "tasks/t-ann:subscribe", ""),
        ("GET", "tasks/t-ann:subscribe", ""),
        ("GET", "tasks/t-ann:else", ""),
        ("GET", "tasks/t-ann/pushNotificationConfigs", ""),
        ("POST", "tasks/t-ann/pushNotificationConfigs", "{}"),
        ("GET", "tasks/t-ann/pushNotificationConfigs/c", ""),
        ("DELETE", "tasks/t-ann/pushNotificationConfigs/c", ""),
        ("POST", "message:send", continued),
        ("POST", "message:stream", continued),
    ] {
        team.is_anns(verb, &format!("{base}/{tail}"), body).await;
    }
    let nobodys = format!("{base}/tasks/t-nobodys");
    team.ask("GET", &nobodys, &team.bob.token, "")
        .await
        .has(200);
    let list = format!("{base}/tasks");
    for (token, seen, total) in [
        (&*team.ann.token, vec!["t-ann", "t-nobodys"], 2),
        (&team.boss.token, vec!["t-ann", "t-nobodys"], 2),
        (ADMIN, vec!["t-ann", "t-nobodys"], 2),
        (&team.bob.token, vec!["t-nobodys"], 1),
    ] {
        let answer = team.ask("GET", &list, token, "").await.has(200);
        let json = answer.json();
        assert_eq!(ids(&json), seen);
        assert_eq!(json["totalSize"], json!(total));
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}"#;
        let answer = team.ask("POST", &base, token, call).await;
        assert_eq!(ids(&answer.json()["result"]), seen);
    }
    let configs = format!("{base}/tasks/t-ann/pushNotificationConfigs");
    let url = r#"{"url":"http://169.254.169.254/"}"#;
    let with_url =
        format!(r#"{{"message":{{}},"configuration":{{"taskPushNotificationConfig":{url}}}}}"#);
    for (path, body) in [(&configs, url), (&send, &with_url)] {
        let answer = team.ask("POST", path, &team.ann.token, body).await;
        assert_eq!(answer.reason(), "address_forbidden", "{path}");
        assert_eq!(answer.json()["code"], -32602, "{path}");
    }
    let off = json!({"push_notifications": false});
    team.gateway.patch("dev", off).await.has(200);
    let answer = team.ask("GET", &configs, &team.ann.token, "").await;
    answer.refuses(400, "push_not_supported");
    let json = answer.json();
    let info = &json["error"]["details"][0];
    assert_eq!(json["code"], -32003);
    assert_eq!(json["error"]["code"], 400);
    assert_eq!(info["reason"], "PUSH_NOTIFICATION_NOT_SUPPORTED");
    assert_eq!(info["domain"], "a2a-protocol.org");
}

#[tokio::test]
async fn by_the_routes_that_stand_in_for_it() {
    let team = Team::new(card("dev")).await;
    let base = team.dev.path();
    let message = r#"{"message":{"text":"hi"}}"#;
    let send = format!("{base}/tasks/send");
    let sent = team.ask("POST", &send, &team.ann.token, message).await;
    assert_eq!((sent.status, &sent.json()["id"]), (200, &json!("t-ann")));
    let continued = r#"{"message":{"text":"hi","taskId":"t-ann"}}"#;
    for (verb, path, body) in [
        ("GET", format!("{base}/tasks/t-ann"), ""),
        ("GET", "/workspaces/dev/tasks/t-ann".to_owned(), ""),
        ("POST", format!("{base}/tasks/t-ann/cancel"), ""),
        ("POST", format!("{base}/tasks/send"), continued),
        ("POST", format!("{base}/tasks/send/stream"), continued),
    ] {
        team.is_anns(verb, &path, body).await;
    }
    // Who started a task finds it by its id alone, and nobody else does.
    let path = "/tasks/t-ann?history_length=2";
    let found = team.ask("GET", path, &team.ann.token, "").await;
    assert_eq!((found.status, found.json()), (200, json!({"served": true})));
    let call: Value = serde_json::from_slice(&team.dev.agent.take().body).unwrap();
    assert_eq!(call["params"], json!({"id": "t-ann", "historyLength": 2}));
    for (token, path) in [
        (&*team.bob.token, "/tasks/t-ann"),
        (ADMIN, "/tasks/t-ann"),
        (&team.ann.token, "/tasks/t-nobodys"),
    ] {
        let answer = team.ask("GET", path, token, "").await;
        assert_refusal(&answer, path, "r-1", "task_not_found", path);
    }
    let (ann, wrong) = (&*team.ann.token, "/tasks/t-ann?history_length=x");
    let rows = [
        ("GET", "/tasks/t-ann", "wrong", "", 401),
        ("POST", "/tasks/t-ann", ann, "{}", 405),
        ("GET", wrong, ann, "", 400),
        ("GET", "/tasks/", ann, "", 404),
    ];
    for (verb, path, token, body, status) in rows {
        let answer = team.ask(verb, path, token, body).await;
        assert_eq!(answer.status, status, "{verb} {path}: {}", answer.text());
    }
}
