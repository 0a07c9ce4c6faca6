//! Who may ask: whoever reaches a loopback listener, or operators alone (`admin.auth`).

use crate::harness::{
    ADMIN, Agent, Answer, Builder, Connection, Gateway, Pair, Request, assert_refusal, until_found,
};
use crate::on_embedded;
use crate::operators::{paired, staged};

const PATH: &str = "/explain?caller=caller&target=target";

async fn ask(gateway: &Gateway, token: Option<&str>) -> Answer {
    let request = Request::get(PATH).field("X-Request-Id", "seen");
    let request = match token {
        Some(token) => request.bearer(token),
        None => request,
    };
    Connection::open(gateway.admin).await.call(&request).await
}

on_embedded! {
    async fn a_loopback_listener_asks_for_nothing_and_takes_no_wrong_credential() {
        let (gateway, caller, _target) = paired(Pair::Embedded, Agent::json("{}").await).await;
        assert_eq!(ask(&gateway, None).await.status, 200);
        assert_eq!(ask(&gateway, Some(ADMIN)).await.status, 200);
        assert_eq!(gateway.admin_get("/config").await.unwrap().status, 200);
        assert_refusal(&ask(&gateway, Some(&caller.token)).await, PATH, "seen", "not_permitted", "a workspace");
        assert_refusal(&ask(&gateway, Some("a2aa_0")).await, PATH, "seen", "unauthenticated", "nobody");
    }

    async fn with_token_only_operators_may_ask_and_guessing_is_bounded() {
        let builder = Builder::new(Pair::Embedded).set("admin.auth", "token");
        let (gateway, caller, _target) = staged(builder.set("rate.failures_per_second", "3"), Agent::json("{}").await).await;
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
