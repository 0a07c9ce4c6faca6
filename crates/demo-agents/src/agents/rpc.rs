//! JSON-RPC 2.0 as used by A2A 0.3: the request, and the faults of the example agents.

use http::HeaderValue;
use serde_json::{Value, json};

/// One JSON-RPC request.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The request's id, unchanged; `null` if it has none.
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Value,
}

impl Call {
    /// Parses a request body.
    ///
    /// # Errors
    /// Returns the id for the response (`null` if it could not be read) and the fault.
    pub(super) fn parse(body: &[u8]) -> Result<Self, (Value, Fault)> {
        let Ok(mut call) = serde_json::from_slice::<Value>(body) else {
            return Err((Value::Null, Fault::PARSE));
        };
        let id = match call.get("id") {
            Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
            _ => Value::Null,
        };
        if call["jsonrpc"] != "2.0" {
            return Err((id, Fault::REQUEST));
        }
        let Some(method) = call["method"].as_str().map(str::to_owned) else {
            return Err((id, Fault::REQUEST));
        };
        let params = call["params"].take();
        Ok(Self { id, method, params })
    }

    /// Returns the response that carries `result`.
    pub(super) fn result_response(&self, result: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": self.id, "result": result})
    }
}

/// A JSON-RPC error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: i32,
    pub(super) message: &'static str,
}

impl Fault {
    pub(super) const PARSE: Self = Self::new(-32_700, "the body is not JSON");
    pub(super) const REQUEST: Self = Self::new(
        -32_600,
        "not a JSON-RPC 2.0 request: `jsonrpc` and `method` are required",
    );
    pub(super) const METHOD: Self = Self::new(-32_601, "there is no such method");
    pub(super) const INTERNAL: Self = Self::new(-32_603, "this agent is flaky, and failed");
    pub(super) const TASK: Self = Self::new(-32_001, "there is no such task");
    pub(super) const NOT_CANCELABLE: Self = Self::new(-32_002, "the task has ended");
    pub(super) const NO_PUSH: Self = Self::new(-32_003, "push notifications are not supported");
    pub(super) const CONTENT_TYPE: Self = Self::new(-32_005, "Content-Type must be JSON");
    pub(super) const NO_EXTENDED_CARD: Self = Self::new(-32_007, "there is no extended card");
    pub(super) const BUSY: Self = Self::new(-32_603, "too many tasks are in progress");

    const fn new(code: i32, message: &'static str) -> Self {
        Self { code, message }
    }

    /// Returns the fault of wrong `params`.
    pub(super) const fn invalid_params(message: &'static str) -> Self {
        Self::new(-32_602, message)
    }

    /// Returns the error response to the request with this id.
    pub(super) fn error_response(self, id: &Value) -> Value {
        let error = json!({"code": self.code, "message": self.message});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    }
}

/// True for `application/json` and `application/*+json`.
pub(super) fn is_json(content_type: Option<&HeaderValue>) -> bool {
    let Some(Ok(text)) = content_type.map(HeaderValue::to_str) else {
        return false;
    };
    let media = text.split(';').next().unwrap_or_default().trim();
    let media = media.to_ascii_lowercase();
    media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"))
}
