//! What pages of other origins may send and read.

use super::*;

#[tokio::test]
async fn pages_may_send_and_read_what_passes() {
    let answer = unary_answer("{}").replacen("content-length", "x-made-by: a\r\ncontent-length", 1);
    let gateway = TestGateway::new(answer, |config| {
        config.cors.origins = vec!["https://page.test".to_owned()];
        config.forward.headers = vec!["X-Team".to_owned()];
        config.forward.response_headers = vec!["X-Made-By".to_owned()];
    })
    .await;
    let origin = "origin: https://page.test";
    let asks = "access-control-request-method: POST";
    let line = "OPTIONS /workspaces/target/a2a";
    let preflight = gateway.send(line, &[origin, asks], "").await;
    assert_eq!(preflight.status, 204);
    let called = gateway.call(&[origin], CALL).await;
    assert_eq!(called.field("x-made-by"), Some("a"), "{}", called.head);
    let allowed = preflight.field("access-control-allow-headers").unwrap();
    assert_eq!(called.field("access-control-expose-headers"), Some(allowed));
    let names: Vec<&str> = allowed.split(", ").collect();
    for name in [
        "authorization",
        "baggage",
        "traceparent",
        "x-team",
        "x-made-by",
        "x-a2a-bridged",
        "idempotent-kept",
        "content-language",
    ] {
        assert!(names.contains(&name), "{name}: {allowed}");
    }
}
