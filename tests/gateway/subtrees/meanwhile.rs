//! Requests that are under way while their workspace moves, or their token is revoked: they look up names, or wait for
//! a place at the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{ask, change, gives, grow, text, token_of};
use crate::harness::dns::Dns;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, Step, card, ok_json, until_holds,
};
use crate::on_embedded;

/// Longest wait of the name server: more than a look-up may take, so that none succeeds before it is let.
const HELD_MAX: Duration = Duration::from_secs(10);

/// A name server that answers once it is let to.
async fn held_back() -> (Dns, Arc<AtomicBool>) {
    let goes = Arc::new(AtomicBool::new(false));
    let open = Arc::clone(&goes);
    let dns = Dns::start(move |_, _| {
        let end = Instant::now() + HELD_MAX;
        // The other tasks of the case go on meanwhile.
        tokio::task::block_in_place(|| {
            while !open.load(Ordering::SeqCst) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        vec!["127.0.0.1".parse().unwrap()]
    });
    (dns.await, goes)
}

/// One request of the token, and what happens while it looks up the name in it.
async fn meanwhile(
    (gateway, dns, goes): (&Gateway, &Dns, &AtomicBool),
    name: &str,
    request: impl Future<Output = Answer>,
    happens: impl Future<Output = u16>,
) -> Answer {
    goes.store(false, Ordering::SeqCst);
    let ended = async {
        until_holds(name, async || dns.lookups(name) > 0).await;
        assert_eq!(happens.await, 200);
        goes.store(true, Ordering::SeqCst);
    };
    let (answer, ()) = tokio::join!(request, ended);
    let view = ask(gateway, ADMIN, "GET", "/workspaces/new", Value::Null).await;
    assert_eq!(view.json()["url"], Value::Null, "{name}: {}", answer.text());
    let tokens = ask(gateway, ADMIN, "GET", "/workspaces/new/tokens", Value::Null).await;
    assert!(tokens.json()["tokens"].is_array());
    assert!(
        !tokens.text().contains("\"a2aw_"),
        "{name}: {}, {}",
        tokens.text(),
        answer.text()
    );
    answer
}

/// It is refused with this status, or for a look-up that took too long: what happens meanwhile may, on a busy
/// machine.
fn assert_refused(answer: &Answer, status: u16, name: &str) {
    if answer.status != 502 || answer.reason() != "agent_unreachable" {
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
    }
}

/// Makes the workspace `new` below `dev`, or moves it back there.
async fn renew(gateway: &Gateway) {
    let place = json!({"parent_id": "dev"});
    if change(gateway, "PATCH", "/workspaces/new", place).await != 200 {
        let new = json!({"id": "new", "name": "new", "parent_id": "dev", "delivery_mode": "push"});
        assert_eq!(change(gateway, "POST", "/workspaces", new).await, 201);
    }
}

on_embedded! {
    async fn what_looks_up_names_while_its_workspace_leaves_writes_nothing() {
        let (dns, goes) = held_back().await;
        let gateway = Builder::new(Pair::Embedded).set("address.nameservers", &dns.address.to_string()).start().await;
        let agent = Agent::json("{}").await;
        grow(&gateway, &agent).await;
        let token = text(&token_of(&gateway, "team").await);
        let own = Agent::json("{}").await;
        let at = |name: &str| format!("http://{name}:{}/", own.port);
        let stage = (&gateway, &dns, &*goes);
        let registration = |name: &str| json!({"id": "new", "url": at(name), "agent_card": card("new")});
        let leaves = || change(&gateway, "PATCH", "/workspaces/new", json!({"parent_id": "boss"}));

        for (name, method, path, body) in [
            ("one.test", "POST", "/registry/register", registration("one.test")),
            ("two.test", "PATCH", "/workspaces/new", json!({"url": at("two.test")})),
        ] {
            renew(&gateway).await;
            let asks = ask(&gateway, &token, method, path, body);
            let answer = meanwhile(stage, name, asks, leaves()).await;
            assert_refused(&answer, 403, name);
        }

        renew(&gateway).await;
        let made = ask(&gateway, &token, "POST", "/workspaces/new/enrolment", json!({})).await.json();
        let enrolment = made["enrolment_token"].as_str().unwrap();
        let enrols = ask(&gateway, enrolment, "POST", "/registry/register", registration("three.test"));
        let answer = meanwhile(stage, "three.test", enrols, leaves()).await;
        assert_refused(&answer, 401, "three.test");

        // The token is revoked meanwhile.
        for (name, method, path, body) in [
            ("four.test", "POST", "/registry/register", registration("four.test")),
            ("five.test", "PATCH", "/workspaces/new", json!({"url": at("five.test")})),
            ("six.test", "POST", "/workspaces", json!({"name": "x", "parent_id": "dev", "url": at("six.test")})),
        ] {
            renew(&gateway).await;
            let made = token_of(&gateway, "team").await;
            let token = text(&made);
            let path_of_token = format!("/orgs/acme/tokens/{}", made["id"].as_str().unwrap());
            let asks = ask(&gateway, &token, method, path, body);
            let revoked = change(&gateway, "DELETE", &path_of_token, Value::Null);
            let answer = meanwhile(stage, name, asks, revoked).await;
            assert_refused(&answer, 401, name);
        }

        // Without a change meanwhile it is done, and the enrolment token of before is good.
        renew(&gateway).await;
        goes.store(true, Ordering::SeqCst);
        let made = ask(&gateway, &token, "POST", "/workspaces/new/enrolment", json!({})).await.json();
        let enrolment = made["enrolment_token"].as_str().unwrap();
        let joined = gives(&gateway, enrolment, "POST", "/registry/register", registration("seven.test"), 200).await;
        assert!(joined.json()["token"].is_string());
    }

    async fn a_call_that_waited_for_a_place_is_checked_again() {
        let gateway = Builder::new(Pair::Embedded).set("limits.target_queue", "4").set("limits.target_queue_wait", "60s").start().await;
        let (held, answers) = (Arc::new(Semaphore::new(0)), ok_json("{}"));
        let places = Arc::clone(&held);
        let agent = Agent::scripted(move |_| vec![Step::Held(Arc::clone(&places)), Step::Write(answers.clone())]).await;
        grow(&gateway, &agent).await;
        assert_eq!(change(&gateway, "PATCH", "/workspaces/dev", json!({"max_concurrent": 1})).await, 200);
        let token = text(&token_of(&gateway, "team").await);
        let call = async |token: &str| {
            gateway.call(&Request::post("/workspaces/dev/a2a", CALL).bearer(token)).await
        };
        let moves = async {
            agent.until_calls(1).await;
            gateway.until_counted("a2a_gateway_target_queue_calls", &[], 1.0).await;
            let moved = change(&gateway, "PATCH", "/workspaces/dev", json!({"parent_id": "boss"})).await;
            held.add_permits(99);
            moved
        };
        let second = async {
            agent.until_calls(1).await;
            call(&token).await
        };
        let (first, second, moved) = tokio::join!(call(ADMIN), second, moves);
        assert_eq!((first.status, moved), (200, 200), "{}", first.text());
        assert_eq!(second.status, 403, "{}", second.text());
        assert_eq!(agent.calls(), 1, "the second call was delivered");
    }
}
