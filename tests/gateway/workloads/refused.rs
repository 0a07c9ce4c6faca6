//! Tokens that prove no workspace: each with its reason.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::harness::issuer::with_hmac;

/// The word for which the metric counts a refusal, and a part of the message.
type Why = (&'static str, &'static str);

const CLAIMS: Why = (
    "claims",
    "not meant for this gateway, or a claim is missing",
);
const SIGNATURE: Why = ("signature", "signature is wrong");
const IMMATURE: Why = ("immature", "not valid yet");
const HEADER: Why = ("malformed", "header is not one");
const UNMAPPED: Why = ("unmapped", "do not match `claims`");
const NO_ID: Why = ("unmapped", "makes no workspace id");
const KEY: Why = ("unknown_key", "that its issuer does not publish");

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
    let (gateway, agent) = with(Pair::Embedded, &tables).await;
    let one = json!({"id": "acme.dev", "name": "one", "org": "acme"});
    gateway.create(one).await;
    let good = claims("acme", "dev");
    let of = |claims: &Value| account_token(&key, claims);
    let svid = |sub: &str| spire.sign(&domain.claims(json!({"sub": sub})));
    let fresh = || call("target", &of(&claims("acme", "dev")));
    until(&gateway, fresh, 200).await;
    let path = "spiffe://example.org/ns/acme/sa/dev";
    until(&gateway, || call("target", &svid(path)), 200).await;
    let now = jsonwebtoken::get_current_timestamp();
    let signed = account_token(&key, &good);
    let (head_and_claims, signature) = signed.rsplit_once('.').unwrap();
    let forged = format!("{head_and_claims}.{}", URL_SAFE_NO_PAD.encode([7; 256]));
    let other = account_token(&key, &claims("acme", "target"));
    let spliced = format!("{}.{signature}", other.rsplit_once('.').unwrap().0);
    let modulus = URL_SAFE_NO_PAD.decode(key.jwk()["n"].as_str().unwrap());
    let (modulus, by) = (modulus.unwrap(), aws_lc_rs::hmac::HMAC_SHA256);
    let head = json!({"alg": "HS256", "kid": "k8s-1"}).to_string();
    // The public key as a shared secret.
    let confused = with_hmac(&head, &good.to_string(), by, &modulus);
    let but = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        of(&claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        of(&claims)
    };
    let unsigned = format!("{}.", confused.rsplit_once('.').unwrap().0);
    let unknown = account_token(&Key::rsa("k8s-9"), &good);
    let abroad: Why = ("unmapped", "not in the org that the token names");
    let foreign: Why = ("malformed", "in auth.issuers");
    let absent: Why = ("unknown", "which does not exist");
    let other_domain = svid("spiffe://else.org/ns/acme/sa/dev");
    let two_names = svid("spiffe://example.org/ns/a.b/sa/dev");
    let cases = [
        ("audience", but("aud", json!(["another"])), CLAIMS),
        ("no audience", without("aud"), CLAIMS),
        ("no end", without("exp"), CLAIMS),
        (
            "over",
            but("exp", (now - 60).into()),
            ("expired", "has expired"),
        ),
        ("not yet", but("nbf", (now + 60).into()), IMMATURE),
        ("issued later", but("iat", (now + 60).into()), IMMATURE),
        ("forged", forged, SIGNATURE),
        ("spliced", spliced, SIGNATURE),
        ("another key", account_token(&stranger, &good), SIGNATURE),
        ("an unknown key", unknown, KEY),
        ("a key of the other issuer", spire.sign(&good), KEY),
        ("an issuer of the other key", but("iss", SPIRE.into()), KEY),
        (
            "a foreign issuer",
            but("iss", "https://else.example".into()),
            foreign,
        ),
        ("no signature", unsigned, HEADER),
        ("a shared secret", confused, HEADER),
        ("a user", but("sub", "ada".into()), UNMAPPED),
        ("no subject", without("sub"), UNMAPPED),
        (
            "a list of subjects",
            but("sub", json!([good["sub"]])),
            CLAIMS,
        ),
        ("another domain", other_domain, UNMAPPED),
        ("below", svid(&format!("{path}/x")), UNMAPPED),
        ("a forged name", of(&claims("acme", "system:x")), UNMAPPED),
        ("a long name", of(&claims("acme", &"x".repeat(129))), NO_ID),
        ("two names in one", two_names, NO_ID),
        ("another org", of(&claims("globex", "dev")), abroad),
        ("nowhere", of(&claims("acme", "nowhere")), absent),
    ];
    let before = agent.count();
    let refusals = "a2a_gateway_credentials_refused_total";
    for (what, token, (why, message)) in &cases {
        let counted = gateway.metric(refusals, &[why]).await;
        let request = call("target", token).field("X-Request-Id", "seen");
        let answer = gateway.call(&request).await;
        assert_eq!(answer.status, 401, "{what}: {}", answer.text());
        assert_refusal(&answer, &request.path, "seen", "unauthenticated", what);
        assert!(answer.text().contains(message), "{what}: {}", answer.text());
        let after = gateway.metric(refusals, &[why]).await;
        assert!(after > counted, "{what}: not counted as {why}");
    }
    assert_eq!(agent.count(), before);
    let log = gateway.log();
    let shown = cases.iter().find(|(_, token, _)| log.contains(&**token));
    assert_eq!(shown, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_token_proves_no_workspace_and_a_workloads_no_user() {
    let (people, machines) = (Key::new("k-1"), Key::rsa("k8s-1"));
    let login = Issuer::start("https://login.example.com", &[&people]).await;
    let cluster = Issuer::start(CLUSTER, &[&machines]).await;
    let platforms = json!([platform(&cluster, kubernetes())]).to_string();
    let builder = Builder::new(Pair::Embedded)
        .set("auth.issuers", &json!([login.table()]).to_string())
        .set("auth.workspace_issuers", &platforms);
    let gateway = builder.start().await;
    let dev = json!({"id": "dev", "name": "dev", "org": "acme"});
    gateway.create(dev).await;
    // Each has all that the other would need.
    let user = json!({"sub": "system:serviceaccount:acme:dev", "org": "acme"});
    let user = people.sign(&login.claims(user));
    let mut both = claims("acme", "dev");
    both["org"] = "acme".into();
    both["workspaces"] = json!(["dev"]);
    let workload = account_token(&machines, &both);
    let read = |token: &str| Request::get("/workspaces/dev").bearer(token);
    until(&gateway, || read(&user), 200).await;
    until(&gateway, || read(&workload), 200).await;
    refused(&gateway, &beat("dev", &user), 403, "not_permitted").await;
    let listed = |token: &str| Request::get("/workspaces/dev/tokens").bearer(token);
    refused(&gateway, &listed(&user), 403, "not_permitted").await;
    ok(&gateway, &listed(&workload)).await;
    // The workload is no user of the org, which would see the other workspace.
    for (id, parent) in [("below", "dev"), ("hidden", "below")] {
        let new = json!({"id": id, "name": id, "org": "acme", "parent_id": parent});
        gateway.create(new).await;
    }
    let hidden = |token: &str| Request::get("/workspaces/hidden").bearer(token);
    refused(&gateway, &hidden(&workload), 403, "not_permitted").await;
    ok(&gateway, &hidden(&user)).await;
}
