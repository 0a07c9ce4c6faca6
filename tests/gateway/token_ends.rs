//! Labels and ends of workspace tokens: what they are called where they are shown, and that none is good after its end,
//! on any replica.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::audit::recorded;
use crate::events::{self, Replicas};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{
    ADMIN, Agent, Answer, CALL, Gateway, Pair, Request, assert_refusal, until_found,
};
use crate::on_embedded;

async fn make(gateway: &Gateway, by: &str, body: &Value) -> Answer {
    let request = Request::post("/workspaces/dev/tokens", body.to_string()).bearer(by);
    gateway.call(&request.field("X-Request-Id", "seen")).await
}

async fn made(gateway: &Gateway, body: Value) -> Value {
    let answer = make(gateway, ADMIN, &body).await;
    assert_eq!(answer.status, 201, "{body}: {}", answer.text());
    answer.json()
}

async fn listed(gateway: &Gateway) -> Vec<Value> {
    let list = gateway.view("dev/tokens").await;
    list["tokens"].as_array().unwrap().clone()
}

fn text<'a>(token: &'a Value, name: &str) -> &'a str {
    token[name].as_str().unwrap()
}

/// Reads as the token, until it is refused; answers the refusal.
async fn until_refused(gateway: &Gateway, token: &str) -> Answer {
    let request = Request::get("/workspaces/dev").bearer(token);
    let request = request.field("X-Request-Id", "seen");
    until_found("its end", async || {
        let answer = gateway.call(&request).await;
        (answer.status != 200).then_some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ends_on_every_replica_with_what_it_opened() {
    let replicas = Replicas::start(2, &[]).await;
    let [one, other] = [&replicas.all[0], &replicas.all[1]];
    let endless = events::seat(one, "dev", None, None).await;
    let body = json!({"label": "nightly build", "expires_in": 15});
    let began = Instant::now();
    let token = made(one, body).await;
    let ends_at = began + Duration::from_secs(15);
    assert_eq!(token["label"], "nightly build");
    assert!(text(&token, "expires_at").ends_with('Z'), "{token}");
    let secret = text(&token, "token");
    let sockets = [
        Socket::open(one.public, &handshake("/ws").bearer(secret)).await,
        Socket::open(other.public, &handshake("/ws").bearer(secret)).await,
    ];
    let ticket = events::ticket(other, secret).await;
    let by_ticket = handshake(&format!("/ws?ticket={ticket}"));
    let by_ticket = Socket::open(one.public, &by_ticket).await;
    let mine = |tokens: &[Value]| tokens.iter().any(|shown| shown["id"] == token["id"]);
    assert!(mine(&listed(other).await));
    for gateway in [one, other] {
        let answer = until_refused(gateway, secret).await;
        assert!(Instant::now() > ends_at, "it ended too early");
        let path = "/workspaces/dev";
        assert_refusal(&answer, path, "seen", "unauthenticated", "over");
        answer.says("past its end");
    }
    for mut socket in sockets.into_iter().chain([by_ticket]) {
        let (code, _) = socket.next().await.unwrap_err();
        assert_eq!(code, 4401);
    }
    assert!(!mine(&listed(one).await), "it is not a live one");
    let endless = Request::get("/workspaces/dev").bearer(&endless);
    assert_eq!(other.call(&endless).await.status, 200);
    let record = &recorded(one, "event_type=TOKEN_ISSUED&target=dev", 2).await[0];
    assert_eq!(record["detail"]["label"], "nightly build");
    assert_eq!(record["detail"]["expires_at"], token["expires_at"]);
    assert!(!record.to_string().contains(secret));
}

on_embedded! {
    async fn a_token_after_its_end_is_none_of_the_workspaces_tokens() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json("{}").await;
        let enrolment = gateway.create(json!({"id": "dev", "name": "dev"})).await;
        let token = made(&gateway, json!({"expires_in": 1})).await;
        let stream = Request::post("/workspaces/dev/a2a", CALL).bearer(text(&token, "token"));
        let refused = until_refused(&gateway, text(&token, "token")).await;
        assert_eq!(refused.status, 401);
        gateway.call(&stream).await.says("past its end");
        let explained = gateway.admin_get("/explain?caller=dev&target=dev").await.unwrap().json();
        assert_eq!(explained["reason"], "unauthenticated");
        assert!(explained["message"].as_str().unwrap().contains("past its end"), "{explained:#}");
        // It holds up no registration: the workspace has no live token.
        let own = gateway.register("dev", &enrolment, &agent.url(), crate::harness::card("dev")).await;
        gateway.call(&Request::get("/workspaces/dev").bearer(&own)).await.has(200);
        // Nor does it take one of the 50 places.
        for _ in 0..49 {
            made(&gateway, json!({})).await;
        }
        assert_eq!(make(&gateway, ADMIN, &json!({})).await.status, 409);
        // An end counts as soon as it is there, and a revocation before it.
        let id = listed(&gateway).await[0]["id"].clone();
        let path = format!("/workspaces/dev/tokens/{}", id.as_str().unwrap());
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        let token = made(&gateway, json!({"label": "ci", "expires_at": "2099-01-02T03:04:05+01:00"})).await;
        let shown = listed(&gateway).await.into_iter().find(|shown| shown["id"] == token["id"]).unwrap();
        assert_eq!((&shown["label"], &shown["expires_at"]), (&json!("ci"), &json!("2099-01-02T02:04:05.000Z")));
        let path = format!("/workspaces/dev/tokens/{}", text(&token, "id"));
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        let read = Request::get("/workspaces/dev").bearer(text(&token, "token"));
        gateway.call(&read).await.says("unknown, revoked");
    }

    async fn a_token_with_an_end_makes_none_that_outlives_it() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let place = json!({"id": "dev", "name": "dev", "liveness": "assumed", "url": "http://127.0.0.1:9/"});
        gateway.create(place).await;
        let token = made(&gateway, json!({"expires_in": 600})).await;
        let by = text(&token, "token");
        for body in [json!({}), json!({"expires_in": 900}), json!({"expires_at": "2099-01-01T00:00:00Z"})] {
            let answer = make(&gateway, by, &body).await;
            assert_refusal(&answer, "/workspaces/dev/tokens", "seen", "not_permitted", &body.to_string());
            answer.says(text(&token, "expires_at"));
        }
        // The lifetime of pair tokens is an hour here.
        let discovered = gateway.call(&Request::get("/registry/discover/dev").bearer(by)).await.json();
        let lifetime = discovered["token_expires_in"].as_u64();
        assert!((1..=600).contains(&lifetime.unwrap()), "{discovered}");
        make(&gateway, by, &json!({"expires_in": 60, "label": "job"})).await.has(201);
        let endless = made(&gateway, json!({})).await;
        assert_eq!((&endless["label"], &endless["expires_at"]), (&Value::Null, &Value::Null));
        assert_eq!(make(&gateway, text(&endless, "token"), &json!({})).await.status, 201);
    }

    async fn what_is_no_label_and_no_end_is_refused() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.create(json!({"id": "dev", "name": "dev"})).await;
        let secret = format!("a2aw_{}", "x".repeat(43));
        for (body, part) in [
            (json!({"label": ""}), "`label` has 1 to 64"),
            (json!({"label": "  "}), "`label` has 1 to 64"),
            (json!({"label": "x".repeat(65)}), "`label` has 1 to 64"),
            (json!({"label": "a\nb"}), "`label` has 1 to 64"),
            (json!({"label": secret}), "form of a credential"),
            (json!({"label": "eyJhbGciOiJFZERTQSJ9.e30.AA"}), "form of a credential"),
            (json!({"label": 7}), "label"),
            (json!({"expires_at": "2020-01-01T00:00:00Z"}), "in the future"),
            (json!({"expires_at": "tomorrow"}), "in the future"),
            (json!({"expires": 60}), "expires"),
            (json!({"expires_in": 0}), "from 1 to 315576000"),
            (json!({"expires_in": 315_576_001}), "from 1 to 315576000"),
            (json!({"expires_in": -1}), "expires_in"),
            (json!({"expires_in": 60, "expires_at": "2099-01-01T00:00:00Z"}), "send one of them"),
        ] {
            let answer = make(&gateway, ADMIN, &body).await;
            assert_refusal(&answer, "/workspaces/dev/tokens", "seen", "invalid_params", &body.to_string());
            assert!(answer.text().contains(part), "{body}: {}", answer.text());
        }
        assert_eq!(listed(&gateway).await.len(), 1, "the enrolment token");
        made(&gateway, json!({"label": "release 1.2.3"})).await;
        let longest = made(&gateway, json!({"label": "\u{e9}".repeat(64), "expires_in": 315_576_000})).await;
        assert_eq!(longest["label"], "\u{e9}".repeat(64));
    }
}
