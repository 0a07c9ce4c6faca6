//! The form of a stop in requests and in policies.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{Mode, Scope};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;

/// Maximum characters of a reason.
const REASON_CHARS_MAX: usize = 500;

/// Maximum characters of the name of an org.
const ORG_CHARS_MAX: usize = 256;

/// The forms of a scope.
const SCOPES: &str = r#"`scope` is {"workspace":"ID"}, {"subtree":"ID"}, {"org":"NAME"}, {"caller":"ID","target":"ID"} or {"all":true}"#;

/// Reads a scope.
///
/// # Errors
/// `invalid_params`, `invalid_workspace_id`.
pub fn read_scope(said: &Map<String, Value>) -> Result<Scope, Rejection> {
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let members: Vec<&str> = said.keys().map(String::as_str).collect();
    Ok(match members.as_slice() {
        ["workspace"] => Scope::Workspace(parse_id(text("workspace"))?),
        ["subtree"] => Scope::Subtree(parse_id(text("subtree"))?),
        ["org"] => {
            let org = text("org").filter(|org| is_name(org));
            let message = "`scope.org` is the name of an org, text of 1 to 256 characters";
            Scope::Org(org.ok_or_else(|| invalid_params(message))?.to_owned())
        }
        ["caller", "target"] | ["target", "caller"] => {
            Scope::Pair(parse_id(text("caller"))?, parse_id(text("target"))?)
        }
        ["all"] if said["all"] == true => Scope::All,
        _ => return Err(invalid_params(SCOPES)),
    })
}

fn parse_id(text: Option<&str>) -> Result<WorkspaceId, Rejection> {
    let text = text.ok_or_else(|| invalid_params(SCOPES))?;
    Ok(WorkspaceId::parse(text)?)
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= ORG_CHARS_MAX
        && !text.chars().any(char::is_control)
}

/// Reads a mode.
///
/// # Errors
/// `invalid_params`.
pub fn read_mode(said: &str) -> Result<Mode, Rejection> {
    Mode::parse(said).ok_or_else(|| {
        invalid_params(r#"`mode` is "new" (new calls are refused) or "running" (calls and streams under way end, too)"#)
    })
}

/// Reads a reason, without spaces around it.
///
/// # Errors
/// `invalid_params`.
pub fn read_reason(said: &str) -> Result<&str, Rejection> {
    let reason = said.trim();
    let length = reason.chars().count();
    if !(1..=REASON_CHARS_MAX).contains(&length) || reason.chars().any(char::is_control) {
        return Err(invalid_params(format!(
            "`reason` is text of 1 to {REASON_CHARS_MAX} characters, none of them a control character: refused callers get it"
        )));
    }
    Ok(reason)
}

/// Reads the time at which a stop ends.
///
/// # Errors
/// `invalid_params`.
pub fn read_expiry(said: &str) -> Result<Timestamp, Rejection> {
    Timestamp::parse(said).ok_or_else(|| {
        invalid_params("`expires_at` is a time by RFC 3339, such as 2026-11-21T10:00:00Z")
    })
}

fn invalid_params(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}
