//! Maps a path to an A2A route, or to the control plane.

use crate::dialect::Dialect;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};

/// Well-known paths of cards: A2A 0.3 and 1.0, then 0.2.
const WELL_KNOWN: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// The A2A routes, by HTTP method and pattern. `HEAD` goes with `GET`.
pub const ROUTES: [(&str, &str); 7] = [
    ("POST", "/workspaces/{id}/a2a"),
    ("GET", "/workspaces/{id}/a2a"),
    ("GET", "/workspaces/{id}/a2a/.well-known/agent-card.json"),
    ("GET", "/workspaces/{id}/a2a/.well-known/agent.json"),
    ("GET", "/workspaces/{id}/.well-known/agent-card.json"),
    ("GET", "/workspaces/{id}/.well-known/agent.json"),
    ("GET", "/.well-known/agent-card.json"),
];

/// Described routes of tasks and of the HTTP+JSON binding of A2A 1.0, by HTTP method and pattern.
/// [`rest::parse_request`](crate::a2a::rest::parse_request) accepts the complete set.
pub const REST_ROUTES: [(&str, &str); 17] = [
    ("POST", "/workspaces/{id}/a2a/tasks/send"),
    ("POST", "/workspaces/{id}/a2a/tasks/send/stream"),
    ("GET", "/workspaces/{id}/a2a/tasks/{task_id}"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}/cancel"),
    ("POST", "/workspaces/{id}/a2a/message:send"),
    ("POST", "/workspaces/{id}/a2a/message:stream"),
    ("GET", "/workspaces/{id}/a2a/tasks"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}:cancel"),
    ("POST", "/workspaces/{id}/a2a/tasks/{task_id}:subscribe"),
    ("GET", "/workspaces/{id}/a2a/tasks/{task_id}:subscribe"),
    (
        "GET",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs",
    ),
    (
        "POST",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs",
    ),
    (
        "GET",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs/{config_id}",
    ),
    (
        "DELETE",
        "/workspaces/{id}/a2a/tasks/{task_id}/pushNotificationConfigs/{config_id}",
    ),
    ("GET", "/workspaces/{id}/a2a/extendedAgentCard"),
    ("GET", "/workspaces/{id}/tasks/{task_id}"),
    ("GET", "/tasks/{task_id}"),
];

/// The route of a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Route<'p> {
    /// `/workspaces/{id}/a2a` or `/workspaces/{id}/a2a/`: the JSON-RPC endpoint of one workspace.
    A2a(Result<WorkspaceId, InvalidWorkspaceId>),
    /// The card of one workspace, below the base: an A2A route.
    Card(Result<WorkspaceId, InvalidWorkspaceId>),
    /// The same card beside the base, for clients that resolve `.well-known` against it.
    CardBeside(Result<WorkspaceId, InvalidWorkspaceId>),
    /// `/.well-known/agent-card.json`: the card of `a2a.default_workspace`.
    DefaultCard,
    /// A path below the base, without the slash before it.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, &'p str),
    /// `tasks/{task_id}` beside the base.
    TaskBeside(Result<WorkspaceId, InvalidWorkspaceId>, &'p str),
    /// `/tasks/{task_id}`: a task of any workspace.
    Task(&'p str),
    /// Any other path.
    Control,
}

impl Route<'_> {
    /// Returns the dialect of the gateway's own answers on the route.
    pub(in crate::proxy) const fn dialect(&self) -> Dialect {
        match self {
            Self::A2a(_) | Self::Card(_) => Dialect::JsonRpc,
            Self::Below(..) => Dialect::HttpJson,
            Self::CardBeside(_)
            | Self::DefaultCard
            | Self::TaskBeside(..)
            | Self::Task(_)
            | Self::Control => Dialect::Plain,
        }
    }
}

/// Classifies a raw, still encoded path. An encoded id is invalid: `%` is not in its alphabet, so two spellings of one
/// path never name the same workspace.
pub(in crate::proxy) fn match_route(path: &str) -> Route<'_> {
    if path == WELL_KNOWN[0] {
        return Route::DefaultCard;
    }
    if let Some(task) = path.strip_prefix("/tasks/").and_then(single_segment) {
        return Route::Task(task);
    }
    let Some((id, rest)) = path
        .strip_prefix("/workspaces/")
        .and_then(|p| p.split_once('/'))
    else {
        return Route::Control;
    };
    let is_card = |path: &str| WELL_KNOWN.iter().any(|known| known[1..] == *path);
    if is_card(rest) {
        return Route::CardBeside(WorkspaceId::parse(id));
    }
    // For clients that take the path of the workspace for the agent's base.
    if rest
        .strip_prefix("tasks/")
        .and_then(single_segment)
        .is_some()
    {
        return Route::TaskBeside(WorkspaceId::parse(id), rest);
    }
    match rest.strip_prefix("a2a") {
        Some("" | "/") => Route::A2a(WorkspaceId::parse(id)),
        Some(below) => match below.strip_prefix('/') {
            Some(tail) if is_card(tail) => Route::Card(WorkspaceId::parse(id)),
            Some(tail) => Route::Below(WorkspaceId::parse(id), tail),
            None => Route::Control,
        },
        None => Route::Control,
    }
}

/// Returns `path` if it is one segment, without a slash at its end.
fn single_segment(path: &str) -> Option<&str> {
    let segment = path.strip_suffix('/').unwrap_or(path);
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::rest;

    #[test]
    fn what_is_described_is_routed_and_read() {
        for (verb, pattern) in REST_ROUTES {
            let path = pattern.replace("{id}", "dev").replace("{task_id}", "t-1");
            let path = path.replace("{config_id}", "c");
            let read = match match_route(&path) {
                Route::Below(Ok(_), tail) | Route::TaskBeside(Ok(_), tail) => {
                    rest::parse_request(verb, tail, None)
                }
                Route::Task(task) => rest::parse_request(verb, &format!("tasks/{task}"), None),
                _ => Err(rest::RouteError::Path),
            };
            // No version of A2A has these routes.
            let ours = ["/send", "/stream", "/cancel"];
            let ours = ours.iter().any(|end| path.ends_with(end));
            assert_eq!(read.map(|rest| rest.is_own), Ok(ours), "{verb} {path}");
        }
    }

    #[test]
    fn the_base_is_served_with_and_without_a_slash() {
        let dev = || Route::A2a(WorkspaceId::parse("dev"));
        let cases = [
            ("/workspaces/dev/a2a", dev()),
            ("/workspaces/dev/a2a/", dev()),
            (
                "/workspaces/system:x/a2a",
                Route::A2a(Err(InvalidWorkspaceId)),
            ),
            ("/workspaces//a2a", Route::A2a(Err(InvalidWorkspaceId))),
            ("/workspaces/d%65v/a2a", Route::A2a(Err(InvalidWorkspaceId))),
            (
                "/workspaces/dev/a2a/v1/card",
                Route::Below(WorkspaceId::parse("dev"), "v1/card"),
            ),
            (
                "/workspaces/dev/a2a/.well-known/agent-card.json",
                Route::Card(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/dev/a2a/.well-known/agent.json",
                Route::Card(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/dev/a2a//.well-known/agent.json",
                Route::Below(WorkspaceId::parse("dev"), "/.well-known/agent.json"),
            ),
            (
                "/workspaces/dev/.well-known/agent-card.json",
                Route::CardBeside(WorkspaceId::parse("dev")),
            ),
            (
                "/workspaces/a:b/.well-known/agent.json",
                Route::CardBeside(Err(InvalidWorkspaceId)),
            ),
            ("/workspaces/dev/.well-known/jwks.json", Route::Control),
            ("/.well-known/agent-card.json", Route::DefaultCard),
            ("/tasks/t-1", Route::Task("t-1")),
            (
                "/workspaces/dev/tasks/t-1",
                Route::TaskBeside(WorkspaceId::parse("dev"), "tasks/t-1"),
            ),
            ("/workspaces/dev/tasks", Route::Control),
            ("/tasks/t%20/", Route::Task("t%20")),
            ("/tasks/", Route::Control),
            ("/tasks/t/cancel", Route::Control),
            ("/.well-known/agent.json", Route::Control),
            ("/.well-known/jwks.json", Route::Control),
            ("/workspaces/dev/a2ax", Route::Control),
            ("/workspaces/dev", Route::Control),
            ("/workspaces/dev/tokens", Route::Control),
            ("/", Route::Control),
        ];
        for (path, expected) in cases {
            assert_eq!(match_route(path), expected, "{path}");
        }
    }
}
