//! The proof that a target asks of its caller tokens: the caller, by a token that is used again for half a minute, or
//! the caller of exactly this request.

use a2a_gateway::trust::body_hash;
use serde_json::{Value, json};

use super::{Family, caller_token, claims};
use crate::audit::recorded;
use crate::explain::{explain, step};
use crate::harness::until_found;
use crate::harness::{ADMIN, Agent, Builder, CALL, Gateway, Pair, Request, Seat, card};
use crate::on_embedded;
use crate::reload::{Written, in_force};

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

/// The token that `to` gets with a call with this credential.
async fn arriving(gateway: &Gateway, credential: &str, to: &Seat, body: &str) -> String {
    let request = Request::post(to.path(), body).bearer(credential);
    gateway.call(&request).await.has(200);
    caller_token(&to.agent.take())
}

impl Family {
    /// The token that `two` gets with a call of `one`.
    async fn arriving(&self) -> String {
        arriving(&self.gateway, &self.one.token, &self.two, CALL).await
    }

    /// Sets the proof of the tokens that `two` gets from now on.
    async fn asks_for(&self, proof: Value) -> Value {
        let answer = self.gateway.patch("two", json!({"proof": proof})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["proof"].clone()
    }

    /// Two tokens that differ, each bound to its body.
    async fn is_bound(&self) {
        let tokens = [self.arriving().await, self.arriving().await];
        assert_ne!(tokens[0], tokens[1]);
        let mut names = Vec::new();
        for token in &tokens {
            let claims = claims(&self.gateway, token, "two").await;
            assert_eq!(claims["bh"], body_hash(CALL.as_bytes()));
            assert_eq!(claims["method"], "message/send");
            assert_eq!(claims["token_use"], "caller");
            names.push(claims["jti"].clone());
        }
        assert_ne!(names[0], names[1]);
    }

    /// A token that comes twice, unless half a minute ends just now.
    async fn is_used_again(&self) -> String {
        for _ in 0..3 {
            let [first, second] = [self.arriving().await, self.arriving().await];
            if first == second {
                return first;
            }
        }
        panic!("no token is used again");
    }
}

on_embedded! {
    async fn one_token_proves_who_calls_for_half_a_minute() {
        let family = Family::new(Pair::Embedded).await;
        let token = family.is_used_again().await;
        let said = claims(&family.gateway, &token, "two").await;
        let expected = json!({
            "iss": format!("http://{}", family.gateway.public), "sub": "one", "aud": "two",
            "iat": said["iat"], "nbf": said["iat"], "exp": said["iat"].as_i64().unwrap() + 60,
            "jti": said["jti"], "scope": "a2a:message", "rel": "sibling", "org": "acme", "gen": 0,
            "token_use": "caller",
        });
        assert_eq!(said, expected);
        // Whatever is sent, and where the agent has a credential of its own.
        let other = r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t"}}"#;
        assert_eq!(arriving(&family.gateway, &family.one.token, &family.two, other).await, token);
        let auth = json!({"upstream_auth": {"type": "bearer", "token": "the-agents-own"}});
        assert_eq!(family.gateway.patch("two", auth).await.status, 200);
        assert_eq!(family.call(&family.one.token).await.0, 200);
        let arrived = family.two.agent.take();
        assert_eq!(arrived.fields("authorization"), ["Bearer the-agents-own"]);
        assert_eq!(arrived.fields("x-a2a-caller-token"), [&*token]);
        // A credential of its holder it is nowhere.
        let refused = Request::post(family.two.path(), CALL).bearer(&token);
        let refused = family.gateway.call(&refused).await;
        assert_eq!((refused.status, refused.reason().as_str()), (401, "unauthenticated"));
        assert!(refused.text().contains("forwarded request"), "{}", refused.text());
        assert_eq!(family.gateway.metric("a2a_gateway_credentials_refused_total", &["why=\"forwarded\""]).await, 1.0);
        assert!(!family.gateway.log().contains(&token), "it is in the log");
    }

    async fn callers_targets_and_orgs_share_no_token() {
        let family = Family::new(Pair::Embedded).await;
        let gateway = &family.gateway;
        let other = gateway.seat("three", "lead", Agent::json(ANSWER).await).await;
        let made = async |path: &str, body: Value| gateway.token(path, &body.to_string()).await;
        let ada = made("/canvas/tokens", json!({"user": "ada", "org": "acme"})).await;
        let bob = made("/canvas/tokens", json!({"user": "bob", "org": "acme"})).await;
        let listed = made("/canvas/tokens", json!({"user": "ada", "workspaces": ["two"]})).await;
        let org = made("/orgs/acme/tokens", json!({})).await;
        let mut tokens = Vec::new();
        for (credential, to, sub, rel, of) in [
            (&*family.one.token, &family.two, "one", "sibling", Some("acme")),
            (&*family.two.token, &family.two, "two", "self", Some("acme")),
            (&*other.token, &family.two, "three", "sibling", Some("acme")),
            (&*family.one.token, &other, "one", "sibling", Some("acme")),
            (&*ada, &family.two, "canvas:ada", "canvas", Some("acme")),
            (&*bob, &family.two, "canvas:bob", "canvas", Some("acme")),
            (&*listed, &family.two, "canvas:ada", "canvas", None),
            (&*org, &family.two, "org:acme", "org", Some("acme")),
            (ADMIN, &family.two, "operator:", "operator", None),
        ] {
            for _ in 0..2 {
                let token = arriving(gateway, credential, to, CALL).await;
                let said = claims(gateway, &token, &to.id).await;
                assert_eq!((&said["sub"], &said["rel"]), (&json!(sub), &json!(rel)));
                assert_eq!(said["org"].as_str(), of, "{said}");
                tokens.push((token, (sub, to.id.clone(), of)));
            }
        }
        for (token, of) in &tokens {
            for (other, others) in &tokens {
                assert!(token != other || of == others, "{of:?} and {others:?}");
            }
        }
    }

    async fn a_move_and_another_rule_make_another_token() {
        let family = Family::new(Pair::Embedded).await;
        let gateway = &family.gateway;
        let first = family.is_used_again().await;
        gateway.create(json!({"id": "above", "name": "above", "org": "acme"})).await;
        // One above both moves: the rule is the same.
        assert_eq!(gateway.patch("lead", json!({"parent_id": "above"})).await.status, 200);
        let moved = family.arriving().await;
        let said = claims(gateway, &moved, "two").await;
        assert!(said["gen"].as_i64().unwrap() > 0, "{said}");
        assert_eq!(said["rel"], "sibling");
        assert_ne!(moved, first);
        // A grant instead of the relation.
        assert_eq!(gateway.patch("one", json!({"parent_id": "above"})).await.status, 200);
        assert_eq!(family.call(&family.one.token).await, (403, "not_permitted".to_owned()));
        let grant = json!({"caller_id": "one", "target_id": "two"}).to_string();
        assert_eq!(gateway.as_operator(Request::post("/grants", grant)).await.status, 201);
        let granted = family.arriving().await;
        assert_eq!(claims(gateway, &granted, "two").await["rel"], "grant");
        assert!(granted != moved && granted != first);
    }

    async fn a_target_that_asks_for_more_gets_it_at_once() {
        let family = Family::new(Pair::Embedded).await;
        let gateway = &family.gateway;
        let read = async || gateway.as_operator(Request::get("/workspaces/two")).await.json();
        assert!(read().await.get("proof").is_none(), "it was not said");
        family.is_used_again().await;
        let upstream = async || {
            let explained = explain(gateway, "one", "two").await;
            step(&explained, "upstream")["fact"]["proof"].clone()
        };
        assert_eq!(upstream().await, "pair");
        for _ in 0..2 {
            assert_eq!(family.asks_for(json!("request")).await, "request");
            family.is_bound().await;
            assert_eq!(upstream().await, "request");
            let other = gateway.patch("two", json!({"role": "builds"})).await.json();
            assert_eq!(other["proof"], "request", "another change leaves it");
            assert_eq!(family.asks_for(json!("pair")).await, "pair");
            let again = family.is_used_again().await;
            assert!(claims(gateway, &again, "two").await.get("bh").is_none());
        }
        assert_eq!(read().await["proof"], "pair");
        assert_eq!(family.asks_for(Value::Null).await, Value::Null);
        assert!(read().await.get("proof").is_none(), "it is taken back");
        family.is_used_again().await;
        // A record of each change says what it was.
        let records = recorded(gateway, "event_type=WORKSPACE_CHANGED&target=two", 7).await;
        let said: Vec<_> = records.iter().rev().map(|record| &record["detail"]).collect();
        assert_eq!((&said[0]["proof"], &said[0]["changed"]), (&json!("request"), &json!(["proof"])));
        assert!(said[1].get("proof").is_none(), "{}", said[1]);
        assert_eq!(said[2]["proof"], "pair");
        let last = said.last().unwrap();
        assert_eq!((&last["proof"], &last["changed"]), (&Value::Null, &json!(["proof"])));
    }

    async fn a_creation_and_a_registration_say_it_too() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let read = async |id: &str| {
            let answer = gateway.as_operator(Request::get(format!("/workspaces/{id}"))).await;
            answer.json()["proof"].clone()
        };
        let enrolment = gateway.create(json!({"id": "made", "name": "made", "proof": "request"})).await;
        assert_eq!(read("made").await, "request");
        let agent = Agent::json(ANSWER).await;
        let register = async |credential: &str, id: &str, url: &str, proof: Value| {
            let mut body = json!({"id": id, "url": url, "agent_card": card(id)});
            if !proof.is_null() {
                body["proof"] = proof;
            }
            let request = Request::post("/registry/register", body.to_string()).bearer(credential);
            gateway.call(&request).await
        };
        // An agent that says nothing of it leaves it as it is.
        let registered = register(&enrolment, "made", &agent.url(), Value::Null).await;
        assert_eq!(registered.status, 200, "{}", registered.text());
        let token = registered.json()["token"].as_str().unwrap().to_owned();
        let seat = Seat { id: "made".into(), token: token.clone(), agent };
        assert_eq!(read("made").await, "request");
        let bound = arriving(&gateway, ADMIN, &seat, CALL).await;
        assert!(claims(&gateway, &bound, "made").await["bh"].is_string());
        // It is the agent's own to say.
        for (proof, is_bound) in [("pair", false), ("request", true)] {
            assert_eq!(register(&token, "made", &seat.agent.url(), json!(proof)).await.status, 200);
            assert_eq!(read("made").await, proof);
            let arrived = arriving(&gateway, ADMIN, &seat, CALL).await;
            assert_eq!(claims(&gateway, &arrived, "made").await.get("bh").is_some(), is_bound);
        }
        let by_operator = register(ADMIN, "new", "http://127.0.0.1:9/", json!("request")).await;
        assert_eq!(by_operator.status, 200, "{}", by_operator.text());
        assert_eq!(read("new").await, "request");
        let records = recorded(&gateway, "event_type=WORKSPACE_REGISTERED&target=new", 1).await;
        assert_eq!(records[0]["detail"]["proof"], "request");
        // Neither of the two words.
        let wrong = json!({"id": "no", "name": "no", "proof": "both"}).to_string();
        let created = gateway.as_operator(Request::post("/workspaces", wrong)).await;
        let changed = gateway.patch("made", json!({"proof": "Request"})).await;
        let registered = register(&token, "made", &seat.agent.url(), json!("bound")).await;
        let number = gateway.patch("made", json!({"proof": 1})).await;
        for answer in [&created, &changed, &registered, &number] {
            assert_eq!((answer.status, answer.reason().as_str()), (400, "invalid_params"), "{}", answer.text());
            assert!(answer.text().contains("`proof`"), "{}", answer.text());
        }
        for answer in [created, changed, registered] {
            let text = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(text.contains("`pair`") && text.contains("`request`"), "{text}");
        }
        assert_eq!(read("made").await, "request");
    }
}

fn rotate(gateway: &Gateway) {
    super::rotation::keys(gateway, &["rotate"]);
}

#[tokio::test]
async fn a_rotation_and_another_issuer_make_another_token() {
    let written = Written::new("");
    let builder = Builder::new(Pair::Embedded).file(written.path());
    let family = Family::on(builder.set("stores.timeout", "20s")).await;
    let gateway = &family.gateway;
    let kid = |token: &str| jsonwebtoken::decode_header(token).unwrap().kid.unwrap();
    let first = family.arriving().await;
    rotate(gateway);
    let second = until_found("the gateway follows", async || {
        let token = family.arriving().await;
        (kid(&token) != kid(&first)).then_some(token)
    })
    .await;
    let active = super::jwks(gateway).await["keys"][0]["kid"].clone();
    assert_eq!(kid(&second), active.as_str().unwrap());
    written.save("[tokens]\nissuer = \"https://renamed.example.com\"\n");
    let renamed = json!("https://renamed.example.com");
    in_force(gateway, "tokens.issuer", renamed).await;
    let third = family.arriving().await;
    let [_, said] = trust::decode_unverified(&third).unwrap();
    assert_eq!(said["iss"], "https://renamed.example.com");
}
