//! What holds for every refusal of the gateway's own, whatever the route.

use a2a_gateway::rejection::Reason;

use super::client::Answer;

/// Asserts the contract's shape of a refusal for `reason` on `path`.
pub(crate) fn assert_refusal(
    answer: &Answer,
    path: &str,
    request_id: &str,
    reason: &str,
    what: &str,
) {
    let json = answer.json();
    let shown = format!("{what}: {} {json}", answer.status);
    assert_eq!(answer.reason(), reason, "{shown}");
    let row = Reason::ALL.iter().find(|r| r.word() == reason);
    let row = row.unwrap_or_else(|| panic!("{reason} is not documented"));
    assert_eq!(answer.status, row.status(), "{shown}");
    assert!(answer.whole, "{shown}");
    let field = |name: &str| answer.field(name);
    assert_eq!(field("content-type"), Some("application/json"), "{shown}");
    assert_eq!(field("x-request-id"), Some(request_id), "{shown}");
    // What tells it from whatever an agent may say.
    assert_eq!(field("x-a2a-refused"), Some(reason), "{shown}");
    let challenge = (reason == "unauthenticated").then_some("Bearer");
    assert_eq!(field("www-authenticate"), challenge, "{shown}");
    let retry_after = json.get("retry_after").map(ToString::to_string);
    assert_eq!(field("retry-after"), retry_after.as_deref(), "{shown}");
    assert_eq!(
        json.get("restarting").is_some(),
        reason == "workspace_restarting",
        "{shown}"
    );
    if path.ends_with("/a2a") || path.contains("/a2a/") {
        let error = &json["error"];
        assert_eq!(json["jsonrpc"], "2.0", "{shown}");
        assert!(
            json.as_object().is_some_and(|o| o.contains_key("id")),
            "{shown}"
        );
        assert_eq!(error["code"], row.rpc_code(), "{shown}");
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{shown}"
        );
        let data = &error["data"][0];
        assert_eq!(
            data["@type"], "type.googleapis.com/google.rpc.ErrorInfo",
            "{shown}"
        );
        assert_eq!(data["reason"], reason.to_uppercase(), "{shown}");
        assert_eq!(data["domain"], "a2a-gateway", "{shown}");
        assert_eq!(data["metadata"]["requestId"], request_id, "{shown}");
        let facts = data["metadata"].as_object().map(|m| m.values());
        assert!(
            facts.is_some_and(|mut f| f.all(serde_json::Value::is_string)),
            "{shown}"
        );
        assert_eq!(
            data["metadata"]["retryAfter"].as_str(),
            retry_after.as_deref(),
            "{shown}"
        );
    } else {
        assert!(
            json["error"].as_str().is_some_and(|m| !m.is_empty()),
            "{shown}"
        );
        assert_eq!(json["reason"], reason, "{shown}");
        assert_eq!(json["request_id"], request_id, "{shown}");
    }
}
