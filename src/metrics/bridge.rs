//! Metric families of translated calls.

use prometheus::{IntCounterVec, Registry};

use super::family::register_counters;
use crate::a2a::Generation;
use crate::a2a::bridge::{OmittedMembers, Side};
use crate::a2a::card::Binding;
use crate::a2a::method::Method;

/// Metrics of translated calls.
pub struct BridgeMetrics {
    calls: IntCounterVec,
    left_out: IntCounterVec,
    failed: IntCounterVec,
}

impl BridgeMetrics {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            calls: register_counters(
                r,
                "a2a_gateway_bridged_calls_total",
                "Calls that were translated for their agent, by the generation of the caller, generation and binding of \
                 the agent, and method.",
                &["from", "to", "binding", "method"],
            ),
            left_out: register_counters(
                r,
                "a2a_gateway_bridge_left_out_total",
                "Members of calls and answers that have no place in the other generation, by object and name.",
                &["object", "member"],
            ),
            failed: register_counters(
                r,
                "a2a_gateway_bridge_failed_total",
                "Calls, answers and events without a translation, by why.",
                &["why"],
            ),
        }
    }

    /// Counts a call that is translated.
    pub fn count_call(&self, from: Generation, to: Side, method: Method) {
        let binding = match to.binding {
            Binding::JsonRpc => "jsonrpc",
            Binding::HttpJson => "http_json",
        };
        let labels = [
            from.version(),
            to.generation.version(),
            binding,
            method.label(),
        ];
        self.calls.with_label_values(&labels).inc();
    }

    /// Counts members without a place in the other generation. Their names come from the tables of the translation. The
    /// first state that A2A does not spell so is logged: it may show a client another thing than its agent meant.
    pub fn count_left_out(&self, left_out: &OmittedMembers) {
        for (object, member, count) in left_out.iter() {
            let counter = self.left_out.with_label_values(&[object, member]);
            if member == "state" && counter.get() == 0 {
                tracing::warn!(
                    "an agent names a task state as A2A does not spell it: one in another spelling is read, any other \
                     is unknown to its callers (logged once; a2a_gateway_bridge_left_out_total counts all)"
                );
            }
            counter.inc_by(count.into());
        }
    }

    /// Counts what has no translation. `why` comes from the closed set of
    /// [`Failure::label`](crate::a2a::bridge::Failure::label).
    pub fn count_failed(&self, why: &'static str) {
        self.failed.with_label_values(&[why]).inc();
    }
}
