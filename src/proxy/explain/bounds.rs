//! Stops and caps in an explanation.

use serde_json::json;

use super::Explainer;
use crate::a2a::method::Method;
use crate::caps::{self, CapState};
use crate::explain::{Check, CheckFailed, Explanation, Fact, Facts, Source, Witness as _};
use crate::hierarchy::Permit;
use crate::identity::Proof;
use crate::rejection::Rejection;

impl Explainer {
    /// Checks whether a stop covers the call; no step if there are no stops.
    pub(super) fn check_stops(
        &self,
        permit: &Permit,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let stops = &self.context.gateway.stops;
        if stops.is_idle() {
            return Ok(());
        }
        let mut facts = Facts::default();
        facts.record(|| {
            let value = match stops.find(permit) {
                Some(stop) => json!({"stop": stop.id, "scope": stop.scope.to_json(),
                    "mode": stop.mode.as_str(), "by": stop.created_by,
                    "created_at": stop.created_at, "expires_at": stop.expires_at}),
                None => json!({"stop": null}),
            };
            Fact::new(Check::Stop, Source::Memory, value)
        });
        explanation.record_check(Check::Stop, facts, stops.check(permit))
    }

    /// Reports the caps that cover a message, and rejects it if one is reached. Counts nothing. What a run or a context has
    /// used depends on the message.
    pub(super) async fn explain_caps(
        &self,
        proof: &Proof,
        permit: &Permit,
        explanation: &mut Explanation,
    ) -> Result<(), CheckFailed> {
        let gateway = &self.context.gateway;
        let names = caps::Names::default();
        let call = caps::Facts::for_call(
            &gateway.hierarchy,
            proof,
            permit,
            Method::SendMessage,
            names,
        )
        .await;
        let states = match call {
            Ok(call) => gateway
                .caps
                .states_for(&call)
                .await
                .map_err(Rejection::from),
            Err(why) => Err(why),
        };
        let mut facts = Facts::default();
        let verdict = states.and_then(|states| {
            let source = if gateway.shared.is_embedded() {
                Source::Memory
            } else {
                Source::Redis
            };
            facts.record(|| Fact::new(Check::Caps, source, json!({"caps": states})));
            states
                .iter()
                .find_map(CapState::as_rejection)
                .map_or(Ok(()), Err)
        });
        explanation.record_check(Check::Caps, facts, verdict)
    }
}
