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

mod bodies;
mod clocks;
mod directory;
mod drain;
mod hierarchy;
mod identity;
mod liveness;
mod matrix;
mod open_mode;
mod outages;
mod registry;
mod routes;
mod steady;
mod stores;
mod tokens;
