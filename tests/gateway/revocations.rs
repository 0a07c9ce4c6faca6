//! Persons, sessions and credentials that are revoked (contract §19): what they began by then ends, and no more.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::issuer::{AUDIENCE, Issuer, Key, tables};
use crate::harness::servers::{self, Redis};
use crate::harness::{
    ADMIN, Agent, Answer, Builder, CALL, Connection, Gateway, Pair, Request, SSE_HEAD, Seat, Step,
    chunk, ok_json, until_holds as until,
};
use crate::on_embedded;

/// Begins each stream, and ends none.
async fn endless() -> Agent {
    Agent::scripted(|request| {
        if request.text().contains("message/stream") {
            let event = json!({"jsonrpc": "2.0", "id": "c-1", "result": {"kind": "message"}});
            let event = chunk(format!("data: {event}\n\n"));
            return vec![Step::write(SSE_HEAD), Step::Write(event), Step::Hang];
        }
        vec![Step::Write(ok_json(
            r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#,
        ))]
    })
    .await
}

async fn ask(gateway: &Gateway, token: &str) -> Answer {
    let request = Request::post("/workspaces/agent/a2a", CALL);
    gateway.call(&request.bearer(token)).await
}

async fn open(gateway: &Gateway, token: &str) -> Connection {
    let body = CALL.replace("message/send", "message/stream");
    let request = Request::post("/workspaces/agent/a2a", body).bearer(token);
    let mut connection = Connection::open(gateway.public).await;
    connection.send(&request.wire("localhost")).await;
    assert_eq!(connection.read_head().await.unwrap().status, 200);
    connection.next_chunk().await.unwrap();
    connection
}

/// Waits until a stream has ended.
async fn ends(stream: &mut Connection) {
    let over = async { while stream.next_chunk().await.is_some() {} };
    let over = timeout(Duration::from_secs(10), over).await;
    over.expect("the stream goes on");
}

async fn revoke(gateway: &Gateway, token: &str, body: &Value) -> Answer {
    let request = Request::post("/revocations", body.to_string());
    gateway.call(&request.bearer(token)).await
}

fn as_admin() -> &'static str {
    ADMIN
}

async fn start(issuer: &Issuer, extra: &[(&str, &str)]) -> (Gateway, Seat) {
    let mut table = issuer.table();
    for (name, value) in extra {
        table[*name] = (*value).into();
    }
    let tables = Value::from(vec![table]).to_string();
    let builder = Builder::new(Pair::Embedded).set("auth.issuers", &tables);
    let gateway = builder.start().await;
    let seat = gateway.seat("agent", "", endless().await).await;
    (gateway, seat)
}

on_embedded! {
    async fn what_a_person_a_session_or_a_token_began_ends_and_no_more() {
        let key = Key::new("k-1");
        let issuer = Issuer::start("https://login.test", &[&key]).await;
        let (gateway, _seat) = start(&issuer, &[]).await;
        let early = jsonwebtoken::get_current_timestamp() - 5;
        let token = |more: Value| {
            let mut claims = issuer.claims(more);
            claims["iat"] = claims["at"].as_u64().unwrap_or(early).into();
            claims["workspaces"] = json!(["agent"]);
            key.sign(&claims)
        };
        let ada = token(json!({"jti": "t-1", "sid": "s-1"}));
        let bob = token(json!({"sub": "bob", "jti": "t-2", "sid": "s-2"}));
        let eve = token(json!({"sub": "eve", "jti": "t-3"}));
        let dan = token(json!({"sub": "dan", "jti": "t-4"}));
        let mut open_ones = Vec::new();
        for one in [&ada, &bob, &eve, &dan] {
            assert_eq!(ask(&gateway, one).await.status, 200);
            open_ones.push(open(&gateway, one).await);
        }
        let iss = "https://login.test";
        let subjects = [
            json!({"root": {"iss": iss, "sub": "ada"}, "reason": "left"}),
            json!({"session": {"iss": iss, "sid": "s-2"}}),
            json!({"credential": "t-3"}),
        ];
        for (n, subject) in subjects.iter().enumerate() {
            let began = Instant::now();
            let made = revoke(&gateway, as_admin(), subject).await;
            assert_eq!(made.status, 201, "{}", made.text());
            ends(&mut open_ones[n]).await;
            assert!(began.elapsed() < Duration::from_secs(1), "{subject} {:?}", began.elapsed());
            let refused = ask(&gateway, [&ada, &bob, &eve][n]).await;
            assert_eq!((refused.status, refused.reason()), (401, "unauthenticated".into()), "{subject}");
        }
        let still = timeout(Duration::from_millis(300), open_ones[3].next_chunk()).await;
        assert!(still.is_err(), "the stream of another person ended: {still:?}");
        assert_eq!(ask(&gateway, &dan).await.status, 200);
        // A later sign-in is new; another person of another issuer has another name.
        let later = jsonwebtoken::get_current_timestamp() + 2;
        let again = token(json!({"jti": "t-9", "sid": "s-9", "at": later}));
        assert_eq!(ask(&gateway, &again).await.status, 200);

        let listed = gateway.as_operator(Request::get("/revocations")).await.json();
        let listed = listed["revocations"].as_array().unwrap().clone();
        assert_eq!(listed.len(), 3);
        let left = listed.iter().find(|one| one["reason"] == "left").unwrap();
        assert_eq!(left["subject"], json!({"root": {"iss": iss, "sub": "ada"}}));
        assert_eq!((&left["org"], &left["created_by"]), (&json!(null), &json!("operator:")));
    }

    async fn a_holder_ends_a_canvas_token_also_over_a_restart() {
        let gateway = Gateway::process(Pair::Embedded).await;
        let _seat = gateway.seat("agent", "", endless().await).await;
        let mut made = Vec::new();
        for user in ["ada", "bob"] {
            let body = json!({"user": user, "workspaces": ["agent"]}).to_string();
            let answer = gateway.as_operator(Request::post("/canvas/tokens", body)).await.json();
            let member = |name: &str| answer[name].as_str().unwrap().to_owned();
            made.push((member("token"), member("id")));
        }
        let delete = |id: &str, query: &str, token: &str| {
            Request::new("DELETE", format!("/canvas/tokens/{id}{query}")).bearer(token)
        };
        let ((ada, ada_id), (bob, bob_id)) = (&made[0], &made[1]);
        let refused = gateway.call(&delete(bob_id, "", ada)).await;
        assert_eq!((refused.status, refused.reason()), (403, "not_permitted".into()));
        let dry = gateway.call(&delete(ada_id, "?dry_run=true", ada)).await;
        assert_eq!(dry.status, 200, "{}", dry.text());
        assert_eq!(ask(&gateway, ada).await.status, 200, "it was tried only");
        let done = gateway.call(&delete(ada_id, "", ada)).await;
        assert_eq!(done.json()["status"], "revoked", "{}", done.text());
        assert_eq!(ask(&gateway, ada).await.status, 401);
        assert_eq!(ask(&gateway, bob).await.status, 200);
        let mut gateway = gateway;
        gateway.restart().await;
        gateway.await_ready().await;
        assert_eq!(ask(&gateway, ada).await.status, 401);
        assert_eq!(gateway.call(&delete(bob_id, "", as_admin())).await.status, 200);
        assert_eq!(ask(&gateway, bob).await.status, 401);
    }

    async fn a_token_of_an_org_revokes_within_the_org_and_bad_bodies_are_named() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let _seat = gateway.seat("agent", "", endless().await).await;
        let org = gateway.token("/orgs/acme/tokens", "{}").await;
        let public = gateway.as_operator(Request::get("/.well-known/a2a-gateway")).await.json();
        let iss = public["issuer"].clone();
        let mut tokens = Vec::new();
        for org in ["acme", "other"] {
            let body = json!({"user": "ada", "org": org}).to_string();
            tokens.push(gateway.token("/canvas/tokens", &body).await);
        }
        let made = revoke(&gateway, &org, &json!({"root": {"iss": iss, "sub": "ada"}})).await;
        assert_eq!(made.status, 201, "{}", made.text());
        assert_eq!(made.json()["org"], "acme");
        let me = |token: &String| Request::get("/workspaces").bearer(token);
        assert_eq!(gateway.call(&me(&tokens[0])).await.status, 401);
        assert_eq!(gateway.call(&me(&tokens[1])).await.status, 200);
        let seen = gateway.call(&Request::get("/revocations").bearer(&org)).await.json();
        assert_eq!(seen["revocations"].as_array().unwrap().len(), 1);
        let other = gateway.token("/orgs/other/tokens", "{}").await;
        let seen = gateway.call(&Request::get("/revocations").bearer(&other)).await.json();
        assert_eq!(seen["revocations"], json!([]));
        let canvas = revoke(&gateway, &tokens[1], &json!({"run": "q"})).await;
        assert_eq!((canvas.status, canvas.reason()), (403, "not_permitted".into()));
        for body in [
            json!({}),
            json!({"run": "q", "credential": "c"}),
            json!({"run": ""}),
            json!({"run": 7}),
            json!({"root": {"iss": "a"}}),
            json!({"root": {"iss": "a", "sub": "b", "more": 1}}),
            json!({"session": "s"}),
            json!({"person": "ada"}),
            json!({"run": "q", "reason": "x".repeat(300)}),
        ] {
            let refused = revoke(&gateway, as_admin(), &body).await;
            assert_eq!((refused.status, refused.reason()), (400, "invalid_params".into()), "{body}");
        }
    }

    async fn a_provider_signs_a_session_or_a_person_out() {
        let key = Key::new("k-1");
        let issuer = Issuer::start("https://login.test", &[&key]).await;
        let (gateway, _seat) = start(&issuer, &[("name", "login"), ("client_id", "gw-client")]).await;
        let event = "http://schemas.openid.net/event/backchannel-logout";
        let logout = |more: Value| {
            let mut claims = issuer.claims(json!({"aud": "gw-client", "events": {event: {}}}));
            let more = more.as_object().unwrap().clone();
            claims.as_object_mut().unwrap().extend(more);
            key.sign_as("logout+jwt", "k-1", &claims)
        };
        let send = async |name: &str, token: &str| {
            let body = format!("logout_token={token}");
            let request = Request::post(format!("/oauth/logout/{name}"), body);
            let request = request.without("Content-Type").field("Content-Type", "application/x-www-form-urlencoded");
            gateway.call(&request).await
        };
        let early = jsonwebtoken::get_current_timestamp() - 5;
        let access = |more: Value| {
            let mut claims = issuer.claims(more);
            claims["iat"] = early.into();
            claims["workspaces"] = json!(["agent"]);
            key.sign(&claims)
        };
        let (first, second) = (access(json!({"sid": "s-1"})), access(json!({"sid": "s-2"})));
        let wrong = [
            ("login", logout(json!({"jti": "1", "sid": "s-1", "aud": AUDIENCE}))),
            ("login", logout(json!({"jti": "1", "sid": "s-1", "nonce": "n"}))),
            ("login", logout(json!({"jti": "1", "sid": "s-1", "events": {}}))),
            ("login", logout(json!({"sid": "s-1"}))),
            ("login", Key::new("k-1").sign_as("logout+jwt", "k-1", &issuer.claims(json!({})))),
            ("login", "no-token".to_owned()),
            ("other", logout(json!({"jti": "1", "sid": "s-1"}))),
        ];
        for (name, token) in wrong {
            let refused = send(name, &token).await;
            assert!([400, 404].contains(&refused.status), "{}", refused.text());
            assert_eq!(refused.json()["error"], "invalid_request", "{}", refused.text());
        }
        assert_eq!(ask(&gateway, &first).await.status, 200);
        let token = logout(json!({"jti": "1", "sid": "s-1"}));
        let done = send("login", &token).await;
        assert_eq!(done.status, 200, "{}", done.text());
        assert_eq!(ask(&gateway, &first).await.status, 401);
        assert_eq!(ask(&gateway, &second).await.status, 200);
        assert_eq!(send("login", &token).await.status, 400, "its jti counts once");
        assert_eq!(send("login", &logout(json!({"jti": "2"}))).await.status, 200);
        assert_eq!(ask(&gateway, &second).await.status, 401, "the person");
        let as_json = Request::post("/oauth/logout/login", "{}");
        assert_eq!(gateway.call(&as_json).await.status, 415);
    }

    async fn metadata_is_the_same_for_each_id() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let _seat = gateway.seat("agent", "", endless().await).await;
        let read = async |id: &str| {
            let path = format!("/.well-known/oauth-protected-resource/workspaces/{id}/a2a");
            gateway.call(&Request::get(path)).await
        };
        let (known, unknown) = (read("agent").await, read("nobod").await);
        assert_eq!((known.status, unknown.status), (200, 200), "{}", known.text());
        assert_eq!(known.text().replace("agent", "nobod"), unknown.text());
        assert_eq!(known.json()["bearer_methods_supported"], json!(["header"]));
        let resource = known.json()["resource"].as_str().unwrap().to_owned();
        assert!(resource.ends_with("/workspaces/agent/a2a"), "{resource}");
        assert_eq!(read("a:b").await.status, 400);
    }
}

/// Over two replicas, with the push link and without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_holds_on_every_replica_within_a_second() {
    let redis = Redis::start();
    let sql = servers::postgres().database();
    let key = Key::new("k-1");
    let issuer = Issuer::start("https://login.test", &[&key]).await;
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let builder = Builder::new(Pair::Embedded).stores(&sql, &redis.url());
        let builder = builder.set("auth.issuers", &tables(&[&issuer]));
        gateways.push(builder.set("registry.heartbeat_ttl", "1h").start().await);
    }
    let _seat = gateways[0].seat("agent", "", endless().await).await;
    let early = jsonwebtoken::get_current_timestamp() - 5;
    for cut in [false, true] {
        for gateway in &gateways {
            until("the link is up", async || {
                gateway.metric("a2a_gateway_coherent", &[]).await == 1.0
            })
            .await;
        }
        let user = format!("ada-{cut}");
        let mut claims = issuer.claims(json!({"sub": user, "workspaces": ["agent"]}));
        claims["iat"] = early.into();
        let token = key.sign(&claims);
        let mut streams = Vec::new();
        for gateway in &gateways {
            streams.push(open(gateway, &token).await);
        }
        if cut {
            redis.cut_links();
        }
        let body = json!({"root": {"iss": "https://login.test", "sub": user}});
        let made = timeout(
            Duration::from_secs(5),
            revoke(&gateways[0], as_admin(), &body),
        );
        let began = Instant::now();
        // The push may wait for the link; the row is committed before.
        let _ = made.await;
        for stream in &mut streams {
            ends(stream).await;
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3), "{cut} {took:?}");
        redis.allow_links();
    }
}
