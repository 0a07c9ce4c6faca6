//! What no record may hold, and how records are looked for.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::audit::of_request;
use crate::harness::{
    ADMIN, Agent, CALL, Connection, Gateway, Pair, Request, holds_for, until_found,
};
use crate::operators::{self, paired};
use crate::{on_both_pairs, on_embedded};

async fn found(gateway: &Gateway, query: &str) -> Vec<Value> {
    let answer = gateway.admin_get(&format!("/audit?{query}")).await.unwrap();
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    answer.json()["records"].as_array().unwrap().clone()
}

fn ask(method: &str, path: &str, token: &str, request_id: &str) -> Request {
    let body = if method == "POST" { CALL } else { "" };
    let mut request = Request::post(path, body).bearer(token);
    request.method = method.to_owned();
    request.field("X-Request-Id", request_id)
}

on_both_pairs! {
    async fn a_filter_takes_the_words_that_are_used_elsewhere_and_no_other(pair: Pair) {
        let (gateway, _caller, _target) = paired(pair, Agent::json("{}").await).await;
        let child = gateway.seat("child", "target", Agent::json("{}").await).await;
        assert_eq!(gateway.call(&ask("POST", "/workspaces/caller/a2a", &child.token, "denied")).await.status, 403);
        assert_eq!(gateway.call(&ask("POST", "/workspaces/target/a2a", ADMIN, "sent")).await.status, 200);
        for id in ["denied", "sent"] {
            of_request(&gateway, id).await;
        }
        for (query, id) in [
            ("caller=operator&event_type=A2A_CALL", "sent"),
            ("caller=operator:&event_type=A2A_CALL", "sent"),
            ("outcome=NOT_PERMITTED", "denied"),
            ("method=message/send&outcome=answered", "sent"),
            ("method=SendMessage&outcome=answered", "sent"),
        ] {
            let found = found(&gateway, query).await;
            assert_eq!(found.len(), 1, "{query}: {found:?}");
            assert_eq!(found[0]["request_id"], id, "{query}");
        }
        let broken = URL_SAFE_NO_PAD.encode(r#"[1,"a\u0000",2]"#);
        for (query, word) in [
            ("outcome=bogus", "not_permitted"),
            ("method=message/sent", "send_message"),
            ("event_type=bogus", "A2A_CALL"),
            (&*format!("cursor={broken}"), "next_cursor"),
        ] {
            let answer = gateway.admin_get(&format!("/audit?{query}")).await.unwrap();
            assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{query}");
            assert!(answer.text().contains(word), "{query}: {}", answer.text());
        }
    }
}

on_embedded! {
    async fn a_credential_in_the_place_of_a_name_is_not_written_down() {
        let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let token = caller.token.as_str();
        let bare = &token[5..];
        let unknown = "a2aw_0000000000abcdefghijklmnopqrstuvwxyzABCDEFG";
        let words = "SECRET-customer-4711";
        for (n, (method, path, by, status)) in [
            ("DELETE", format!("/workspaces/caller/tokens/{token}"), token, 404),
            ("DELETE", format!("/workspaces/caller/tokens/{bare}"), token, 404),
            ("DELETE", format!("/grants/{words}"), unknown, 401),
            ("DELETE", format!("/grants/{token}"), ADMIN, 404),
            ("DELETE", format!("/orgs/{words}/tokens/{words}"), unknown, 401),
            ("DELETE", format!("/orgs/{token}/tokens/{token}"), ADMIN, 404),
            ("POST", format!("/workspaces/caller/activity/{words}/reply"), unknown, 401),
            ("POST", format!("/workspaces/{token}/pause"), ADMIN, 404),
            ("POST", format!("/workspaces/{bare}/pause"), ADMIN, 404),
            ("POST", format!("/workspaces/{token}/a2a"), unknown, 401),
            ("POST", format!("/workspaces/{token}/a2a"), token, 403),
            ("POST", format!("/workspaces/{bare}/a2a"), ADMIN, 404),
        ].into_iter().enumerate() {
            let id = format!("r-{n}");
            let answer = gateway.call(&ask(method, &path, by, &id)).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            let record = of_request(&gateway, &id).await;
            assert_eq!(record["status"], status, "{record}");
            let text = record.to_string();
            for planted in [words, &token[..9], &bare[..9]] {
                assert!(!text.contains(planted), "{path}: {text}");
            }
        }
        let planted = [&token[..12], &bare[..12]];
        gateway.access_lines("r-9").await;
        let log = gateway.log();
        assert!(!planted.iter().any(|part| log.contains(part)), "{log}");
        // Names are, and so are ids that a gateway made, also of what is not there.
        let id = uuid::Uuid::now_v7().to_string();
        for (path, member, expected) in [
            (format!("/grants/{id}"), "grant_id", json!(id)),
            (format!("/orgs/acme/tokens/{id}"), "token_id", json!(id)),
            ("/orgs/acme/tokens/x".to_owned(), "token_id", Value::Null),
        ] {
            let request_id = format!("named-{}", path.replace('/', "."));
            let answer = gateway.call(&ask("DELETE", &path, ADMIN, &request_id)).await;
            assert_eq!(answer.status, 404, "{}", answer.text());
            let record = of_request(&gateway, &request_id).await;
            assert_eq!(record["detail"][member], expected, "{record}");
        }
        let mut make = ask("POST", "/orgs/acme/tokens", ADMIN, "made");
        make.body = "{}".into();
        let made = gateway.call(&make).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let record = of_request(&gateway, "made").await;
        assert_eq!(record["detail"]["org"], "acme", "{record}");
        gateway.call(&ask("POST", "/workspaces/nobody/a2a", unknown, "nobody")).await;
        assert_eq!(of_request(&gateway, "nobody").await["target"], "nobody");
    }

    async fn the_id_of_a_call_is_not_taken_for_its_task() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let said = r#"{"jsonrpc":"2.0","id":"SECRET customer 4711","result":{"kind":"message","messageId":"m-1","role":"agent","parts":[]}}"#;
        let task = r#"{"jsonrpc":"2.0","id":"c-1","result":{"kind":"task","id":"task-7","contextId":"c","status":{"state":"working"}}}"#;
        let (caller, _target) = gateway.pair(Agent::json(said).await).await;
        let _tasks = gateway.seat("tasks", "", Agent::json(task).await).await;
        let call = CALL.replace("\"c-1\"", "\"SECRET customer 4711\"");
        assert_ne!(call, CALL);
        let message = json!({"message": serde_json::from_str::<Value>(CALL).unwrap()["params"]["message"]}).to_string();
        for (path, body, id, expected) in [
            ("/workspaces/target/a2a", call.as_str(), "message", Value::Null),
            ("/workspaces/target/a2a", &call, "again", Value::Null),
            ("/workspaces/tasks/a2a/tasks/send", &message, "bare", json!("task-7")),
            ("/workspaces/tasks/a2a", CALL, "task", json!("task-7")),
            ("/workspaces/tasks/a2a", CALL, "task-again", json!("task-7")),
        ] {
            let key = match id { "again" => "message", "task-again" => "task", id => id };
            let request = Request::post(path, body)
                .bearer(&caller.token)
                .field("X-Request-Id", id)
                .field("Idempotency-Key", key);
            let answer = gateway.call(&request).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.field("idempotent-replay").is_some(), id != key, "{id}");
            let record = of_request(&gateway, id).await;
            assert_eq!((&record["task_id"], &record["outcome"]), (&expected, &json!("answered")), "{record}");
            assert!(!record.to_string().contains("SECRET"), "{record}");
        }
    }

    async fn what_is_refused_names_whom_it_meant_and_what_is_delegated_its_target() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = || Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#);
        let (caller, _target) = gateway.pair(agent().await).await;
        let _far = gateway.seat("far", "target", agent().await).await;
        let send = async |path: &str, body: Value, token: &str, id: &str| {
            let request = Request::post(path, body.to_string()).bearer(token);
            gateway.call(&request.field("X-Request-Id", id)).await
        };
        let delegate = "/workspaces/caller/delegate";
        for (id, path, body) in [
            ("deregister", "/registry/deregister", json!({"workspace_id": "far"})),
            ("drain", "/registry/drain", json!({"workspace_id": "far", "instance_id": "one"})),
            ("update", "/registry/update-card", json!({"workspace_id": "far", "agent_card": {}})),
            ("register", "/registry/register", json!({"id": "far", "url": "http://127.0.0.1:1", "agent_card": {}})),
            ("grant", "/grants", json!({"caller_id": "caller", "target_id": "far"})),
            ("delegate", delegate, json!({"target_id": "far", "task": "x"})),
        ] {
            let answer = send(path, body, &caller.token, id).await;
            assert_eq!(answer.reason(), "not_permitted", "{id}: {}", answer.text());
            let record = of_request(&gateway, id).await;
            assert_eq!((&record["target"], &record["outcome"]), (&json!("far"), &json!("not_permitted")), "{record}");
            assert_eq!(record["caller"], "caller", "{record}");
        }
        // Accepted, and refused when it would be sent: the grant is gone by then.
        let done = async |method: &str, path: &str, body: Value| {
            let answer = operators::call(&gateway, method, path, ADMIN, body).await;
            let expected = if path == "/grants" { 201 } else { 200 };
            assert_eq!(answer.status, expected, "{path}: {}", answer.text());
            answer.json()
        };
        let granted = done("POST", "/grants", json!({"caller_id": "caller", "target_id": "far"})).await;
        done("POST", "/workspaces/far/pause", Value::Null).await;
        let accepted = send(delegate, json!({"target_id": "far", "task": "x"}), &caller.token, "accepted").await;
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        let id = accepted.json()["delegation_id"].as_str().unwrap().to_owned();
        let record = of_request(&gateway, "accepted").await;
        assert_eq!((&record["target"], &record["detail"]["delegation_id"]), (&json!("far"), &json!(id)), "{record}");
        done("DELETE", &format!("/grants/{}", granted["id"].as_str().unwrap()), Value::Null).await;
        done("POST", "/workspaces/far/resume", Value::Null).await;
        let record = of_request(&gateway, &id).await;
        assert_eq!((&record["event_type"], &record["outcome"]), (&json!("A2A_CALL"), &json!("not_permitted")), "{record}");
        assert_eq!((&record["caller"], &record["target"]), (&json!("caller"), &json!("far")), "{record}");
    }

    async fn a_change_whose_caller_has_left_is_written_down() {
        let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let path = "/workspaces/caller/tokens";
        let before = found(&gateway, "event_type=TOKEN_ISSUED").await.len();
        let tokens = async || {
            let listed = gateway.call(&Request::get(path).bearer(&caller.token)).await;
            listed.json()["tokens"].as_array().unwrap().len()
        };
        let first = tokens().await;
        for n in 0..20 {
            let mut connection = Connection::open(gateway.public).await;
            let request = Request::post(path, "{}").bearer(&caller.token);
            let request = request.field("X-Request-Id", format!("left-{n}"));
            connection.send(&request.wire(&gateway.public.to_string())).await;
            // Some before it is read, some before it is answered.
            tokio::time::sleep(Duration::from_micros(200 * n)).await;
            drop(connection);
        }
        gateway.assert_idle().await;
        until_found("each that was made is written down", async || {
            let made = tokens().await - first;
            let records = found(&gateway, "event_type=TOKEN_ISSUED").await.len() - before;
            (made > 0 && made == records).then_some(())
        }).await;
    }

    async fn a_rotation_of_the_keys_is_written_down_once_with_what_came_and_went() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let folder = gateway.dir.join("keys");
        let rotate = || {
            let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
                .args(["keys", "rotate", "--set", &format!("keys.dir={}", folder.display())])
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let published = async || {
            let jwks = gateway.call(&Request::get("/.well-known/jwks.json")).await.json();
            let mut kids: Vec<_> = jwks["keys"].as_array().unwrap().iter().map(|key| key["kid"].clone()).collect();
            kids.sort_by_key(Value::to_string);
            kids
        };
        let mut known = published().await;
        for rotations in 1..=2 {
            rotate();
            // Of one that was caught half-way there are two before the next begins.
            let (records, now) = until_found("the rotation is written down", async || {
                let records = found(&gateway, "event_type=KEYS_CHANGED").await;
                let now = published().await;
                let came = now.iter().find(|kid| !known.contains(kid));
                let told = |kid: &Value| {
                    let mut came = records.iter().filter_map(|record| record["detail"]["came"].as_array());
                    came.any(|came| came.contains(kid))
                };
                (records.len() >= rotations && came.is_some_and(told)).then_some((records, now))
            }).await;
            // One may be caught half-way; together they say it all, and no two the same.
            let details: Vec<_> = records.iter().map(|record| record["detail"].clone()).collect();
            let came: Vec<_> = now.iter().filter(|kid| !known.contains(kid)).collect();
            assert_eq!(came.len(), 1, "{now:?}");
            assert!(details.iter().any(|detail| detail["came"].as_array().unwrap().contains(came[0])), "{details:?}");
            assert!(details.iter().all(|detail| now.contains(&detail["active"])), "{details:?}");
            known = now;
        }
        let each_is_another = async || {
            let records = found(&gateway, "event_type=KEYS_CHANGED").await;
            let details: BTreeSet<_> = records.iter().map(|record| record["detail"].to_string()).collect();
            details.len() == records.len()
        };
        holds_for(Duration::from_millis(500), "no two records say the same", each_is_another).await;
    }

    async fn a_credential_in_a_request_id_is_not_taken_over() {
        let (gateway, caller, target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let (own, other) = (caller.token.as_str(), target.token.as_str());
        let pair_token = gateway.call(&Request::get("/registry/discover/target").bearer(own)).await;
        let jwt = pair_token.json()["token"].as_str().unwrap()[..120].to_owned();
        let held = [own, &own[5..], other, &other[5..], ADMIN, &ADMIN[5..], &jwt, &format!("x.{}", &own[5..]), &format!("id-{own}")];
        for id in held {
            for path in ["/workspaces/target/a2a", "/workspaces"] {
                let answer = gateway.call(&ask("POST", path, own, id)).await;
                let said = answer.field("x-request-id").unwrap();
                assert_ne!(said, id, "{path}");
            }
            // In a head that cannot be read.
            let mut connection = Connection::open(gateway.public).await;
            let head = format!("POST /workspaces/target/a2a HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {id}\r\nBad Field: 1\r\n\r\n");
            connection.send(head.as_bytes()).await;
            let answer = connection.answer().await;
            assert_eq!(answer.status, 400);
            assert_ne!(answer.field("x-request-id"), Some(id));
            // On the admin listener.
            let stream = tokio::net::TcpStream::connect(gateway.admin).await.unwrap();
            let mut connection = Connection::over(stream);
            let request = Request::get("/console/keys").bearer(ADMIN).field("X-Request-Id", id);
            connection.send(&request.wire(&gateway.admin.to_string())).await;
            assert_ne!(connection.answer().await.field("x-request-id"), Some(id));
        }
        let log = gateway.log();
        assert!(!held.iter().any(|id| log.contains(id)), "the log has a credential");
        assert_eq!(target.agent.count(), held.len());
        assert!(!target.agent.requests().iter().any(|request| request.head.contains(own)));
        // An ordinary id stays.
        let id = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let answer = gateway.call(&ask("POST", "/workspaces/target/a2a", own, id)).await;
        assert_eq!(answer.field("x-request-id"), Some(id));
        let lock = std::fs::metadata(gateway.dir.join("keys/.lock")).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&lock.permissions()) & 0o777, 0o600);
    }
}
