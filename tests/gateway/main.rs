//! The gateway and its stores from outside, on real servers: one binary, one file a room.

#![expect(
    clippy::unwrap_used,
    reason = "what a case cannot go on without has failed it"
)]
#![allow(
    clippy::too_many_lines,
    reason = "tables of cases read best in one piece"
)]

mod harness;

mod answers;
mod bodies;
mod browsers;
mod clocks;
mod fields;
mod http2;
mod hygiene;
mod keepalive;
mod stores;
mod tls;
