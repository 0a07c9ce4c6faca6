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

mod addresses;
mod affinity;
mod answers;
mod at_once;
mod audit;
mod beats;
mod beats_events;
mod bodies;
mod bridge;
mod browsers;
mod capacity;
mod caps;
mod cards;
mod catalogue;
mod certificates;
mod chains;
mod clocks;
mod console;
mod credentials;
mod directory;
mod drain;
mod events;
mod explain;
mod exposed;
mod fields;
mod gitops;
mod grants;
mod grpc;
mod grpc_agents;
mod guards;
mod guide;
mod handover;
mod hierarchy;
mod http2;
mod hygiene;
mod idempotency;
mod identity;
mod inbox;
mod instances;
mod issuers;
mod jobs;
mod keepalive;
mod kept;
mod liveness;
mod matrix;
mod moves;
mod oauth;
mod open_mode;
mod operating;
mod operators;
mod oracle;
mod origins;
mod outer;
mod policy;
mod polling;
#[path = "../common/ports.rs"]
mod ports;
mod probes;
mod rates;
mod reach;
mod rebinding;
mod records;
mod registry;
mod reload;
mod response_fields;
mod rest;
mod revocations;
mod roles;
mod room;
mod routes;
mod running;
mod secrets;
mod sidecar;
mod slow;
mod slow_bodies;
mod smuggling;
mod standing;
mod steady;
mod stops;
mod stores;
mod streams;
mod subtrees;
mod tasks;
mod threads;
mod tls;
mod token_ends;
mod tokens;
mod traces;
mod tree;
mod trust;
mod upstream_auth;
mod upstream_tls;
mod usage;
mod waking;
mod workloads;
