//! What operators do to a workspace: change, pause, resume, remove; and what its agent says of it besides
//! heartbeats: another card, and that it leaves.

use std::time::Duration;

use serde_json::{Value, json};

use crate::events::Replicas;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, assert_refusal, card,
    holds_for, until_holds,
};
use crate::tokens::token;
use crate::{on_both_pairs, on_embedded};

/// A gateway with a caller and its sibling `target`, which has this agent.
pub(crate) async fn paired(pair: Pair, agent: Agent) -> (Gateway, Seat, Seat) {
    staged(Builder::new(pair), agent).await
}

/// The same with settings.
pub(crate) async fn staged(builder: Builder, agent: Agent) -> (Gateway, Seat, Seat) {
    let gateway = builder.start().await;
    let (caller, target) = gateway.pair(agent).await;
    (gateway, caller, target)
}

/// A request as `seen`; without a body where that is null.
pub(crate) async fn call(
    gateway: &Gateway,
    method: &str,
    path: &str,
    token: &str,
    body: Value,
) -> Answer {
    let mut request = Request::new(method, path);
    if !body.is_null() {
        request = Request::post(path, body.to_string());
        request.method = method.into();
    }
    let request = request.bearer(token).field("X-Request-Id", "seen");
    gateway.call(&request).await
}

/// One that is refused for this reason. Returns the body of the answer.
async fn refused(
    gateway: &Gateway,
    (method, path): (&str, &str),
    token: &str,
    body: Value,
    reason: &str,
) -> Vec<u8> {
    let what = format!("{method} {path} {body}");
    let answer = call(gateway, method, path, token, body).await;
    assert_refusal(&answer, path, "seen", reason, &what);
    answer.body
}

/// A registration with a card.
pub(crate) async fn register(gateway: &Gateway, id: &str, token: &str, url: &str) -> Answer {
    let body = json!({"id": id, "url": url, "agent_card": card(id)});
    call(gateway, "POST", "/registry/register", token, body).await
}

async fn registers_again(gateway: &Gateway, seat: &Seat) {
    let answer = register(gateway, &seat.id, &seat.token, &seat.agent.url()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// `pause` or `resume`, without a body; answers with the status that the workspace has then.
async fn turn(gateway: &Gateway, id: &str, verb: &str) -> String {
    let path = format!("/workspaces/{id}/{verb}");
    let answer = call(gateway, "POST", &path, ADMIN, Value::Null).await;
    assert_eq!(answer.status, 200, "{verb}: {}", answer.text());
    let json = answer.json();
    assert_eq!(json["id"], id, "it is the workspace");
    json["status"].as_str().unwrap().to_owned()
}

pub(crate) async fn view(gateway: &Gateway, id: &str) -> Value {
    let read = Request::get(format!("/workspaces/{id}"));
    let answer = gateway.as_operator(read).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn beat(gateway: &Gateway, id: &str) {
    let body = json!({"workspace_id": id});
    let answer = call(gateway, "POST", "/registry/heartbeat", ADMIN, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// The reason that a message to `id` is refused for; `sent` when it is not.
async fn send(gateway: &Gateway, id: &str) -> String {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL);
    let answer = gateway.as_operator(request).await;
    match answer.status {
        200 => "sent".to_owned(),
        _ => answer.reason(),
    }
}

async fn agent() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await
}

async fn seat(gateway: &Gateway, id: &str) -> Seat {
    gateway.seat(id, "", agent().await).await
}

on_both_pairs! {
    async fn each_member_is_changed_cleared_or_left(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let (first, second) = (agent().await, agent().await);
        gateway.create(json!({"id": "a", "name": "a", "url": first.url(), "liveness": "assumed"})).await;
        assert_eq!(send(&gateway, "a").await, "sent");
        let before = view(&gateway, "a").await;
        let same = gateway.patch("a", json!({})).await;
        assert_eq!((same.status, same.json()), (200, before.clone()), "nothing was said");
        assert_eq!((before.get("complete"), before.get("push_notifications")), (None, None));
        let said = json!({"name": "Dev", "role": "builds", "url": second.url(), "internal_url": "http://127.0.0.1:9/in",
            "card_url": "http://127.0.0.1:9/card", "delivery_mode": "push", "max_concurrent": 7, "liveness": "assumed",
            "complete": "bare", "push_notifications": false});
        let answer = gateway.patch("a", said.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let changed = answer.json();
        for (name, value) in said.as_object().unwrap() {
            assert_eq!(&changed[name], value, "{name}");
        }
        assert_eq!(view(&gateway, "a").await, changed);
        assert_ne!(changed["updated_at"], before["updated_at"]);
        // The next message goes to the new address.
        assert_eq!(send(&gateway, "a").await, "sent");
        assert_eq!((first.calls(), second.calls()), (1, 1));
        let cleared = json!({"role": null, "internal_url": null, "card_url": null, "max_concurrent": null,
            "complete": null, "push_notifications": null, "upstream_auth": null});
        let answer = gateway.patch("a", cleared.clone()).await.json();
        assert_eq!((answer.get("complete"), answer.get("push_notifications")), (None, None));
        for name in ["role", "internal_url", "card_url", "max_concurrent"] {
            assert_eq!(answer[name], Value::Null, "{name}");
        }
        assert_eq!((&answer["name"], &answer["url"]), (&json!("Dev"), &json!(second.url())));
    }
}

on_embedded! {
    async fn a_change_that_cannot_be_changes_nothing() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let a = seat(&gateway, "a").await;
        let before = view(&gateway, "a").await;
        for (member, value, reason) in [
            ("name", json!(null), "invalid_params"), ("name", json!(""), "invalid_params"),
            ("name", json!(7), "invalid_params"), ("role", json!("x".repeat(257)), "invalid_params"),
            ("org", json!(" "), "invalid_params"), ("parent_id", json!("a b"), "invalid_workspace_id"),
            ("url", json!(null), "invalid_params"), ("url", json!("nowhere"), "invalid_params"),
            ("url", json!("http://169.254.169.254/"), "address_forbidden"),
            ("internal_url", json!("ftp://127.0.0.1/"), "address_forbidden"),
            ("card_url", json!("http://u:p@127.0.0.1/"), "address_forbidden"),
            ("delivery_mode", json!(null), "invalid_params"), ("delivery_mode", json!("pull"), "invalid_params"),
            ("max_concurrent", json!(0), "invalid_params"), ("max_concurrent", json!(-1), "invalid_params"),
            ("liveness", json!(null), "invalid_params"), ("complete", json!("some"), "invalid_params"),
            ("status", json!(null), "invalid_params"), ("status", json!("online"), "invalid_params"),
            ("status", json!("degraded"), "invalid_params"), ("status", json!("paused"), "invalid_params"),
            ("status", json!("removed"), "invalid_params"), ("status", json!("asleep"), "invalid_params"),
            ("push_notification", json!(false), "invalid_params"), ("id", json!("b"), "invalid_params"),
        ] {
            let mut body = json!({"role": "new", "max_concurrent": 3});
            body[member] = value;
            let answer = gateway.patch("a", body.clone()).await;
            assert_refusal(&answer, "/workspaces/a", "seen", reason, &body.to_string());
        }
        assert_eq!(view(&gateway, "a").await, before);
        refused(&gateway, ("PATCH", "/workspaces/nobody"), ADMIN, json!({}), "workspace_not_found").await;
        refused(&gateway, ("PATCH", "/workspaces/a"), &a.token, json!({"name": "b"}), "not_permitted").await;
    }

    async fn an_org_token_administers_its_org_and_moves_nothing() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        for (id, org) in [("a", "acme"), ("b", "acme"), ("foreign", "other")] {
            gateway.create(json!({"id": id, "name": id, "org": org})).await;
        }
        let same = json!({"name": "new", "org": "acme", "parent_id": null});
        let answer = call(&gateway, "PATCH", "/workspaces/a", &org, same).await;
        assert_eq!((answer.status, &answer.json()["name"]), (200, &json!("new")), "{}", answer.text());
        for body in [json!({"parent_id": "b"}), json!({"org": null}), json!({"org": "other"}),
            json!({"parent_id": "foreign"}), json!({"parent_id": "nobody"})] {
            refused(&gateway, ("PATCH", "/workspaces/a"), &org, body, "not_permitted").await;
        }
        for (method, path) in [("PATCH", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume")] {
            let mut seen = Vec::new();
            for id in ["foreign", "nobody"] {
                let path = format!("/workspaces/{id}{path}");
                seen.push(refused(&gateway, (method, &path), &org, json!({}), "not_permitted").await);
            }
            assert_eq!(seen[0], seen[1], "what is foreign is like what is not there");
        }
        assert_eq!(call(&gateway, "DELETE", "/workspaces/b", &org, Value::Null).await.status, 200);
    }

    async fn what_a_provisioner_says_decides_which_refusal_is_seen() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let a = seat(&gateway, "a").await;
        for (status, reason) in [
            ("provisioning", "workspace_restarting"), ("restarting", "workspace_restarting"),
            ("hibernated", "workspace_restarting"), ("failed", "workspace_offline"), ("offline", "workspace_offline"),
        ] {
            let answer = gateway.patch("a", json!({"status": status})).await;
            assert_eq!(answer.json()["status"], status, "{}", answer.text());
            assert_eq!(send(&gateway, "a").await, reason, "{status}");
        }
        // Offline is no more than a lapse; a registration undoes all of it.
        beat(&gateway, "a").await;
        assert_eq!(send(&gateway, "a").await, "sent");
        gateway.patch("a", json!({"status": "failed"})).await;
        beat(&gateway, "a").await;
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        refused(&gateway, ("POST", "/workspaces/a/resume"), ADMIN, json!({}), "conflict").await;
        registers_again(&gateway, &a).await;
        assert_eq!(send(&gateway, "a").await, "sent");
    }

    async fn a_paused_workspace_stays_so_until_it_is_resumed() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let a = seat(&gateway, "a").await;
        for _ in 0..2 {
            assert_eq!(turn(&gateway, "a", "pause").await, "paused");
        }
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        beat(&gateway, "a").await;
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        refused(&gateway, ("PATCH", "/workspaces/a"), ADMIN, json!({"status": "restarting"}), "conflict").await;
        for _ in 0..2 {
            assert_eq!(turn(&gateway, "a", "resume").await, "online");
        }
        assert_eq!(send(&gateway, "a").await, "sent");
        turn(&gateway, "a", "pause").await;
        registers_again(&gateway, &a).await;
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        assert_eq!(turn(&gateway, "a", "resume").await, "online");
        assert_eq!(send(&gateway, "a").await, "sent");
        assert_eq!(a.agent.count(), 2, "nothing got through meanwhile");
    }

    async fn resume_leads_where_the_workspace_stood() {
        let gateway = Builder::new(Pair::Embedded).set("registry.heartbeat_ttl", "1s").start().await;
        let agent = agent().await;
        gateway.create(json!({"id": "new", "name": "new"})).await;
        gateway.create(json!({"id": "assumed", "name": "a", "url": agent.url(), "liveness": "assumed"})).await;
        seat(&gateway, "lapsed").await;
        for id in ["new", "assumed", "lapsed"] {
            assert_eq!(turn(&gateway, id, "pause").await, "paused");
            assert_eq!(send(&gateway, id).await, "workspace_offline");
        }
        let is_refused = async || send(&gateway, "lapsed").await == "workspace_offline";
        holds_for(Duration::from_millis(1_200), "paused, its lease too", is_refused).await;
        assert_eq!(turn(&gateway, "new", "resume").await, "provisioning");
        assert_eq!(turn(&gateway, "assumed", "resume").await, "online");
        assert_eq!(turn(&gateway, "lapsed", "resume").await, "offline");
        assert_eq!(send(&gateway, "assumed").await, "sent");
        assert_eq!(send(&gateway, "lapsed").await, "workspace_offline");
        // From anywhere, since it never registers.
        gateway.patch("assumed", json!({"status": "failed"})).await;
        assert_eq!(turn(&gateway, "assumed", "resume").await, "online");
    }

    async fn a_removed_workspace_is_gone_with_its_tokens_and_its_children_stay() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let unused = gateway.create(json!({"id": "top", "name": "top"})).await;
        let enrolment = gateway.create(json!({"id": "doomed", "name": "doomed", "parent_id": "top"})).await;
        let agent = agent().await;
        let own = gateway.register("doomed", &enrolment, &agent.url(), card("doomed")).await;
        let child = gateway.seat("child", "doomed", Agent::json("{}").await).await;
        let reads = async |token: &str| call(&gateway, "GET", "/workspaces/doomed", token, Value::Null).await.status;
        assert_eq!((reads(&own).await, reads(&child.token).await), (200, 200));
        let second = token(&gateway, "/workspaces/doomed/tokens", "").await;
        let answer = call(&gateway, "DELETE", "/workspaces/doomed", ADMIN, Value::Null).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "removed"})), "{}", answer.text());
        for (token, reason) in [(&own, "unauthenticated"), (&second, "unauthenticated"), (&child.token, "not_permitted")] {
            refused(&gateway, ("GET", "/workspaces/doomed"), token, Value::Null, reason).await;
        }
        assert_eq!(view(&gateway, "child").await["parent_id"], "doomed");
        assert_eq!(send(&gateway, "doomed").await, "workspace_removed");
        let again = json!({"id": "doomed", "url": agent.url(), "agent_card": card("doomed")});
        for (method, path, body) in [
            ("GET", "/workspaces/doomed", Value::Null), ("DELETE", "/workspaces/doomed", Value::Null),
            ("PATCH", "/workspaces/doomed", json!({"name": "x"})), ("POST", "/workspaces/doomed/pause", Value::Null),
            ("POST", "/workspaces/doomed/resume", Value::Null), ("POST", "/registry/register", again),
            ("POST", "/registry/update-card", json!({"workspace_id": "doomed", "agent_card": {}})),
            ("POST", "/registry/deregister", json!({"workspace_id": "doomed"})),
            ("POST", "/registry/heartbeat", json!({"workspace_id": "doomed"})),
        ] {
            refused(&gateway, (method, path), ADMIN, body, "workspace_removed").await;
        }
        // An enrolment token of a removed workspace enrols nobody, and its id is not given away.
        let answer = call(&gateway, "DELETE", "/workspaces/top", ADMIN, Value::Null).await;
        assert_eq!(answer.status, 200);
        assert_eq!(register(&gateway, "top", &unused, &agent.url()).await.status, 401);
        refused(&gateway, ("POST", "/workspaces"), ADMIN, json!({"id": "top", "name": "top"}), "conflict").await;
        refused(&gateway, ("DELETE", "/workspaces/nobody"), ADMIN, Value::Null, "workspace_not_found").await;
    }

    async fn another_card_counts_at_once() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let a = seat(&gateway, "a").await;
        let update = "/registry/update-card";
        let new = |card: Value| json!({"workspace_id": "a", "agent_card": card});
        for (token, name) in [(&*a.token, "own"), (ADMIN, "operator's")] {
            let answer = call(&gateway, "POST", update, token, new(card(name))).await;
            assert_eq!((answer.status, answer.json()), (200, json!({"status": "updated"})));
            assert_eq!(view(&gateway, "a").await["agent_card"]["name"], name);
            let found = gateway.as_operator(Request::get("/registry/discover/a")).await.json();
            assert_eq!(found["agent_card"]["name"], name);
        }
        for (wrong, reason) in [
            (json!("card"), "invalid_params"), (json!([]), "invalid_params"), (Value::Null, "invalid_params"),
            (json!({"x": "x".repeat(256 * 1024)}), "body_too_large"),
        ] {
            refused(&gateway, ("POST", update), &a.token, new(wrong), reason).await;
        }
        assert_eq!(view(&gateway, "a").await["agent_card"]["name"], "operator's");
        let b = seat(&gateway, "b").await;
        refused(&gateway, ("POST", update), &b.token, new(card("b")), "not_permitted").await;
        let nobody = json!({"workspace_id": "nobody", "agent_card": {}});
        refused(&gateway, ("POST", update), ADMIN, nobody, "workspace_not_found").await;
    }

    async fn who_leaves_is_offline_until_it_registers() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let a = seat(&gateway, "a").await;
        assert_eq!(send(&gateway, "a").await, "sent");
        let leave = || call(&gateway, "POST", "/registry/deregister", &a.token, json!({"workspace_id": "a"}));
        for _ in 0..2 {
            let answer = leave().await;
            assert_eq!((answer.status, answer.json()), (200, json!({"status": "deregistered"})), "{}", answer.text());
        }
        let left = view(&gateway, "a").await;
        assert_eq!((&left["status"], &left["url"]), (&json!("offline"), &Value::Null));
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        // The last heartbeat may come after the last word.
        beat(&gateway, "a").await;
        assert_eq!(send(&gateway, "a").await, "workspace_offline");
        let found = gateway.as_operator(Request::get("/registry/discover/a")).await;
        assert!(found.text().contains("registers again"), "it beats, so it is not that: {}", found.text());
        registers_again(&gateway, &a).await;
        assert_eq!(send(&gateway, "a").await, "sent");
        // What an operator said stands.
        turn(&gateway, "a", "pause").await;
        assert_eq!(leave().await.status, 200);
        assert_eq!(view(&gateway, "a").await["status"], "paused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_obey() {
    let replicas = Replicas::start(2, &[]).await;
    let (one, other) = (&replicas.all[0], &replicas.all[1]);
    let (first, second) = (agent().await, agent().await);
    one.create(json!({"id": "top", "name": "top"})).await;
    for round in 0..2 {
        let id = &format!("a-{round}");
        let enrolment = one.create(json!({"id": id, "name": id})).await;
        let token = &one.register(id, &enrolment, &first.url(), card(id)).await;
        assert_eq!(send(other, id).await, "sent");
        let path = format!("/workspaces/{id}");
        let reads = || call(other, "GET", &path, token, Value::Null);
        assert_eq!(reads().await.status, 200);
        let refused = async || send(other, id).await == "workspace_offline";
        let passes = async || send(other, id).await == "sent";
        turn(one, id, "pause").await;
        until_holds("a pause", &refused).await;
        turn(one, id, "resume").await;
        until_holds("a resume", passes).await;
        let before = second.count();
        one.patch(id, json!({"url": second.url()})).await;
        let moved = async || send(other, id).await == "sent" && second.count() > before;
        until_holds("another address", moved).await;
        // A sibling of the root, until it is moved below somebody.
        let sibling = || call(other, "GET", "/workspaces/sibling", token, Value::Null);
        if round == 0 {
            let sibling = json!({"id": "sibling", "name": "sibling"});
            one.create(sibling).await;
        }
        until_holds("a new sibling", async || sibling().await.status == 200).await;
        one.patch(id, json!({"parent_id": "top"})).await;
        until_holds("a move", async || sibling().await.status == 403).await;
        let body = json!({"workspace_id": id});
        let left = call(one, "POST", "/registry/deregister", token, body).await;
        assert_eq!(left.status, 200);
        until_holds("leaving", refused).await;
        for key in [
            "ws:{id}:url",
            "ws:{id}:internal_url",
            "workspace:{id}:heartbeat",
        ] {
            let key = key.replace("{id}", id);
            assert_eq!(
                replicas.redis.command(&["EXISTS", &key]).trim(),
                "0",
                "{key}"
            );
        }
        let removed = call(one, "DELETE", &path, ADMIN, Value::Null).await;
        assert_eq!(removed.status, 200);
        until_holds("a removal", async || reads().await.status == 401).await;
        let gone = async || send(other, id).await == "workspace_removed";
        until_holds("a removal of the target", gone).await;
    }
}
