//! What travels: methods, envelopes, events, agent cards. Pure: no I/O, no clock, no framework.

pub mod card;
pub mod done;
pub mod envelope;
pub mod event;
pub mod generation;
pub mod method;

mod bare;
mod call;
mod edit;
mod json;
mod message;
mod part;
mod walker;

#[cfg(test)]
mod tests;

pub use generation::Generation;
