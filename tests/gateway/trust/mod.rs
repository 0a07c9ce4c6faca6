//! Signed tokens: who gets which, what they say, where they count, and what becomes of them when
//! keys rotate or a workspace moves.

mod command_line;
mod forged;
mod proof;
mod rotation;

use a2a_gateway::trust::body_hash;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{DecodingKey, Validation};
use serde_json::{Value, json};

use crate::harness::{ADMIN, Agent, Builder, CALL, Gateway, Pair, Recorded, Request, Seat, Step};
use crate::on_embedded;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#;

/// A gateway with a parent `lead`, and `one` and `two` below it, of the org `acme`.
pub(crate) struct Family {
    pub(crate) gateway: Gateway,
    pub(crate) one: Seat,
    pub(crate) two: Seat,
}

impl Family {
    pub(crate) async fn on(builder: Builder) -> Self {
        let gateway = builder.start().await;
        let lead = json!({"id": "lead", "name": "lead", "org": "acme"});
        gateway.create(lead).await;
        let one = gateway.seat("one", "lead", Agent::json(ANSWER).await).await;
        let two = gateway.seat("two", "lead", Agent::json(ANSWER).await).await;
        Self { gateway, one, two }
    }

    pub(crate) async fn new(pair: Pair) -> Self {
        Self::on(Builder::new(pair)).await
    }

    /// What discovery of `two` tells `one`.
    pub(crate) async fn discovered(&self) -> Value {
        let request = Request::get("/registry/discover/two").bearer(&self.one.token);
        let answer = self.gateway.call(&request).await.has(200);
        answer.json()
    }

    /// A pair token of `one` for `two`.
    pub(crate) async fn pair_token(&self) -> String {
        let token = self.discovered().await["token"].take();
        token.as_str().unwrap().to_owned()
    }

    /// What a call of `two` with this credential is answered with.
    pub(crate) async fn call(&self, token: &str) -> (u16, String) {
        let request = Request::post(self.two.path(), CALL).bearer(token);
        let answer = self.gateway.call(&request).await;
        match answer.status {
            200 => (200, String::new()),
            status => (status, answer.reason()),
        }
    }
}

pub(crate) async fn jwks(gateway: &Gateway) -> Value {
    let answer = gateway.call(&Request::get("/.well-known/jwks.json")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Verified by another library's reading of the JWKS.
pub(crate) async fn claims(gateway: &Gateway, token: &str, audience: &str) -> Value {
    let keys: JwkSet = serde_json::from_value(jwks(gateway).await).unwrap();
    let head = jsonwebtoken::decode_header(token).unwrap();
    assert_eq!(head.typ.as_deref(), Some("a2a-pair+jwt"));
    let key = keys.find(head.kid.as_deref().unwrap());
    let key = key.expect("a published key");
    let mut rules = Validation::new(head.alg);
    rules.set_audience(&[audience]);
    rules.set_issuer(&[format!("http://{}", gateway.public)]);
    rules.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
    let key = DecodingKey::from_jwk(key).unwrap();
    let decoded = jsonwebtoken::decode::<Value>(token, &key, &rules);
    decoded.unwrap().claims
}

fn caller_token(arrived: &Recorded) -> String {
    let field = arrived.field("authorization").expect("a caller token");
    field.strip_prefix("Bearer ").unwrap().to_owned()
}

on_embedded! {
    async fn discovery_gives_a_workspace_a_token_for_the_one_target() {
        let family = Family::new(Pair::Embedded).await;
        let found = family.discovered().await;
        assert_eq!(found["token_expires_in"], 300);
        let token = found["token"].as_str().unwrap();
        let claims = claims(&family.gateway, token, "two").await;
        let expected = json!({
            "iss": format!("http://{}", family.gateway.public), "sub": "one", "aud": "two",
            "iat": claims["iat"], "nbf": claims["iat"], "exp": claims["iat"].as_i64().unwrap() + 300,
            "jti": claims["jti"], "scope": "a2a:message", "rel": "sibling", "org": "acme", "gen": 0,
        });
        assert_eq!(claims, expected);
        let exp = u64::try_from(claims["exp"].as_i64().unwrap()).unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(exp);
        let said = humantime::parse_rfc3339(found["token_expires_at"].as_str().unwrap()).unwrap();
        assert_eq!(said, at);
        assert_ne!(family.pair_token().await, token, "each its own jti");

        assert_eq!(family.call(token).await.0, 200);
        assert_eq!(family.two.agent.take().field("x-workspace-id"), Some("one"));
        let elsewhere = Request::post(family.one.path(), CALL).bearer(token);
        let refused = family.gateway.call(&elsewhere).await;
        assert_eq!((refused.status, refused.reason().as_str()), (403, "not_permitted"));
        let claimed = Request::post(family.two.path(), CALL).bearer(token).field("X-Workspace-ID", "two");
        let refused = family.gateway.call(&claimed).await;
        assert_eq!((refused.status, refused.reason().as_str()), (403, "caller_mismatch"));

        // Whoever is no workspace needs none.
        let canvas = family.gateway.token("/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        for credential in [ADMIN, canvas.as_str()] {
            let request = Request::get("/registry/discover/two").bearer(credential);
            let found = family.gateway.call(&request).await.json();
            assert_eq!(found["id"], "two");
            for member in ["token", "token_expires_at", "token_expires_in"] {
                assert!(found.get(member).is_none(), "{found}");
            }
        }
        assert!(!family.gateway.log().contains(token), "it is in the log");
    }

    async fn a_forwarded_request_tells_its_target_who_calls_and_what() {
        let family = Family::new(Pair::Embedded).await;
        let gateway = &family.gateway;
        assert_eq!(gateway.patch("two", json!({"proof": "request"})).await.status, 200);
        let canvas = gateway.token("/canvas/tokens", r#"{"user":"ada","org":"acme"}"#).await;
        let mut seen = Vec::new();
        for (credential, sub, rel, org) in [
            (family.one.token.as_str(), "one", "sibling", Some("acme")),
            (&family.two.token, "two", "self", Some("acme")),
            (&canvas, "canvas:ada", "canvas", Some("acme")),
            (ADMIN, "operator:", "operator", None),
        ] {
            // Completed on the way: what is hashed is what arrives.
            for (body, method) in [
                (CALL.to_owned(), Some("message/send")),
                (r#"{"message":{"text":"hi"}}"#.into(), Some("message/send")),
                (r#"{"jsonrpc":"2.0","id":1,"method":"tasks\/get","params":{"id":"t"}}"#.into(), Some("tasks/get")),
                (r#"{"jsonrpc":"2.0","id":1,"method":"x/y"}"#.into(), Some("x/y")),
                (r#"{"jsonrpc":"2.0","id":1,"params":{}}"#.into(), None),
                (format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "m".repeat(129)), None),
            ] {
                let request = Request::post(family.two.path(), body).bearer(credential);
                assert_eq!(gateway.call(&request).await.status, 200);
                let arrived = family.two.agent.take();
                let token = caller_token(&arrived);
                let claims = claims(gateway, &token, "two").await;
                assert_eq!(claims["sub"], sub);
                assert_eq!(claims["rel"], rel);
                assert_eq!(claims["org"].as_str(), org);
                assert_eq!(claims["method"].as_str(), method, "{}", arrived.text());
                assert_eq!(claims["bh"], body_hash(arrived.text().as_bytes()));
                assert_eq!(claims["token_use"], "caller");
                assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 60);
                seen.push(claims["jti"].as_str().unwrap().to_owned());
                // It proves its caller to the target, and to nobody else.
                assert_eq!(family.call(&token).await, (401, "unauthenticated".to_owned()));
            }
        }
        let made = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), made, "no token is used again");

        // Where the agent has a credential of its own, that one keeps its field.
        let auth = json!({"upstream_auth": {"type": "bearer", "token": "the-agents-own"}});
        gateway.patch("two", auth).await.has(200);
        assert_eq!(family.call(&family.one.token).await.0, 200);
        let arrived = family.two.agent.take();
        assert_eq!(arrived.fields("authorization"), ["Bearer the-agents-own"]);
        let token = arrived.field("x-a2a-caller-token").expect("a caller token").to_owned();
        assert_eq!(claims(gateway, &token, "two").await["sub"], "one");
    }

    async fn a_move_ends_a_pair_token_at_once_and_raises_the_generation() {
        let family = Family::new(Pair::Embedded).await;
        let (gateway, token) = (&family.gateway, family.pair_token().await);
        assert_eq!(family.call(&token).await.0, 200);
        let moved = |body: Value| gateway.patch("one", body);
        gateway.create(json!({"id": "else", "name": "else", "org": "acme"})).await;
        assert_eq!(moved(json!({"parent_id": "else"})).await.status, 200);
        assert_eq!(family.call(&token).await, (403, "not_permitted".to_owned()));
        assert_eq!(moved(json!({"parent_id": "lead"})).await.status, 200);
        let generation = async || {
            let claims = claims(gateway, &family.pair_token().await, "two").await;
            claims["gen"].as_i64().unwrap()
        };
        let mut earlier = generation().await;
        assert!(earlier > 0);
        // Also when one above them moves, and wherever they came from.
        for parent in ["else", "above"] {
            if parent == "above" {
                gateway.create(json!({"id": "above", "name": "above", "org": "acme"})).await;
            }
            gateway.patch("lead", json!({"parent_id": parent})).await.has(200);
            let now = generation().await;
            assert!(now > earlier, "{now} after {earlier}");
            earlier = now;
        }
        assert_eq!(family.call(&token).await.0, 200, "the rule is asked, at each call");
        // With its caller it ends for good.
        assert_eq!(gateway.as_operator(Request::new("DELETE", "/workspaces/one")).await.status, 200);
        assert_eq!(family.call(&token).await, (403, "not_permitted".to_owned()));
    }
}

#[tokio::test]
async fn hops_are_counted_and_a_circle_is_stopped() {
    let family = Family::on(Builder::new(Pair::Embedded).set("forward.max_hops", "3")).await;
    let call = async |hops: &str| {
        let request = Request::post(family.two.path(), CALL).bearer(&family.one.token);
        let request = request.field("X-A2A-Hops", hops);
        family.gateway.call(&request).await
    };
    for (came, goes) in [("0", "1"), ("2", "3")] {
        assert_eq!(call(came).await.status, 200);
        assert_eq!(family.two.agent.take().fields("x-a2a-hops"), [goes]);
    }
    let stopped = call("3").await;
    stopped.refuses(508, "loop_detected");
    let unclear = call("three").await;
    unclear.refuses(400, "invalid_request");
    let twice = Request::post(family.two.path(), CALL)
        .bearer(&family.one.token)
        .field("X-A2A-Hops", "0")
        .field("X-A2A-Hops", "1");
    assert_eq!(family.gateway.call(&twice).await.status, 400);
    assert_eq!(family.two.agent.count(), 0, "no refused call got there");
}

/// An agent that calls its own gateway again, and passes the count on, is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_calls_itself_for_ever_is_stopped() {
    let gateway = Gateway::start(Pair::Embedded).await;
    gateway.found("lead").await;
    let door = gateway.public;
    let token = std::sync::Arc::new(std::sync::OnceLock::<String>::new());
    let own = std::sync::Arc::clone(&token);
    let agent = Agent::scripted(move |arrived: &Recorded| {
        let hops = arrived.field("x-a2a-hops").unwrap_or("0").to_owned();
        let request = Request::post("/workspaces/loop/a2a", CALL)
            .bearer(own.get().expect("a token"))
            .field("X-A2A-Hops", hops)
            .field("Connection", "close");
        vec![Step::Ask(door, request.wire(&door.to_string()))]
    })
    .await;
    let seat = gateway.seat("loop", "lead", agent).await;
    token.set(seat.token.clone()).unwrap();
    let request = Request::post(seat.path(), CALL).bearer(&seat.token);
    let answer = gateway.call(&request).await;
    answer.refuses(508, "loop_detected");
    assert_eq!(seat.agent.count(), 8);
}

#[tokio::test]
async fn what_verifiers_need_is_published() {
    let builder = Builder::new(Pair::Embedded)
        .set("server.public_url", "https://gateway.example.com/")
        .set("tokens.pair_ttl", "2min");
    let gateway = builder.start().await;
    let about = Request::get("/.well-known/a2a-gateway");
    let said = gateway.call(&about).await.json();
    let issuer = "https://gateway.example.com";
    assert_eq!(said["issuer"], issuer);
    assert_eq!(said["jwks_uri"], format!("{issuer}/.well-known/jwks.json"));
    assert_eq!(said["tokens"]["pair"]["lifetime_seconds"], 120);
    assert_eq!(said["tokens"]["caller"]["lifetime_seconds"], 60);
    let guard = &said["tokens"]["guard"];
    assert_eq!(guard["typ"], "a2a-guard+jwt");
    assert_eq!(guard["scope"], "a2a:guard");
    assert_eq!(guard["lifetime_seconds"], 60);
    assert_eq!(guard["claims"].as_array().unwrap().len(), 9);
    let claims = said["tokens"]["caller"]["claims"].as_array().unwrap();
    for claim in ["token_use", "bh", "method"] {
        assert!(claims.contains(&claim.into()), "{claim}");
        let discovered = said["tokens"]["pair"]["claims"].as_array().unwrap();
        assert!(!discovered.contains(&claim.into()), "{claim}");
    }
    for path in ["/.well-known/a2a-gateway", "/.well-known/jwks.json"] {
        let answer = gateway.call(&Request::get(path)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("content-type"), Some("application/json"));
        assert_eq!(answer.field("cache-control"), Some("public, max-age=300"));
        let tag = answer.field("etag").unwrap().to_owned();
        for known in [
            tag.clone(),
            format!("W/{tag}"),
            format!("\"x\", {tag}"),
            "*".into(),
        ] {
            let again = gateway
                .call(&Request::get(path).field("If-None-Match", known))
                .await;
            assert_eq!((again.status, again.text().as_str()), (304, ""));
            assert_eq!(again.field("etag"), Some(&*tag));
        }
        let other = Request::get(path).field("If-None-Match", "\"other\"");
        assert_eq!(gateway.call(&other).await.status, 200);
        // A credential is neither needed nor looked at.
        let rubbish = Request::get(path).bearer("rubbish");
        assert_eq!(gateway.call(&rubbish).await.status, 200);
    }
    let keys = jwks(&gateway).await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "active and next");
}
