//! The gateway and its stores from outside, on real servers: one binary, one file a room.

#![expect(
    clippy::unwrap_used,
    reason = "what a case cannot go on without has failed it"
)]
#![expect(
    unreachable_pub,
    reason = "the harness is shared by all files of this binary"
)]

mod harness;

mod bodies;
mod clocks;
mod stores;
