//! What leaves a record, and what it says.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{end, exported, recorded, says};
use crate::harness::{
    ADMIN, Agent, Builder, CALL, Connection, Gateway, Pair, Request, SSE_HEAD, Step, card, chunk,
};
use crate::operators::paired;
use crate::tokens::token;
use crate::{on_both_pairs, on_embedded};

const TASK: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"task","id":"task-7","contextId":"c","status":{"state":"working"}}}"#;

async fn message(gateway: &Gateway, token: &str, request_id: &str) -> u16 {
    gateway
        .call(&super::message(token, request_id))
        .await
        .status
}

/// The one record of a request.
pub(crate) async fn of_request(gateway: &Gateway, request_id: &str) -> Value {
    let records = recorded(gateway, &format!("request_id={request_id}"), 1).await;
    assert_eq!(records.len(), 1, "{records:?}");
    records[0].clone()
}

/// Records as somebody would make them up who has no key: of another caller, in a chain of their own making.
fn forged(records: &[Value], replica: &str) -> Vec<String> {
    let mut prev = records[0]["prev"].clone();
    let forge = |record: &Value| {
        let mut record = record.clone();
        let members = record.as_object_mut().unwrap();
        if members["event_type"] != "AUDIT_CHECKPOINT" {
            members.insert("caller".to_owned(), json!("somebody"));
        } else {
            members.insert("event_type".to_owned(), json!("A2A_CALL"));
        }
        members.insert("replica".to_owned(), json!(replica));
        members.insert("prev".to_owned(), prev.take());
        members.remove("hash");
        let text = serde_json_canonicalizer::to_string(&record).unwrap();
        prev = json!(format!("{:x}", Sha256::digest(text)));
        record["hash"] = prev.clone();
        record.to_string()
    };
    records.iter().map(forge).collect()
}

on_both_pairs! {
    async fn a_record_names_run_and_context_and_no_content(pair: Pair) {
        let (mut gateway, caller, _target) = paired(pair, Agent::json("{}").await).await;
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let context = "0199c7a2-5b1e-7cc3-98c4-dc0c0c07398f";
        for (id, metadata, context, expected) in [
            ("r-1", json!({"run_id": "night.1"}), json!(context), (json!("night.1"), json!(context))),
            ("r-2", json!({}), json!("c 1"), (json!(trace), json!("242cb3fec8252e85"))),
            ("r-3", json!({}), Value::Null, (json!(trace), Value::Null)),
        ] {
            let message = json!({"role": "user", "messageId": "m", "parts": [], "contextId": context, "metadata": metadata});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}});
            let request = Request::post("/workspaces/target/a2a", call.to_string()).bearer(&caller.token);
            let traced = format!("00-{trace}-00f067aa0ba902b7-01");
            let request = request.field("X-Request-Id", id).field("traceparent", &traced);
            assert_eq!(gateway.call(&request).await.status, 200);
            let record = of_request(&gateway, id).await;
            assert_eq!((record["run"].clone(), record["context"].clone()), expected, "{record}");
            assert_eq!(record.get("root"), None);
        }
        end(&mut gateway);
        says(&gateway, &["verify"], 0);
    }

    async fn pages_and_filters_show_each_record_once(pair: Pair) {
        let (gateway, caller, _target) = paired(pair, Agent::json("{}").await).await;
        for n in 0..25 {
            assert_eq!(message(&gateway, &caller.token, &format!("r-{n}")).await, 200);
        }
        recorded(&gateway, "method=send_message&limit=100", 25).await;
        let (mut seen, mut cursor) = (Vec::<Value>::new(), String::new());
        loop {
            let page = gateway.admin_get(&format!("/audit?method=send_message&limit=10{cursor}")).await.unwrap().json();
            let records = page["records"].as_array().unwrap();
            seen.extend(records.iter().cloned());
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        // The newest first: a record is made when its exchange is over, a moment after the answer. SQLite has
        // the order of the chain, in which two that are made at once may stand in either one.
        let time = |r: &Value| (pair == Pair::External).then(|| r["time"].as_str().unwrap().to_owned());
        let place = |r: &Value| (time(r), r["seq"].as_i64().unwrap());
        assert!(seen.is_sorted_by(|newer, older| place(newer) > place(older)), "{seen:?}");
        let mut ids: Vec<_> = seen.iter().map(|r| r["request_id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        let mut expected: Vec<String> = (0..25).map(|n| format!("r-{n}")).collect();
        expected.sort_unstable();
        assert_eq!(ids, expected);
        let first = recorded(&gateway, "request_id=r-3", 1).await[0].clone();
        let time = first["time"].as_str().unwrap();
        assert!(recorded(&gateway, &format!("since={time}&until={time}"), 0).await.is_empty());
        let at = recorded(&gateway, &format!("since={time}&caller=caller&outcome=answered"), 1).await;
        assert!(at.contains(&first));
        let both = recorded(&gateway, "workspace=target&limit=500", 25).await;
        assert!(both.iter().all(|r| r["caller"] == "target" || r["target"] == "target"));
        for bad in ["limit=0", "since=now", "cursor=1", "nobody=1"] {
            let answer = gateway.admin_get(&format!("/audit?{bad}")).await.unwrap();
            assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{bad}");
        }
    }

    async fn an_export_is_proven_without_the_database(pair: Pair) {
        let (mut gateway, caller, _target) = paired(pair, Agent::json("{}").await).await;
        for n in 0..5 {
            message(&gateway, &caller.token, &format!("r-{n}")).await;
        }
        let jwks = gateway.call(&Request::get("/.well-known/jwks.json")).await.text();
        let [jwks_file, file] = ["jwks.json", "export.jsonl"].map(|name| gateway.dir.join(name));
        std::fs::write(&jwks_file, jwks).unwrap();
        end(&mut gateway);
        let said = says(&gateway, &["verify"], 0);
        assert!(said.contains("all as they were written"), "{said}");
        let lines = says(&gateway, &["export"], 0);
        let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records[0]["event_type"], "AUDIT_STARTED");
        assert_eq!(records.last().unwrap()["event_type"], "AUDIT_CHAIN");
        assert_eq!(records.iter().filter(|r| r["method"] == "send_message").count(), 5);
        let names = [file.to_str().unwrap(), jwks_file.to_str().unwrap()];
        let prove = |lines: &str, more: &[&str], status: i32, word: &str| {
            std::fs::write(&file, lines).unwrap();
            let said = says(&gateway, &[&["verify", names[0], "--jwks", names[1]], more].concat(), status);
            assert!(said.contains(word), "{more:?}: {said}");
            said
        };
        let partial = &["--partial"][..];
        prove(&lines, &[], 0, "");
        // Cut at its end, or without a line in the middle.
        let all: Vec<&str> = lines.lines().collect();
        prove(&all[..all.len() - 1].join("\n"), &[], 1, "");
        let hole = [&all[..3], &all[4..]].concat().join("\n");
        prove(&hole, &[], 1, "record 5 comes too early: record 4 is missing");
        // An excerpt: proven up to its last checkpoint, and not at all without one.
        let checkpoint = all.iter().rposition(|line| line.contains("\"AUDIT_CHECKPOINT\"")).unwrap();
        let honest = all[2..=checkpoint].join("\n");
        prove(&honest, partial, 0, "but for the last 1 record, behind which nothing is signed");
        for unproven in [&all[2..6], &all[checkpoint..=checkpoint]] {
            prove(&unproven.join("\n"), partial, 1, "no record in it is before a signed checkpoint");
        }
        prove(&honest, &[], 1, "is read with --partial");
        // What somebody made up beside it, or before the signed end of it, is proven by neither.
        let own = records[2]["replica"].as_str().unwrap().to_owned();
        let other = forged(&records[2..5], "made-up").join("\n");
        let unseen = "1 chain with no record before a signed checkpoint";
        prove(&format!("{honest}\n{other}\n"), partial, 1, unseen);
        let end = all.last().unwrap();
        let stopped = records.len() - 2;
        for (from, problem) in [(2, true), (stopped, true), (2, false)] {
            let until = if problem { stopped } else { stopped - 1 };
            let lines = forged(&records[from..=until], &own).join("\n");
            prove(&format!("{lines}\n{end}\n"), partial, 1, if problem { "not as written" } else { "" });
        }
        // A record that was asked for.
        let hash = records[3]["hash"].as_str().unwrap();
        for (seq, status) in [(4, 0), (2, 1), (4000, 1)] {
            let given = format!("{own}:{seq}:{hash}");
            let said = prove(&honest, &["--partial", "--expect", &given], status, "");
            assert_eq!(said.contains(&format!("record {seq} is missing")), status == 1, "{said}");
        }
        // Two that cannot both be right, whichever comes last.
        for hashes in [[hash, "00"], ["00", hash]] {
            let given = hashes.map(|hash| format!("{own}:4:{hash}"));
            prove(&lines, &["--expect", &given[0], "--expect", &given[1]], 1, "you give two for one number");
        }
        prove(&lines, &["--expect", &format!("{own}:0:{hash}")], 64, "");
        // A name that stands twice says one thing to a reader, and another to the hash.
        let detail = lines.replacen(r#""running":0"#, r#""running":9,"running":0"#, 1);
        assert_ne!(detail, lines);
        prove(&detail, &[], 1, "was changed");
        // The last numbers that there are, and what a terminal would obey.
        let mut last = records[2].clone();
        last["seq"] = json!(i64::MAX);
        let mut more = forged(&[last.clone(), last], "\u{1b}[8m\nall as they were written");
        let mut second: Value = serde_json::from_str(&more[1]).unwrap();
        second["seq"] = json!(i64::MAX);
        more[1] = second.to_string();
        let said = prove(&format!("{}\n", more.join("\n")), partial, 1, "");
        assert!(said.starts_with(r"\u{1b}[8m\nall as they were written: record 9223372036854775807 is behind"), "{said}");
        // Through a pipe, which can be read once.
        let pipe = gateway.dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (to, text) = (pipe.clone(), lines.clone());
        let writer = std::thread::spawn(move || std::fs::write(to, text).unwrap());
        says(&gateway, &["verify", pipe.to_str().unwrap(), "--jwks", names[1]], 0);
        writer.join().unwrap();
        prove("", &[], 1, "");
        prove("{}\n", partial, 1, "line 1");
        assert_eq!(exported(&gateway, &["--target", "target", "--outcome", "answered"]).len(), 5);
        // On a machine without the gateway's keys.
        std::fs::rename(gateway.dir.join("keys"), gateway.dir.join("elsewhere")).unwrap();
        let said = says(&gateway, &["verify", names[0]], 1);
        assert!(said.contains("give the ones that it publishes (/.well-known/jwks.json) with --jwks"), "{said}");
    }
}

on_embedded! {
    async fn an_answered_call_is_written_down_with_everything_but_content() {
        let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json(TASK).await).await;
        assert_eq!(message(&gateway, &caller.token, "r-1").await, 200);
        let record = of_request(&gateway, "r-1").await;
        let line = &gateway.access_lines("r-1").await[0];
        for (member, expected) in [
            ("event_type", json!("A2A_CALL")),
            ("caller", json!("caller")),
            ("target", json!("target")),
            ("org", json!(null)),
            ("credential_kind", json!("workspace")),
            ("credential_prefix", json!(caller.token[..8])),
            ("rule", json!("root_sibling")),
            ("method", json!("send_message")),
            ("outcome", json!("answered")),
            ("status", json!(200)),
            ("request_bytes", line["request_bytes"].clone()),
            ("response_bytes", json!(TASK.len())),
            ("task_id", json!("task-7")),
        ] {
            assert_eq!(record[member], expected, "{member}: {record}");
        }
        assert!(record["duration_ms"].as_i64().unwrap() < 600_000);
        assert!(record["seq"].as_i64().unwrap() > 1);
        for member in ["prev", "hash"] {
            assert_eq!(record[member].as_str().unwrap().len(), 64, "{record}");
        }
        assert!(!record.to_string().contains("\"hi\""), "{record}");
    }

    async fn refused_and_broken_calls_are_written_down_too() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let broken = Agent::scripted(|_| vec![Step::write("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), Step::Close]).await;
        let (caller, _target) = gateway.pair(broken).await;
        gateway.create(json!({"id": "alone", "name": "alone", "parent_id": "caller"})).await;
        let alone = token(&gateway, "/workspaces/alone/tokens", "").await;
        for (token, request_id, outcome, who, rule) in [
            ("a2aw_0000000000abcdefghijklmnopqrstuvwxyzABCDEFG", "r-1", "unauthenticated", None, None),
            (alone.as_str(), "r-2", "not_permitted", Some("alone"), None),
            (caller.token.as_str(), "r-3", "agent_protocol_error", Some("caller"), Some("root_sibling")),
            (ADMIN, "r-4", "agent_protocol_error", Some("operator:"), Some("operator")),
        ] {
            let status = message(&gateway, token, request_id).await;
            let record = of_request(&gateway, request_id).await;
            assert_eq!(record["outcome"], outcome, "{record}");
            assert_eq!(record["status"], status, "{record}");
            assert_eq!(record["caller"].as_str(), who, "{record}");
            assert_eq!(record["rule"].as_str(), rule, "{record}");
            assert_eq!(record["target"], "target", "{record}");
        }
        assert_eq!(recorded(&gateway, "outcome=agent_protocol_error&target=target", 2).await.len(), 2);
    }

    async fn a_stream_and_a_caller_that_leaves_are_written_down_when_they_end() {
        let gateway = Builder::new(Pair::Embedded).set("stream.linger", "0s").start().await;
        let event = format!("data: {TASK}\n\n");
        let agent = Agent::scripted(move |_| vec![Step::write(SSE_HEAD), Step::Write(chunk(&event)), Step::Hang]);
        let (caller, _target) = gateway.pair(agent.await).await;
        let mut request = super::message(&caller.token, "r-1");
        request.body = CALL.replace("message/send", "message/stream").into();
        let mut connection = Connection::open(gateway.public).await;
        connection.send(&request.wire("127.0.0.1")).await;
        connection.read_head().await.unwrap();
        connection.next_chunk().await.unwrap();
        assert!(recorded(&gateway, "request_id=r-1", 0).await.is_empty(), "it goes on");
        drop(connection);
        let record = of_request(&gateway, "r-1").await;
        assert_eq!(record["outcome"], "caller_left", "{record}");
        assert_eq!(record["task_id"], "task-7", "{record}");
        assert_eq!(record["method"], "send_streaming_message", "{record}");
    }

    async fn every_change_is_written_down_with_who_made_it() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let seat = gateway.seat("one", "", Agent::json("{}").await).await;
        let other = gateway.seat("two", "", Agent::json("{}").await).await;
        let grant = json!({"caller_id": "one", "target_id": "two", "note": "planted"});
        let ask = |method: &str, path: &str, token: &str, body: Value, id: &str| {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let request = Request { method: method.to_owned(), ..Request::post(path, body) };
            request.bearer(token).field("X-Request-Id", id)
        };
        let (mut grant_id, mut token_id, mut stop_id) = (String::new(), String::new(), String::new());
        for (method, path, token, body, event, target) in [
            ("PATCH", "/workspaces/one", ADMIN, json!({"name": "other"}), "WORKSPACE_CHANGED", "one"),
            ("POST", "/workspaces/one/pause", ADMIN, Value::Null, "WORKSPACE_PAUSED", "one"),
            ("POST", "/workspaces/one/resume", ADMIN, Value::Null, "WORKSPACE_RESUMED", "one"),
            ("POST", "/registry/update-card", &seat.token, json!({"workspace_id": "one", "agent_card": card("x")}), "CARD_UPDATED", "one"),
            ("POST", "/grants", ADMIN, grant, "GRANT_CREATED", "two"),
            ("DELETE", "/grants/GRANT", ADMIN, Value::Null, "GRANT_REMOVED", ""),
            ("POST", "/stops", ADMIN, json!({"scope": {"workspace": "two"}, "mode": "new", "reason": "a case"}), "STOP_CREATED", "two"),
            ("DELETE", "/stops/STOP", ADMIN, Value::Null, "STOP_RELEASED", "two"),
            ("POST", "/revocations", ADMIN, json!({"run": "r"}), "REVOCATION_CREATED", ""),
            ("POST", "/workspaces/one/tokens", &seat.token, Value::Null, "TOKEN_ISSUED", "one"),
            ("DELETE", "/workspaces/one/tokens/TOKEN", &seat.token, Value::Null, "TOKEN_REVOKED", "one"),
            ("POST", "/canvas/tokens", ADMIN, json!({"user": "ada"}), "TOKEN_ISSUED", ""),
            ("POST", "/orgs/acme/tokens", ADMIN, Value::Null, "TOKEN_ISSUED", ""),
            ("GET", "/registry/discover/two", &seat.token, Value::Null, "TOKEN_ISSUED", "two"),
            ("POST", "/workspaces/two/notify", &other.token, json!({"message": "planted"}), "MESSAGE_NOTIFIED", "two"),
            ("POST", "/registry/register", &other.token, json!({"id": "two", "instance_id": "i-1", "url": other.agent.url(), "agent_card": card("two")}), "WORKSPACE_REGISTERED", "two"),
            ("POST", "/registry/drain", &other.token, json!({"workspace_id": "two", "instance_id": "i-1"}), "INSTANCE_DRAINING", "two"),
            ("POST", "/registry/deregister", &other.token, json!({"workspace_id": "two"}), "WORKSPACE_DEREGISTERED", "two"),
            ("DELETE", "/workspaces/two", ADMIN, Value::Null, "WORKSPACE_REMOVED", "two"),
        ] {
            let path = path.replace("GRANT", &grant_id).replace("TOKEN", &token_id).replace("STOP", &stop_id);
            let request_id = format!("{event}-{}", path.replace('/', "."));
            let answer = gateway.call(&ask(method, &path, token, body, &request_id)).await;
            assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
            let record = of_request(&gateway, &request_id).await;
            assert_eq!(record["event_type"], event, "{record}");
            assert_eq!(record["target"].as_str().unwrap_or_default(), target, "{record}");
            assert_eq!(record["outcome"], "done", "{record}");
            assert_eq!(record["status"], answer.status, "{record}");
            let who = if path.starts_with("/registry/discover") { "one" } else if token == ADMIN { "operator:" } else { target };
            assert_eq!(record["caller"], who, "{record}");
            assert!(!record.to_string().contains("planted"), "{record}");
            let named = |name: &str| record["detail"][name].as_str().unwrap().to_owned();
            match event {
                "INSTANCE_DRAINING" => assert_eq!(named("instance_id"), "i-1", "{record}"),
                "GRANT_CREATED" => grant_id = named("grant_id"),
                "STOP_CREATED" => stop_id = named("stop_id"),
                "TOKEN_ISSUED" if path.starts_with("/workspaces") => token_id = named("token_id"),
                _ => {}
            }
        }
        // What nobody asks for by a request.
        let status = recorded(&gateway, "event_type=WORKSPACE_STATUS&workspace=one", 2).await;
        assert_eq!(status[0]["detail"]["status"], "online", "{status:?}");
        assert_eq!(status[0]["caller"], Value::Null, "{status:?}");
        // And what is refused.
        let refused = ask("POST", "/grants", &seat.token, json!({"caller_id": "one", "target_id": "two"}), "refused");
        assert_eq!(gateway.call(&refused).await.status, 403);
        let record = of_request(&gateway, "refused").await;
        assert_eq!([&record["event_type"], &record["outcome"], &record["caller"]], ["GRANT_CREATED", "not_permitted", "one"]);
        // Heartbeats leave none.
        let beat = ask("POST", "/registry/heartbeat", &seat.token, json!({"workspace_id": "one"}), "beat");
        assert_eq!(gateway.call(&beat).await.status, 200);
        assert_eq!(message(&gateway, ADMIN, "after").await, 404);
        of_request(&gateway, "after").await;
        assert!(recorded(&gateway, "request_id=beat", 0).await.is_empty());
    }
}
