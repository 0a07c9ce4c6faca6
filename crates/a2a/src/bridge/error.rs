//! Errors: of JSON-RPC in either generation, and as bodies of HTTP+JSON.

use serde_json::{Map, Value};

use crate::error::{DOMAIN, Defined, RpcError, info};
use crate::fields::{Fields, elements, kind, quoted, said};
use crate::generation::Generation;
use crate::json::Kind;
use crate::method::Method;

/// The code of an error that no other code fits.
const INTERNAL: i64 = -32_603;

/// Returns an error of JSON-RPC in the form of `caller`: 1.0 has a list of details in `data`, 0.3 anything.
/// A value that is no error becomes the message of one.
pub(super) fn rpc(error: &str, caller: Generation) -> String {
    let fields = Fields::read(error).unwrap_or_default();
    let code = fields.get("code").and_then(|code| code.parse().ok());
    let code: i64 = code.unwrap_or(INTERNAL);
    let message = fields
        .get("message")
        .filter(|message| kind(message) == Kind::String);
    let message = message.map_or_else(
        || quoted(&said(error).unwrap_or_else(|| "the agent failed".to_owned())),
        str::to_owned,
    );
    let data = fields.get("data").filter(|data| kind(data) != Kind::Null);
    let data = match caller {
        Generation::V0 => data.map(str::to_owned),
        Generation::V1 => details(code, data),
    };
    let data = data
        .map(|data| format!(r#","data":{data}"#))
        .unwrap_or_default();
    format!(r#"{{"code":{code},"message":{message}{data}}}"#)
}

/// Returns the details of 1.0: a list as it is, and anything else behind the ErrorInfo of the code.
fn details(code: i64, data: Option<&str>) -> Option<String> {
    if let Some(list) = data.filter(|data| kind(data) == Kind::Array) {
        return Some(list.to_owned());
    }
    let defined = Defined::of(code);
    let info = defined.map(|defined| info(defined.reason, DOMAIN, Map::new()).to_string());
    let value = data.map(|data| {
        format!(r#"{{"@type":"type.googleapis.com/google.protobuf.Value","value":{data}}}"#)
    });
    let details: Vec<String> = info.into_iter().chain(value).collect();
    (!details.is_empty()).then(|| format!("[{}]", details.join(",")))
}

/// Returns the status and the body of HTTP+JSON for an error of JSON-RPC. `status`: that of the agent's
/// answer, which is kept if it is an error's.
pub(super) fn http(error: &str, status: u16, caller: Generation) -> (u16, String) {
    let error = rpc(error, caller);
    let read = RpcError::read(&error);
    let status = if status >= 400 { status } else { read.http() };
    (status, read.body(status))
}

/// Returns the status and the error of JSON-RPC for an answer of HTTP+JSON that is one. An error that A2A
/// or JSON-RPC defines has status 200, as from any server of JSON-RPC; others keep theirs.
pub(super) fn of_http(
    status: u16,
    body: &[u8],
    method: Method,
    caller: Generation,
) -> (u16, String) {
    let text = std::str::from_utf8(body).unwrap_or_default().trim();
    let top = Fields::read(text).unwrap_or_default();
    let inner = top.get("error").and_then(Fields::read);
    let inner = inner.as_ref().unwrap_or(&top);
    let details = inner
        .get("details")
        .filter(|details| kind(details) == Kind::Array);
    let said = details
        .and_then(reason_code)
        .or_else(|| own_code(&top))
        .or_else(|| own_code(inner));
    let code = said.or_else(|| code_of_status(status, method));
    let message = ["message", "detail", "title"];
    let message = message
        .into_iter()
        .find_map(|name| inner.text(name).or_else(|| top.text(name)));
    let message =
        message.unwrap_or_else(|| format!("the agent answered with HTTP status {status}"));
    let data = details
        .filter(|details| *details != "[]")
        .or_else(|| top.get("data"));
    let data = data
        .map(|data| format!(r#","data":{data}"#))
        .unwrap_or_default();
    let error = format!(
        r#"{{"code":{},"message":{}{data}}}"#,
        code.unwrap_or(INTERNAL),
        quoted(&message)
    );
    let status = if code.is_some() { 200 } else { status };
    (status, rpc(&error, caller))
}

/// Returns the code of the first ErrorInfo whose reason A2A defines.
fn reason_code(details: &str) -> Option<i64> {
    let reasons = elements(details)?;
    let mut reasons = reasons
        .into_iter()
        .filter_map(|detail| Fields::read(detail)?.text("reason"));
    reasons.find_map(|reason| {
        let mut codes = -32_009..=-32_001;
        codes.find(|code| Defined::of(*code).is_some_and(|defined| defined.reason == reason))
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
pub(super) fn new(code: i64, message: &str, caller: Generation) -> String {
    rpc(
        &format!(r#"{{"code":{code},"message":{}}}"#, Value::from(message)),
        caller,
    )
}
