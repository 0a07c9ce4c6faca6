//! Producers of a response: the agent, its inbox, the replay of a keyed call, or the deferral of a call.

pub(in crate::proxy) mod deferred;
pub(in crate::proxy) mod idempotency;
pub(in crate::proxy) mod inbox;
