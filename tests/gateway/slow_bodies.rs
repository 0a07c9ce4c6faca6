//! Bodies that come slowly: a credential that is revoked, or ends, while they come is refused as on the next request.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::client::Connection;
use crate::harness::{ADMIN, Agent, Answer, CALL, Gateway, Pair, Request};

/// More than the time after which a caller is checked again, and less than a request may take.
const SLOW: Duration = Duration::from_millis(800);

/// Sends all of a request but its last byte.
async fn begun(gateway: &Gateway, request: &Request) -> (Connection, u8) {
    let wire = request.wire(&gateway.public.to_string());
    let (last, rest) = wire.split_last().unwrap();
    let mut connection = Connection::open(gateway.public).await;
    connection.send(rest).await;
    (connection, *last)
}

async fn ended((mut connection, last): (Connection, u8)) -> Answer {
    connection.send(&[last]).await;
    connection.answer().await
}

async fn made(gateway: &Gateway, body: Value) -> Value {
    let make = Request::post("/workspaces/caller/tokens", body.to_string()).bearer(ADMIN);
    gateway.call(&make).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_that_is_over_when_its_body_is_there_proves_nothing() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, target) = gateway.pair(Agent::json("{}").await).await;
    let revoked = made(&gateway, json!({})).await;
    let ends = made(&gateway, json!({"expires_in": 1})).await;
    let token = |made: &Value| made["token"].as_str().unwrap().to_owned();
    let call = |token: &str| Request::post(target.path(), CALL).bearer(token);
    let make = |token: &str| Request::post("/workspaces/caller/tokens", "{}").bearer(token);
    let card = json!({"id": "caller", "url": caller.agent.url(), "agent_card": {"name": "caller"}});
    let register = Request::post("/registry/register", card.to_string()).bearer(&token(&ends));
    let requests = [call(&token(&revoked)), make(&token(&revoked)), register];
    let mut open = Vec::new();
    for request in &requests {
        open.push(begun(&gateway, request).await);
    }
    let good = begun(&gateway, &call(&caller.token)).await;
    let path = format!(
        "/workspaces/caller/tokens/{}",
        revoked["id"].as_str().unwrap()
    );
    assert_eq!(
        gateway
            .as_operator(Request::new("DELETE", path))
            .await
            .status,
        200
    );
    // Past the end of the other one, too.
    tokio::time::sleep(SLOW * 2).await;
    for (request, open) in requests.iter().zip(open) {
        let answer = ended(open).await;
        assert_eq!(
            answer.reason(),
            "unauthenticated",
            "{request:?}: {}",
            answer.text()
        );
    }
    assert_eq!(target.agent.count(), 0);
    assert_eq!(ended(good).await.status, 200);
    let list = gateway
        .as_operator(Request::get("/workspaces/caller/tokens"))
        .await
        .json();
    assert_eq!(list["tokens"].as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_counts_for_a_call_whose_body_is_not_there_yet() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, target) = gateway.pair(Agent::json("{}").await).await;
    let call = begun(
        &gateway,
        &Request::post(target.path(), CALL).bearer(&caller.token),
    )
    .await;
    let stop = json!({"scope": {"workspace": "caller"}, "mode": "new", "reason": "a loop"});
    let made = gateway
        .as_operator(Request::post("/stops", stop.to_string()))
        .await;
    assert_eq!(made.status, 201, "{}", made.text());
    tokio::time::sleep(SLOW).await;
    let answer = ended(call).await;
    answer.refuses(403, "stopped");
    assert_eq!(target.agent.count(), 0);
}
