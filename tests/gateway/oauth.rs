//! `POST /oauth/token` (contract §19): what a chain token is exchanged for, and what is refused.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::harness::issuer::Key;
use crate::harness::{Agent, Answer, CALL, Gateway, Pair, Request, Seat};
use crate::on_embedded;

const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
const ACCESS: &str = "urn:ietf:params:oauth:token-type:access_token";
const TYP: &str = "a2a-chain+jwt";

/// Three siblings, of which the first was handed a chain token, and one of another org.
struct House {
    gateway: Gateway,
    seats: Vec<Seat>,
    key: Key,
    issuer: String,
}

impl House {
    async fn new() -> Self {
        let gateway = Gateway::start(Pair::Embedded).await;
        let mut seats = Vec::new();
        for id in ["a", "b", "c"] {
            let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
            let card = json!({"name": id, "url": agent.url()});
            seats.push(
                gateway
                    .settle(json!({"id": id, "name": id, "org": "acme"}), card, agent)
                    .await,
            );
        }
        let other = json!({"id": "far", "name": "far", "org": "other"});
        gateway.create(other).await;
        let read = async |path: &str| gateway.call(&Request::get(path)).await.json();
        let published = read("/.well-known/jwks.json").await;
        let issuer = read("/.well-known/a2a-gateway").await["issuer"].clone();
        let active = gateway.dir.join("keys").join("active.pem");
        let key = Key::stolen(&active, &published["keys"][0]["kid"]);
        let issuer = issuer.as_str().unwrap().to_owned();
        Self {
            gateway,
            seats,
            key,
            issuer,
        }
    }

    fn claims(&self) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        json!({
            "iss": self.issuer, "aud": "a", "sub": "canvas:ada", "org": "acme", "groups": ["payers"],
            "txn": "q7", "began": now - 10, "iat": now, "nbf": now, "exp": now + 3600, "jti": "j-1",
            "scope": "a2a:chain", "token_use": "context", "rk": ["R-key-of-ada-000"],
        })
    }

    fn sign(&self, change: Value) -> String {
        let mut claims = self.claims();
        let members = claims.as_object_mut().unwrap();
        for (name, value) in change.as_object().unwrap() {
            members.insert(name.clone(), value.clone());
        }
        self.key.sign_as(TYP, &self.key.kid, &claims)
    }

    /// Asks as `a`, with these members in place of, or beside the good ones; `null` takes one away.
    async fn ask(&self, subject: &str, change: Value) -> Answer {
        let token = self.seats[0].token.clone();
        self.ask_as(&format!("Bearer {token}"), subject, change)
            .await
    }

    async fn ask_as(&self, authorization: &str, subject: &str, change: Value) -> Answer {
        let mut form = json!({"grant_type": GRANT, "subject_token": subject, "subject_token_type": JWT,
            "audience": "b"});
        let members = form.as_object_mut().unwrap();
        for (name, value) in change.as_object().unwrap() {
            members.insert(name.clone(), value.clone());
        }
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in members.iter() {
            if let Some(text) = value.as_str() {
                body.append_pair(name, text);
            }
        }
        let request = Request::post("/oauth/token", body.finish());
        let request = request.without("Content-Type");
        let request = request.field("Content-Type", "application/x-www-form-urlencoded");
        self.gateway
            .call(&request.field("Authorization", authorization))
            .await
    }

    async fn call(&self, token: &str, target: &str) -> Answer {
        let request = Request::post(format!("/workspaces/{target}/a2a"), CALL);
        self.gateway.call(&request.bearer(token)).await
    }
}

fn read(token: &Value) -> Value {
    let claims = token.as_str().unwrap().split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

on_embedded! {
    async fn a_chain_token_gives_a_credential_for_one_target() {
        let house = House::new().await;
        let older = json!({"sub": "c"});
        let signed = house.claims();
        let chain = house.sign(json!({"act": older, "began": signed["began"]}));
        let answer = house.ask(&chain, json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.field("cache-control"), Some("no-store"));
        let given = answer.json();
        assert_eq!((&given["token_type"], &given["issued_token_type"]), (&json!("Bearer"), &json!(ACCESS)));
        assert!(given.get("refresh_token").is_none());
        assert_eq!(given["expires_in"], 300);
        let claims = read(&given["access_token"]);
        assert_eq!(claims["act"], json!({"sub": "a", "act": {"sub": "c"}}));
        assert_eq!((&claims["aud"], &claims["token_use"]), (&json!("b"), &json!("call")));
        for name in ["sub", "org", "groups", "txn", "began", "scope", "iss"] {
            assert_eq!(claims[name], signed[name], "{name}");
        }
        assert_eq!((&claims["rk"][0], claims["rk"].as_array().unwrap().len()), (&signed["rk"][0], 2), "and that of `a`");
        let token = given["access_token"].as_str().unwrap();
        assert_eq!(house.call(token, "b").await.status, 200);
        let seen = house.seats[1].agent.requests();
        let seen = seen.last().unwrap().field("x-workspace-id").map(str::to_owned);
        assert_eq!(seen.as_deref(), Some("a"), "the caller is the outermost actor");
        let elsewhere = house.call(token, "c").await;
        assert_eq!((elsewhere.status, elsewhere.reason()), (403, "not_permitted".into()));
        let own = house.gateway.call(&Request::get("/workspaces").bearer(token)).await;
        assert_eq!((own.status, own.reason()), (403, "not_permitted".into()));
        assert_eq!(house.call(&chain, "b").await.status, 401, "a context is no credential");
        // By the URL of the endpoint, with the id as a user name, and with an actor.
        let url = json!({"audience": null, "resource": format!("{}/workspaces/b/a2a", house.issuer)});
        assert_eq!(house.ask(&chain, url).await.status, 200);
        let secret = &house.seats[0].token;
        let basic = format!("Basic {}", STANDARD.encode(format!("a:{secret}")));
        let actor = json!({"actor_token": secret, "actor_token_type": ACCESS, "client_id": "a"});
        assert_eq!(house.ask_as(&basic, &chain, actor).await.status, 200);
    }

    async fn what_is_wrong_is_named_in_the_form_of_oauth() {
        let house = House::new().await;
        let chain = house.sign(json!({}));
        let deep = (0..20).fold(json!(null), |act, _| match act {
            Value::Null => json!({"sub": "z"}),
            act => json!({"sub": "z", "act": act}),
        });
        let caller = house.key.sign_as("a2a-pair+jwt", &house.key.kid, &house.claims());
        let subject = |change: Value| house.sign(change);
        let actor = |token: &str| json!({"actor_token": token, "actor_token_type": ACCESS});
        for (n, (subject, change, code)) in [
            (chain.clone(), json!({"grant_type": null}), "invalid_request"),
            (chain.clone(), json!({"grant_type": "client_credentials"}), "unsupported_grant_type"),
            (chain.clone(), json!({"subject_token": null}), "invalid_request"),
            (chain.clone(), json!({"subject_token_type": ACCESS}), "invalid_request"),
            (chain.clone(), json!({"client_secret": "s"}), "invalid_request"),
            (chain.clone(), json!({"client_id": "b"}), "invalid_client"),
            (chain.clone(), json!({"scope": "all"}), "invalid_scope"),
            (chain.clone(), actor(&house.seats[1].token), "invalid_request"),
            (chain.clone(), actor("nothing"), "invalid_request"),
            (chain.clone(), json!({"actor_token_type": ACCESS}), "invalid_request"),
            (chain.clone(), json!({"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}), "invalid_request"),
            (chain.clone(), json!({"audience": null}), "invalid_request"),
            (chain.clone(), json!({"audience": "nobod"}), "invalid_target"),
            (chain.clone(), json!({"audience": "far"}), "invalid_target"),
            (chain.clone(), json!({"audience": "a:b"}), "invalid_target"),
            (chain.clone(), json!({"audience": null, "resource": "https://else.test/workspaces/b/a2a"}), "invalid_target"),
            (chain.clone(), json!({"requested_token_type": JWT}), "invalid_target"),
            (chain.clone(), json!({"requested_token_type": JWT, "audience": "a"}), "invalid_request"),
            (subject(json!({"aud": "b"})), json!({}), "invalid_request"),
            (subject(json!({"token_use": "call"})), json!({}), "invalid_request"),
            (subject(json!({"token_use": null})), json!({}), "invalid_request"),
            (subject(json!({"exp": 1})), json!({}), "invalid_request"),
            (subject(json!({"scope": "a2a:message"})), json!({}), "invalid_request"),
            (subject(json!({"iss": "https://else.test"})), json!({}), "invalid_request"),
            (subject(json!({"act": deep})), json!({}), "invalid_request"),
            (subject(json!({"authorization_details": [{"type": "pay"}], "x": 1})), json!({"audience": "c"}), "invalid_target"),
            (caller, json!({}), "invalid_request"),
            (Key::new("k-1").sign_as(TYP, &house.key.kid, &house.claims()), json!({}), "invalid_request"),
            ("x".repeat(5000), json!({}), "invalid_request"),
        ].into_iter().enumerate() {
            let refused = house.ask(&subject, change.clone()).await;
            let shown = format!("{n}: {change} {}", refused.text());
            // What no release knows permits nothing.
            let expected = if n == 25 { ["invalid_request", "invalid_target"] } else { [code, code] };
            assert!(expected.contains(&refused.json()["error"].as_str().unwrap()), "{shown}");
            assert_eq!(refused.status, if code == "invalid_client" { 401 } else { 400 }, "{shown}");
        }
        for wrong in ["Bearer a2aw_x", "Basic !", &format!("Basic {}", STANDARD.encode(format!("b:{}", house.seats[0].token)))] {
            let refused = house.ask_as(wrong, &chain, json!({})).await;
            assert_eq!((refused.status, &refused.json()["error"]), (401, &json!("invalid_client")), "{wrong}");
        }
    }

    async fn a_narrowed_token_only_gets_narrower_and_a_revocation_ends_both() {
        let house = House::new().await;
        let narrow = |details: Value| json!({"requested_token_type": JWT, "audience": "a",
            "authorization_details": details.to_string()});
        let to_b = json!([{"type": "a2a", "locations": ["b"]}]);
        let given = house.ask(&house.sign(json!({})), narrow(to_b.clone())).await;
        assert_eq!(given.status, 200, "{}", given.text());
        let given = given.json();
        assert_eq!((&given["token_type"], &given["issued_token_type"]), (&json!("N_A"), &json!(JWT)));
        let claims = read(&given["access_token"]);
        assert_eq!((&claims["authorization_details"], &claims["aud"]), (&to_b, &json!("a")));
        assert_eq!(claims["exp"], house.claims()["exp"], "no later end");
        let chain = given["access_token"].as_str().unwrap();
        let wider = house.ask(chain, narrow(json!([{"type": "a2a"}]))).await;
        assert_eq!((wider.status, &wider.json()["error"]), (400, &json!("invalid_request")));
        let elsewhere = house.ask(chain, json!({"audience": "c"})).await;
        assert_eq!(elsewhere.json()["error"], "invalid_target");
        let there = house.ask(chain, json!({})).await.json();
        let token = there["access_token"].as_str().unwrap();
        assert_eq!(house.call(token, "b").await.status, 200);
        // The key of the run, as the gateway makes it.
        let made = Request::post("/revocations", json!({"run": "q7"}).to_string());
        let id = house.gateway.as_operator(made).await.json()["id"].clone();
        let revoked = house.sign(json!({"rk": [id]}));
        let refused = house.ask(&revoked, json!({})).await;
        assert_eq!((refused.status, &refused.json()["error"]), (400, &json!("invalid_request")));
        assert!(refused.text().contains("revoked"), "{}", refused.text());
        let call = house.key.sign_as(TYP, &house.key.kid, &{
            let mut claims = house.claims();
            (claims["rk"], claims["token_use"]) = (json!([id]), json!("call"));
            (claims["aud"], claims["act"]) = (json!("b"), json!({"sub": "a"}));
            claims
        });
        assert_eq!(house.call(&call, "b").await.status, 401);
    }

    async fn the_server_says_what_it_does() {
        let house = House::new().await;
        let read = Request::get("/.well-known/oauth-authorization-server");
        let said = house.gateway.call(&read).await.json();
        assert_eq!(said["issuer"], house.issuer);
        assert_eq!(said["response_types_supported"], json!([]));
        assert_eq!(said["grant_types_supported"], json!([GRANT]));
        assert_eq!(said["token_endpoint"], format!("{}/oauth/token", house.issuer));
    }
}
