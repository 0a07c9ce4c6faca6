//! Grants (contract §8.3): made, listed, taken back; obeyed at once here and within a second elsewhere.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::servers::{self, Redis};
use crate::harness::{Agent, Answer, Builder, CALL, Gateway, Pair, Request, Seat, until_holds};
use crate::hierarchy::seat_in;
use crate::{on_both_pairs, on_embedded};

/// The life of a grant whose end a case awaits: longer than it takes to make it on a busy machine.
const BRIEF_MS: u64 = 15_000;

fn refused(answer: &Answer, reason: &str, what: &str) {
    crate::harness::assert_refusal(answer, "/grants", "seen", reason, what);
}

async fn ask(gateway: &Gateway, request: Request) -> Answer {
    let request = request.field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

async fn grant(gateway: &Gateway, caller: &str, target: &str, more: Value) -> Value {
    let mut body = json!({"caller_id": caller, "target_id": target});
    let all = body.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    let made = ask(gateway, Request::post("/grants", body.to_string())).await;
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()
}

async fn drop_grant(gateway: &Gateway, grant: &Value) {
    let path = format!("/grants/{}", grant["id"].as_str().unwrap());
    let answer = ask(gateway, Request::new("DELETE", path)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.text(), r#"{"status":"removed"}"#);
}

/// A root of an org of its own.
async fn sit(gateway: &Gateway, id: &str) -> Seat {
    let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
    seat_in(gateway, id, &format!("org-{id}"), agent).await
}

fn call(caller: &Seat, target: &Seat) -> Request {
    Request::post(target.path(), CALL).bearer(&caller.token)
}

/// RFC 3339, so many milliseconds from now.
fn from_now(ms: u64) -> String {
    let time = SystemTime::now() + Duration::from_millis(ms);
    humantime::format_rfc3339_millis(time).to_string()
}

on_both_pairs! {
    async fn a_grant_reads_as_it_was_made_and_a_pair_has_one(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        for id in ["a", "b", "c"] {
            gateway.create(json!({"id": id, "name": id, "org": id})).await;
        }
        let first = grant(&gateway, "a", "b", json!({})).await;
        let members: Vec<_> = first.as_object().unwrap().keys().cloned().collect();
        let mut expected = ["id", "caller_id", "target_id", "note", "expires_at", "created_at"];
        expected.sort_unstable();
        assert_eq!(members, expected, "sorted by the test's parser");
        assert!(first["note"].is_null() && first["expires_at"].is_null());
        let more = json!({"note": "n".repeat(256), "expires_at": "2100-01-01T02:00:00+02:00"});
        let second = grant(&gateway, "a", "b", more).await;
        assert_eq!(second["id"], first["id"], "the pair's grant was changed");
        assert_eq!(second["expires_at"], "2100-01-01T00:00:00.000Z");
        assert_eq!(second["created_at"], first["created_at"]);
        let listed = ask(&gateway, Request::get("/grants")).await.json();
        assert_eq!(listed, json!({"grants": [second], "next_cursor": null}));
        let third = grant(&gateway, "b", "a", json!({})).await;
        let fourth = grant(&gateway, "a", "c", json!({})).await;
        for (query, expected) in [
            ("", vec![&second, &third, &fourth]),
            ("?caller_id=a", vec![&second, &fourth]),
            ("?target_id=a", vec![&third]),
            ("?caller_id=a&target_id=b", vec![&second]),
            ("?caller_id=c", vec![]),
        ] {
            for limit in [1, 2, 3, 500] {
                let mut seen = Vec::new();
                let mut cursor = String::new();
                loop {
                    let join = if query.is_empty() { "?" } else { "&" };
                    let path = format!("/grants{query}{join}limit={limit}{cursor}");
                    let page = ask(&gateway, Request::get(path)).await.json();
                    let grants = page["grants"].as_array().unwrap().clone();
                    assert!(grants.len() <= limit);
                    seen.extend(grants);
                    let Some(next) = page["next_cursor"].as_str() else { break };
                    cursor = format!("&cursor={next}");
                }
                assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{query} by {limit}");
            }
        }
        for (query, reason) in [
            ("limit=0", "invalid_params"), ("cursor=a", "invalid_params"),
            ("caller_id=a&caller_id=b", "invalid_params"), ("target_id=a%2Fb", "invalid_workspace_id"),
        ] {
            refused(&ask(&gateway, Request::get(format!("/grants?{query}"))).await, reason, query);
        }
    }
}

on_embedded! {
    async fn a_grant_lets_its_caller_message_its_target_until_it_is_taken_back() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (one, other) = (sit(&gateway, "one").await, sit(&gateway, "other").await);
        let there = call(&one, &other);
        let back = call(&other, &one);
        assert_eq!(gateway.call(&there).await.status, 403);
        let made = grant(&gateway, "one", "other", json!({"note": "for the audit"})).await;
        assert_eq!(gateway.call(&there.clone().field("X-Request-Id", "by.grant")).await.status, 200);
        assert_eq!(gateway.access_lines("by.grant").await[0]["rule"], "grant");
        assert_eq!(gateway.call(&back).await.status, 403, "one way only");
        let read = Request::get("/workspaces/other").bearer(&one.token);
        let seen = gateway.call(&read).await;
        assert_eq!((seen.status, seen.json()["url"].is_null()), (200, true));
        // Again is no error: the replicas are told again.
        for _ in 0..2 {
            drop_grant(&gateway, &made).await;
            assert_eq!(gateway.call(&there).await.status, 403);
        }
        let brief = grant(&gateway, "one", "other", json!({"expires_at": from_now(600_000)})).await;
        assert_ne!(brief["id"], made["id"], "another grant");
        assert_eq!(gateway.call(&there).await.status, 200);
        grant(&gateway, "one", "other", json!({"expires_at": from_now(BRIEF_MS)})).await;
        obeyed(&gateway, &there, 403, "its end").await;
    }

    async fn what_cannot_be_granted_is_refused_in_words() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for id in ["a", "b"] {
            gateway.create(json!({"id": id, "name": id, "org": id})).await;
        }
        for (body, reason) in [
            (json!({"caller_id": "a"}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "a"}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "nobody"}), "workspace_not_found"),
            (json!({"caller_id": "nobody", "target_id": "a"}), "workspace_not_found"),
            (json!({"caller_id": "a/b", "target_id": "a"}), "invalid_workspace_id"),
            (json!({"caller_id": "a", "target_id": "b", "expires_at": "soon"}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "b", "expires_at": 4_102_444_800_u64}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "b", "expires_at": "2020-01-01T00:00:00Z"}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "b", "note": "n".repeat(257)}), "invalid_params"),
            (json!({"caller_id": "a", "target_id": "b", "note": "a\u{0}b"}), "invalid_params"),
        ] {
            let answer = ask(&gateway, Request::post("/grants", body.to_string())).await;
            refused(&answer, reason, &body.to_string());
        }
        refused(&ask(&gateway, Request::new("DELETE", "/grants/never")).await, "not_found", "never");
        let listed = ask(&gateway, Request::get("/grants")).await.json();
        assert_eq!(listed["grants"], json!([]));
    }
}

/// Waits until a gateway answers `status`.
async fn obeyed(gateway: &Gateway, request: &Request, status: u16, what: &str) {
    until_holds(what, async || gateway.call(request).await.status == status).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_made_dropped_or_expired_on_one_replica_is_obeyed_by_the_other() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let start = |shared: &str| {
        let builder = Builder::new(Pair::Embedded).stores(&sql, shared);
        builder.set("registry.heartbeat_ttl", "10m").start()
    };
    let one = start(&redis.url()).await;
    let (link, shared) = redis.relayed();
    let other = start(&shared).await;
    let (caller, target) = (sit(&one, "caller").await, sit(&one, "target").await);
    let request = call(&caller, &target);
    for round in 0..4 {
        // The pair is known to both, and denied.
        for gateway in [&one, &other] {
            assert_eq!(gateway.call(&request).await.status, 403, "round {round}");
        }
        if round == 3 {
            link.cut();
        }
        let made = grant(&one, "caller", "target", json!({})).await;
        assert_eq!(one.call(&request).await.status, 200);
        obeyed(&other, &request, 200, "made").await;
        drop_grant(&one, &made).await;
        assert_eq!(one.call(&request).await.status, 403);
        obeyed(&other, &request, 403, "dropped").await;
        link.resume();
    }
    // It is over at its end, with nothing told.
    for (span, status) in [(600_000, 200), (BRIEF_MS, 403)] {
        let brief = json!({"expires_at": from_now(span)});
        grant(&one, "caller", "target", brief).await;
        obeyed(&other, &request, status, "a grant with an end").await;
    }
    obeyed(&one, &request, 403, "expired").await;
    // Taken over, it lasts longer.
    let until = from_now(600_000);
    grant(&one, "caller", "target", json!({"expires_at": until})).await;
    obeyed(&other, &request, 200, "made again").await;
    let listed = ask(&other, Request::get("/grants")).await.json();
    assert_eq!(listed["grants"][0]["expires_at"], until);
}
