//! What ends what gives access: pauses, in both directions until they are over, and enrolment tokens.

use serde_json::{Value, json};

use crate::audit::recorded;
use crate::harness::{ADMIN, Agent, CALL, Gateway, Pair, Request, card};
use crate::on_embedded;
use crate::operators::{call as ask, paired, register};
use crate::tokens::token;

const REPLY: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

async fn tell(gateway: &Gateway, method: &str, path: &str, body: Value) -> Value {
    let answer = ask(gateway, method, path, ADMIN, body).await;
    assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    answer.json()
}

/// The path of a token in a list of its workspace's, or as it was made.
fn path(workspace: &str, token: &Value) -> String {
    format!(
        "/workspaces/{workspace}/tokens/{}",
        token["id"].as_str().unwrap()
    )
}

/// The tokens of a workspace.
async fn tokens(gateway: &Gateway, workspace: &str) -> Vec<Value> {
    let list = tell(
        gateway,
        "GET",
        &format!("/workspaces/{workspace}/tokens"),
        Value::Null,
    )
    .await;
    list["tokens"].as_array().unwrap().clone()
}

on_embedded! {
    async fn a_pause_holds_in_both_directions_until_it_is_resumed() {
        let (gateway, caller, target) = paired(Pair::Embedded, Agent::json(REPLY).await).await;
        let pair_token = ask(&gateway, "GET", "/registry/discover/target", &caller.token, Value::Null).await;
        let pair_token = pair_token.json()["token"].as_str().unwrap().to_owned();
        let call = async |path: &str, token: &str| {
            let answer = gateway.call(&Request::post(path, CALL).bearer(token)).await;
            if answer.status == 200 { "sent".to_owned() } else { answer.reason() }
        };
        assert_eq!(call(&target.path(), &caller.token).await, "sent");
        tell(&gateway, "POST", "/workspaces/caller/pause", json!({})).await;
        for (path, token) in [
            (target.path(), &caller.token), (caller.path(), &caller.token), (target.path(), &pair_token),
        ] {
            assert_eq!(call(&path, token).await, "not_permitted", "{path}");
        }
        let delegated = json!({"target_id": "target", "task": "x"});
        for (method, path, body) in [
            ("GET", "/registry/discover/target", Value::Null),
            ("GET", "/registry/discover/caller", Value::Null),
            ("GET", "/workspaces/target/a2a/.well-known/agent-card.json", Value::Null),
            ("GET", "/workspaces/target", Value::Null),
            ("POST", "/workspaces/caller/tokens", json!({})),
            ("POST", "/ws/tickets", Value::Null),
            ("POST", "/workspaces/caller/delegate", delegated),
        ] {
            let answer = ask(&gateway, method, path, &caller.token, body).await;
            assert_eq!((answer.status, answer.reason().as_str()), (403, "not_permitted"), "{path}");
        }
        assert_eq!(call(&caller.path(), &target.token).await, "workspace_offline");
        // What an agent needs to be there when the pause is over goes on.
        let url = caller.agent.url();
        let registered = register(&gateway, "caller", &caller.token, &url).await;
        assert_eq!(registered.status, 200, "{}", registered.text());
        let told = registered.json();
        assert_eq!((&told["status"], &told["paused"]), (&json!("registered"), &json!(true)));
        assert_eq!(register(&gateway, "caller", ADMIN, &url).await.json()["paused"], true);
        let beat = json!({"workspace_id": "caller"});
        assert_eq!(ask(&gateway, "POST", "/registry/heartbeat", &caller.token, beat).await.status, 200);
        for path in ["/workspaces/caller", "/workspaces/caller/activity"] {
            assert_eq!(ask(&gateway, "GET", path, &caller.token, Value::Null).await.status, 200, "{path}");
        }
        let read = ask(&gateway, "GET", "/workspaces/caller", &caller.token, Value::Null).await.json();
        assert_eq!(read["status"], "paused");
        assert_eq!(call(&target.path(), &caller.token).await, "not_permitted");
        assert_eq!(tell(&gateway, "POST", "/workspaces/caller/resume", json!({})).await["status"], "online");
        assert_eq!(call(&target.path(), &caller.token).await, "sent");
        let registered = register(&gateway, "caller", &caller.token, &url).await.json();
        assert_eq!(registered.get("paused"), None);
        tell(&gateway, "POST", "/workspaces/caller/pause", json!({})).await;
        let leave = json!({"workspace_id": "caller"});
        assert_eq!(ask(&gateway, "POST", "/registry/deregister", &caller.token, leave).await.status, 200);
        assert_eq!(target.agent.count(), 2, "nothing got through meanwhile");
    }

    async fn an_enrolment_token_ends_with_the_first_registration_and_with_the_last_token() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let url = Agent::json(REPLY).await.url();
        // By another credential: an operator's, and one of the workspace.
        let first = gateway.create(json!({"id": "one", "name": "one"})).await;
        assert!(register(&gateway, "one", ADMIN, &url).await.json()["token"].is_string());
        assert_eq!(register(&gateway, "one", &first, &url).await.status, 401);
        let second = gateway.create(json!({"id": "two", "name": "two"})).await;
        let own = &*token(&gateway, "/workspaces/two/tokens", "{}").await;
        let url = Agent::json(REPLY).await.url();
        assert_eq!(register(&gateway, "two", own, &url).await.status, 200);
        assert_eq!(register(&gateway, "two", &second, &url).await.status, 401);
        // With the last token of its workspace.
        let third = gateway.create(json!({"id": "three", "name": "three"})).await;
        let listed = &tokens(&gateway, "three").await[0];
        let make = || tell(&gateway, "POST", "/workspaces/three/tokens", json!({}));
        let (made, other) = (make().await, make().await);
        let last = tell(&gateway, "DELETE", &path("three", &other), Value::Null).await;
        assert_eq!(last, json!({"status": "revoked"}), "another token is live");
        assert_eq!(listed["prefix"], third[..8], "{listed}");
        let ended = json!([listed["id"]]);
        let made = path("three", &made);
        for revoke in [&format!("{made}?dry_run=true"), &made] {
            assert_eq!(tell(&gateway, "DELETE", revoke, Value::Null).await["ended"], ended, "{revoke}");
        }
        let record = &recorded(&gateway, "event_type=TOKEN_REVOKED", 2).await[0];
        assert_eq!(record["detail"]["ended"], ended, "{record}");
        assert_eq!(register(&gateway, "three", &third, &url).await.status, 401);
        // Listed, and revoked by itself.
        let fourth = gateway.create(json!({"id": "four", "name": "four"})).await;
        let entry = &tokens(&gateway, "four").await[0];
        assert_eq!(entry["prefix"], fourth[..8], "{entry}");
        assert!(entry["expires_at"].is_string() && entry["created_at"].is_string(), "{entry}");
        let path = path("four", entry);
        assert_eq!(tell(&gateway, "DELETE", &path, Value::Null).await["status"], "revoked");
        assert_eq!(register(&gateway, "four", &fourth, &url).await.status, 401);
        assert!(tokens(&gateway, "four").await.is_empty());
        let none = ask(&gateway, "DELETE", "/workspaces/four/tokens/none", ADMIN, Value::Null).await;
        assert_eq!(none.status, 404);
    }

    async fn an_enrolment_gives_a_token_beside_others_or_stays_good() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let url = Agent::json(REPLY).await.url();
        let enrolment = gateway.create(json!({"id": "one", "name": "one"})).await;
        let make = "/workspaces/one/tokens";
        let other = tell(&gateway, "POST", make, json!({"label": "beside"})).await;
        for _ in 1..50 {
            tell(&gateway, "POST", make, json!({})).await;
        }
        let full = register(&gateway, "one", &enrolment, &url).await;
        assert_eq!((full.status, full.reason().as_str()), (409, "conflict"));
        assert!(full.text().contains("revoke one"), "{}", full.text());
        let last = tokens(&gateway, "one").await.pop().unwrap();
        tell(&gateway, "DELETE", &path("one", &last), Value::Null).await;
        let registered = register(&gateway, "one", &enrolment, &url).await.json();
        let own = registered["token"].as_str().unwrap_or_else(|| panic!("{registered}"));
        assert_eq!(registered["auth_token"], own);
        for token in [own, other["token"].as_str().unwrap()] {
            assert_eq!(ask(&gateway, "GET", "/workspaces/one", token, Value::Null).await.status, 200);
        }
        assert_eq!(register(&gateway, "one", &enrolment, &url).await.status, 401, "once");
        assert_eq!(register(&gateway, "one", own, &url).await.json().get("token"), None);
    }

    async fn an_agent_that_lost_its_token_is_enrolled_again() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json(REPLY).await;
        let enrolment = gateway.create(json!({"id": "one", "name": "one", "org": "acme"})).await;
        let lost = gateway.register("one", &enrolment, &agent.url(), card("one")).await;
        let revoke = async || {
            let first = &tokens(&gateway, "one").await[0];
            tell(&gateway, "DELETE", &path("one", first), Value::Null).await;
        };
        revoke().await;
        let org = &*token(&gateway, "/orgs/acme/tokens", "{}").await;
        for by in [ADMIN, org] {
            let made = ask(&gateway, "POST", "/workspaces/one/enrolment", by, Value::Null).await;
            assert_eq!(made.status, 201, "{}", made.text());
            let made = made.json();
            assert!(made["expires_at"].is_string(), "{made}");
            let token = made["enrolment_token"].as_str().unwrap();
            let registered = register(&gateway, "one", token, &agent.url()).await.json();
            let own = registered["token"].as_str().unwrap().to_owned();
            assert_eq!(ask(&gateway, "GET", "/workspaces/one", &own, Value::Null).await.status, 200);
            assert_eq!(register(&gateway, "one", token, &agent.url()).await.status, 401, "once");
            revoke().await;
        }
        assert_eq!(ask(&gateway, "GET", "/workspaces/one", &lost, Value::Null).await.status, 401);
        gateway.create(json!({"id": "else", "name": "else", "org": "globex"})).await;
        for (by, id, status) in [(org, "else", 403), (org, "none", 403), (ADMIN, "none", 404)] {
            let path = format!("/workspaces/{id}/enrolment");
            assert_eq!(ask(&gateway, "POST", &path, by, Value::Null).await.status, status, "{id}");
        }
        tell(&gateway, "DELETE", "/workspaces/one", Value::Null).await;
        assert_eq!(ask(&gateway, "POST", "/workspaces/one/enrolment", ADMIN, Value::Null).await.status, 410);
    }

    async fn an_org_token_gets_no_credential_of_a_workspace_with_a_grant() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let agent = Agent::json(REPLY).await;
        gateway.create(json!({"id": "one", "name": "one", "org": "acme"})).await;
        gateway.create(json!({"id": "far", "name": "far", "org": "globex"})).await;
        register(&gateway, "far", ADMIN, &agent.url()).await;
        let org = &*token(&gateway, "/orgs/acme/tokens", "{}").await;
        let grant = tell(&gateway, "POST", "/grants", json!({"caller_id": "one", "target_id": "far"})).await;
        let own = Agent::json(REPLY).await;
        let registered = register(&gateway, "one", org, &own.url()).await;
        assert_eq!(registered.status, 200, "{}", registered.text());
        assert_eq!(registered.json().get("token"), None, "with it the org would reach globex");
        let refused = ask(&gateway, "POST", "/workspaces/one/enrolment", org, Value::Null).await;
        assert_eq!((refused.status, refused.reason().as_str()), (403, "not_permitted"));
        let path = format!("/grants/{}", grant["id"].as_str().unwrap());
        tell(&gateway, "DELETE", &path, Value::Null).await;
        assert!(register(&gateway, "one", org, &own.url()).await.json()["token"].is_string());
    }
}
