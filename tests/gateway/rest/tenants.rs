//! Tenants: workspaces at the gateway's origin, and several agents behind one endpoint.

use serde_json::{Value, json};

use super::{Case, cardless};
use crate::harness::{Request, Step, card_1_0, ok_json};

/// An agent with tenants.
async fn tenants() -> Case {
    let agent = cardless(|_| {
        vec![Step::Write(ok_json(
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ))]
    });
    let mut card = card_1_0("target");
    card["supportedInterfaces"] = json!([
        {"url": "http://a/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "eu"},
        {"url": "http://a/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "eu"},
        {"url": "http://a/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0", "tenant": "us"},
    ]);
    Case::new(card, agent.await).await
}

impl Case {
    async fn call_at(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path, body.to_string()).bearer(&self.caller.token);
        let answer = self
            .gateway
            .call(&request.field("A2A-Version", "1.0"))
            .await;
        (
            answer.status,
            serde_json::from_slice(&answer.body).unwrap_or_default(),
        )
    }

    /// The first line and the body of the last call that the agent got.
    fn sent(&self) -> (String, Value) {
        let recorded = self.target.agent.take();
        let line = recorded.head.lines().next().unwrap().to_owned();
        (line, serde_json::from_str(recorded.text()).unwrap())
    }
}

fn message() -> Value {
    json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}})
}

fn call(tenant: Option<&str>) -> Value {
    let mut params = message();
    if let Some(tenant) = tenant {
        params["tenant"] = tenant.into();
    }
    json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params})
}

#[tokio::test]
async fn a_call_at_the_origin_goes_to_the_workspace_that_its_tenant_names() {
    let case = tenants().await;
    for (tenant, kept) in [("target", None), ("target/eu", Some("eu"))] {
        let (status, answer) = case.call_at("/", &call(Some(tenant))).await;
        assert_eq!(
            (status, answer.get("result").is_some()),
            (200, true),
            "{answer}"
        );
        let (line, body) = case.sent();
        assert_eq!(line, "POST / HTTP/1.1");
        assert_eq!(
            body["params"].get("tenant").and_then(Value::as_str),
            kept,
            "{body}"
        );
        assert_eq!(
            body["params"]["message"]["parts"],
            message()["message"]["parts"]
        );
    }
    for tenant in [None, Some(""), Some("a b"), Some("/eu")] {
        let (status, answer) = case.call_at("/", &call(tenant)).await;
        assert_eq!(status, 400, "{tenant:?}: {answer}");
        assert_eq!(
            answer["error"]["data"][0]["reason"], "INVALID_WORKSPACE_ID",
            "{answer}"
        );
    }
    // The order of checks: the credential before the tenant, the hierarchy behind it.
    let anonymous = Request::post("/", call(Some("target")).to_string());
    assert_eq!(case.gateway.call(&anonymous).await.status, 401);
    let (status, answer) = case.call_at("/", &call(Some("nobody"))).await;
    assert_eq!(
        (status, &answer["error"]["data"][0]["reason"]),
        (403, &json!("NOT_PERMITTED"))
    );
    assert_eq!(
        case.gateway
            .call(&Request::post("/", "[1]").bearer(&case.caller.token))
            .await
            .status,
        400
    );
}

#[tokio::test]
async fn routes_of_http_json_take_the_workspace_and_the_tenant_of_the_agent() {
    let case = tenants().await;
    for (path, line) in [
        (
            "/workspaces/target/a2a/eu/message:send",
            "POST /rest/eu/message:send HTTP/1.1",
        ),
        (
            "/workspaces/target/a2a/us/message:send",
            "POST /rest/us/message:send HTTP/1.1",
        ),
        (
            "/workspaces/target/a2a/message:send",
            "POST /rest/eu/message:send HTTP/1.1",
        ),
        (
            "/target/message:send",
            "POST /rest/eu/message:send HTTP/1.1",
        ),
        (
            "/target/us/message:send",
            "POST /rest/us/message:send HTTP/1.1",
        ),
    ] {
        let (status, answer) = case.call_at(path, &message()).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(case.sent().0, line, "{path}");
    }
    for path in [
        "/workspaces/target/a2a/asia/message:send",
        "/target/asia/message:send",
    ] {
        let (status, answer) = case.call_at(path, &message()).await;
        assert_eq!(status, 404, "{path}: {answer}");
        assert!(answer.to_string().contains("tenant"), "{answer}");
    }
    let (status, answer) = case.call_at("/nobody/message:send", &message()).await;
    assert_eq!(status, 403, "{answer}");
    // Routes of the gateway win over a tenant of that name.
    let (status, _) = case.call_at("/registry/message:send", &message()).await;
    assert!([404, 405].contains(&status), "{status}");
}
