//! An A2A gateway. Read the modules in this order; each depends only on those above it.
// An exchange is one deep future, and whether it may move between threads is asked of all that it holds.
#![recursion_limit = "256"]

pub mod ids;

pub mod until;

pub mod shares;

pub mod config;
pub mod rejection;

// The protocol, a crate of its own: pure, no I/O, no clock.
pub use a2a;

// `X-A2A-Hops`.
pub mod hops;

// In which form the gateway answers itself.
pub mod dialect;

// What is left behind.
pub mod metrics;
pub mod telemetry;

// The stores: durable facts (SQL) and shared state. The only two things that are swapped.
pub mod store;

pub mod db;

pub mod shared;

// What a decision was made by, for whoever asks.
pub mod explain;

// Who signs, who asks, who exists, may they, where is the agent: shared by both planes.
pub mod coherence;

pub mod trust;

pub mod identity;

pub mod workspace;

pub mod audit;

pub mod hierarchy;

pub mod tasks;

pub mod events;

pub mod directory;

// What outlives a connection.
pub mod delivery;

// The rooms, assembled.
pub mod drain;

// What is shown to those who look after it.
pub mod console;

pub mod gateway;

pub mod standing;

pub mod reload;

// What a sidecar has instead of the rooms.
pub mod sidecar;

// What people look at: files, and the fields that keep a page to itself. Served by either plane.
pub mod pages;

// The data plane, then the control plane. Neither imports the other.
pub mod proxy;

pub mod control;

// The operator's listener, the process, the command line.
pub mod admin;

pub mod server;

pub mod cli;
