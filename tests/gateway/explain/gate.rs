//! Who may ask: whoever reaches a loopback listener, or operators alone (`admin.auth`).

use crate::harness::until_found;
use crate::harness::{
    ADMIN, Agent, Answer, Builder, Connection, Gateway, Pair, Request, assert_refusal,
};
use crate::on_embedded;

const PATH: &str = "/explain?caller=caller&target=target";

async fn ask(gateway: &Gateway, token: Option<&str>) -> Answer {
    let mut request = Request::get(PATH).field("X-Request-Id", "seen");
    if let Some(token) = token {
        request = request.bearer(token);
    }
    let mut connection = Connection::open(gateway.admin).await;
    connection
        .send(&request.wire(&gateway.admin.to_string()))
        .await;
    connection.try_answer().await.unwrap()
}

on_embedded! {
    async fn a_loopback_listener_asks_for_nothing_and_takes_no_wrong_credential() {
        let gateway = Gateway::start(Pair::Embedded).await;
        let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
        assert_eq!(ask(&gateway, None).await.status, 200);
        assert_eq!(ask(&gateway, Some(ADMIN)).await.status, 200);
        assert_eq!(gateway.admin_get("/config").await.unwrap().status, 200);
        assert_refusal(&ask(&gateway, Some(&caller.token)).await, PATH, "seen", "not_permitted", "a workspace");
        assert_refusal(&ask(&gateway, Some("a2aa_0")).await, PATH, "seen", "unauthenticated", "nobody");
    }

    async fn with_token_only_operators_may_ask_and_guessing_is_bounded() {
        let builder = Builder::new(Pair::Embedded).set("admin.auth", "token");
        let gateway = builder.set("rate.failures_per_second", "3").start().await;
        let (caller, _target) = gateway.pair(Agent::json("{}").await).await;
        assert_eq!(ask(&gateway, Some(ADMIN)).await.status, 200);
        // It names issuers, guards and stores.
        let config = gateway.admin_get("/config").await.unwrap();
        assert_eq!((config.status, config.reason().as_str()), (401, "unauthenticated"));
        let config = Request::get("/config").bearer(ADMIN);
        let config = Connection::open(gateway.admin).await.call(&config).await;
        assert!(config.json().to_string().contains("admin.auth"), "{}", config.text());
        assert_refusal(&ask(&gateway, None).await, PATH, "seen", "unauthenticated", "nobody");
        assert_refusal(&ask(&gateway, Some(&caller.token)).await, PATH, "seen", "not_permitted", "a workspace");
        let limited = until_found("the limit", async || {
            Some(ask(&gateway, None).await).filter(|answer| answer.status == 429)
        });
        assert_refusal(&limited.await, PATH, "seen", "rate_limited", "too many");
        // Whoever proves who they are waits for nobody; what tells of nobody asks for nothing.
        assert_eq!(ask(&gateway, Some(ADMIN)).await.status, 200);
        for path in ["/metrics", "/healthz", "/readyz", "/readyz/traffic", "/version"] {
            assert_eq!(gateway.admin_get(path).await.unwrap().status, 200, "{path}");
        }
    }
}
