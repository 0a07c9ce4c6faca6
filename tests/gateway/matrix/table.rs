//! Who may: every credential kind, and for each route those that succeed.

use self::Who::*;

/// Whom a credential proves, seen from the workspace `target` of the org `acme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Own,
    Sibling,
    Stranger,
    CanvasOrg,
    CanvasOtherOrg,
    CanvasListed,
    CanvasUnlisted,
    CanvasNoOrg,
    Org,
    OtherOrg,
    /// A token of another subtree of the org: of the sibling's.
    OtherSubtree,
    Operator,
    /// A pair token of the sibling, for the target.
    PairHere,
    /// Likewise, for another target.
    PairElsewhere,
    Enrolment,
    Nobody,
}

pub(crate) const ALL_CALLERS: [Who; 16] = [
    Own,
    Sibling,
    Stranger,
    CanvasOrg,
    CanvasOtherOrg,
    CanvasListed,
    CanvasUnlisted,
    CanvasNoOrg,
    Org,
    OtherOrg,
    OtherSubtree,
    Operator,
    PairHere,
    PairElsewhere,
    Enrolment,
    Nobody,
];

pub(crate) const WHO_REACHES: &[Who] = &[Own, Sibling, CanvasOrg, CanvasListed, Org, Operator];
/// A pair token is good for calls and for what comes of them, and for nothing else.
pub(crate) const WHO_CALLS: &[Who] = &[
    Own,
    Sibling,
    CanvasOrg,
    CanvasListed,
    Org,
    Operator,
    PairHere,
];
/// Whoever proves anything: what they then see is another matter.
pub(crate) const ANYBODY: &[Who] = &[
    Own,
    Sibling,
    Stranger,
    CanvasOrg,
    CanvasOtherOrg,
    CanvasListed,
    CanvasUnlisted,
    CanvasNoOrg,
    Org,
    OtherOrg,
    OtherSubtree,
    Operator,
];
pub(crate) const ITSELF: &[Who] = &[Own, Operator];
/// An org token sees what is its own.
pub(crate) const SOME_ORG: &[Who] = &[Org, OtherOrg, OtherSubtree, Operator];

pub(crate) const A2A: (&str, &str) = ("POST", "/workspaces/{id}/a2a");

/// Whoever has a credential that is not for registering: each sees their own part.
pub(crate) const ALL_KINDS: &[Who] = ALL_CALLERS.first_chunk::<12>().unwrap();

/// Route, status of success, who may.
pub(crate) const TABLE: &[(&str, &str, u16, &[Who])] = &[
    (A2A.0, A2A.1, 200, WHO_CALLS),
    ("POST", "/workspaces", 201, &[Org, OtherSubtree, Operator]),
    ("GET", "/workspaces", 200, ALL_KINDS),
    ("GET", "/workspaces/{id}", 200, WHO_REACHES),
    ("PATCH", "/workspaces/{id}", 200, &[Org, Operator]),
    ("DELETE", "/workspaces/{id}", 200, &[Org, Operator]),
    ("POST", "/workspaces/{id}/pause", 200, &[Org, Operator]),
    ("POST", "/workspaces/{id}/resume", 200, &[Org, Operator]),
    ("POST", "/workspaces/{id}/enrolment", 201, &[Org, Operator]),
    (
        "POST",
        "/registry/register",
        200,
        &[Own, Org, Operator, Enrolment],
    ),
    ("POST", "/registry/heartbeat", 200, ITSELF),
    ("POST", "/registry/update-card", 200, ITSELF),
    ("GET", "/registry/discover/{id}", 200, WHO_REACHES),
    ("GET", "/registry/{id}/peers", 200, ITSELF),
    (
        "POST",
        "/registry/check-access",
        200,
        &[Own, Sibling, Operator],
    ),
    ("GET", "/grants", 200, &[Operator]),
    ("POST", "/grants", 201, &[Operator]),
    ("DELETE", "/grants/{grant_id}", 200, &[Operator]),
    ("GET", "/caps", 200, SOME_ORG),
    ("GET", "/usage", 200, SOME_ORG),
    ("GET", "/policy", 200, &[Operator]),
    ("POST", "/policy", 200, &[Operator]),
    ("POST", "/policy/prove", 200, SOME_ORG),
    ("GET", "/access/matrix", 200, &[Operator]),
    ("GET", "/stops", 200, SOME_ORG),
    ("POST", "/stops", 201, &[Org, Operator]),
    ("DELETE", "/stops/{stop_id}", 200, &[Org, Operator]),
    ("GET", "/revocations", 200, &[Org, OtherOrg, Operator]),
    ("POST", "/revocations", 201, &[Org, OtherOrg, Operator]),
    ("GET", "/workspaces/{id}/tokens", 200, ITSELF),
    ("POST", "/workspaces/{id}/tokens", 201, ITSELF),
    ("DELETE", "/workspaces/{id}/tokens/{token_id}", 200, ITSELF),
    ("GET", "/orgs/{org}/tokens", 200, &[Operator]),
    ("POST", "/orgs/{org}/tokens", 201, &[Operator]),
    ("DELETE", "/orgs/{org}/tokens/{token_id}", 200, &[Operator]),
    ("GET", "/operators/me", 200, &[Operator]),
    ("GET", "/operators/tokens", 200, &[Operator]),
    ("POST", "/operators/tokens", 201, &[Operator]),
    ("DELETE", "/operators/tokens/{token_id}", 200, &[Operator]),
    (
        "POST",
        "/canvas/tokens",
        201,
        &[Org, OtherSubtree, Operator],
    ),
    // Its holder: `revocations`.
    ("DELETE", "/canvas/tokens/{token_id}", 200, &[Operator]),
    ("GET", "/workspaces/{id}/activity", 200, ITSELF),
    ("POST", "/workspaces/{id}/activity/ack", 200, ITSELF),
    // The entry is no message, so there is no task to speak of.
    (
        "POST",
        "/workspaces/{id}/activity/{activity_id}/reply",
        404,
        ITSELF,
    ),
    ("POST", "/workspaces/{id}/notify", 200, &[Own]),
    ("GET", "/activity", 200, &[Own, Sibling, Stranger]),
    // No caller began it.
    ("GET", "/workspaces/{id}/streams/{stream}", 404, WHO_CALLS),
    ("POST", "/workspaces/{id}/delegate", 202, &[Own]),
    ("GET", "/workspaces/{id}/delegations", 200, ITSELF),
    (
        "GET",
        "/workspaces/{id}/delegations/{delegation_id}",
        200,
        ITSELF,
    ),
    ("GET", "/ws", 101, ANYBODY),
    ("GET", "/events", 200, ANYBODY),
    ("POST", "/ws/tickets", 201, ANYBODY),
    // There is no such instance.
    ("POST", "/registry/drain", 404, ITSELF),
    // Last: nothing reaches the target afterwards.
    ("POST", "/registry/deregister", 200, ITSELF),
];
