//! Counters of exchanges, by method and outcome.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec};

use super::label::Outcome;
use crate::a2a::method::Method;

/// Creates the children of exchanges, by method and outcome. Those of `answered` begin at 0. The others are
/// created when needed: there are many, and most never are.
pub(super) fn create_children(exchanges: &IntCounterVec) -> Vec<OnceLock<IntCounter>> {
    let mut children = vec![OnceLock::new(); Method::ALL.len() * Outcome::COUNT];
    let outcome = Outcome::Answered;
    for method in Method::ALL {
        let child = exchanges.with_label_values(&[method.label(), outcome.as_str()]);
        children[method.index() * Outcome::COUNT + outcome.index()] = OnceLock::from(child);
    }
    children
}
