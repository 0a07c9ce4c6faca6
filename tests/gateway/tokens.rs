//! Tokens are given out, listed and taken back (contract §8.2).

use serde_json::{Value, json};

use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Gateway, Pair, Request, assert_refusal, servers,
    until_found,
};
use crate::operators::paired;
use crate::{on_both_pairs, on_embedded};

/// A token that an operator makes.
pub(crate) async fn token(gateway: &Gateway, path: &str, body: &str) -> String {
    let answer = gateway.as_operator(Request::post(path, body)).await;
    assert_eq!(answer.status, 201, "{path}: {}", answer.text());
    answer.json()["token"].as_str().unwrap().to_owned()
}

async fn ask(gateway: &Gateway, token: &str, request: Request) -> Answer {
    let request = request.bearer(token).field("X-Request-Id", "seen");
    gateway.call(&request).await
}

/// What an operator reads.
async fn read(gateway: &Gateway, path: &str) -> Value {
    ask(gateway, ADMIN, Request::get(path)).await.json()
}

async fn issue(gateway: &Gateway, path: &str) -> Value {
    let answer = ask(gateway, ADMIN, Request::post(path, "{}")).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

fn refused(answer: &Answer, reason: &str, what: &str) {
    assert_refusal(answer, "", "seen", reason, what);
}

fn ids(list: &Value) -> Vec<String> {
    let tokens = list["tokens"].as_array().unwrap().iter();
    let ids = tokens.map(|token| token["id"].as_str().unwrap().to_owned());
    ids.collect()
}

on_both_pairs! {
    async fn lists_are_paged_by_a_cursor(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        gateway.create(json!({"id": "dev", "name": "dev"})).await;
        for path in ["/workspaces/dev/tokens", "/orgs/acme/tokens"] {
            // The enrolment token of the workspace is among its tokens.
            let mut made = ids(&read(&gateway, path).await);
            for _ in made.len()..7 {
                made.push(issue(&gateway, path).await["id"].as_str().unwrap().to_owned());
            }
            for limit in [1, 2, 3, 6, 7, 8, 500] {
                let (mut seen, mut cursor) = (Vec::new(), String::new());
                loop {
                    let page = read(&gateway, &format!("{path}?limit={limit}{cursor}")).await;
                    let found = ids(&page);
                    assert!(found.len() <= limit && !found.is_empty());
                    seen.extend(found);
                    let Some(next) = page["next_cursor"].as_str() else { break };
                    cursor = format!("&cursor={next}");
                }
                assert_eq!(seen, made, "limit {limit}: each once, oldest first");
            }
            for query in ["limit=0", "limit=501", "limit=-1", "limit=x", "limit=", "cursor=%2F%2F", "cursor=a"] {
                let answer = ask(&gateway, ADMIN, Request::get(format!("{path}?{query}"))).await;
                refused(&answer, "invalid_params", query);
            }
        }
    }

    async fn there_are_at_most_fifty_live_tokens(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        gateway.create(json!({"id": "dev", "name": "dev"})).await;
        for path in ["/workspaces/dev/tokens", "/orgs/acme/tokens"] {
            let enrolments = ids(&read(&gateway, path).await).len();
            let first = issue(&gateway, path).await;
            for _ in 1..46 {
                issue(&gateway, path).await;
            }
            // The last few at once: the bound holds under a race.
            let at_once = || ask(&gateway, ADMIN, Request::post(path, "{}"));
            let answers = futures_util::future::join_all((0..8).map(|_| at_once())).await;
            let full: Vec<_> = answers.iter().filter(|answer| answer.status != 201).collect();
            assert_eq!(full.len(), 4, "{path}");
            for answer in full {
                refused(answer, "conflict", path);
            }
            assert_eq!(ids(&read(&gateway, path).await).len(), 50 + enrolments);
            let one = format!("{path}/{}", first["id"].as_str().unwrap());
            assert_eq!(ask(&gateway, ADMIN, Request::new("DELETE", one)).await.status, 200);
            issue(&gateway, path).await;
            refused(&at_once().await, "conflict", path);
        }
        // The enrolment token of its creation is one of them.
        for (path, body, room) in [("/workspaces/dev/enrolment", "{}", 49), ("/operators/tokens", r#"{"role":"read"}"#, 50)] {
            let made = (0..56).map(|_| ask(&gateway, ADMIN, Request::post(path, body)));
            let made = futures_util::future::join_all(made).await;
            assert_eq!(made.iter().filter(|answer| answer.status == 201).count(), room, "{path}");
        }
    }
}

on_embedded! {
    async fn a_creation_with_a_taken_id_tells_nothing_of_its_tokens() {
        let gateway = Gateway::start(Pair::Embedded).await;
        gateway.create(json!({"id": "ext", "name": "ext", "org": "other"})).await;
        for _ in 1..50 {
            issue(&gateway, "/workspaces/ext/enrolment").await;
        }
        let list = async || read(&gateway, "/workspaces/ext/tokens?limit=100").await;
        let before = list().await;
        assert_eq!(ids(&before).len(), 50);
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        let taken = json!({"id": "ext", "name": "x"}).to_string();
        for token in [ADMIN, &org] {
            for query in ["", "?dry_run=true"] {
                let request = Request::post(format!("/workspaces{query}"), taken.clone());
                let answer = ask(&gateway, token, request).await;
                refused(&answer, "conflict", query);
                assert!(answer.text().contains("a workspace of this id exists"), "{}", answer.text());
            }
        }
        assert_eq!(list().await, before);
        // One that is made has its token, and one that is refused for another reason leaves none to a later one.
        let nowhere = json!({"id": "new", "name": "x", "parent_id": "nothing"}).to_string();
        assert!(ask(&gateway, ADMIN, Request::post("/workspaces", nowhere)).await.status >= 400);
        gateway.create(json!({"id": "new", "name": "x"})).await;
        assert_eq!(ids(&read(&gateway, "/workspaces/new/tokens").await).len(), 1);
    }

    async fn a_token_is_shown_once_and_listed_without_its_text() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let seat = gateway.seat("dev", "", Agent::json("{}").await).await;
        for (path, label, members) in [
            ("/workspaces/dev/tokens", "a2aw_", &["id", "prefix", "created_at", "last_used_at"][..]),
            ("/orgs/acme/tokens", "a2ao_", &["id", "prefix", "note", "created_at"][..]),
        ] {
            let made = issue(&gateway, path).await;
            let token = made["token"].as_str().unwrap();
            assert!(token.starts_with(label) && token.len() == 48, "{token}");
            assert_eq!(made["prefix"], token[..8]);
            let answer = ask(&gateway, ADMIN, Request::get(path)).await;
            assert!(!answer.text().contains(&token[8..]), "{}", answer.text());
            let list = answer.json();
            assert_eq!(list["next_cursor"], Value::Null);
            let entry = list["tokens"].as_array().unwrap().iter().find(|t| t["id"] == made["id"]).unwrap();
            let mut names: Vec<_> = entry.as_object().unwrap().keys().map(String::as_str).collect();
            let mut members = members.to_vec();
            names.sort_unstable();
            members.sort_unstable();
            assert_eq!(names, members);
            assert_eq!(entry["prefix"], token[..8]);
            assert_eq!(entry["created_at"], made["created_at"]);
            assert!(!gateway.log().contains(token));
        }
        // Its use is written down, a little later.
        let list = until_found("its use is written down", async || {
            let list = ask(&gateway, &seat.token, Request::get("/workspaces/dev/tokens")).await.json();
            list["tokens"][0]["last_used_at"].is_string().then_some(list)
        }).await;
        assert_eq!(list["tokens"][0]["prefix"], seat.token[..8]);
        assert_eq!(list["tokens"][1]["last_used_at"], Value::Null, "the other was not used");
    }

    async fn a_revoked_token_is_refused_from_the_next_request_on() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json("{}").await;
        let (caller, target) = gateway.pair(agent).await;
        for _ in 0..3 {
            let made = ask(&gateway, &caller.token, Request::post("/workspaces/caller/tokens", "{}")).await;
            assert_eq!(made.status, 201, "a workspace issues its own: {}", made.text());
            let (token, id) = (made.json()["token"].clone(), made.json()["id"].clone());
            let (token, id) = (token.as_str().unwrap(), id.as_str().unwrap());
            let before = target.agent.count();
            for _ in 0..3 {
                assert_eq!(ask(&gateway, token, Request::post(target.path(), CALL)).await.status, 200);
            }
            let path = format!("/workspaces/caller/tokens/{id}");
            // By itself: the answer to the revocation is the last that it gets.
            let revoked = ask(&gateway, token, Request::new("DELETE", &path)).await;
            assert_eq!((revoked.status, revoked.json()), (200, json!({"status": "revoked"})));
            let answer = ask(&gateway, token, Request::post(target.path(), CALL)).await;
            assert_refusal(&answer, "/a2a", "seen", "unauthenticated", "revoked");
            for request in [Request::get("/workspaces/caller"), Request::new("DELETE", &path)] {
                refused(&ask(&gateway, token, request).await, "unauthenticated", "revoked");
            }
            assert_eq!(target.agent.count(), before + 3);
            let again = ask(&gateway, ADMIN, Request::new("DELETE", &path)).await;
            assert_eq!(again.status, 200, "repeating it is harmless");
            assert_eq!(ids(&read(&gateway, "/workspaces/caller/tokens").await).len(), 1);
        }
        // A token of an org likewise.
        let made = issue(&gateway, "/orgs/acme/tokens").await;
        let token = made["token"].as_str().unwrap();
        let canvas = Request::post("/canvas/tokens", r#"{"user":"ada"}"#);
        assert_eq!(ask(&gateway, token, canvas.clone()).await.status, 201);
        let path = format!("/orgs/acme/tokens/{}", made["id"].as_str().unwrap());
        assert_eq!(ask(&gateway, ADMIN, Request::new("DELETE", path)).await.status, 200);
        refused(&ask(&gateway, token, canvas).await, "unauthenticated", "revoked");
    }

    async fn only_a_workspaces_own_tokens_are_revoked_by_its_path() {
        let (gateway, caller, target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        let made = issue(&gateway, "/workspaces/target/tokens").await;
        let id = made["id"].as_str().unwrap();
        for path in [
            format!("/workspaces/caller/tokens/{id}"),
            format!("/orgs/acme/tokens/{id}"),
            "/workspaces/target/tokens/unknown".to_owned(),
        ] {
            let answer = ask(&gateway, ADMIN, Request::new("DELETE", &path)).await;
            refused(&answer, "not_found", &path);
        }
        let path = format!("/workspaces/target/tokens/{id}");
        refused(&ask(&gateway, &caller.token, Request::new("DELETE", path)).await, "not_permitted", "a sibling");
        let token = made["token"].as_str().unwrap();
        assert_eq!(ask(&gateway, token, Request::get("/workspaces/target")).await.status, 200);
        let nobody = ask(&gateway, ADMIN, Request::get("/workspaces/nobody/tokens")).await;
        refused(&nobody, "workspace_not_found", "an operator is told");
        drop(target);
    }

    async fn a_canvas_token_lasts_and_reaches_as_far_as_was_asked() {
        let gateway = Gateway::start(Pair::Embedded).await;
        for (id, org) in [("dev", "acme"), ("foreign", "other")] {
            gateway.create(json!({"id": id, "name": id, "org": org})).await;
        }
        let org = token(&gateway, "/orgs/acme/tokens", "{}").await;
        let make = async |token: &str, body: Value| {
            ask(&gateway, token, Request::post("/canvas/tokens", body.to_string())).await
        };
        for (said, seconds) in [(json!({"user": "ada"}), 3600), (json!({"user": "ada", "ttl_seconds": 86400}), 86400)] {
            let made = make(ADMIN, said).await;
            assert_eq!(made.status, 201);
            let made = made.json();
            assert_eq!(made["expires_in"], seconds);
            assert!(made["expires_at"].as_str().unwrap().ends_with('Z'));
            assert_eq!(made["token"].as_str().unwrap().split('.').count(), 3);
        }
        for (token, body, reason) in [
            (ADMIN, json!({}), "invalid_params"),
            (ADMIN, json!({"user": ""}), "invalid_params"),
            (ADMIN, json!({"user": "a\nb"}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "ttl_seconds": 0}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "ttl_seconds": 86401}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "ttl_seconds": -1}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "workspaces": []}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "workspaces": vec!["dev"; 201]}), "invalid_params"),
            (ADMIN, json!({"user": "ada", "workspaces": ["a/b"]}), "invalid_workspace_id"),
            (ADMIN, json!({"user": "ada", "workspaces": ["nobody"]}), "workspace_not_found"),
            (&org, json!({"user": "ada", "org": "other"}), "not_permitted"),
            (&org, json!({"user": "ada", "workspaces": ["foreign"]}), "not_permitted"),
            (&org, json!({"user": "ada", "workspaces": ["dev", "nobody"]}), "not_permitted"),
        ] {
            let what = body.to_string();
            refused(&make(token, body).await, reason, &what[..what.len().min(200)]);
        }
        // An org's canvas token stays in the org, also when nothing was said of it.
        let made = make(&org, json!({"user": "ada"})).await.json();
        let token = made["token"].as_str().unwrap();
        assert_eq!(ask(&gateway, token, Request::get("/workspaces/dev")).await.status, 200);
        refused(&ask(&gateway, token, Request::get("/workspaces/foreign")).await, "not_permitted", "foreign");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canvas_token_of_one_replica_counts_at_another_with_the_same_keys() {
    let redis = servers::Redis::start();
    let (sql, shared) = (servers::postgres().database(), redis.url());
    let keys = tempfile::tempdir().unwrap();
    let replica = |issuer: &str| {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &shared);
        let builder = builder.set("keys.dir", keys.path().to_str().unwrap());
        builder.set("tokens.issuer", issuer).start()
    };
    let issuer = "https://gateway.example.com";
    let (one, two) = (replica(issuer).await, replica(issuer).await);
    let other = replica("https://other.example.com").await;
    let (_, target) = one.pair(Agent::json("{}").await).await;
    let call = Request::post(target.path(), CALL);
    let token = token(&one, "/canvas/tokens", r#"{"user":"ada"}"#).await;
    let answer = ask(&two, &token, call.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = ask(&other, &token, call).await;
    let what = "another issuer's";
    assert_refusal(&answer, "/a2a", "seen", "unauthenticated", what);
    assert_eq!(target.agent.count(), 1);
}
