//! The forms of the gateway's own responses: body, status and last event of a rejection in each.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ids::RequestId;
use crate::rejection::{Reason, Rejection};
use a2a::error::{DOMAIN, DefinedError, error_info, status_body};
use a2a::event::{Framing, final_event};

/// The domain of rejections that A2A does not define.
pub const OWN_DOMAIN: &str = "a2a-gateway";

/// The form of the gateway's own responses. The route decides it (`data-plane/src/router.rs`), and for an envelope at a
/// route of HTTP+JSON the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// A JSON-RPC error.
    #[default]
    JsonRpc,
    /// A JSON-RPC error with status 200, whatever its reason (`a2a.refusal_status`).
    JsonRpcOk,
    /// A google.rpc.Status (A2A 1.0, 11.6), with the additional members that clients of 0.3 read.
    HttpJson,
    /// A google.rpc.Status alone, for a caller that says `A2A-Version: 1.0`.
    HttpJsonStatus,
    /// `{"error","reason","request_id"}`.
    Plain,
}

/// The form of the response to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyForm {
    /// The form.
    pub dialect: Dialect,
    /// The request's JSON-RPC id, as it was spelled.
    pub rpc_id: Option<String>,
}

impl From<Dialect> for ReplyForm {
    fn from(dialect: Dialect) -> Self {
        Self {
            dialect,
            rpc_id: None,
        }
    }
}

impl Rejection {
    /// Returns the JSON-RPC code.
    pub fn json_rpc_code(&self) -> i32 {
        self.rpc_code.unwrap_or_else(|| self.reason.rpc_code())
    }

    /// Returns the error of A2A's own table with this code, if there is one.
    fn a2a_error(&self) -> Option<DefinedError> {
        DefinedError::from_code(self.json_rpc_code().into())
    }

    /// Returns the HTTP status. An error that A2A defines has 200 in response to a JSON-RPC call, as with
    /// every A2A server, and its own status over HTTP+JSON. A wrong media type is detected before a call is
    /// read: it is 415 in every form.
    pub fn status_in(&self, dialect: Dialect) -> u16 {
        let defined = self.a2a_error();
        match (dialect, defined) {
            (Dialect::JsonRpcOk, _) => 200,
            // As an agent answers that does not know the method, also with -32601.
            (Dialect::JsonRpc, None) if self.reason == Reason::VersionNotSupported => 200,
            (Dialect::Plain, _) | (_, None) => self.reason.status(),
            _ if self.reason == Reason::UnsupportedMediaType => self.reason.status(),
            (Dialect::JsonRpc, Some(_)) => 200,
            (Dialect::HttpJson | Dialect::HttpJsonStatus, Some(defined)) => defined.http,
        }
    }

    /// Returns the body of the response.
    pub fn to_body(&self, form: &ReplyForm, request_id: &RequestId) -> String {
        match form.dialect {
            Dialect::JsonRpc | Dialect::JsonRpcOk => {
                self.rpc_body(request_id, form.rpc_id.as_deref())
            }
            Dialect::HttpJson | Dialect::HttpJsonStatus => {
                self.http_json_body(form.dialect, request_id)
            }
            Dialect::Plain => self.plain_body(request_id),
        }
    }

    /// Returns the last event of a stream that was cut off, with the name of the stream, which only the
    /// gateway and the caller know. Over HTTP+JSON the event has a name, by which clients distinguish a
    /// stream that was cut off from one that ended.
    pub fn last_event(
        &self,
        form: &ReplyForm,
        request_id: &RequestId,
        stream: &str,
        framing: Framing,
    ) -> Bytes {
        let told = self.clone().with_fact("stream", stream);
        match form.dialect {
            Dialect::HttpJson | Dialect::HttpJsonStatus => {
                let data = told.http_json_body(form.dialect, request_id);
                final_event(Some("error"), &data, framing)
            }
            Dialect::JsonRpc | Dialect::JsonRpcOk | Dialect::Plain => {
                let data = told.rpc_body(request_id, form.rpc_id.as_deref());
                final_event(None, &data, framing)
            }
        }
    }

    /// Returns the message with the time to wait: SDK clients show nothing else.
    fn sentence(&self) -> Cow<'static, str> {
        match self.retry_after {
            Some(seconds) => format!("{} (Retry-After: {seconds} s)", self.message).into(),
            None => self.message.clone(),
        }
    }

    fn error_metadata(&self, request_id: &RequestId) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("requestId".into(), request_id.as_str().into());
        if let Some(seconds) = self.retry_after {
            metadata.insert("retryAfter".into(), seconds.to_string().into());
        }
        for (name, value) in self.facts() {
            metadata.insert(name.into(), value.into());
        }
        metadata
    }

    /// Returns a JSON-RPC error that platform clients can read as well. `rpc_id` is the request's own token,
    /// as it was spelled.
    pub fn rpc_body(&self, request_id: &RequestId, rpc_id: Option<&str>) -> String {
        let reason = self.reason.as_str().to_uppercase();
        let data = error_info(&reason, OWN_DOMAIN, self.error_metadata(request_id));
        let error =
            json!({"code": self.json_rpc_code(), "message": self.sentence(), "data": [data]});
        // The id is spliced in as it was spelled: `1.0` and `1` are different tokens to their owner.
        let id = rpc_id.unwrap_or("null");
        let hints = self.platform_members();
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}{hints}}}"#)
    }

    /// Returns a google.rpc.Status.
    fn http_json_body(&self, dialect: Dialect, request_id: &RequestId) -> String {
        let (code, message) = (self.json_rpc_code(), self.sentence());
        let metadata = self.error_metadata(request_id);
        let detail = match self.a2a_error() {
            Some(defined) => error_info(defined.reason, DOMAIN, metadata),
            None => error_info(&self.reason.as_str().to_uppercase(), OWN_DOMAIN, metadata),
        };
        let http = self.status_in(Dialect::HttpJson);
        let status = status_body(http, code.into(), &message, &json!([detail]));
        if dialect == Dialect::HttpJsonStatus {
            return format!(r#"{{"error":{status}}}"#);
        }
        let message = Value::from(message.as_ref());
        let hints = self.platform_members();
        format!(r#"{{"error":{status},"code":{code},"message":{message}{hints}}}"#)
    }

    /// Returns the members that platform clients read at the top level.
    fn platform_members(&self) -> String {
        let mut hints = String::new();
        if let Some(seconds) = self.retry_after {
            hints.push_str(&format!(r#","retry_after":{seconds}"#));
        }
        if self.reason == Reason::WorkspaceRestarting {
            hints.push_str(r#","restarting":true"#);
        }
        hints
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id() -> RequestId {
        RequestId::from_caller(Some(b"r-1"))
    }

    fn restarting() -> Rejection {
        Rejection::new(Reason::WorkspaceRestarting, "on its way up")
            .with_retry_after(Duration::from_secs(15))
    }

    #[test]
    fn a_json_rpc_refusal_keeps_the_ids_spelling() {
        let form = ReplyForm {
            rpc_id: Some("1.0".into()),
            ..ReplyForm::default()
        };
        assert_eq!(
            restarting().to_body(&form, &id()),
            concat!(
                r#"{"jsonrpc":"2.0","id":1.0,"error":{"code":-32000,"data":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","#,
                r#""domain":"a2a-gateway","metadata":{"requestId":"r-1","retryAfter":"15"},"reason":"WORKSPACE_RESTARTING"}],"#,
                r#""message":"on its way up (Retry-After: 15 s)"},"retry_after":15,"restarting":true}"#
            )
        );
    }

    #[test]
    fn a_refusal_over_http_json_is_a_status_with_flat_members_beside_it() {
        let read = |rejection: &Rejection| -> Value {
            serde_json::from_str(&rejection.to_body(&Dialect::HttpJson.into(), &id())).unwrap()
        };
        let detail = |reason: &str, domain: &str, metadata: Value| {
            json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain,
                "metadata": metadata})
        };
        let metadata = json!({"requestId": "r-1", "retryAfter": "15"});
        assert_eq!(
            read(&restarting()),
            json!({
                "error": {"code": 503, "status": "UNAVAILABLE", "message": "on its way up (Retry-After: 15 s)",
                    "details": [detail("WORKSPACE_RESTARTING", "a2a-gateway", metadata)]},
                "code": -32000, "message": "on its way up (Retry-After: 15 s)", "retry_after": 15, "restarting": true,
            })
        );
        let alone = restarting().to_body(&Dialect::HttpJsonStatus.into(), &id());
        let alone: Value = serde_json::from_str(&alone).unwrap();
        assert_eq!(alone, json!({"error": read(&restarting())["error"]}));
        let push = Rejection::new(Reason::PushNotSupported, "no push");
        let metadata = json!({"requestId": "r-1"});
        assert_eq!(
            read(&push),
            json!({
                "error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "no push",
                    "details": [detail("PUSH_NOTIFICATION_NOT_SUPPORTED", "a2a-protocol.org", metadata)]},
                "code": -32003, "message": "no push",
            })
        );
    }

    #[test]
    fn only_what_a2a_defines_has_another_status_than_its_reason() {
        use Dialect::{HttpJson, JsonRpc, Plain};
        for &reason in Reason::ALL {
            let rejection = Rejection::new(reason, "");
            let seen = [JsonRpc, HttpJson, Plain].map(|dialect| rejection.status_in(dialect));
            let own = reason.status();
            let expected = match reason {
                Reason::TaskNotFound => [200, 404, 404],
                Reason::PushNotSupported | Reason::VersionNotSupported => [200, 400, 400],
                _ => [own, own, own],
            };
            assert_eq!(seen, expected, "{reason:?}");
            assert_eq!(rejection.status_in(Dialect::JsonRpcOk), 200, "{reason:?}");
        }
        let over = Rejection::new(Reason::Conflict, "").with_rpc_code(-32_002);
        let seen = [JsonRpc, HttpJson, Plain].map(|dialect| over.status_in(dialect));
        assert_eq!(seen, [200, 400, 409]);
    }

    #[test]
    fn the_last_event_of_a_stream_over_http_json_has_a_name() {
        let event = restarting().last_event(&Dialect::HttpJson.into(), &id(), "s", Framing::CrLf);
        let event = std::str::from_utf8(&event).unwrap();
        let data = event.strip_prefix("event: error\r\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data.strip_suffix("\r\n\r\n").unwrap()).unwrap();
        assert_eq!(data["error"]["code"], 503);
        assert_eq!(
            (&data["code"], &data["message"]),
            (&json!(-32_000), &json!("on its way up (Retry-After: 15 s)"))
        );
        assert_eq!(data["error"]["details"][0]["metadata"]["stream"], "s");
        let event = restarting().last_event(&ReplyForm::default(), &id(), "s", Framing::Lf);
        assert!(event.starts_with(b"data: {\"jsonrpc\""));
    }
}
