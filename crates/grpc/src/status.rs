//! Statuses of gRPC, with the details of `google.rpc`, and what they are in JSON-RPC.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use prost::Message;
use serde_json::{Value, json};

/// Characters of `grpc-message` that are percent-encoded, beside those that are not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Maximum bytes of a message of a status. Trailers are bounded at every peer.
const MESSAGE_BYTES_MAX: usize = 1024;

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// A status code of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of gRPC")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns the code with a number. Others are `UNKNOWN`.
    pub fn from_number(number: &str) -> Self {
        let number = number.parse::<usize>().unwrap_or(usize::MAX);
        Self::ALL.get(number).copied().unwrap_or(Self::Unknown)
    }

    /// Returns the code of a rejection with an HTTP status. `delivered`: the agent may have got the call.
    pub fn from_http(status: u16, delivered: bool) -> Self {
        match status {
            400 | 415 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 410 => Self::NotFound,
            405 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            409 => Self::Aborted,
            413 | 429 => Self::ResourceExhausted,
            502 | 503 if !delivered => Self::Unavailable,
            508 => Self::FailedPrecondition,
            400..500 => Self::InvalidArgument,
            _ => Self::Internal,
        }
    }

    /// Returns the code of an error of A2A or JSON-RPC (A2A 1.0, 5.4).
    pub fn from_json_rpc(code: i64) -> Self {
        match code {
            -32001 => Self::NotFound,
            -32002 | -32003 | -32007 | -32008 => Self::FailedPrecondition,
            -32004 | -32009 | -32601 => Self::Unimplemented,
            -32005 | -32700 | -32600 | -32602 => Self::InvalidArgument,
            _ => Self::Internal,
        }
    }

    /// Returns the code of JSON-RPC for a status without details.
    fn to_json_rpc(self) -> i64 {
        match self {
            Self::InvalidArgument | Self::OutOfRange => -32602,
            Self::NotFound => -32001,
            Self::Unimplemented => -32601,
            _ => -32603,
        }
    }
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The message.
    pub message: String,
    /// The reason of `ErrorInfo`; empty for none.
    pub reason: String,
    /// The domain of `ErrorInfo`.
    pub domain: String,
    /// The metadata of `ErrorInfo`.
    pub metadata: BTreeMap<String, String>,
    /// The time after which the caller may try again.
    pub retry_after: Option<Duration>,
}

/// The domain of A2A's own errors.
const A2A_DOMAIN: &str = "a2a-protocol.org";

/// Errors of A2A by code of JSON-RPC and reason.
const REASONS: [(i64, &str); 9] = [
    (-32001, "TASK_NOT_FOUND"),
    (-32002, "TASK_NOT_CANCELABLE"),
    (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    (-32004, "UNSUPPORTED_OPERATION"),
    (-32005, "CONTENT_TYPE_NOT_SUPPORTED"),
    (-32006, "INVALID_AGENT_RESPONSE"),
    (-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    (-32008, "EXTENSION_SUPPORT_REQUIRED"),
    (-32009, "VERSION_NOT_SUPPORTED"),
];

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<prost_types::Duration>,
}

impl Status {
    /// Creates a status without details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason: String::new(),
            domain: String::new(),
            metadata: BTreeMap::new(),
            retry_after: None,
        }
    }

    /// Returns the status of an error of JSON-RPC. `http`: the HTTP status of an error of the gateway's own; `None` for
    /// one of an agent.
    pub fn from_json_rpc(error: &Value, http: Option<u16>) -> Self {
        let code = error["code"].as_i64().unwrap_or(-32603);
        let message = error["message"].as_str().unwrap_or("the agent failed");
        let details = error["data"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let info = details.iter().find(|detail| detail["@type"] == ERROR_INFO);
        let text = |name: &str| {
            let text = info.and_then(|info| info[name].as_str());
            text.unwrap_or_default().to_owned()
        };
        let members = info.and_then(|info| info["metadata"].as_object());
        let member =
            |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        let metadata: BTreeMap<_, _> = members.into_iter().flatten().filter_map(member).collect();
        let defined = REASONS.iter().find(|(one, _)| *one == code);
        let delivered = metadata
            .get("delivered")
            .is_some_and(|delivered| delivered != "false");
        let (mut reason, mut domain) = (text("reason"), text("domain"));
        if let Some((_, name)) = defined {
            (reason, domain) = ((*name).to_owned(), A2A_DOMAIN.to_owned());
        }
        let retry_after = metadata
            .get("retryAfter")
            .and_then(|seconds| seconds.parse().ok());
        Self {
            code: match (defined, http) {
                (None, Some(http)) if http >= 400 => Code::from_http(http, delivered),
                _ => Code::from_json_rpc(code),
            },
            message: message.to_owned(),
            reason,
            domain,
            metadata,
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    /// Returns the error of JSON-RPC, as an agent of that binding would have sent it.
    pub fn to_json_rpc(&self) -> Value {
        let by_reason = REASONS.iter().find(|(_, reason)| *reason == self.reason);
        let code = by_reason.map_or(self.code.to_json_rpc(), |(code, _)| *code);
        let mut error = json!({"code": code, "message": self.message});
        if !self.reason.is_empty() {
            error["data"] = json!([{"@type": ERROR_INFO, "reason": self.reason, "domain": self.domain,
                "metadata": self.metadata}]);
        }
        error
    }

    /// Returns `grpc-message`.
    pub fn message_field(&self) -> String {
        let end = self.message.floor_char_boundary(MESSAGE_BYTES_MAX);
        utf8_percent_encode(&self.message[..end], ENCODED).to_string()
    }

    /// Returns `grpc-status-details-bin`; `None` without details.
    pub fn details_field(&self) -> Option<String> {
        let any = |type_url: &str, value: Vec<u8>| prost_types::Any {
            type_url: type_url.to_owned(),
            value,
        };
        let mut details = Vec::new();
        if !self.reason.is_empty() {
            let info = ErrorInfo {
                reason: self.reason.clone(),
                domain: self.domain.clone(),
                metadata: self.metadata.clone(),
            };
            details.push(any(ERROR_INFO, info.encode_to_vec()));
        }
        if let Some(delay) = self.retry_after {
            let delay = prost_types::Duration::try_from(delay).ok();
            details.push(any(RETRY_INFO, RetryInfo { delay }.encode_to_vec()));
        }
        if details.is_empty() {
            return None;
        }
        let status = RpcStatus {
            code: self.code as i32,
            message: self.message.clone(),
            details,
        };
        Some(STANDARD_NO_PAD.encode(status.encode_to_vec()))
    }

    /// Reads the status of a call from its trailers.
    pub fn from_fields(code: &str, message: Option<&str>, details: Option<&str>) -> Self {
        let message = message.map(|message| percent_decode_str(message).decode_utf8_lossy());
        let mut status = Self::new(Code::from_number(code), message.unwrap_or_default());
        let details = details.and_then(|field| {
            STANDARD_NO_PAD
                .decode(field)
                .or_else(|_| STANDARD.decode(field))
                .ok()
        });
        let details = details.and_then(|bytes| RpcStatus::decode(&bytes[..]).ok());
        for detail in details.into_iter().flat_map(|status| status.details) {
            if detail.type_url == ERROR_INFO
                && let Ok(info) = ErrorInfo::decode(&detail.value[..])
            {
                status.reason = info.reason;
                status.domain = info.domain;
                status.metadata = info.metadata;
            }
            if detail.type_url == RETRY_INFO
                && let Ok(info) = RetryInfo::decode(&detail.value[..])
            {
                status.retry_after = info.delay.and_then(|delay| delay.try_into().ok());
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_same_in_its_fields_and_back() {
        let status = Status {
            code: Code::NotFound,
            message: "no task 100% \"ä\"\n".into(),
            reason: "TASK_NOT_FOUND".into(),
            domain: A2A_DOMAIN.into(),
            metadata: BTreeMap::from([("requestId".into(), "r".into())]),
            retry_after: Some(Duration::from_secs(3)),
        };
        let (message, details) = (status.message_field(), status.details_field().unwrap());
        assert_eq!(message, "no task 100%25 \"%C3%A4\"%0A");
        assert_eq!(
            Status::from_fields("5", Some(&message), Some(&details)),
            status
        );
        assert_eq!(
            Status::from_json_rpc(&status.to_json_rpc(), None),
            Status {
                retry_after: None,
                ..status
            }
        );
    }

    #[test]
    fn rejections_have_the_codes_of_the_contract() {
        let rejection = |http: u16, delivered: &str| {
            let error = json!({"code": -32000, "message": "m", "data": [{"@type": ERROR_INFO, "reason": "R", "domain": "a2a-gateway",
                "metadata": {"delivered": delivered, "retryAfter": "2"}}]});
            Status::from_json_rpc(&error, Some(http))
        };
        for (http, code) in [
            (400, Code::InvalidArgument),
            (415, Code::InvalidArgument),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (410, Code::NotFound),
            (405, Code::Unimplemented),
            (408, Code::DeadlineExceeded),
            (504, Code::DeadlineExceeded),
            (409, Code::Aborted),
            (413, Code::ResourceExhausted),
            (429, Code::ResourceExhausted),
            (500, Code::Internal),
            (508, Code::FailedPrecondition),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
        ] {
            let status = rejection(http, "false");
            assert_eq!(status.code, code, "{http}");
            assert_eq!(
                (status.reason.as_str(), status.domain.as_str()),
                ("R", "a2a-gateway")
            );
            assert_eq!(status.retry_after, Some(Duration::from_secs(2)));
        }
        for delivered in ["true", "unknown"] {
            assert_eq!(rejection(502, delivered).code, Code::Internal);
            assert_eq!(rejection(503, delivered).code, Code::Internal);
        }
    }
}
