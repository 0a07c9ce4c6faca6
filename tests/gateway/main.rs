//! The gateway and its stores from outside, on real servers: one binary, one file a room.

#![expect(
    clippy::unwrap_used,
    reason = "what a case cannot go on without has failed it"
)]

mod harness;

mod identity;
mod stores;
