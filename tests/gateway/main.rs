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
mod beats;
mod bodies;
mod browsers;
mod clocks;
mod directory;
mod drain;
mod fields;
mod hierarchy;
mod http2;
mod hygiene;
mod identity;
mod keepalive;
mod liveness;
mod matrix;
mod moves;
mod open_mode;
mod outages;
mod registry;
mod routes;
mod secrets;
mod steady;
mod stores;
mod tls;
mod tokens;
