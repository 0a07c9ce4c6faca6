//! What leaves a record although no room of the gateway was ever asked, and what a run says of its beginning and its
//! end.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{end, exported, message, of_request, recorded};
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Connection, Gateway, LAST_CHUNK, Pair, Request, SSE_HEAD, Step,
    chunk, until_found, until_holds,
};
use crate::on_embedded;
use crate::operators::{paired, staged};
use crate::reload::{Written, in_force};

/// The members of a record that say what was asked of whom, and what came of it.
fn said(record: &Value) -> [&str; 3] {
    ["event_type", "target", "outcome"].map(|name| record[name].as_str().unwrap_or_default())
}

on_embedded! {
    async fn a_change_that_is_refused_before_its_route_is_asked_is_written_down() {
        let (gateway, _, target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let pause = || Request::post("/workspaces/target/pause", "").bearer(&target.token);
        let labels = [r#"plane="control""#, r#"reason="origin_forbidden""#];
        let counted = async || gateway.metric("a2a_gateway_refusals_total", &labels).await;
        let before = counted().await;
        let foreign = pause().field("Origin", "https://evil.example").field("X-Request-Id", "foreign");
        assert_eq!(gateway.call(&foreign).await.reason(), "origin_forbidden");
        assert_eq!(said(&of_request(&gateway, "foreign").await), ["WORKSPACE_PAUSED", "target", "origin_forbidden"]);
        let after = counted().await;
        assert!((after - before - 1.0).abs() < 0.1, "{before} {after}");
        let large = Request::post("/registry/register", "x".repeat(1024 * 1024 + 1));
        let large = large.bearer(&target.token).field("X-Request-Id", "large");
        assert_eq!(gateway.call(&large).await.reason(), "body_too_large");
        assert_eq!(said(&of_request(&gateway, "large").await), ["WORKSPACE_REGISTERED", "", "body_too_large"]);
        // What changes nothing leaves none, refused or not.
        let read = Request::get("/workspaces/target").field("Origin", "https://evil.example");
        let read = gateway.call(&read.field("X-Request-Id", "read")).await;
        assert_eq!(read.reason(), "origin_forbidden");
        // On the admin listener.
        let mut connection = Connection::open(gateway.admin).await;
        let rebound = Request::post("/api/workspaces/target/pause", "").field("X-Request-Id", "rebound");
        connection.send(&rebound.wire("evil.example")).await;
        assert_eq!(connection.answer().await.reason(), "misdirected");
        assert_eq!(said(&of_request(&gateway, "rebound").await), ["WORKSPACE_PAUSED", "target", "misdirected"]);
        assert!(recorded(&gateway, "request_id=read", 0).await.is_empty());
    }

    async fn a_call_whose_head_cannot_be_read_is_written_down() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let field = "no colon\r\n\r\n";
        let chunks = "Transfer-Encoding: chunked\r\n\r\nzz\r\n";
        for (begins, path, rest, id, target) in [
            ("", "/workspaces/target/a2a", field, "broken", "target"),
            ("", "/tasks/t-1", field, "task", ""),
            // An empty line in front is allowed.
            ("\r\n", "/workspaces/target/a2a", chunks, "chunks", "target"),
        ] {
            let mut connection = Connection::open(gateway.public).await;
            let head = format!("{begins}POST {path} HTTP/1.1\r\nHost: h\r\nX-Request-Id: {id}\r\n{rest}");
            connection.send(head.as_bytes()).await;
            let answer = connection.answer().await;
            assert_eq!((answer.status, &*answer.reason()), (400, "invalid_request"));
            assert_eq!(said(&of_request(&gateway, id).await), ["A2A_CALL", target, "invalid_request"]);
            assert_eq!(gateway.access_lines(id).await[0]["status"], 400);
        }
        // Refused by their first line: whom they meant can be read all the same.
        let long = format!("/workspaces/target/a2a?{}", "x".repeat(9000));
        for line in [
            "POST /workspaces/target/a2a HTTP/9.9\r\n",
            "POST /workspaces/target/a2a#x HTTP/1.1\r\n",
            "POST /workspaces/target/a2a?\u{ff} HTTP/1.1\r\n",
            &format!("POST {long} HTTP/1.1\r\n"),
            "POST /workspaces/target/a2a HTTP/1.1\n",
        ] {
            let mut connection = Connection::open(gateway.public).await;
            connection.send(format!("{line}Host: h\r\n\r\n").as_bytes()).await;
            let answer = connection.answer().await;
            assert_eq!((answer.status, &*answer.reason()), (400, "invalid_request"), "{line:.60}");
            let id = answer.field("x-request-id").unwrap();
            assert_eq!(said(&of_request(&gateway, id).await), ["A2A_CALL", "target", "invalid_request"], "{line:.60}");
        }
        gateway.assert_idle().await;
    }

    async fn a_kept_call_that_nobody_can_make_is_written_down_with_its_end() {
        let (gateway, caller, target) = staged(Builder::new(Pair::Embedded).set("delegation.deferred_ttl", "2s"), Agent::json("{}").await).await;
        let paused = gateway.as_operator(Request::post("/workspaces/target/pause", "")).await;
        assert_eq!(paused.status, 200);
        let keep = Request::post(target.path(), CALL).bearer(&caller.token);
        let kept = gateway.call(&keep.field("Prefer", "respond-async")).await;
        assert_eq!(kept.status, 202, "{}", kept.text());
        let job = kept.json()["activity_id"].as_str().unwrap().to_owned();
        let asked = json!({"jsonrpc": "2.0", "id": 7, "method": "tasks/get", "params": {"id": job}});
        let asked = Request::post(target.path(), asked.to_string()).bearer(&caller.token);
        assert_eq!(gateway.call(&asked.field("X-Request-Id", "asked")).await.status, 200);
        assert_eq!(of_request(&gateway, "asked").await["task_id"], json!(job));
        let record = of_request(&gateway, &job).await;
        assert_eq!(said(&record), ["A2A_CALL", "target", "agent_timeout"]);
        assert_eq!(["caller", "credential_kind"].map(|name| &record[name]), ["caller", "stored"]);
    }

    async fn whoever_takes_a_stream_up_again_is_written_down() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::scripted(|_| vec![Step::write(SSE_HEAD), Step::Write(chunk("data: 1\n\n")), Step::write(LAST_CHUNK)]);
        let (caller, target) = gateway.pair(agent.await).await;
        let whole = gateway.call(&Request::post(target.path(), CALL).bearer(&caller.token)).await;
        let stream = whole.field("x-a2a-stream").unwrap();
        let path = format!("/workspaces/target/streams/{stream}");
        for (token, id, outcome) in [(&caller.token, "resumed", "done"), (&target.token, "other", "not_found")] {
            let resumed = Request::get(&*path).bearer(token).field("X-Request-Id", id);
            gateway.call(&resumed).await;
            let record = of_request(&gateway, id).await;
            assert_eq!(said(&record), ["STREAM_RESUMED", "target", outcome]);
            assert!(!record.to_string().contains(stream), "{record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_says_which_keys_and_settings_it_begins_with_and_what_was_left_at_its_end() {
    let file = Written::new("[rate]\ncaller_per_second = 50\n");
    const PLANTED: &str = "planted-4711";
    let mut gateway = Builder::new(Pair::Embedded)
        .file(file.path())
        .set("telemetry.otlp_headers", &format!("x-key={PLANTED}"))
        .set("stores.timeout", "20s")
        .start()
        .await;
    let started = recorded(&gateway, "event_type=AUDIT_STARTED", 1).await[0]["detail"].clone();
    let jwks = gateway.call(&Request::get("/.well-known/jwks.json")).await;
    let kids = jwks.json()["keys"].as_array().unwrap().clone();
    let mut kids: Vec<_> = kids.iter().map(|key| key["kid"].clone()).collect();
    let mut all = started["keys"]["all"].as_array().unwrap().clone();
    kids.sort_by_key(Value::to_string);
    all.sort_by_key(Value::to_string);
    assert_eq!(all, kids, "{started}");
    assert!(all.contains(&started["keys"]["active"]), "{started}");
    assert!(started["keys"]["seal"].is_string(), "{started}");
    let settings = &started["settings"];
    assert_eq!(settings["rate.caller_per_second"], 50);
    assert_eq!(settings.get("rate.failures_per_second"), None, "a default");
    let hash = hex::encode(Sha256::digest(ADMIN));
    let admin = &settings["A2A_GATEWAY_ADMIN_TOKEN"];
    assert_eq!(admin, &json!({ "sha256": hash }));
    let text = started.to_string();
    assert!(text.contains("telemetry.otlp_headers"), "{text}");
    assert!(!text.contains(PLANTED) && !text.contains(ADMIN), "{text}");
    file.save("[rate]\ncaller_per_second = 60\n[server]\nthreads = 7\n");
    in_force(&gateway, "rate.caller_per_second", json!(60)).await;
    let changed = recorded(&gateway, "event_type=CONFIG_CHANGED", 1).await[0]["detail"].clone();
    let expected = json!({
        "keys": ["rate.caller_per_second"],
        "settings": {"rate.caller_per_second": 60},
        "waiting": ["server.threads"],
    });
    assert_eq!(changed, expected);
    end(&mut gateway);
    gateway.restart().await;
    until_holds("the new run says its settings", async || {
        let stopped = recorded(&gateway, "event_type=AUDIT_STOPPED", 1).await;
        let started = recorded(&gateway, "event_type=AUDIT_STARTED", 2).await;
        assert_eq!(stopped[0]["detail"]["running"], 0, "{stopped:?}");
        started[0]["detail"]["settings"]["rate.caller_per_second"] == 60
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_ends_in_a_hurry_holds_what_was_cut_and_says_how_much_was_not() {
    let mut gateway = Gateway::start(Pair::External).await;
    let silent = Agent::scripted(|_| vec![Step::Hang]).await;
    let (caller, target) = gateway.pair(silent).await;
    let mut connection = Connection::open(gateway.public).await;
    let call = message(&caller.token, "cut");
    connection.send(&call.wire("127.0.0.1")).await;
    target.agent.until_count(1).await;
    gateway.terminate();
    // Changes are refused on the admin listener, too, from here on.
    let refused = until_found("it shuts down", async || {
        let mut admin = Connection::open(gateway.admin).await;
        let pause = Request::post("/api/workspaces/target/pause", "");
        let pause = pause.bearer(ADMIN).field("X-Request-Id", "late");
        admin.send(&pause.wire(&gateway.admin.to_string())).await;
        let answer = admin.answer().await;
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.await.reason(), "shutting_down");
    gateway.terminate();
    assert!(gateway.wait(Duration::from_secs(60)).success());
    gateway.restart().await;
    let stopped = recorded(&gateway, "event_type=AUDIT_STOPPED", 1).await;
    let cut = recorded(&gateway, "request_id=cut", 0).await;
    let running = &stopped[0]["detail"]["running"];
    match &cut[..] {
        // It was cut in time to be written down.
        [cut] => {
            assert_eq!(said(cut), ["A2A_CALL", "target", "shutting_down"]);
            assert_eq!(running, 0);
        }
        _ => assert_eq!((cut.len(), running), (0, &json!(1))),
    }
    let late = &recorded(&gateway, "request_id=late", 1).await[0];
    assert_eq!(said(late), ["WORKSPACE_PAUSED", "target", "shutting_down"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_is_answered_at_the_end_is_written_down() {
    let (mut gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
    let public = gateway.public;
    let ask = |worker: usize| {
        let token = caller.token.clone();
        tokio::spawn(async move {
            let mut answered = Vec::new();
            for n in 0.. {
                let id = format!("end-{worker}-{n}");
                let Ok(stream) = tokio::net::TcpStream::connect(public).await else {
                    return answered;
                };
                let mut connection = Connection::over(stream);
                let wire = message(&token, &id).wire(&public.to_string());
                // At the very end nobody answers.
                if connection.try_send(&wire).await.is_ok()
                    && let Some(answer) = connection.try_answer().await
                {
                    answered.push((id, answer.status));
                }
            }
            answered
        })
    };
    let asking: Vec<_> = (0..4).map(ask).collect();
    let answered = ["answered"];
    let counted = gateway.until_counted("a2a_gateway_exchanges_total", &answered, 30.0);
    counted.await;
    end(&mut gateway);
    let records = exported(&gateway, &["--event-type", "A2A_CALL"]);
    let ids = records.iter().map(|record| record["request_id"].as_str());
    let written: std::collections::BTreeSet<&str> = ids.map(Option::unwrap).collect();
    // Refusals before a credential was proven are one record a second, with their number.
    let counted: u64 = records
        .iter()
        .filter(|record| record["outcome"] == "shutting_down")
        .map(|record| record["detail"]["count"].as_u64().unwrap_or(1))
        .sum();
    let (mut answers, mut refused) = (0, 0);
    for asked in asking {
        for (id, status) in asked.await.unwrap() {
            answers += 1;
            refused += u64::from(status == 503);
            let is_written = status == 503 || written.contains(id.as_str());
            assert!(is_written, "{id} was answered");
        }
    }
    assert!(counted >= refused, "{refused} refused, {counted} written");
    assert!(answers > 20, "{answers}");
}
