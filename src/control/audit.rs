//! Changes, written down (contract §10): one record for each request that changes something, or was
//! refused to. What a route changes is here; of what, the path says, or the handler by an [`About`].

use std::sync::Arc;

use http::Method;
use serde_json::{Map, Value};

use crate::audit::{DONE, Draft, EventType};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::{RequestId, WorkspaceId};
use crate::rejection::Reason;

/// What a handler knows of a change that the path does not say. Goes with the answer, as an extension.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    /// The workspace.
    pub(super) target: Option<WorkspaceId>,
    /// Names of what was made or changed; never a credential, never content.
    pub(super) detail: Map<String, Value>,
}

impl About {
    /// It is about a workspace that the path does not name.
    pub(super) fn workspace(id: &WorkspaceId) -> Self {
        Self {
            target: Some(id.clone()),
            ..Self::default()
        }
    }

    /// And about this.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }
}

/// A request on its way through the frame.
pub(super) struct Request<'a> {
    pub(super) method: &'a Method,
    /// The route's pattern.
    pub(super) pattern: &'a str,
    pub(super) path: &'a str,
    pub(super) id: &'a RequestId,
    pub(super) proof: Option<Arc<Proof>>,
}

/// What a route changes; `None`: nothing that is written down. Heartbeats and acknowledgements are not:
/// there are thousands, and what follows from them is.
fn event(method: &Method, pattern: &str) -> Option<EventType> {
    use EventType as E;
    Some(match (method.as_str(), pattern) {
        ("POST", "/workspaces") => E::WorkspaceCreated,
        ("PATCH", "/workspaces/{id}") => E::WorkspaceChanged,
        ("DELETE", "/workspaces/{id}") => E::WorkspaceRemoved,
        ("POST", "/workspaces/{id}/pause") => E::WorkspacePaused,
        ("POST", "/workspaces/{id}/resume") => E::WorkspaceResumed,
        ("POST", "/workspaces/{id}/delegate") => E::DelegationCreated,
        ("POST", "/workspaces/{id}/activity/{activity_id}/reply") => E::MessageReplied,
        ("POST", "/workspaces/{id}/notify") => E::MessageNotified,
        ("POST", "/registry/register") => E::WorkspaceRegistered,
        ("POST", "/registry/deregister") => E::WorkspaceDeregistered,
        ("POST", "/registry/update-card") => E::CardUpdated,
        ("POST", "/grants") => E::GrantCreated,
        ("DELETE", "/grants/{grant_id}") => E::GrantRemoved,
        (
            "POST",
            "/workspaces/{id}/tokens" | "/orgs/{org}/tokens" | "/canvas/tokens" | "/ws/tickets",
        )
        | ("GET", "/registry/discover/{id}") => E::TokenIssued,
        ("DELETE", "/workspaces/{id}/tokens/{token_id}" | "/orgs/{org}/tokens/{token_id}") => {
            E::TokenRevoked
        }
        _ => return None,
    })
}

/// Writes a change down. `refused`: the reason why it was not made.
pub(super) fn write_down(
    gateway: &Gateway,
    request: Request<'_>,
    about: Option<About>,
    status: u16,
    refused: Option<Reason>,
) {
    let Some(event_type) = event(request.method, request.pattern) else {
        return;
    };
    // Who only reads where a workspace is gets no token.
    if request.method == Method::GET && about.is_none() && refused.is_none() {
        return;
    }
    let About { target, mut detail } = about.unwrap_or_default();
    let mut in_path = None;
    for (name, value) in names(request.pattern, request.path) {
        if name == "id" {
            in_path = WorkspaceId::parse(value).ok();
        } else {
            let value: String = value.chars().take(NAME_CHARS_MAX).collect();
            detail.entry(name.to_owned()).or_insert(value.into());
        }
    }
    let own = request
        .proof
        .as_ref()
        .and_then(|proof| proof.principal.workspace());
    let by_itself = matches!(
        event_type,
        EventType::WorkspaceRegistered | EventType::WorkspaceDeregistered | EventType::CardUpdated
    );
    let target = target
        .or(in_path)
        .or_else(|| own.filter(|_| by_itself).cloned());
    gateway.audit.record(Draft {
        request_id: Some(request.id.clone()),
        target,
        outcome: refused.map_or(DONE, Reason::word),
        status,
        detail: (!detail.is_empty()).then_some(Value::Object(detail)),
        proof: request.proof,
        ..Draft::new(event_type)
    });
}

/// Longest name in a path that is written down, in characters.
const NAME_CHARS_MAX: usize = 128;

/// The names in a path, by its pattern, as they are spelled.
fn names<'a>(pattern: &'a str, path: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    pattern
        .split('/')
        .zip(path.split('/'))
        .filter_map(|(name, value)| {
            let name = name.strip_prefix('{')?.strip_suffix('}')?;
            Some((name, value))
        })
}

#[cfg(test)]
mod tests {
    use super::super::ROUTES;
    use super::*;

    /// Changes that leave no record, each for the reason that [`event`] gives.
    const PASSED_OVER: [&str; 3] = [
        "/registry/heartbeat",
        "/registry/check-access",
        "/workspaces/{id}/activity/ack",
    ];

    #[test]
    fn every_route_that_changes_something_leaves_a_record() {
        for (method, pattern) in ROUTES {
            let method: Method = method.parse().unwrap();
            let passed_over = PASSED_OVER.contains(pattern) || method.is_safe();
            let pair_token = *pattern == "/registry/discover/{id}";
            let recorded = event(&method, pattern).is_some();
            assert_eq!(recorded, !passed_over || pair_token, "{method} {pattern}");
        }
    }

    #[test]
    fn names_are_taken_from_the_path() {
        let found: Vec<_> =
            names("/orgs/{org}/tokens/{token_id}", "/orgs/acme/tokens/t-1").collect();
        assert_eq!(found, [("org", "acme"), ("token_id", "t-1")]);
    }
}
