//! Tokens that prove no workspace: each with its reason.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The word for which the metric counts a refusal, and a part of the message.
type Why = (&'static str, &'static str);

const CLAIMS: Why = (
    "claims",
    "not meant for this gateway, or a claim is missing",
);
const UNMAPPED: Why = ("unmapped", "do not match `claims`");
const NO_ID: Why = ("unmapped", "makes no workspace id");
const KEY: Why = ("unknown_key", "that its issuer does not publish");

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn without(mut claims: Value, name: &str) -> Value {
    claims.as_object_mut().unwrap().remove(name);
    claims
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_token_that_proves_no_workspace_is_refused_with_its_reason() {
    let (key, stranger, spire) = (Key::rsa("k8s-1"), Key::rsa("k8s-1"), Key::p256("spire-1"));
    let cluster = Issuer::start(CLUSTER, &[&key]).await;
    let domain = Issuer::start(SPIRE, &[&spire]).await;
    let prefixed = json!({"claims": {"sub": "spiffe://example.org/ns/{namespace}/sa/{id}"}, "workspace": "{namespace}.{id}"});
    let tables = [
        platform(&cluster, kubernetes()),
        platform(&domain, prefixed),
    ];
    let (gateway, agent) = super::with(Pair::Embedded, &tables).await;
    gateway
        .create(json!({"id": "acme.dev", "name": "one", "org": "acme"}))
        .await;
    let good = claims("acme", "dev");
    let svid = |sub: &str| domain.claims(json!({"sub": sub}));
    until(
        &gateway,
        || call("target", &account_token(&key, &claims("acme", "dev"))),
        200,
    )
    .await;
    let path = "spiffe://example.org/ns/acme/sa/dev";
    until(&gateway, || call("target", &spire.sign(&svid(path))), 200).await;
    let now = jsonwebtoken::get_current_timestamp();
    let signed = account_token(&key, &good);
    let (head_and_claims, signature) = signed.rsplit_once('.').unwrap();
    let forged = format!("{head_and_claims}.{}", URL_SAFE_NO_PAD.encode([7; 256]));
    let other = account_token(&key, &claims("acme", "target"));
    let spliced = format!("{}.{signature}", other.rsplit_once('.').unwrap().0);
    let modulus = URL_SAFE_NO_PAD
        .decode(key.jwk()["n"].as_str().unwrap())
        .unwrap();
    let head = json!({"alg": "HS256", "kid": "k8s-1"}).to_string();
    // The public key as a shared secret.
    let confused = crate::harness::issuer::with_hmac(
        &head,
        &good.to_string(),
        aws_lc_rs::hmac::HMAC_SHA256,
        &modulus,
    );
    let of = |claims: &Value| account_token(&key, claims);
    let cases = [
        (
            "audience",
            of(&with(good.clone(), "aud", json!(["another"]))),
            CLAIMS,
        ),
        ("no audience", of(&without(good.clone(), "aud")), CLAIMS),
        ("no end", of(&without(good.clone(), "exp")), CLAIMS),
        (
            "over",
            of(&with(good.clone(), "exp", (now - 60).into())),
            ("expired", "has expired"),
        ),
        (
            "not yet",
            of(&with(good.clone(), "nbf", (now + 60).into())),
            ("immature", "not valid yet"),
        ),
        (
            "issued later",
            of(&with(good.clone(), "iat", (now + 60).into())),
            ("immature", "not valid yet"),
        ),
        ("forged", forged, ("signature", "signature is wrong")),
        ("spliced", spliced, ("signature", "signature is wrong")),
        (
            "another key",
            account_token(&stranger, &good),
            ("signature", "signature is wrong"),
        ),
        (
            "an unknown key",
            account_token(&Key::rsa("k8s-9"), &good),
            KEY,
        ),
        ("a key of the other issuer", spire.sign(&good), KEY),
        (
            "an issuer of the other key",
            of(&with(good.clone(), "iss", SPIRE.into())),
            KEY,
        ),
        (
            "a foreign issuer",
            of(&with(good.clone(), "iss", "https://else.example".into())),
            ("malformed", "in auth.issuers"),
        ),
        (
            "no signature",
            format!("{}.", confused.rsplit_once('.').unwrap().0),
            ("malformed", "header is not one"),
        ),
        (
            "a shared secret",
            confused,
            ("malformed", "header is not one"),
        ),
        (
            "a user",
            of(&with(good.clone(), "sub", "ada".into())),
            UNMAPPED,
        ),
        ("no subject", of(&without(good.clone(), "sub")), UNMAPPED),
        (
            "a list of subjects",
            of(&with(good.clone(), "sub", json!([good["sub"]]))),
            CLAIMS,
        ),
        (
            "another domain",
            spire.sign(&svid("spiffe://else.org/ns/acme/sa/dev")),
            UNMAPPED,
        ),
        ("below", spire.sign(&svid(&format!("{path}/x"))), UNMAPPED),
        ("a forged name", of(&claims("acme", "system:x")), UNMAPPED),
        ("a long name", of(&claims("acme", &"x".repeat(129))), NO_ID),
        (
            "two names in one",
            spire.sign(&svid("spiffe://example.org/ns/a.b/sa/dev")),
            NO_ID,
        ),
        (
            "another org",
            of(&claims("globex", "dev")),
            ("unmapped", "not in the org that the token names"),
        ),
        (
            "nowhere",
            of(&claims("acme", "nowhere")),
            ("unknown", "which does not exist"),
        ),
    ];
    let before = agent.count();
    for (what, token, (why, message)) in &cases {
        let counted = gateway
            .metric("a2a_gateway_credentials_refused_total", &[why])
            .await;
        let request = call("target", token).field("X-Request-Id", "seen");
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.text());
        assert_refusal(&answer, &request.path, "seen", "unauthenticated", what);
        assert!(answer.text().contains(message), "{what}: {}", answer.text());
        let after = gateway
            .metric("a2a_gateway_credentials_refused_total", &[why])
            .await;
        assert!(after > counted, "{what}: not counted as {why}");
    }
    assert_eq!(agent.count(), before);
    let log = gateway.log();
    assert!(
        cases
            .iter()
            .all(|(_, token, _)| !log.contains(token.as_str()))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_token_proves_no_workspace_and_a_workloads_no_user() {
    let (people, machines) = (Key::new("k-1"), Key::rsa("k8s-1"));
    let login = Issuer::start("https://login.example.com", &[&people]).await;
    let cluster = Issuer::start(CLUSTER, &[&machines]).await;
    let builder = Builder::new(Pair::Embedded)
        .set("auth.issuers", &json!([login.table()]).to_string())
        .set(
            "auth.workspace_issuers",
            &json!([platform(&cluster, kubernetes())]).to_string(),
        );
    let gateway = builder.start().await;
    gateway
        .create(json!({"id": "dev", "name": "dev", "org": "acme"}))
        .await;
    // Each has all that the other would need.
    let user =
        people.sign(&login.claims(json!({"sub": "system:serviceaccount:acme:dev", "org": "acme"})));
    let mut both = claims("acme", "dev");
    both["org"] = "acme".into();
    both["workspaces"] = json!(["dev"]);
    let workload = account_token(&machines, &both);
    let read = |token: &str| Request::get("/workspaces/dev").bearer(token);
    until(&gateway, || read(&user), 200).await;
    until(&gateway, || read(&workload), 200).await;
    refused(&gateway, &beat("dev", &user), 403, "not_permitted").await;
    let listed = Request::get("/workspaces/dev/tokens");
    refused(
        &gateway,
        &listed.clone().bearer(&user),
        403,
        "not_permitted",
    )
    .await;
    ok(&gateway, &listed.bearer(&workload)).await;
    // The workload is no user of the org, which would see the other workspace.
    gateway
        .create(json!({"id": "below", "name": "below", "org": "acme", "parent_id": "dev"}))
        .await;
    gateway
        .create(json!({"id": "hidden", "name": "hidden", "org": "acme", "parent_id": "below"}))
        .await;
    refused(
        &gateway,
        &Request::get("/workspaces/hidden").bearer(&workload),
        403,
        "not_permitted",
    )
    .await;
    ok(&gateway, &Request::get("/workspaces/hidden").bearer(&user)).await;
}
