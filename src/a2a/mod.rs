//! What travels: methods, envelopes, events, agent cards. Pure: no I/O, no clock, no framework.

pub mod accept;
pub mod bare_result;
pub mod card;
pub mod dialect;
pub mod done;
pub mod envelope;
pub mod error;
pub mod event;
pub mod generation;
pub mod hops;
pub mod method;
pub mod refs;
pub mod reply;
pub mod rest;
pub mod rest_body;
pub mod stamp;
pub mod state;
pub mod task;
pub mod task_list;

mod ambiguity;
mod bare;
mod call;
mod edit;
mod fields;
mod json;
mod message;
mod part;
mod walker;

#[cfg(test)]
mod tests;

pub use generation::Generation;
