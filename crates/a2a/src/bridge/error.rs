//! Errors: of JSON-RPC in either generation, and as bodies of HTTP+JSON.

use serde_json::Map;

use super::exchange::Exchange;
use crate::error::{DOMAIN, DefinedError, RpcError, error_info};
use crate::fields::{Fields, array_elements, quote_string, unescape_string, value_kind};
use crate::generation::Generation;
use crate::json::Kind;
use crate::method::Method;

/// The code of an error that no other code fits.
const INTERNAL: i64 = -32_603;

/// Returns an error of JSON-RPC in the form of `caller`: 1.0 has a list of details in `data`, 0.3 anything.
/// A value that is no error becomes the message of one.
pub(super) fn to_rpc_error(error: &str, caller: Generation) -> String {
    let fields = Fields::parse(error).unwrap_or_default();
    let code = fields.get("code").and_then(|code| code.parse().ok());
    let code: i64 = code.unwrap_or(INTERNAL);
    let message = fields.get_of("message", Kind::String).map_or_else(
        || quote_string(&unescape_string(error).unwrap_or_else(|| "the agent failed".to_owned())),
        str::to_owned,
    );
    let data = fields.get_given("data");
    let data = match caller {
        Generation::V0 => data.map(str::to_owned),
        Generation::V1 => error_details(code, data),
    };
    write_error(code, &message, data.as_deref())
}

/// Writes an error of JSON-RPC; `message` and `data` are JSON.
fn write_error(code: i64, message: &str, data: Option<&str>) -> String {
    let data = data.map(|data| format!(r#","data":{data}"#));
    let data = data.unwrap_or_default();
    format!(r#"{{"code":{code},"message":{message}{data}}}"#)
}

/// Returns the details of 1.0: a list as it is, and anything else behind the ErrorInfo of the code.
fn error_details(code: i64, data: Option<&str>) -> Option<String> {
    if let Some(list) = data.filter(|data| value_kind(data) == Kind::Array) {
        return Some(list.to_owned());
    }
    let defined = DefinedError::from_code(code);
    let info = defined.map(|defined| error_info(defined.reason, DOMAIN, Map::new()).to_string());
    let value = data.map(|data| {
        format!(r#"{{"@type":"type.googleapis.com/google.protobuf.Value","value":{data}}}"#)
    });
    let details: Vec<String> = info.into_iter().chain(value).collect();
    (!details.is_empty()).then(|| format!("[{}]", details.join(",")))
}

/// Returns the status and the body of HTTP+JSON for an error of JSON-RPC. `status`: that of the agent's
/// answer, which is kept if it is an error's.
pub(super) fn to_http_error(error: &str, status: u16, exchange: &Exchange) -> (u16, String) {
    let error = to_rpc_error(error, exchange.caller.generation);
    let read = RpcError::parse(&error);
    let status = if status >= 400 {
        status
    } else {
        read.http_status()
    };
    (status, read.rest_body(status, exchange.error_alone))
}

/// Returns the status and the error of JSON-RPC for an answer of HTTP+JSON that is one. An error that A2A
/// or JSON-RPC defines has status 200, as from any server of JSON-RPC; others keep theirs.
pub(super) fn from_http_error(
    status: u16,
    body: &[u8],
    method: Method,
    caller: Generation,
) -> (u16, String) {
    let text = std::str::from_utf8(body).unwrap_or_default().trim();
    let top = Fields::parse(text).unwrap_or_default();
    let inner = top.get_object("error");
    let inner = inner.as_ref().unwrap_or(&top);
    let details = inner.get_of("details", Kind::Array);
    let said = details
        .and_then(reason_code)
        .or_else(|| own_code(&top))
        .or_else(|| own_code(inner));
    let code = said.or_else(|| code_of_status(status, method));
    let message = ["message", "detail", "title"];
    let message = message
        .into_iter()
        .find_map(|name| inner.get_text(name).or_else(|| top.get_text(name)));
    let message =
        message.unwrap_or_else(|| format!("the agent answered with HTTP status {status}"));
    let data = details
        .filter(|details| *details != "[]")
        .or_else(|| top.get("data"));
    let error = write_error(code.unwrap_or(INTERNAL), &quote_string(&message), data);
    let status = if code.is_some() { 200 } else { status };
    (status, to_rpc_error(&error, caller))
}

/// Returns the code of the first ErrorInfo whose reason A2A defines.
fn reason_code(details: &str) -> Option<i64> {
    let mut details = array_elements(details)?.into_iter();
    details.find_map(|detail| {
        let reason = Fields::parse(detail)?.get_text("reason")?;
        DefinedError::code_of_reason(&reason)
    })
}

/// Returns the code of JSON-RPC that bodies of 0.3 have.
fn own_code(fields: &Fields<'_>) -> Option<i64> {
    let code: i64 = fields.get("code")?.parse().ok()?;
    (-32_768..=-32_000).contains(&code).then_some(code)
}

/// Returns the code that a status alone stands for. Those of a proxy or of authentication have none.
const fn code_of_status(status: u16, method: Method) -> Option<i64> {
    match status {
        404 if method.is_of_a_task() || method.sends() => Some(-32_001),
        404 | 405 | 501 => Some(-32_601),
        400 | 422 => Some(-32_602),
        415 => Some(-32_005),
        409 if matches!(method, Method::CancelTask) => Some(-32_002),
        _ => None,
    }
}

/// Returns an error with details of no other kind.
pub(super) fn new_error(code: i64, message: &str, caller: Generation) -> String {
    to_rpc_error(&write_error(code, &quote_string(message), None), caller)
}
