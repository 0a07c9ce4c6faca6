//! Metric families of rejections, by reason, and of rejected credentials, by flaw.

use prometheus::{IntCounter, IntGauge, Registry};

use super::family::{register_counters, register_counters_by, register_gauge};
use super::label::By;
use crate::closed_set::words;
use crate::rejection::Reason;

words! {
    /// The plane of a rejection. The label `plane`.
    Plane {
        /// Messages to agents, and their cards.
        A2a => "a2a",
        /// All other routes of the public listener; on a sidecar, its own routes.
        Control => "control",
    }
}

words! {
    /// The reason why a credential was rejected. The label `why`.
    CredentialFlaw {
        /// Missing.
        Missing => "missing",
        /// Of an unknown form, or more than one credential.
        Form => "form",
        /// Valid only elsewhere: an enrolment token, a ticket.
        Misplaced => "misplaced",
        /// In no table: never issued, revoked, used up, or of a removed workspace.
        Unknown => "unknown",
        /// Not a signed token of an accepted form.
        Malformed => "malformed",
        /// Signed by a key that its issuer does not publish.
        UnknownKey => "unknown_key",
        /// Invalid signature: forged or damaged.
        Signature => "signature",
        /// Expired.
        Expired => "expired",
        /// Not valid yet.
        Immature => "immature",
        /// Another issuer or audience, or a claim that is missing or of a wrong type.
        Claims => "claims",
        /// A genuine token of a platform that names no workspace, or one of another org.
        Unmapped => "unmapped",
        /// A pair token of a forwarded request, sent to the gateway.
        Forwarded => "forwarded",
        /// At a sidecar: not bound to one request.
        Unbound => "unbound",
        /// At a sidecar: bound to another body or method.
        OtherBody => "other_body",
        /// At a sidecar: used before.
        Replayed => "replayed",
    }
}

/// Metrics of rejections.
pub struct Refusals {
    by_reason: By<Plane, [IntCounter; Reason::ALL.len()]>,
    credentials: By<CredentialFlaw, IntCounter>,
    /// Stops of operators in force.
    pub stops: IntGauge,
}

impl Refusals {
    pub(super) fn new(r: &Registry) -> Self {
        let by_reason = register_counters(
            r,
            "a2a_gateway_refusals_total",
            "What the gateway refused, or cut, instead of an agent's answer, by plane (a2a, control) and reason.",
            &["plane", "reason"],
        );
        Self {
            by_reason: By::new(|plane| {
                Reason::ALL.map(|reason| by_reason.with_label_values(&[plane, reason.as_str()]))
            }),
            credentials: register_counters_by(
                r,
                "a2a_gateway_credentials_refused_total",
                "Requests whose credential proved nothing, by why.",
                "why",
            ),
            stops: register_gauge(
                r,
                "a2a_gateway_stops",
                "Stops of operators that are in force on this replica.",
            ),
        }
    }

    /// Counts one rejection.
    pub fn count_refusal(&self, plane: Plane, reason: Reason) {
        self.by_reason[plane][reason as usize].inc();
    }

    /// Counts one rejected credential.
    pub fn count_credential(&self, flaw: CredentialFlaw) {
        self.credentials[flaw].inc();
    }
}
