//! Tokens of operators in use: records name the token of a change, and a token that ends, also by itself, ends what it
//! opened, on every replica.

use serde_json::{Value, json};

use crate::audit::recorded;
use crate::events::{self, Replicas};
use crate::harness::watcher::{Socket, handshake};
use crate::harness::{Agent, Gateway, Pair, Request, until_holds};
use crate::on_embedded;

async fn made(gateway: &Gateway, body: Value) -> Value {
    let request = Request::post("/operators/tokens", body.to_string());
    let answer = gateway.as_operator(request).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

fn text<'a>(token: &'a Value, name: &str) -> &'a str {
    token[name].as_str().unwrap()
}

async fn status(gateway: &Gateway, token: &str) -> u16 {
    let request = Request::get("/workspaces").bearer(token);
    gateway.call(&request).await.status
}

on_embedded! {
    async fn records_name_the_token_and_its_role() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.seat("dev", "", Agent::json("{}").await).await;
        let night = made(&gateway, json!({"role": "operate", "label": "night shift"})).await;
        let named = json!({"role": "operate", "token_id": night["id"], "label": "night shift"});
        let turn = |verb: &str, token: &str| {
            Request::post(format!("/workspaces/dev/{verb}"), "").bearer(token)
        };
        assert_eq!(gateway.call(&turn("pause", text(&night, "token"))).await.status, 200);
        let paused = &recorded(&gateway, "event_type=WORKSPACE_PAUSED", 1).await[0];
        assert_eq!(paused["detail"]["operator"], named, "{paused}");
        assert_eq!(paused["caller"], "operator:");
        let remove = Request::new("DELETE", "/workspaces/dev").bearer(text(&night, "token"));
        assert_eq!(gateway.call(&remove).await.status, 403);
        let refused = &recorded(&gateway, "event_type=WORKSPACE_REMOVED", 1).await[0];
        assert_eq!((&refused["outcome"], &refused["detail"]["operator"]), (&json!("role_required"), &named));
        // Of a configured token only the role is known.
        gateway.as_operator(turn("resume", "")).await;
        let issued = &recorded(&gateway, "event_type=TOKEN_ISSUED", 1).await[0];
        assert_eq!(issued["detail"]["operator"], json!({"role": "admin"}));
        assert_eq!((&issued["detail"]["role"], &issued["detail"]["token_id"]), (&json!("operate"), &night["id"]));
        let revoke = Request::new("DELETE", format!("/operators/tokens/{}", text(&night, "id")));
        assert_eq!(gateway.as_operator(revoke.clone()).await.status, 200);
        assert_eq!(gateway.as_operator(revoke).await.status, 200, "idempotent");
        assert_eq!(status(&gateway, text(&night, "token")).await, 401);
        let revoked = &recorded(&gateway, "event_type=TOKEN_REVOKED", 2).await[0];
        assert_eq!(revoked["detail"]["token_id"], night["id"]);
        let none = Request::new("DELETE", "/operators/tokens/none");
        assert_eq!(gateway.as_operator(none).await.reason(), "not_found");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_ends_on_every_replica_with_what_it_opened() {
    let replicas = Replicas::start(2, &[]).await;
    let [one, other] = [&replicas.all[0], &replicas.all[1]];
    let [revoked, brief] = [
        json!({"role": "read"}),
        json!({"role": "read", "expires_in": 15}),
    ];
    let (revoked, brief) = (made(one, revoked).await, made(one, brief).await);
    let mut sockets = Vec::new();
    for token in [&revoked, &brief] {
        let secret = text(token, "token");
        assert_eq!(status(other, secret).await, 200);
        sockets.push(Socket::open(other.public, &handshake("/ws").bearer(secret)).await);
        let ticket = events::ticket(one, secret).await;
        let by_ticket = handshake(&format!("/ws?ticket={ticket}"));
        sockets.push(Socket::open(other.public, &by_ticket).await);
    }
    let revoke = Request::new(
        "DELETE",
        format!("/operators/tokens/{}", text(&revoked, "id")),
    );
    assert_eq!(one.as_operator(revoke).await.status, 200);
    until_holds("it is revoked", async || {
        status(other, text(&revoked, "token")).await == 401
    })
    .await;
    for gateway in [one, other] {
        until_holds("it is over", async || {
            status(gateway, text(&brief, "token")).await == 401
        })
        .await;
        let request = Request::get("/workspaces").bearer(text(&brief, "token"));
        let answer = gateway.call(&request).await;
        assert!(answer.text().contains("past its end"), "{}", answer.text());
    }
    for mut socket in sockets {
        let (code, _) = socket.next().await.unwrap_err();
        assert_eq!(code, 4401);
    }
}
