//! What travels: methods, envelopes, events. Pure: no I/O, no clock, no framework.

pub mod method;
