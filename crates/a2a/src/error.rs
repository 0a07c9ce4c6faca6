//! Errors of the HTTP+JSON binding: those that A2A defines ([`DefinedError`]), and their form (A2A 1.0,
//! 5.4 and 11.6).

use serde_json::{Map, Value, json};

use super::fields::{Fields, unescape_string};

/// The domain of the errors that A2A defines.
pub const DOMAIN: &str = "a2a-protocol.org";

/// An error that A2A defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinedError {
    /// The `reason` of its `ErrorInfo`.
    pub reason: &'static str,
    /// Its HTTP status in the HTTP+JSON binding.
    pub http: u16,
    /// Its name in google.rpc.Code.
    pub status: &'static str,
}

impl DefinedError {
    /// Those of the codes from -32001 downwards.
    const ALL: [Self; 9] = [
        Self::new("TASK_NOT_FOUND", 404, "NOT_FOUND"),
        Self::new("TASK_NOT_CANCELABLE", 400, "FAILED_PRECONDITION"),
        Self::new(
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
            400,
            "FAILED_PRECONDITION",
        ),
        Self::new("UNSUPPORTED_OPERATION", 400, "FAILED_PRECONDITION"),
        Self::new("CONTENT_TYPE_NOT_SUPPORTED", 400, "INVALID_ARGUMENT"),
        Self::new("INVALID_AGENT_RESPONSE", 500, "INTERNAL"),
        Self::new(
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
            400,
            "FAILED_PRECONDITION",
        ),
        Self::new("EXTENSION_SUPPORT_REQUIRED", 400, "FAILED_PRECONDITION"),
        Self::new("VERSION_NOT_SUPPORTED", 400, "FAILED_PRECONDITION"),
    ];

    const fn new(reason: &'static str, http: u16, status: &'static str) -> Self {
        Self {
            reason,
            http,
            status,
        }
    }

    /// Returns the error of this JSON-RPC code; `None`: A2A does not define it.
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            -32_009..=-32_001 => Some(Self::ALL[(-32_001 - code) as usize]),
            _ => None,
        }
    }

    /// Returns the JSON-RPC code of the error with this reason.
    pub(crate) fn code_of_reason(reason: &str) -> Option<i64> {
        let codes = (-32_009..=-32_001).rev();
        let mut all = codes.zip(Self::ALL);
        all.find_map(|(code, defined)| (defined.reason == reason).then_some(code))
    }
}

/// Returns the name in google.rpc.Code for an HTTP status.
const fn status_word(http: u16) -> &'static str {
    match http {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 | 410 => "NOT_FOUND",
        405 | 501 => "UNIMPLEMENTED",
        408 | 504 => "DEADLINE_EXCEEDED",
        409 => "ABORTED",
        421 | 426 | 508 => "FAILED_PRECONDITION",
        429 => "RESOURCE_EXHAUSTED",
        502 | 503 => "UNAVAILABLE",
        400..=499 => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

/// Builds a google.rpc.ErrorInfo, for the `data` of a JSON-RPC error and the `details` of a
/// [`status_body`].
pub fn error_info(reason: &str, domain: &str, metadata: Map<String, Value>) -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": domain,
        "metadata": metadata,
    })
}

/// Builds a google.rpc.Status. `code` is that of JSON-RPC; its status name is used if A2A defines
/// the error.
pub fn status_body(http: u16, code: i64, message: &str, details: &Value) -> Value {
    let word = DefinedError::from_code(code).map_or(status_word(http), |defined| defined.status);
    json!({"code": http, "status": word, "message": message, "details": details})
}

/// A parsed JSON-RPC error.
pub struct RpcError<'a> {
    code: i64,
    message: String,
    /// The `data` as it is spelled.
    data: Option<&'a str>,
}

impl<'a> RpcError<'a> {
    /// Parses the member `error`. A value that is not an object becomes the message.
    pub fn parse(error: &'a str) -> Self {
        let fields = Fields::parse(error).unwrap_or_default();
        let code = fields.get("code").and_then(|code| code.parse().ok());
        let message = fields
            .get_text("message")
            .or_else(|| unescape_string(error));
        Self {
            code: code.unwrap_or(-32_603),
            message: message.unwrap_or_else(|| error.to_owned()),
            data: fields.get_borrowed("data"),
        }
    }

    /// Returns its HTTP status in the HTTP+JSON binding.
    pub const fn http_status(&self) -> u16 {
        match (DefinedError::from_code(self.code), self.code) {
            (Some(defined), _) => defined.http,
            (None, -32_601) => 501,
            (None, -32_603) => 500,
            (None, -32_700..=-32_000) => 400,
            (None, _) => 500,
        }
    }

    /// Returns its body: a google.rpc.Status, and beside it, unless it stands `alone`, the members that clients of 0.3
    /// read.
    pub fn rest_body(&self, http: u16, alone: bool) -> String {
        let listed: Option<Vec<Value>> = self.data.and_then(|data| serde_json::from_str(data).ok());
        let details = listed.unwrap_or_else(|| {
            let defined = DefinedError::from_code(self.code);
            let info = defined.map(|defined| error_info(defined.reason, DOMAIN, Map::new()));
            info.into_iter().collect()
        });
        let status = status_body(http, self.code, &self.message, &details.into());
        if alone {
            return format!(r#"{{"error":{status}}}"#);
        }
        let (code, message) = (self.code, Value::from(self.message.as_str()));
        let data = self.data.map(|data| format!(r#","data":{data}"#));
        let data = data.unwrap_or_default();
        format!(r#"{{"error":{status},"code":{code},"message":{message}{data}}}"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_json_rpc_is_a_status_that_clients_of_either_generation_read() {
        let cases = [
            (
                r#"{"code":-32001,"message":"no task"}"#,
                404,
                json!({
                    "error": {"code": 404, "status": "NOT_FOUND", "message": "no task",
                        "details": [error_info("TASK_NOT_FOUND", DOMAIN, Map::new())]},
                    "code": -32001, "message": "no task",
                }),
            ),
            (
                r#"{"code":-32002,"message":"over","data":[{"@type":"x","reason":"R"}]}"#,
                400,
                json!({
                    "error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "over",
                        "details": [{"@type": "x", "reason": "R"}]},
                    "code": -32002, "message": "over", "data": [{"@type": "x", "reason": "R"}],
                }),
            ),
            (
                r#"{"code":-32601,"message":"what","data":"tasks/send"}"#,
                501,
                json!({
                    "error": {"code": 501, "status": "UNIMPLEMENTED", "message": "what", "details": []},
                    "code": -32601, "message": "what", "data": "tasks/send",
                }),
            ),
            (
                r#""words""#,
                500,
                json!({
                    "error": {"code": 500, "status": "INTERNAL", "message": "words", "details": []},
                    "code": -32603, "message": "words",
                }),
            ),
        ];
        for (error, http, expected) in cases {
            let read = RpcError::parse(error);
            assert_eq!(read.http_status(), http, "{error}");
            let body: Value = serde_json::from_str(&read.rest_body(http, false)).unwrap();
            assert_eq!(body, expected, "{error}");
            let body: Value = serde_json::from_str(&read.rest_body(http, true)).unwrap();
            assert_eq!(body, json!({"error": expected["error"]}), "{error}");
        }
    }
}
