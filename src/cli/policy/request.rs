//! The requests to `/policy`, and their refusals, which name each error and each changed object.

use std::fmt::Write as _;
use std::time::Duration;

use gateway_client::{ClientError, Request};
use http::Method;
use serde_json::{Map, Value};

use super::Failure;
use super::difference::format_name;
use crate::cli::access::OperatorAccess;

/// Timeout of one request: longer than the transaction of a policy may take.
const WITHIN: Duration = Duration::from_secs(120);

/// The gateway did not answer, or refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFailure {
    #[error(
        "{0}; is the gateway running? --url, A2A_GATEWAY_URL, a context or --config says where"
    )]
    NotRunning(ClientError),
    #[error(transparent)]
    Unanswered(ClientError),
    #[error("refused with {status} {reason}: {message}{details}")]
    Refused {
        status: u16,
        reason: String,
        message: String,
        /// A line for each error and each changed object.
        details: String,
    },
}

impl From<ClientError> for RequestFailure {
    fn from(error: ClientError) -> Self {
        match error {
            away @ ClientError::NotListening { .. } => Self::NotRunning(away),
            other => Self::Unanswered(other),
        }
    }
}

/// Returns the present state as a policy.
pub(super) async fn export(gateway: &OperatorAccess) -> Result<Value, Failure> {
    let answer = send_policy(gateway, Method::GET, "", Vec::new()).await?;
    answer.map_err(|(status, body)| to_failure(status, &body, &Map::new()).into())
}

/// Compares a policy with the present state and, unless it is a dry run, applies it.
pub(super) async fn apply(
    gateway: &OperatorAccess,
    policy: &Map<String, Value>,
    dry_run: bool,
    prune: bool,
) -> Result<Value, Failure> {
    let query = format!("dry_run={dry_run}&prune={prune}");
    let body = Value::Object(policy.clone()).to_string().into_bytes();
    let answer = send_policy(gateway, Method::POST, &query, body).await?;
    answer.map_err(|(status, body)| to_failure(status, &body, policy).into())
}

async fn send_policy(
    gateway: &OperatorAccess,
    method: Method,
    query: &str,
    body: Vec<u8>,
) -> Result<Result<Value, (u16, Value)>, Failure> {
    let (mut url, token) = gateway.resolve()?;
    url.set_path(&format!("{}/policy", url.path().trim_end_matches('/')));
    url.set_query(Some(query).filter(|query| !query.is_empty()));
    let ask = Request {
        method,
        url: &url,
        token: Some(&token),
        accept: "application/json",
        body,
        within: WITHIN,
    };
    let answer = ask.send().await.map_err(RequestFailure::from)?;
    let (status, body) = answer.read_json().await.map_err(RequestFailure::from)?;
    Ok(if status == 200 {
        Ok(body)
    } else {
        Err((status, body))
    })
}

/// Returns the name of the entry at a path of a policy, such as `workspaces[3].parent_id`.
fn name_at(path: &str, policy: &Map<String, Value>) -> Option<String> {
    let (section, rest) = path.split_once('[')?;
    let (number, _) = rest.split_once(']')?;
    let entry = policy.get(section)?.get(number.parse::<usize>().ok()?)?;
    let text = |name: &str| entry[name].as_str();
    Some(match (text("id"), text("caller_id"), text("target_id")) {
        (Some(id), ..) => id.to_owned(),
        (None, Some(caller), Some(target)) => format!("{caller} -> {target}"),
        _ => return None,
    })
}

fn to_failure(status: u16, body: &Value, policy: &Map<String, Value>) -> RequestFailure {
    let text = |name: &str| body[name].as_str().unwrap_or("?").to_owned();
    let mut details = String::new();
    for error in body["errors"].as_array().into_iter().flatten() {
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        // Writing to a string cannot fail.
        let name = name_at(text("path"), policy);
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        let _ = write!(details, "\n  {}{name}: {}", text("path"), text("error"));
    }
    for changed in body["changed"].as_array().into_iter().flatten() {
        let _ = write!(details, "\n  changed: {}", format_name(changed));
    }
    RequestFailure::Refused {
        status,
        reason: text("reason"),
        message: text("error"),
        details,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_each_error_and_each_changed_object() {
        let body = json!({"reason": "invalid_params", "error": "two errors", "errors": [
            {"path": "workspaces[3].parent_id", "error": "the parent does not exist"},
            {"path": "grants[0]", "error": "one"},
        ], "changed": [{"kind": "workspace", "name": "dev"}]});
        let policy = json!({"workspaces": [{}, {}, {}, {"id": "qa"}], "grants": [{"caller_id": "a", "target_id": "b"}]});
        let told = to_failure(400, &body, policy.as_object().unwrap()).to_string();
        assert_eq!(
            told,
            "refused with 400 invalid_params: two errors\n  workspaces[3].parent_id (qa): the parent does not exist\n  \
             grants[0] (a -> b): one\n  changed: workspace dev"
        );
    }
}
