//! Assertions that hold for every rejection by the gateway, whatever the route.

use a2a_gateway::rejection::Reason;

use super::client::Answer;

/// Asserts the form of a rejection for `reason` on `path`.
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
    let row = Reason::ALL.iter().find(|r| r.as_str() == reason);
    let row = row.unwrap_or_else(|| panic!("{reason} is not documented"));
    let below = path.split_once("/a2a/").map(|(_, tail)| tail);
    let http_json = below.is_some_and(|tail| !tail.is_empty() && !tail.starts_with(".well-known/"));
    let is_base = path.ends_with("/a2a") && !path.starts_with("/.well-known/");
    let json_rpc = !http_json && (is_base || below.is_some());
    // Every A2A server answers a JSON-RPC call with 200, errors too.
    let of_a2a = matches!(row.rpc_code(), -32_004..=-32_001 | -32_009..=-32_006);
    let status = if json_rpc && of_a2a {
        200
    } else {
        row.status()
    };
    assert_eq!(answer.status, status, "{shown}");
    assert!(answer.whole, "{shown}");
    let field = |name: &str| answer.field(name);
    assert_eq!(field("content-type"), Some("application/json"), "{shown}");
    assert_eq!(field("x-request-id"), Some(request_id), "{shown}");
    // Distinguishes it from any agent's response.
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
    if json_rpc || http_json {
        let error = &json["error"];
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{shown}"
        );
        let info = if http_json {
            assert_eq!(error["code"], answer.status, "{shown}");
            assert!(error["status"].is_string(), "{shown}");
            assert_eq!(json["code"], row.rpc_code(), "{shown}");
            assert_eq!(json["message"], error["message"], "{shown}");
            &error["details"][0]
        } else {
            assert_eq!(json["jsonrpc"], "2.0", "{shown}");
            let object = json.as_object();
            assert!(object.is_some_and(|o| o.contains_key("id")), "{shown}");
            assert_eq!(error["code"], row.rpc_code(), "{shown}");
            &error["data"][0]
        };
        assert_eq!(
            info["@type"], "type.googleapis.com/google.rpc.ErrorInfo",
            "{shown}"
        );
        let (said, domain) = match reason {
            _ if !http_json => (reason.to_uppercase(), "a2a-gateway"),
            "push_not_supported" => (
                "PUSH_NOTIFICATION_NOT_SUPPORTED".to_owned(),
                "a2a-protocol.org",
            ),
            "unsupported_media_type" => {
                ("CONTENT_TYPE_NOT_SUPPORTED".to_owned(), "a2a-protocol.org")
            }
            "task_not_found" => ("TASK_NOT_FOUND".to_owned(), "a2a-protocol.org"),
            _ => (reason.to_uppercase(), "a2a-gateway"),
        };
        assert_eq!(info["reason"], said, "{shown}");
        assert_eq!(info["domain"], domain, "{shown}");
        let metadata = &info["metadata"];
        assert_eq!(metadata["requestId"], request_id, "{shown}");
        let facts = metadata.as_object().map(|m| m.values());
        assert!(
            facts.is_some_and(|mut f| f.all(serde_json::Value::is_string)),
            "{shown}"
        );
        assert_eq!(
            metadata["retryAfter"].as_str(),
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
