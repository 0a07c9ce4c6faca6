//! Rights to stop, bad input, and the events that watchers get.

use serde_json::{Value, json};

use super::{REASON, listed, made, release, stop};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{Gateway, Pair, Request, assert_refusal};
use crate::on_embedded;

async fn org_token(gateway: &Gateway, org: &str) -> String {
    let path = format!("/orgs/{org}/tokens");
    let answer = gateway.as_operator(Request::post(path, "{}")).await;
    answer.json()["token"].as_str().unwrap().to_owned()
}

fn post(body: &Value) -> Request {
    Request::post("/stops", body.to_string()).field("X-Request-Id", "seen")
}

fn body(scope: Value) -> Value {
    json!({"scope": scope, "mode": "new", "reason": REASON})
}

on_embedded! {
    async fn an_org_token_stops_within_its_org_and_releases_its_own() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for (id, org) in [("a1", "acme"), ("a2", "acme"), ("b1", "beta")] {
            gateway.create(json!({"id": id, "name": id, "org": org})).await;
        }
        let (acme, beta) = (org_token(&gateway, "acme").await, org_token(&gateway, "beta").await);
        for (scope, reason) in [
            (json!({"workspace": "b1"}), "not_permitted"),
            (json!({"workspace": "nothing"}), "not_permitted"),
            (json!({"subtree": "b1"}), "not_permitted"),
            (json!({"org": "beta"}), "not_permitted"),
            (json!({"all": true}), "not_permitted"),
            (json!({"caller": "a1", "target": "b1"}), "not_permitted"),
            (json!({"caller": "b1", "target": "a1"}), "not_permitted"),
        ] {
            let answer = gateway.call(&post(&body(scope.clone())).bearer(&acme)).await;
            assert_refusal(&answer, "", "seen", reason, &scope.to_string());
        }
        for scope in [
            json!({"workspace": "a1"}),
            json!({"subtree": "a1"}),
            json!({"org": "acme"}),
            json!({"caller": "a1", "target": "a2"}),
        ] {
            let answer = gateway.call(&post(&body(scope.clone())).bearer(&acme)).await;
            assert_eq!(answer.status, 201, "{scope}: {}", answer.text());
            assert_eq!(answer.json()["created_by"], "org:acme");
        }
        let operators = stop(&gateway, json!({"workspace": "a2"}), "new").await;
        let all = stop(&gateway, json!({"all": true}), "new").await;
        let list = async |token: &str| -> Vec<String> {
            let answer = gateway.call(&Request::get("/stops").bearer(token)).await.json();
            let stops = answer["stops"].as_array().unwrap().iter();
            stops.map(|stop| stop["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(list(&beta).await, [] as [String; 0]);
        let own = list(&acme).await;
        assert_eq!(own.len(), 5);
        assert!(own.contains(&operators) && !own.contains(&all));
        let delete = |id: &str| Request::new("DELETE", format!("/stops/{id}")).field("X-Request-Id", "seen");
        let answer = gateway.call(&delete(&operators).bearer(&acme)).await;
        assert_refusal(&answer, "", "seen", "not_permitted", "an operator's");
        for (id, token) in [(&all, &acme), (&own[0], &beta)] {
            let answer = gateway.call(&delete(id).bearer(token)).await;
            assert_refusal(&answer, "", "seen", "not_permitted", "of another org");
        }
        let answer = gateway.call(&delete(&own[0]).bearer(&acme)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(listed(&gateway).await.len(), 5);
    }

    async fn bad_input_is_told_what_is_wrong_and_stops_nothing() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.create(json!({"id": "dev", "name": "dev"})).await;
        let good = body(json!({"workspace": "dev"}));
        let with = |name: &str, value: Value| {
            let mut body = good.clone();
            body[name] = value;
            body
        };
        for (body, reason, says) in [
            (with("scope", json!({})), "invalid_params", "`scope` is"),
            (with("scope", json!({"workspace": "dev", "org": "a"})), "invalid_params", "`scope` is"),
            (with("scope", json!({"all": false})), "invalid_params", "`scope` is"),
            (with("scope", json!({"caller": "dev"})), "invalid_params", "`scope` is"),
            (with("scope", json!({"workspace": 7})), "invalid_params", "`scope` is"),
            (with("scope", json!({"workspace": "a b"})), "invalid_workspace_id", "id"),
            (with("scope", json!({"org": " "})), "invalid_params", "`scope.org`"),
            (with("scope", json!({"workspace": "other"})), "workspace_not_found", "create it"),
            (with("mode", json!("hard")), "invalid_params", "`mode`"),
            (with("reason", json!("  ")), "invalid_params", "`reason`"),
            (with("reason", json!("x".repeat(501))), "invalid_params", "500"),
            (with("reason", json!("a\nb")), "invalid_params", "control character"),
            (with("expires_at", json!("tomorrow")), "invalid_params", "RFC 3339"),
            (with("expires_at", json!("2020-01-01T00:00:00Z")), "invalid_params", "has passed"),
            (with("cancel_tasks", json!(true)), "invalid_params", "\"running\""),
        ] {
            let request = post(&body).bearer(crate::harness::ADMIN);
            let answer = gateway.call(&request).await;
            assert_refusal(&answer, "", "seen", reason, &body.to_string());
            assert!(answer.text().replace("\\\"", "\"").contains(says), "{}", answer.text());
        }
        let seat = gateway.seat("agent", "", crate::harness::Agent::json("{}").await).await;
        let answer = gateway.call(&post(&good).bearer(&seat.token)).await;
        assert_refusal(&answer, "", "seen", "not_permitted", "a workspace");
        let gone = Request::new("DELETE", "/stops/stop-0").field("X-Request-Id", "seen");
        let answer = gateway.as_operator(gone).await;
        assert_refusal(&answer, "", "seen", "not_found", "no stop");
        assert!(listed(&gateway).await.is_empty());
    }

    async fn watchers_are_told_of_a_stop_and_of_its_release() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.create(json!({"id": "root", "name": "root", "org": "acme"})).await;
        gateway.create(json!({"id": "other", "name": "other", "org": "beta"})).await;
        let request = handshake("/ws").bearer(crate::harness::ADMIN);
        let mut events = Socket::open(gateway.public, &request).await;
        let mut next = async |kind: &str| loop {
            let told = events.event().await;
            if told["event"] == kind {
                return told;
            }
        };
        for scope in [json!({"workspace": "root"}), json!({"org": "acme"})] {
            let made = made(&gateway, &body(scope.clone())).await;
            let id = made["id"].as_str().unwrap();
            let told = next("WORKSPACE_STOPPED").await;
            assert_eq!(told["workspace_id"], "root", "{told}");
            assert_eq!(told["payload"]["stop"], id, "{told}");
            assert_eq!(told["payload"]["reason"], REASON, "{told}");
            release(&gateway, id).await;
            let told = next("WORKSPACE_RELEASED").await;
            assert_eq!(told["workspace_id"], "root", "{told}");
            assert_eq!(told["payload"]["stop"], id, "{told}");
        }
    }
}
