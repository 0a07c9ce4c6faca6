//! Who may set a waker, and what is shown of it.

use serde_json::json;

use super::{Asleep, patient, until, wakes};
use crate::harness::{Agent, Gateway, Pair, Request, Step, assert_refusal};
use crate::on_both_pairs;

/// Reads the column, as it stands in the table.
const STORED: &str = "SELECT wake FROM workspaces WHERE id = $1";

on_both_pairs! {
    async fn values_of_header_fields_reach_the_waker_and_no_reader(pair: Pair) {
        let asleep = Asleep::on(patient(pair)).await;
        let gateway = &asleep.gateway;
        let url = asleep.wake_url();
        let headers = json!({"X-Key": "geheim-1", "Authorization": "Basic geheim-2"});
        let wake = json!({"url": url, "method": "PUT", "headers": headers, "max_wait_seconds": 600, "cool_down_seconds": 600});
        let answer = gateway.patch("target", json!({"wake": wake})).await;
        let shown = json!({"url": url, "method": "PUT", "header_names": ["authorization", "x-key"],
            "max_wait_seconds": 600, "cool_down_seconds": 600});
        assert_eq!(answer.json()["wake"], shown);
        let read = Request::get("/workspaces/target");
        let as_operator = gateway.as_operator(read.clone()).await;
        assert_eq!(as_operator.json()["wake"], shown);
        let itself = gateway.call(&read.clone().bearer(&asleep.target.token)).await;
        let sibling = gateway.call(&read.bearer(&asleep.caller.token)).await;
        for answer in [&itself, &sibling] {
            assert_eq!((answer.status, answer.json().get("wake")), (200, None));
        }
        let column = gateway.stored(STORED, "target").await.unwrap();
        for text in [column, as_operator.text(), gateway.log()] {
            assert!(!text.contains("geheim"), "{text}");
        }
        let call = asleep.parked(asleep.request()).await;
        asleep.until_woken(1).await;
        let asked = asleep.waker.take();
        assert!(asked.head.starts_with("PUT "), "{}", asked.head);
        assert_eq!(asked.field("x-key"), Some("geheim-1"));
        assert_eq!(asked.fields("authorization"), ["Basic geheim-2"]);
        assert!(asked.field("x-a2a-wake-token").is_some_and(|token| token.split('.').count() == 3));
        asleep.heartbeat().await;
        assert_eq!(call.await.unwrap().status, 200);
        let audit = async || {
            gateway.admin_get("/audit?event_type=WORKSPACE_CHANGED").await.unwrap().text()
        };
        until(async || audit().await.contains("\"wake\":\"http://127.0.0.1:")).await;
        assert!(!audit().await.contains("geheim"));

        let answer = gateway.patch("target", json!({"wake": null})).await;
        assert_eq!(answer.json().get("wake"), None);
        asleep.hibernate().await;
        let answer = gateway.call(&asleep.request()).await;
        assert_refusal(&answer, "/a2a", "seen", "workspace_restarting", "no waker");
        assert_eq!(gateway.stored(STORED, "target").await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_waker_answers_is_recorded_and_a_redirect_is_not_followed() {
    let elsewhere = Agent::json("{}").await;
    let redirect = format!("307 Moved\r\nLocation: {}", elsewhere.url());
    let mut asleep = Asleep::on(patient(Pair::Embedded)).await;
    for (answer, outcome, reason, status) in [
        (&*redirect, "redirected", "agent_redirected", None),
        ("503 Down", "refused", "agent_protocol_error", Some(503)),
        ("204 No Content", "accepted", "done", Some(204)),
        ("nonsense", "failed", "agent_protocol_error", None),
    ] {
        let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
        asleep.waker = Agent::scripted(move |_| vec![Step::write(&answer), Step::Close]).await;
        let agent = Agent::json(super::ANSWER).await;
        asleep.target = asleep.gateway.seat(outcome, "", agent).await;
        asleep.set(json!({"url": asleep.wake_url()})).await;
        asleep.hibernate().await;
        let call = asleep.parked(asleep.request()).await;
        let wakes = async || wakes(&asleep.gateway, outcome).await;
        until(async || !wakes().await.is_empty()).await;
        let mut detail = json!({"wake": outcome});
        if let Some(status) = status {
            detail["status"] = status.into();
        }
        assert_eq!(wakes().await, [(reason.to_owned(), detail)]);
        let labels = [outcome];
        let counted = asleep.gateway.metric("a2a_gateway_wakes_total", &labels);
        assert_eq!(counted.await, 1.0);
        // The agent may still come by itself.
        asleep.heartbeat().await;
        assert_eq!(call.await.unwrap().status, 200, "{outcome}");
    }
    assert_eq!(elsewhere.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_operators_set_a_waker_and_its_address_is_judged() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let token = gateway.token("/orgs/acme/tokens", "{}").await;
    let new = json!({"id": "target", "name": "target", "wake": {"url": "http://127.0.0.1:9000/"}});
    let new = Request::post("/workspaces", new.to_string());
    let as_org = new.clone().bearer(&token).field("X-Request-Id", "seen");
    let answer = gateway.call(&as_org).await;
    assert_refusal(&answer, "", "seen", "not_permitted", "created by an org");
    let answer = gateway.as_operator(new).await.has(201);
    assert_eq!(answer.json()["wake"]["url"], "http://127.0.0.1:9000/");
    for (url, reason) in [
        ("http://169.254.169.254/", "address_forbidden"),
        ("http://u:p@127.0.0.1/", "address_forbidden"),
        (&format!("http://{}/", gateway.public), "address_forbidden"),
        ("nonsense", "invalid_params"),
    ] {
        let answer = gateway.patch("target", json!({"wake": {"url": url}})).await;
        assert_refusal(&answer, "", "seen", reason, url);
    }
    let text = gateway.log();
    assert!(!text.contains("u:p@"), "{text}");
}
