//! Unit tests of claim sets, and of an issuer without keys. The integration tests cover fetching.

use serde_json::{Value, json};

use super::*;

fn principal(claims: Value) -> Result<Principal, TokenError> {
    let claims: Claims = serde_json::from_value(claims).map_err(|_| TokenError::Claims)?;
    check_issued_at(claims.iat, 5)?;
    claims.into_principal()
}

#[test]
fn claims_name_a_canvas_user_or_nobody() {
    let canvas = |org: Option<&str>, ids: Option<&[&str]>| Principal::Canvas {
        user: "ada".to_owned(),
        org: org.map(str::to_owned),
        confined: false,
        within: None,
        workspaces: ids.map(|ids| {
            let parse = |id: &&str| WorkspaceId::parse(id).unwrap();
            ids.iter().map(parse).collect()
        }),
    };
    let many: Vec<String> = (0..=WORKSPACES_MAX).map(|n| format!("w{n}")).collect();
    let soon = Timestamp::now().0 / 1000 + 60;
    for (claims, expected) in [
        (json!({"sub": "ada", "exp": 1}), Ok(canvas(None, None))),
        (
            json!({"sub": "ada", "exp": 1.5, "iat": 0.5}),
            Ok(canvas(None, None)),
        ),
        (json!({"sub": "ada", "exp": "1"}), Err(TokenError::Claims)),
        (
            json!({"sub": "ada", "exp": 1, "org": "acme", "scope": "openid"}),
            Ok(canvas(Some("acme"), None)),
        ),
        (
            json!({"sub": "ada", "exp": 1, "workspaces": ["a", "b"]}),
            Ok(canvas(None, Some(&["a", "b"]))),
        ),
        (
            json!({"sub": "ada", "exp": 1, "workspaces": []}),
            Ok(canvas(None, Some(&[]))),
        ),
        (json!({"exp": 1}), Err(TokenError::Claims)),
        (json!({"sub": "ada"}), Err(TokenError::Claims)),
        (json!({"sub": "", "exp": 1}), Err(TokenError::Claims)),
        (json!({"sub": "a\nb", "exp": 1}), Err(TokenError::Claims)),
        (
            json!({"sub": "a".repeat(257), "exp": 1}),
            Err(TokenError::Claims),
        ),
        (json!({"sub": 7, "exp": 1}), Err(TokenError::Claims)),
        (
            json!({"sub": "ada", "exp": 1, "org": ""}),
            Err(TokenError::Claims),
        ),
        (
            json!({"sub": "ada", "exp": 1, "org": ["acme"]}),
            Err(TokenError::Claims),
        ),
        (
            json!({"sub": "ada", "exp": 1, "workspaces": ["system:x"]}),
            Err(TokenError::Claims),
        ),
        (
            json!({"sub": "ada", "exp": 1, "workspaces": "a"}),
            Err(TokenError::Claims),
        ),
        (
            json!({"sub": "ada", "exp": 1, "workspaces": many}),
            Err(TokenError::Claims),
        ),
        (
            json!({"sub": "ada", "exp": 1, "iat": soon}),
            Err(TokenError::Immature),
        ),
    ] {
        assert_eq!(principal(claims.clone()), expected, "{claims}");
    }
}

fn settings(names: &[&str]) -> config::Auth {
    let config: config::Config = toml::from_str(config::load::DEFAULT).unwrap();
    let issuer = |name: &&str| config::Issuer {
        issuer: (*name).to_owned(),
        // Nothing listens there.
        jwks_url: "http://127.0.0.1:9/jwks.json".parse().unwrap(),
        audience: "gateway".to_owned(),
        name: None,
        client_id: None,
        groups: None,
    };
    config::Auth {
        issuers: names.iter().map(issuer).collect(),
        ..config.auth
    }
}

#[tokio::test(start_paused = true)]
async fn without_keys_the_issuer_is_named() {
    let metrics = Arc::new(Metrics::new());
    let issuers = Issuers::new(&settings(&["https://login.test"]), metrics);
    // {"alg":"EdDSA","kid":"k"} and {"iss":"https://login.test"}.
    let token = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.eyJpc3MiOiJodHRwczovL2xvZ2luLnRlc3QifQ.AA";
    let Err(AuthError::Unavailable(rejection)) = issuers.verify(token).await else {
        panic!("keys out of nowhere");
    };
    assert_eq!(rejection.reason, Reason::StoreUnavailable);
    assert!(
        rejection.message.contains("https://login.test"),
        "{rejection:?}"
    );
    assert!(rejection.retry_after.is_some());
    // A token of an unknown issuer, or of one that was removed.
    issuers.set(&settings(&["https://else.test"]));
    assert!(matches!(issuers.verify(token).await, Ok(None)));
    issuers.set(&settings(&[]));
    assert!(matches!(issuers.verify(token).await, Ok(None)));
}
