//! Counters of exchanges, by method and outcome.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec};

use super::family::{Declaration, Family};
use super::label::Outcome;
use a2a::method::Method;

/// The counters of exchanges. Those of `answered` begin at 0. The others are created when needed: there are many, and
/// most never are.
pub(super) struct Exchanges {
    family: IntCounterVec,
    children: Vec<OnceLock<IntCounter>>,
}

impl Exchanges {
    /// Counts one exchange.
    pub(super) fn count(&self, method: Method, outcome: Outcome) {
        self.find_child(method, outcome).inc();
    }

    fn find_child(&self, method: Method, outcome: Outcome) -> &IntCounter {
        let index = method.index() * Outcome::COUNT + outcome.index();
        let labels = [method.label(), outcome.as_str()];
        self.children[index].get_or_init(|| self.family.with_label_values(&labels))
    }
}

impl Family for Exchanges {
    fn register(declared: &Declaration<'_>) -> Self {
        let family = IntCounterVec::register(&Declaration {
            name: "a2a_gateway_exchanges_total",
            help: "A2A exchanges that ended, by method and outcome.",
            labels: &["method", "outcome"],
            ..*declared
        });
        let children = vec![OnceLock::new(); Method::ALL.len() * Outcome::COUNT];
        let exchanges = Self { family, children };
        for method in Method::ALL {
            exchanges.find_child(method, Outcome::Answered);
        }
        exchanges
    }
}
