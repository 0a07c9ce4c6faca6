//! What travels: methods, envelopes, events. Pure: no I/O, no clock, no framework.

pub mod generation;
pub mod method;

pub use generation::Generation;
