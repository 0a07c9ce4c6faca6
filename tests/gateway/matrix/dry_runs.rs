//! `?dry_run=true` on every route and by every caller: it changes nothing, or it is refused.

use std::time::{Duration, SystemTime};

use a2a_gateway::admin::{API_ROUTES, CONSOLE_ROUTES};
use serde_json::{Value, json};

use super::Case;
use super::roles::{self, ROLES, at_console, covers, needed};
use super::table::Who::*;
use super::table::*;
use crate::audit::recorded;
use crate::harness::watcher::{Feed, Sse};
use crate::harness::{ADMIN, Answer, Gateway, Pair, Request};
use crate::{on_both_pairs, on_embedded};

/// Routes that have a dry run; all others refuse it.
const DRY: [(&str, &str); 20] = [
    ("POST", "/workspaces"),
    ("PATCH", "/workspaces/{id}"),
    ("DELETE", "/workspaces/{id}"),
    ("POST", "/workspaces/{id}/pause"),
    ("POST", "/workspaces/{id}/resume"),
    ("POST", "/workspaces/{id}/enrolment"),
    ("POST", "/grants"),
    ("DELETE", "/grants/{grant_id}"),
    ("POST", "/policy"),
    ("POST", "/stops"),
    ("DELETE", "/stops/{stop_id}"),
    ("POST", "/workspaces/{id}/tokens"),
    ("DELETE", "/workspaces/{id}/tokens/{token_id}"),
    ("POST", "/orgs/{org}/tokens"),
    ("DELETE", "/orgs/{org}/tokens/{token_id}"),
    ("POST", "/operators/tokens"),
    ("DELETE", "/operators/tokens/{token_id}"),
    ("POST", "/canvas/tokens"),
    ("DELETE", "/canvas/tokens/{token_id}"),
    ("POST", "/revocations"),
];

/// Members that may differ between two answers to the same change.
const OWN: [&str; 9] = [
    "before",
    "dry_run",
    "token",
    "enrolment_token",
    "id",
    "prefix",
    "created_at",
    "updated_at",
    "expires_at",
];

fn dry(mut request: Request) -> Request {
    request.path.push_str("?dry_run=true");
    request
}

fn is_dry(answer: &Answer, what: &str) {
    let body = answer.json();
    assert_eq!(body["dry_run"], true, "{what}");
    let secrets = [&body["token"], &body["enrolment_token"]];
    assert_eq!(secrets, [&Value::Null; 2], "{what}");
    assert_eq!(answer.field("location"), None, "{what}");
}

fn has_none(answer: &Answer, what: &str) {
    let refused = (answer.status, answer.reason());
    assert_eq!(refused, (400, "invalid_params".to_owned()), "{what}");
    assert!(answer.text().contains("has no dry run"), "{what}");
}

/// The policy, workspaces, tokens and inboxes.
async fn all(case: &Case) -> Value {
    let mut all = vec![case.state().await];
    let enrolling = format!("/workspaces/{}/tokens", case.enrolling);
    for path in ["/policy", "/workspaces?limit=500", &enrolling] {
        all.push(case.gateway.as_operator(Request::get(path)).await.json());
    }
    all.into()
}

/// Returns the members that two answers to the same change have in common.
fn common(answer: &Answer) -> (u16, Value) {
    let mut body = answer.json();
    for name in OWN {
        body.as_object_mut().unwrap().remove(name);
    }
    (answer.status, body)
}

/// Returns the members that two refusals of the same change have in common.
fn refusal(answer: &Answer) -> (u16, String, Value) {
    assert!(answer.status >= 400, "{}", answer.text());
    (
        answer.status,
        answer.reason(),
        answer.json()["error"].take(),
    )
}

/// Returns the next event that is none of the message and the delegation of [`Case::new`], which go on meanwhile.
async fn first_of_changes(feed: &mut Feed) -> Sse {
    loop {
        let event = feed.event().await;
        let kind = event.data["event"].as_str().unwrap_or_default();
        if kind != "AGENT_MESSAGE" && !kind.starts_with("DELEGATION_") {
            return event;
        }
    }
}

async fn ask(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Answer {
    let mut request = Request::post(path, body.to_string());
    request.method = method.to_owned();
    gateway.as_operator(request).await
}

on_both_pairs! {
    async fn a_dry_run_changes_nothing_or_is_refused_on_every_route(pair: Pair) {
        let case = Case::new(pair).await;
        // Records have milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let since = humantime::format_rfc3339_millis(SystemTime::now());
        let everything = Request::get("/events").bearer(ADMIN);
        let mut feed = Feed::open(case.gateway.public, &everything).await;
        let before = all(&case).await;
        for row in TABLE.iter().filter(|row| row.0 != "GET" && (row.0, row.1) != A2A) {
            for who in ALL_CALLERS {
                let request = dry(case.request(row.0, row.1, who));
                let request = match who {
                    Nobody => request,
                    who => request.bearer(case.token(who)),
                };
                let answer = case.gateway.call(&request).await;
                let what = format!("{} {} as {who:?}: {}", row.0, row.1, answer.text());
                case.keeps_secrets(&answer, &what);
                match (DRY.contains(&(row.0, row.1)), row.3.contains(&who)) {
                    (true, true) => {
                        assert_eq!(answer.status, row.2, "{what}");
                        is_dry(&answer, &what);
                    }
                    (true, false) => {
                        let status = if matches!(who, Enrolment | Nobody) { 401 } else { 403 };
                        assert_eq!(answer.status, status, "{what}");
                    }
                    // The role of an operator comes before the query, what other callers may after it.
                    (false, false) if matches!(answer.status, 401 | 403) => {}
                    (false, _) => has_none(&answer, &what),
                }
            }
            assert_eq!(all(&case).await, before, "a dry run of {} {} changed something", row.0, row.1);
        }
        for (method, pattern) in API_ROUTES.iter().chain(CONSOLE_ROUTES).chain(&[("POST", "/console/sign-in")]) {
            if *method == "GET" {
                continue;
            }
            let answer = at_console(&case, (method, pattern), ADMIN, "?dry_run=true").await;
            let what = format!("{method} {pattern}: {}", answer.text());
            match pattern.starts_with("/api/") {
                true => is_dry(&answer, &what),
                false => has_none(&answer, &what),
            }
        }
        assert_eq!(all(&case).await, before, "a dry run at the console changed something");
        assert_eq!(case.agent.count(), 0, "a dry run reached the agent");
        // The first change that anything tells of is the one that is made now.
        let pause = Request::post(format!("/workspaces/{}/pause", case.doomed_workspace), "");
        let pause = pause.field("X-Request-Id", "made");
        assert_eq!(case.gateway.as_operator(pause).await.status, 200);
        let first = first_of_changes(&mut feed).await;
        assert_eq!(first.data["workspace_id"], case.doomed_workspace.as_str(), "{first:?}");
        recorded(&case.gateway, "request_id=made", 1).await;
        let done = recorded(&case.gateway, &format!("since={since}&outcome=done&limit=500"), 1).await;
        let changed = |record: &&Value| !record["request_id"].is_null() && record["event_type"] != "CONTENT_READ";
        let asked: Vec<_> = done.iter().filter(changed).collect();
        assert_eq!(asked.len(), 1, "{asked:?}");
    }
}

on_embedded! {
    async fn a_dry_run_answers_as_the_change_does() {
        let mut case = Case::new(Pair::Embedded).await;
        for (method, pattern) in DRY {
            let request = || case.request(method, pattern, Operator).bearer(ADMIN);
            let tried = case.gateway.call(&dry(request())).await;
            let made = case.gateway.call(&request()).await;
            assert_eq!(common(&tried), common(&made), "{method} {pattern}");
            if method == "DELETE" {
                case.renew_doomed().await;
            }
        }
    }

    async fn a_dry_run_is_refused_as_the_change_is() {
        let case = Case::new(Pair::Embedded).await;
        for _ in 0..50 {
            case.made("/orgs/full/tokens", json!({})).await;
        }
        let stop = json!({"scope": {"workspace": "nothing"}, "mode": "new", "reason": "a case"});
        for (method, path, body) in [
            ("POST", "/workspaces", json!({"id": "target", "name": "x"})),
            ("POST", "/workspaces", json!({"name": "x", "parent_id": "nothing"})),
            ("POST", "/workspaces", json!({"name": "x", "parent_id": "target", "org": "other"})),
            ("POST", "/workspaces", json!({"name": "x", "rank": 1})),
            ("PATCH", "/workspaces/target", json!({"parent_id": "target"})),
            ("PATCH", "/workspaces/target", json!({"parent_id": "stranger"})),
            ("PATCH", "/workspaces/target", json!({"status": "paused"})),
            ("PATCH", "/workspaces/nothing", json!({"role": "x"})),
            ("DELETE", "/workspaces/nothing", Value::Null),
            ("POST", "/workspaces/nothing/pause", json!({})),
            ("POST", "/workspaces/nothing/enrolment", json!({})),
            ("POST", "/grants", json!({"caller_id": "target", "target_id": "target"})),
            ("POST", "/grants", json!({"caller_id": "target", "target_id": "nothing"})),
            ("DELETE", "/grants/nothing", Value::Null),
            ("POST", "/stops", stop),
            ("DELETE", "/stops/nothing", Value::Null),
            ("POST", "/policy", json!({"version": 2})),
            ("POST", "/workspaces/target/tokens", json!({"expires_in": 0})),
            ("DELETE", "/workspaces/target/tokens/nothing", Value::Null),
            ("POST", "/orgs/full/tokens", json!({})),
            ("DELETE", "/orgs/acme/tokens/nothing", Value::Null),
            ("POST", "/operators/tokens", json!({"role": "root"})),
            ("DELETE", "/operators/tokens/nothing", Value::Null),
            ("POST", "/canvas/tokens", json!({"user": "ada", "workspaces": ["nothing"]})),
        ] {
            let tried = ask(&case.gateway, method, &format!("{path}?dry_run=true"), &body).await;
            let made = ask(&case.gateway, method, path, &body).await;
            assert_eq!(refusal(&tried), refusal(&made), "{method} {path}");
        }
        // A misspelt one is no change.
        let path = format!("/workspaces/{}", case.doomed_workspace);
        for query in ["dry_run", "dry_run=1", "dry_run=True", "dry-run=true", "dry_run=true&dry_run=true", "dry_run=true&x=y"] {
            let answer = ask(&case.gateway, "DELETE", &format!("{path}?{query}"), &Value::Null).await;
            assert_eq!((answer.status, answer.reason()), (400, "invalid_params".to_owned()), "{query}");
        }
        assert_eq!(case.gateway.as_operator(Request::get(&path)).await.status, 200);
        // Nor does a removed id come back.
        assert_eq!(ask(&case.gateway, "DELETE", &path, &Value::Null).await.status, 200);
        let again = json!({"id": case.doomed_workspace, "name": "again", "recreate": true});
        let tried = ask(&case.gateway, "POST", "/workspaces?dry_run=true", &again).await;
        assert_eq!(tried.status, 201, "{}", tried.text());
        is_dry(&tried, "a removed id");
        assert_eq!(case.gateway.as_operator(Request::get(&path)).await.status, 410);
        let tried = ask(&case.gateway, "DELETE", &format!("{path}?dry_run=true"), &Value::Null).await;
        assert_eq!(tried.status, 410);
    }

    async fn a_dry_run_needs_the_role_of_the_change_except_that_of_a_policy() {
        let case = Case::new(Pair::Embedded).await;
        for role in ROLES {
            let token = roles::token(&case.gateway, role).await;
            for (method, pattern) in DRY {
                let needed = match pattern {
                    "/policy" => "read",
                    _ => needed(method, pattern),
                };
                let request = dry(case.request(method, pattern, Operator)).bearer(&token);
                let answer = case.gateway.call(&request).await;
                let what = format!("{method} {pattern} with {role}: {}", answer.text());
                match covers(role, needed) {
                    true => is_dry(&answer, &what),
                    false => assert_eq!(answer.status, 403, "{what}"),
                }
            }
        }
    }
}
