//! Workspaces are created, read and registered (contract §4.1, §8.1), and outlive the process.

use serde_json::{Value, json};

use crate::harness::{ADMIN, Agent, Answer, CALL, Gateway, Pair, Request, assert_refusal, card};
use crate::operators::{call, paired, view};
use crate::tokens::token;
use crate::{on_both_pairs, on_embedded};

/// A workspace reads as these, in this order.
const MEMBERS: &str = "id name role parent_id org status delivery_mode liveness url internal_url card_url agent_card \
    last_seen active_tasks current_task max_concurrent created_at updated_at";

async fn create(gateway: &Gateway, body: impl ToString) -> Answer {
    let request = Request::post("/workspaces", body.to_string());
    let request = request.field("X-Request-Id", "seen");
    gateway.as_operator(request).await
}

async fn register(gateway: &Gateway, token: &str, body: &Value) -> Answer {
    call(gateway, "POST", "/registry/register", token, body.clone()).await
}

/// Asserts that it has each of these members.
fn has(seen: &Value, members: &Value) {
    for (name, value) in members.as_object().unwrap() {
        assert_eq!(&seen[name], value, "{name}: {seen}");
    }
}

/// A body with more members.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn refused(answer: &Answer, path: &str, reason: &str, what: &str) {
    assert_refusal(answer, path, "seen", reason, what);
}

/// Milliseconds, UTC: `2025-01-31T12:00:00.000Z`.
fn is_time(value: &Value) -> bool {
    let pattern = "dddd-dd-ddTdd:dd:dd.dddZ";
    let text = value.as_str().unwrap_or_default();
    let shape = text.replace(|c: char| c.is_ascii_digit(), "d");
    shape == pattern && !text.contains('d')
}

on_both_pairs! {
    async fn a_workspace_has_every_member_that_it_was_created_with(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        create(&gateway, json!({"id": "top", "name": "Top", "org": "acme"})).await;
        let said = json!({"id": "dev.1_A-b", "name": "Développeur", "parent_id": "top", "org": "acme",
            "role": "developer", "delivery_mode": "push", "url": "http://127.0.0.1:9/a?b=1",
            "card_url": "http://127.0.0.1:9/card", "max_concurrent": 3, "liveness": "assumed"});
        let answer = create(&gateway, &said).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(answer.field("location"), Some("/workspaces/dev.1_A-b"));
        let created = answer.json();
        has(&created, &said);
        assert_eq!(created["status"], "online", "its liveness is assumed");
        assert!(is_time(&created["created_at"]) && is_time(&created["updated_at"]), "{created}");
        let token = created["enrolment_token"].as_str().unwrap();
        assert!(token.starts_with("a2ae_") && token.len() == 48, "{token}");

        let read = gateway.as_operator(Request::get("/workspaces/dev.1_A-b")).await;
        let text = read.text();
        let members: Vec<_> = MEMBERS.split_whitespace().collect();
        let places: Vec<_> = members.iter().map(|m| text.find(&format!("\"{m}\":"))).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
        let mut rest = created.clone();
        rest.as_object_mut().unwrap().remove("enrolment_token");
        let mut shown = read.json();
        let health = shown.as_object_mut().unwrap().remove("health");
        assert!(health.is_some_and(|health| health["state"].is_string()));
        assert_eq!(shown, rest, "the enrolment token is shown once");
        assert_eq!(rest.as_object().unwrap().len(), members.len());
        assert!(!gateway.log().contains(token));
    }

    async fn of_two_registrations_with_one_enrolment_token_one_wins(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        for round in 0..5 {
            let id = format!("dev-{round}");
            let enrolment = gateway.create(json!({"id": id, "name": "dev"})).await;
            let body = json!({"id": id, "url": "http://127.0.0.1:9/", "agent_card": card("dev")});
            let at_once = || register(&gateway, &enrolment, &body);
            let (a, b, c) = tokio::join!(at_once(), at_once(), at_once());
            let mut statuses = [a.status, b.status, c.status];
            statuses.sort_unstable();
            assert_eq!(statuses, [200, 401, 401]);
        }
    }

    async fn what_was_registered_outlives_a_sigkill(pair: Pair) {
        let (mut gateway, caller, target) = paired(pair, Agent::json("{}").await).await;
        let enrolment = gateway.create(json!({"id": "late", "name": "late"})).await;
        let canvas = token(&gateway, "/canvas/tokens", r#"{"user":"ada"}"#).await;
        let org = gateway.as_operator(Request::post("/orgs/acme/tokens", "{}")).await;
        let revoked = gateway.as_operator(Request::post("/workspaces/caller/tokens", "{}")).await;
        let revoked = revoked.json();
        let path = format!("/workspaces/caller/tokens/{}", revoked["id"].as_str().unwrap());
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        let before = view(&gateway, "target").await;

        gateway.restart().await;

        let after = view(&gateway, "target").await;
        for name in MEMBERS.split_whitespace().filter(|name| *name != "last_seen") {
            assert_eq!(after[name], before[name], "{name}");
        }
        for token in [&caller.token, &canvas] {
            let answer = gateway.call(&Request::post(target.path(), CALL).bearer(token)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let revoked = revoked["token"].as_str().unwrap();
        let answer = gateway.call(&Request::post(target.path(), CALL).bearer(revoked)).await;
        assert_eq!(answer.status, 401);
        assert_eq!(target.agent.count(), 2);
        let list = gateway.as_operator(Request::get("/orgs/acme/tokens")).await.json();
        assert_eq!(list["tokens"][0]["id"], org.json()["id"]);
        gateway.register("late", &enrolment, "http://127.0.0.1:9/", card("late")).await;
    }
}

on_embedded! {
    async fn what_a_change_can_say_a_creation_can() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        let said = json!({"id": "a", "name": "a", "url": agent.url(), "internal_url": "http://127.0.0.1:9/in",
            "liveness": "assumed", "complete": "off", "push_notifications": false});
        let answer = create(&gateway, &said).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        let created = answer.json();
        has(&created, &said);
        has(&view(&gateway, "a").await, &said);
        let call = Request::post("/workspaces/a/a2a", r#"{"jsonrpc":"2.0","id":"c-1","method":"tasks/pushNotificationConfig/list","params":{"id":"t"}}"#);
        assert_eq!(gateway.as_operator(call).await.reason(), "push_not_supported", "as was said");
        assert_eq!(agent.calls(), 0);
    }

    async fn a_registration_by_an_operator_says_what_keeps_it_online_and_where_its_card_is() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let url = "http://127.0.0.1:9/a";
        let plain = json!({"id": "a", "url": url, "agent_card": card("a")});
        let with = |more: Value| with(&plain, &more);
        let full = with(json!({"liveness": "assumed", "card_url": "http://127.0.0.1:9/card"}));
        let answer = register(&gateway, ADMIN, &full).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let shown = |seen: &Value| (seen["liveness"].clone(), seen["card_url"].clone());
        let said = (json!("assumed"), json!("http://127.0.0.1:9/card"));
        assert_eq!(shown(&view(&gateway, "a").await), said);
        // Without them it stays as it is; what one says replaces that one.
        for (more, expected) in [
            (json!({}), said.clone()),
            (json!({"card_url": "http://127.0.0.1:9/b"}), (said.0.clone(), json!("http://127.0.0.1:9/b"))),
            (json!({"liveness": "heartbeat"}), (json!("heartbeat"), json!("http://127.0.0.1:9/b"))),
        ] {
            let answer = register(&gateway, ADMIN, &with(more)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(shown(&view(&gateway, "a").await), expected);
        }
        let before = view(&gateway, "a").await;
        for (by, more, reason, says) in [
            (&*token, json!({"liveness": "assumed"}), "not_permitted", "`liveness`"),
            (&*token, json!({"card_url": "http://127.0.0.1:9/c"}), "not_permitted", "`card_url`"),
            (ADMIN, json!({"card_url": "http://169.254.169.254/c"}), "address_forbidden", "card_url"),
            (ADMIN, json!({"card_url": "nowhere"}), "invalid_params", "card_url has no scheme"),
            (ADMIN, json!({"liveness": "alive"}), "invalid_params", "`liveness`"),
        ] {
            let answer = register(&gateway, by, &with(more)).await;
            refused(&answer, "/registry/register", reason, says);
            assert!(answer.text().contains(says), "{}", answer.text());
        }
        assert_eq!(view(&gateway, "a").await, before);
        // An agent's own registration may have members that nobody knows.
        let own = with(json!({"tier": 3, "runtime": {"a": 1}}));
        assert_eq!(register(&gateway, &token, &own).await.status, 200);
    }

    async fn what_is_not_said_has_a_default_and_the_org_is_the_parents() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let one = create(&gateway, json!({"name": "n", "org": "acme"})).await.json();
        let other = create(&gateway, json!({"name": "n", "parent_id": one["id"]})).await.json();
        assert_ne!(one["id"], other["id"]);
        assert_ne!(one["enrolment_token"], other["enrolment_token"]);
        assert_eq!(other["org"], "acme");
        assert_eq!(one["id"].as_str().unwrap().len(), 36);
        has(&one, &json!({"status": "provisioning", "delivery_mode": "push", "liveness": "heartbeat", "active_tasks": 0}));
        for name in ["role", "parent_id", "url", "internal_url", "card_url", "agent_card",
            "last_seen", "current_task", "max_concurrent"] {
            assert_eq!(one[name], Value::Null, "{name}");
        }
        let longest = "x".repeat(128);
        let answer = create(&gateway, json!({"id": longest, "name": "n"})).await;
        assert_eq!(answer.status, 201);
    }

    async fn a_workspace_that_cannot_be_is_not_created() {
        let gateway = Gateway::start(Pair::Embedded).await;
        create(&gateway, json!({"id": "taken", "name": "n", "org": "acme"})).await;
        let with = |name: &str, value: Value| {
            let mut body = json!({"id": "new", "name": "n"});
            body[name] = value;
            body.to_string()
        };
        for (body, reason) in [
            (with("id", json!("taken")), "conflict"),
            (with("parent_id", json!("nobody")), "conflict"),
            (with("parent_id", json!("new")), "conflict"),
            (json!({"id": "new", "name": "n", "parent_id": "taken", "org": "other"}).to_string(), "conflict"),
            (with("id", json!("a b")), "invalid_workspace_id"),
            (with("id", json!("system:x")), "invalid_workspace_id"),
            (with("id", json!("")), "invalid_workspace_id"),
            (with("id", json!("x".repeat(129))), "invalid_workspace_id"),
            (with("id", json!(7)), "invalid_params"),
            (with("parent_id", json!("../x")), "invalid_workspace_id"),
            (json!({"id": "new"}).to_string(), "invalid_params"),
            (with("name", json!("")), "invalid_params"),
            (with("name", json!("x".repeat(257))), "invalid_params"),
            (with("role", json!("a\u{0}b")), "invalid_params"),
            (with("org", json!(" ")), "invalid_params"),
            (with("delivery_mode", json!("carrier-pigeon")), "invalid_params"),
            (with("liveness", json!("assumed")), "invalid_params"),
            (with("max_concurrent", json!(0)), "invalid_params"),
            (with("max_concurrent", json!(-1)), "invalid_params"),
            (with("url", json!("http://169.254.169.254/latest")), "address_forbidden"),
            (with("card_url", json!("http://[fd00:ec2::254]/")), "address_forbidden"),
            ("{\"name\":\"a\",\"name\":\"b\"}".to_owned(), "invalid_request"),
            ("[]".to_owned(), "invalid_request"),
            (String::new(), "parse_error"),
            ("{\"name\":NaN}".to_owned(), "parse_error"),
        ] {
            let answer = create(&gateway, &body).await;
            refused(&answer, "/workspaces", reason, &body);
            assert!(!answer.text().contains("a2ae_"), "{body}");
        }
        // What is unknown is named.
        for name in ["push_notification", "agent_card", "status", "Url"] {
            let answer = create(&gateway, json!({"id": "new", "name": "n", name: "x"})).await;
            refused(&answer, "/workspaces", "invalid_params", name);
            let message = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(message.starts_with(&format!("`{name}` is not known here")), "{message}");
            assert!(message.contains("`push_notifications`"), "{message}");
        }
        let large = format!("{{\"name\":\"n\",\"x\":\"{}\"}}", "x".repeat(1 << 20));
        refused(&create(&gateway, large).await, "/workspaces", "body_too_large", "1 MiB");
        let form = Request::post("/workspaces", r#"{"id":"new","name":"n"}"#).without("content-type");
        let form = form.field("Content-Type", "text/plain").field("X-Request-Id", "seen");
        refused(&gateway.as_operator(form).await, "/workspaces", "unsupported_media_type", "text");
        let path = "/workspaces/new";
        let read = gateway.as_operator(Request::get(path).field("X-Request-Id", "seen")).await;
        refused(&read, path, "workspace_not_found", "nothing was created");
    }

    async fn addresses_are_null_to_all_but_itself_and_operators() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let mut tokens = Vec::new();
        for (id, org) in [("target", "acme"), ("sibling", "acme"), ("stranger", "other")] {
            let enrolment = gateway.create(json!({"id": id, "name": id, "org": org})).await;
            let body = json!({"id": id, "url": "http://127.0.0.1:9/secret-path", "agent_card": card(id),
                "internal_url": "http://127.0.0.2:9/secret-inside"});
            let answer = register(&gateway, &enrolment, &body).await;
            tokens.push(answer.json()["token"].as_str().unwrap().to_owned());
        }
        let canvas = token(&gateway, "/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        let read = async |token: &str, id: &str| {
            call(&gateway, "GET", &format!("/workspaces/{id}"), token, Value::Null).await
        };
        for token in [&*tokens[0], ADMIN] {
            let seen = read(token, "target").await.json();
            assert_eq!(seen["url"], "http://127.0.0.1:9/secret-path");
            assert_eq!(seen["internal_url"], "http://127.0.0.2:9/secret-inside");
        }
        for token in [&tokens[1], &canvas, &org] {
            let answer = read(token, "target").await;
            assert_eq!(answer.status, 200);
            let seen = answer.json();
            assert_eq!((&seen["url"], &seen["internal_url"]), (&Value::Null, &Value::Null));
            let mut shown = card("target");
            shown["url"] = format!("http://{}/workspaces/target/a2a", gateway.public).into();
            assert_eq!(seen["agent_card"], shown);
            assert!(!answer.text().contains("secret-"), "{seen}");
        }
        // What may not be read is like what is not there.
        let denied = read(&tokens[2], "target").await;
        refused(&denied, "/workspaces/target", "not_permitted", "a stranger");
        assert_eq!(denied.body, read(&tokens[2], "nobody").await.body);
    }

    async fn a_registration_that_cannot_be_changes_nothing() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let enrolment = gateway.create(json!({"id": "dev", "name": "dev", "org": "acme"})).await;
        gateway.create(json!({"id": "other", "name": "other", "org": "acme"})).await;
        let body = json!({"id": "dev", "url": "http://127.0.0.1:9/", "agent_card": card("dev")});
        let with = |name: &str, value: Value| with(&body, &json!({ name: value }));
        let without = |name: &str| {
            let mut body = body.clone();
            body.as_object_mut().unwrap().remove(name);
            body
        };
        let of_length = |bytes: usize| json!({"x": "x".repeat(bytes - 8)});
        let mut cases = vec![
            (without("id"), "invalid_params"),
            (without("url"), "invalid_params"),
            (without("agent_card"), "invalid_params"),
            (with("agent_card", json!("card")), "invalid_params"),
            (with("agent_card", json!([])), "invalid_params"),
            (with("agent_card", Value::Null), "invalid_params"),
            (with("agent_card", of_length(256 * 1024 + 1)), "body_too_large"),
            (with("delivery_mode", json!("pull")), "invalid_params"),
            (with("id", json!("a/b")), "invalid_workspace_id"),
            (with("id", json!("other")), "not_permitted"),
            (with("id", json!("nobody")), "not_permitted"),
            (with("name", json!("Boss")), "not_permitted"),
            (with("parent_id", json!("other")), "not_permitted"),
            (with("org", json!("acme")), "not_permitted"),
        ];
        let urls = [
            "http://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://2852039166/",
            "http://[fe80::1]/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
            "http://224.0.0.1/", "http://0.0.0.0:80/", "http://255.255.255.255/", "http://192.0.2.1/",
            "http://198.18.0.1/", "http://240.0.0.1/", "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::]/", "http://user@127.0.0.1/", "http://user:pw@127.0.0.1/",
            "ftp://127.0.0.1/", "file:///etc/passwd",
        ];
        // What is no URL, or one to some parsers only.
        let malformed = [
            "unix:/run/agent.sock", "javascript:1", "", "nowhere", "127.0.0.1:8001", "localhost:8001",
            "http://127.0.0.1:1\\@127.0.0.2/", " http://127.0.0.1/", "http://127.0.0.1/ ",
            "http://127.0.0.1/a\tb", "http://127.0.0.1/\r\nX: y", "http://127.0.0.1/\0", "http://",
        ];
        for member in ["url", "internal_url"] {
            cases.extend(urls.map(|url| (with(member, json!(url)), "address_forbidden")));
            cases.extend(malformed.map(|url| (with(member, json!(url)), "invalid_params")));
        }
        let before = view(&gateway, "dev").await;
        for (body, reason) in cases {
            let answer = register(&gateway, &enrolment, &body).await;
            let what = body.to_string();
            refused(&answer, "/registry/register", reason, &what[..what.len().min(300)]);
            assert!(!answer.text().contains("pw@"));
        }
        assert_eq!(view(&gateway, "dev").await, before);
        // Nothing of it used the enrolment token up; the largest card passes.
        let answer = register(&gateway, &enrolment, &with("agent_card", of_length(256 * 1024))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn the_first_registration_gives_a_token_and_later_ones_none() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let enrolment = gateway.create(json!({"id": "dev", "name": "dev"})).await;
        let body = json!({"id": "dev", "url": "http://127.0.0.1:9/", "agent_card": card("dev")});
        let answer = register(&gateway, &enrolment, &body).await;
        let first = answer.json();
        let token = first["token"].as_str().unwrap().to_owned();
        let expected = json!({"status": "registered", "id": "dev", "delivery_mode": "push",
            "token": token, "auth_token": token});
        assert_eq!(first, expected);
        assert!(token.starts_with("a2aw_") && token.len() == 48);
        assert_eq!(view(&gateway, "dev").await["status"], "online");

        refused(&register(&gateway, &enrolment, &body).await, "", "unauthenticated", "used before");
        for registrar in [&*token, ADMIN] {
            let again = register(&gateway, registrar, &body).await.json();
            let none = json!({"status": "registered", "id": "dev", "delivery_mode": "push"});
            assert_eq!(again, none);
        }
        // With no live token left, the next registration gives one again.
        let list = gateway.as_operator(Request::get("/workspaces/dev/tokens")).await.json();
        let path = format!("/workspaces/dev/tokens/{}", list["tokens"][0]["id"].as_str().unwrap());
        assert_eq!(gateway.as_operator(Request::new("DELETE", path)).await.status, 200);
        let new = register(&gateway, ADMIN, &body).await.json();
        assert!(new["token"].is_string() && new["token"] != *token, "{new}");
        let log = gateway.log();
        assert!(!log.contains(&token) && !log.contains(&enrolment));
    }

    async fn a_new_url_counts_from_the_next_call_on() {
        let (gateway, caller, target) = paired(Pair::Embedded, Agent::json(r#"{"from":1}"#).await).await;
        let second = Agent::json(r#"{"from":2}"#).await;
        let call = Request::post(target.path(), CALL).bearer(&caller.token);
        assert_eq!(gateway.call(&call).await.text(), r#"{"from":1}"#);
        for (url, expected) in [(second.url(), 2), (target.agent.url(), 1), (second.url(), 2)] {
            let body = json!({"id": "target", "url": url, "agent_card": card("target")});
            assert_eq!(register(&gateway, &target.token, &body).await.status, 200);
            assert_eq!(gateway.call(&call).await.json()["from"], expected);
        }
    }

    async fn operators_and_orgs_register_what_is_theirs() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        create(&gateway, json!({"id": "top", "name": "top", "org": "acme"})).await;
        create(&gateway, json!({"id": "foreign", "name": "f", "org": "other"})).await;
        let body = |id: &str, more: Value| {
            with(&json!({"id": id, "url": "http://127.0.0.1:9/", "agent_card": card(id)}), &more)
        };
        let placed = json!({"name": "Named", "parent_id": "top", "org": "acme"});
        for (token, id) in [(ADMIN, "by-operator"), (&org, "by-org")] {
            let answer = register(&gateway, token, &body(id, placed.clone())).await;
            assert!(answer.json()["token"].is_string(), "{}", answer.text());
            let seen = view(&gateway, id).await;
            has(&seen, &placed);
            assert_eq!(seen["status"], "online");
        }
        // An integration stays in its org and moves nothing.
        for more in [json!({"org": "other"}), json!({"parent_id": "foreign"}), json!({"parent_id": "nobody"})] {
            let answer = register(&gateway, &org, &body("new", more.clone())).await;
            refused(&answer, "", "not_permitted", &more.to_string());
        }
        for (id, more) in [("foreign", json!({})), ("by-org", json!({"parent_id": "by-operator"}))] {
            refused(&register(&gateway, &org, &body(id, more)).await, "", "not_permitted", id);
        }
        // An operator moves, but makes no cycle.
        let moved = body("by-org", json!({"parent_id": "by-operator"}));
        assert_eq!(register(&gateway, ADMIN, &moved).await.status, 200);
        assert_eq!(view(&gateway, "by-org").await["parent_id"], "by-operator");
        let cycle = body("by-operator", json!({"parent_id": "by-org"}));
        refused(&register(&gateway, ADMIN, &cycle).await, "", "conflict", "a cycle");
        let canvas = token(&gateway, "/canvas/tokens", r#"{"user":"ada"}"#).await;
        refused(&register(&gateway, &canvas, &body("new", json!({}))).await, "", "not_permitted", "canvas");
    }
}
