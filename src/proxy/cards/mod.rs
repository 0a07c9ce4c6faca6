//! The cards of agents ([`crate::a2a::card`]): fetched from the agent or taken from the registry, with the gateway's
//! URL in place of the agent's.

pub(in crate::proxy) mod cache;
pub(in crate::proxy) mod extended;
pub(in crate::proxy) mod fetch;
pub(in crate::proxy) mod forms;
pub(in crate::proxy) mod store;
