//! What is not exactly the answer to this browser's own sign-in.

use serde_json::{Value, json};

use super::{Begun, CLIENT, Provider, code, is_refused, tokens};
use crate::audit::recorded;
use crate::console::ask;
use crate::harness::agent::Step;
use crate::harness::issuer::Key;
use crate::harness::{Pair, Request};

#[tokio::test]
async fn an_answer_that_is_not_to_this_browsers_own_sign_in_is_refused_and_makes_nothing() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::Embedded).start().await;
    let (one, other) = (Begun::new(&gateway).await, Begun::new(&gateway).await);
    let good = provider.key.sign(&provider.claims(one.nonce(), json!({})));
    provider.gives(&good);
    let before = provider.host.count();
    for cookie in [&*other.cookie, "theme=dark"] {
        let foreign = Begun {
            cookie: cookie.to_owned(),
            asked: one.asked.clone(),
        };
        is_refused(&foreign.with_code(&gateway).await, 401, "state", cookie);
    }
    let (state, nonce) = (one.state(), one.nonce());
    let long = "c".repeat(5000);
    let foreign = "http%3A%2F%2Felsewhere.test";
    for (query, status, word) in [
        (format!("code=c&state={nonce}"), 401, "state"),
        ("code=c&state=".to_owned(), 401, "state"),
        ("code=c".to_owned(), 400, "state"),
        (format!("state={state}"), 400, "state"),
        (format!("code=c&code=c&state={state}"), 400, "state"),
        (format!("code=c&error=x&state={state}"), 400, "state"),
        (format!("code={long}&state={state}"), 400, "state"),
        (format!("code=c&state={state}&iss={foreign}"), 401, "state"),
        (format!("error=access_denied&state={state}"), 401, "refused"),
        (format!("error=access_denied&state={nonce}"), 401, "state"),
    ] {
        let answer = one.back(&gateway, &query).await;
        is_refused(&answer, status, word, &query);
    }
    let after = provider.host.count();
    assert_eq!(after, before, "the provider was asked for nothing");
    // A code that the provider does not know: used, or of another sign-in.
    let refuses = |error: &str| {
        let body = json!({ "error": error }).to_string();
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json";
        let length = body.len();
        let answer = format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        vec![Step::write(answer)]
    };
    for (error, status, word) in [
        ("invalid_grant", 401, "code"),
        ("invalid_client", 500, "setup"),
    ] {
        provider.says("/token", refuses(error));
        is_refused(&one.with_code(&gateway).await, status, word, error);
    }
    assert!(tokens(&gateway).await.is_empty());
    provider.gives(&good);
    let query = format!("code=c&state={state}&iss={}", provider.issuer());
    code(&one.back(&gateway, &query).await);
    assert_eq!(tokens(&gateway).await.len(), 1);
}

#[tokio::test]
async fn a_token_that_is_not_for_this_sign_in_is_refused_and_a_person_without_a_role_is_told_so() {
    let provider = Provider::start().await;
    let gateway = provider.gateway(Pair::Embedded).start().await;
    let begun = Begun::new(&gateway).await;
    let (key, stranger) = (&provider.key, Key::rsa("one"));
    let claims = |more: Value| provider.claims(begun.nonce(), more);
    let now = jsonwebtoken::get_current_timestamp();
    let mut unsigned = key.sign(&claims(json!({})));
    unsigned.truncate(unsigned.rfind('.').unwrap() + 1);
    let symmetric = json!({"alg": "HS256", "typ": "JWT", "kid": "one"}).to_string();
    let foreign = Key::rsa("two");
    let wrong = [
        key.sign(&provider.claims("of another sign-in", json!({}))),
        key.sign(&claims(json!({"nonce": null}))),
        key.sign(&claims(json!({"aud": "another"}))),
        key.sign(&claims(json!({"aud": [CLIENT, "another"]}))),
        key.sign(&claims(json!({"azp": "another"}))),
        key.sign(&claims(json!({"iss": "http://elsewhere.test"}))),
        key.sign(&claims(json!({"exp": now - 60}))),
        key.sign(&claims(json!({"iat": now + 60}))),
        key.sign(&claims(json!({"iat": now - 3600}))),
        key.sign(&claims(json!({"sub": null}))),
        key.sign_as("logout+jwt", "one", &claims(json!({}))),
        key.sign_text(&symmetric, &claims(json!({})).to_string()),
        stranger.sign(&claims(json!({}))),
        foreign.sign(&claims(json!({}))),
        unsigned,
        "x".to_owned(),
    ];
    for token in wrong {
        provider.gives(&token);
        let answer = begun.with_code(&gateway).await;
        is_refused(&answer, 401, "token", &token);
    }
    for groups in [json!(["others"]), json!([]), Value::Null] {
        provider.gives(&key.sign(&claims(json!({ "groups": groups }))));
        let answer = begun.with_code(&gateway).await;
        is_refused(&answer, 403, "no_role", &groups.to_string());
        assert!(answer.text().contains("`groups`"), "{}", answer.text());
    }
    let signed_in = "event_type=OPERATOR_SIGNED_IN&outcome=not_permitted";
    let record = &recorded(&gateway, signed_in, 1).await[0];
    assert_eq!(record["detail"]["operator"]["subject"], "ada-1", "{record}");
    assert!(tokens(&gateway).await.is_empty());
    // A browser is told by the page.
    let query = format!("/console/sign-in/callback?code=c&state={}", begun.state());
    let request = Request::get(query).field("Cookie", &begun.cookie);
    let request = request.field("Accept", "text/html,*/*;q=0.8");
    let page = ask(gateway.admin, &request).await;
    let told = (page.status, page.field("location"));
    assert_eq!(told, (303, Some("../../#sign-in=no_role")));
    assert!(!gateway.log().contains("ada@example.com"));
}
