//! Metric families of rejections, by reason, and of rejected credentials, by flaw.

use prometheus::{IntCounter, Registry};

use super::family::counters;
use crate::rejection::Reason;

/// The plane of a rejection. The label `plane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Messages to agents, and their cards.
    A2a = 0,
    /// All other routes of the public listener; on a sidecar, its own routes.
    Control = 1,
}

/// The reason why a credential was rejected. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialFlaw {
    /// Missing.
    Missing,
    /// Of an unknown form, or more than one credential.
    Form,
    /// Valid only elsewhere: an enrolment token, a ticket.
    Misplaced,
    /// In no table: never issued, revoked, used up, or of a removed workspace.
    Unknown,
    /// Not a signed token of an accepted form.
    Malformed,
    /// Signed by a key that its issuer does not publish.
    UnknownKey,
    /// Invalid signature: forged or damaged.
    Signature,
    /// Expired.
    Expired,
    /// Not valid yet.
    Immature,
    /// Another issuer or audience, or a claim that is missing or of a wrong type.
    Claims,
    /// A pair token for one forwarded request, sent to the gateway.
    Bound,
    /// At a sidecar: not bound to one request.
    Unbound,
    /// At a sidecar: bound to another body or method.
    OtherBody,
    /// At a sidecar: used before.
    Replayed,
}

impl CredentialFlaw {
    const WORDS: [&'static str; 14] = [
        "missing",
        "form",
        "misplaced",
        "unknown",
        "malformed",
        "unknown_key",
        "signature",
        "expired",
        "immature",
        "claims",
        "bound",
        "unbound",
        "other_body",
        "replayed",
    ];
}

/// Metrics of rejections.
pub struct Refusals {
    by_reason: [[IntCounter; Reason::ALL.len()]; 2],
    credentials: [IntCounter; CredentialFlaw::WORDS.len()],
}

impl Refusals {
    pub(super) fn new(r: &Registry) -> Self {
        let by_reason = counters(
            r,
            "a2a_gateway_refusals_total",
            "What the gateway refused, or cut, instead of an agent's answer, by plane (a2a, control) and reason.",
            &["plane", "reason"],
        );
        let credentials = counters(
            r,
            "a2a_gateway_credentials_refused_total",
            "Requests whose credential proved nothing, by why.",
            &["why"],
        );
        Self {
            by_reason: ["a2a", "control"].map(|plane| {
                Reason::ALL.map(|reason| by_reason.with_label_values(&[plane, reason.as_str()]))
            }),
            credentials: CredentialFlaw::WORDS.map(|why| credentials.with_label_values(&[why])),
        }
    }

    /// Counts one rejection.
    pub fn count(&self, plane: Plane, reason: Reason) {
        self.by_reason[plane as usize][reason as usize].inc();
    }

    /// Counts one rejected credential.
    pub fn credential(&self, flaw: CredentialFlaw) {
        self.credentials[flaw as usize].inc();
    }
}
