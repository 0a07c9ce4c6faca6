//! Path to A2A route, or to the control plane.

use crate::ids::{InvalidWorkspaceId, WorkspaceId};

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<'p> {
    /// `/workspaces/{id}/a2a` or `/workspaces/{id}/a2a/`: the JSON-RPC endpoint of one workspace.
    A2a(Result<WorkspaceId, InvalidWorkspaceId>),
    /// Below the base: the rest of the path, without the slash before it.
    Below(Result<WorkspaceId, InvalidWorkspaceId>, &'p str),
    /// Everything else.
    Control,
}

/// Classes a raw, still encoded path. An encoded id is no id: `%` is not in its alphabet, so two
/// spellings of one path never name the same workspace.
pub(super) fn route(path: &str) -> Route<'_> {
    let Some((id, rest)) = path
        .strip_prefix("/workspaces/")
        .and_then(|p| p.split_once('/'))
    else {
        return Route::Control;
    };
    match rest.strip_prefix("a2a") {
        Some("" | "/") => Route::A2a(WorkspaceId::parse(id)),
        Some(below) => match below.strip_prefix('/') {
            Some(tail) => Route::Below(WorkspaceId::parse(id), tail),
            None => Route::Control,
        },
        None => Route::Control,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "/workspaces/dev/a2a/.well-known/agent-card.json",
                Route::Below(WorkspaceId::parse("dev"), ".well-known/agent-card.json"),
            ),
            ("/workspaces/dev/a2ax", Route::Control),
            ("/workspaces/dev", Route::Control),
            ("/workspaces/dev/tokens", Route::Control),
            ("/", Route::Control),
        ];
        for (path, expected) in cases {
            assert_eq!(route(path), expected, "{path}");
        }
    }
}
