//! The families of what is refused: by reason, and credentials by why they prove nothing.

use prometheus::{IntCounter, Registry};

use super::family::counters;
use crate::rejection::Reason;

/// Where something was refused. The label `plane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Messages to agents, and their cards.
    A2a = 0,
    /// Every other route of the public listener; of a sidecar its own routes.
    Control = 1,
}

/// Why a credential proves nothing. The label `why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialFlaw {
    /// There was none.
    Missing,
    /// No known form, or not exactly one.
    Form,
    /// Good somewhere else: an enrolment token, a ticket.
    Misplaced,
    /// In no table: never made, revoked, used up, or its workspace was removed.
    Unknown,
    /// No signed token of a form that is accepted.
    Malformed,
    /// Signed by a key that its issuer does not publish.
    UnknownKey,
    /// The signature is wrong: forged, or damaged.
    Signature,
    /// It was good once.
    Expired,
    /// It is not good yet.
    Immature,
    /// Another issuer, another audience, or a claim missing or of the wrong type.
    Claims,
    /// A pair token that was made for one forwarded request came to the gateway.
    Bound,
    /// A sidecar takes none that are not made for one request.
    Unbound,
    /// At a sidecar: made for another body or method.
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

/// What was refused.
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
                Reason::ALL.map(|reason| by_reason.with_label_values(&[plane, reason.word()]))
            }),
            credentials: CredentialFlaw::WORDS.map(|why| credentials.with_label_values(&[why])),
        }
    }

    /// Counts one refusal.
    pub fn count(&self, plane: Plane, reason: Reason) {
        self.by_reason[plane as usize][reason as usize].inc();
    }

    /// Counts a credential that proved nothing.
    pub fn credential(&self, flaw: CredentialFlaw) {
        self.credentials[flaw as usize].inc();
    }
}
