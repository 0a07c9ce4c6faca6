//! Whose calls a stop refuses, on each route, and what goes on.

use serde_json::{Value, json};

use super::{REASON, assert_stopped, beat, call, listed, made, release, stop, until};
use crate::harness::{ADMIN, Agent, Gateway, Pair, Request, Seat, assert_refusal};
use crate::{on_both_pairs, on_embedded};

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"ok":true}}"#;

/// Two workspaces below a root of acme, and one of beta.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
    lone: Seat,
    /// A token of acme.
    org: String,
}

impl Case {
    async fn new(pair: Pair) -> Self {
        let gateway = Gateway::start(pair).await;
        for (id, org) in [("root", "acme"), ("far", "beta")] {
            gateway
                .create(json!({"id": id, "name": id, "org": org}))
                .await;
        }
        let ok = async || Agent::json(ANSWER).await;
        let caller = gateway.seat("caller", "root", ok().await).await;
        let target = gateway.seat("target", "root", ok().await).await;
        let lone = gateway.seat("lone", "far", ok().await).await;
        let token = gateway
            .as_operator(Request::post("/orgs/acme/tokens", "{}"))
            .await;
        let org = token.json()["token"].as_str().unwrap().to_owned();
        Self {
            gateway,
            caller,
            target,
            lone,
            org,
        }
    }

    /// Calls, in the order of the tables below.
    fn calls(&self) -> [(&'static str, Request); 5] {
        [
            ("there", call(&self.caller.token, "target")),
            ("back", call(&self.target.token, "caller")),
            ("itself", call(&self.lone.token, "lone")),
            ("integration", call(&self.org, "target")),
            ("operator", call(ADMIN, "lone")),
        ]
    }
}

on_both_pairs! {
    async fn a_stop_outlives_a_restart_and_ends_with_its_expiry(pair: Pair) {
        let mut case = Case::new(pair).await;
        let id = stop(&case.gateway, json!({"workspace": "target"}), "new").await;
        case.gateway.restart().await;
        let answer = case.gateway.call(&call(&case.caller.token, "target")).await;
        assert_stopped(&answer, &id, "after a restart");
        release(&case.gateway, &id).await;
        let at = std::time::SystemTime::now() + std::time::Duration::from_secs(20);
        let at = humantime::format_rfc3339_millis(at).to_string();
        let body = json!({"scope": {"subtree": "root"}, "mode": "new", "reason": REASON, "expires_at": at});
        let made = made(&case.gateway, &body).await;
        assert_eq!(made["expires_at"].as_str().map(|at| &at[..19]), Some(&at[..19]));
        let id = made["id"].as_str().unwrap();
        let answer = case.gateway.call(&call(&case.caller.token, "target")).await;
        assert_stopped(&answer, id, "before it expires");
        until("it expires", async || {
            case.gateway.call(&call(&case.caller.token, "target")).await.status == 200
        }).await;
        until("it is gone", async || listed(&case.gateway).await.is_empty()).await;
        until("its end is recorded once", async || {
            let path = "/audit?event_type=STOP_RELEASED&limit=10";
            let answer = case.gateway.admin_get(path).await.unwrap().json();
            let records = answer["records"].as_array().unwrap();
            let expired = records.iter().filter(|one| one["detail"]["by"] == "expiry");
            expired.count() == 1
        }).await;
    }
}

on_embedded! {
    async fn a_scope_refuses_calls_from_and_to_it_until_its_release() {
        let case = Case::new(Pair::Embedded).await;
        for (scope, stopped) in [
            (json!({"workspace": "target"}), [true, true, false, true, false]),
            (json!({"workspace": "root"}), [false; 5]),
            (json!({"subtree": "root"}), [true, true, false, true, false]),
            (json!({"subtree": "far"}), [false, false, true, false, true]),
            (json!({"org": "acme"}), [true, true, false, true, false]),
            (json!({"caller": "caller", "target": "target"}), [true, false, false, false, false]),
            (json!({"all": true}), [true; 5]),
        ] {
            for mode in ["new", "running"] {
                let id = stop(&case.gateway, scope.clone(), mode).await;
                for ((name, request), stopped) in case.calls().into_iter().zip(stopped) {
                    let answer = case.gateway.call(&request).await;
                    if stopped {
                        assert_stopped(&answer, &id, &format!("{scope} {name}"));
                    } else {
                        assert_eq!(answer.status, 200, "{scope} {name}: {}", answer.text());
                    }
                }
                let shown = listed(&case.gateway).await;
                assert_eq!(shown.len(), 1);
                assert_eq!(shown[0]["scope"], scope);
                assert_eq!(shown[0]["mode"], mode);
                assert_eq!(shown[0]["reason"], REASON);
                assert_eq!(case.gateway.metric("a2a_gateway_stops", &[]).await, 1.0);
                assert_eq!(release(&case.gateway, &id).await["status"], "released");
                for (name, request) in case.calls() {
                    let answer = case.gateway.call(&request).await;
                    assert_eq!(answer.status, 200, "{scope} {name}: {}", answer.text());
                }
            }
        }
        assert_eq!(case.gateway.metric("a2a_gateway_stops", &[]).await, 0.0);
        let refused = ["plane=\"a2a\"", "reason=\"stopped\""];
        until("each is counted, after its answer", async || {
            case.gateway.metric("a2a_gateway_refusals_total", &refused).await == 2.0 * 17.0
        }).await;
    }

    async fn each_route_of_a_call_is_stopped_and_the_rest_goes_on() {
        let case = Case::new(Pair::Embedded).await;
        let gateway = &case.gateway;
        let id = stop(gateway, json!({"workspace": "target"}), "new").await;
        let own = |request: Request| request.bearer(&case.caller.token).field("X-Request-Id", "seen");
        let message = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}});
        let rest = "/workspaces/target/a2a/v1/";
        for request in [
            Request::post(format!("{rest}message:send"), message.to_string()),
            Request::post(format!("{rest}message:stream"), message.to_string()),
            Request::get(format!("{rest}tasks/t-1")),
            Request::post(format!("{rest}tasks/t-1:cancel"), "{}"),
        ] {
            let path = request.path.clone();
            let answer = gateway.call(&own(request)).await;
            assert_stopped(&answer, &id, &path);
        }
        let keyed = call(&case.caller.token, "target").field("Idempotency-Key", "k");
        assert_stopped(&gateway.call(&keyed).await, &id, "a call with a key");
        let later = call(&case.caller.token, "target").field("Prefer", "respond-async");
        assert_stopped(&gateway.call(&later).await, &id, "a call that may be deferred");
        let delegation = json!({"target_id": "target", "task": "x"}).to_string();
        for request in [
            Request::post("/workspaces/caller/delegate", delegation),
            Request::get("/workspaces/target/streams/0199c0de-0000-7000-8000-000000000000"),
        ] {
            let path = request.path.clone();
            let answer = gateway.call(&own(request)).await;
            assert_refusal(&answer, "", "seen", "stopped", &path);
            assert_eq!(answer.json()["stop"], id.as_str());
            assert_eq!(answer.json()["error"], REASON);
        }
        assert_eq!(case.target.agent.count(), 0);
        let card = gateway.call(&own(Request::get("/workspaces/target/a2a"))).await;
        assert_eq!(card.status, 200, "a card is no call: {}", card.text());
        assert_eq!(beat(gateway, &case.target).await, 200);
        let read = gateway.call(&own(Request::get("/workspaces/target"))).await;
        assert_eq!(read.status, 200);
        let explained = gateway.admin_get("/explain?caller=caller&target=target").await.unwrap().json();
        assert_eq!(explained["reason"], "stopped", "{explained}");
        let steps = explained["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["step"] == "stop").unwrap();
        assert_eq!(step["fact"]["stop"], id.as_str(), "{explained}");
        assert_eq!(step["ok"], false, "{explained}");
        // A stranger learns nothing of it.
        let answer = gateway.call(&call(&case.lone.token, "target")).await;
        assert_eq!(answer.reason(), "not_permitted");
        release(gateway, &id).await;
        let records = async |event: &str| -> Vec<Value> {
            let path = format!("/audit?event_type={event}&limit=10");
            let answer = gateway.admin_get(&path).await.unwrap().json();
            answer["records"].as_array().unwrap().clone()
        };
        until("both are recorded", async || records("STOP_RELEASED").await.len() == 1).await;
        let created = records("STOP_CREATED").await.remove(0);
        assert_eq!(created["target"], "target", "{created}");
        assert_eq!(created["detail"]["stop_id"], id.as_str(), "{created}");
        assert_eq!(created["detail"]["reason"], REASON, "{created}");
        let released = records("STOP_RELEASED").await.remove(0);
        assert_eq!(released["detail"]["by"], "request", "{released}");
    }
}
