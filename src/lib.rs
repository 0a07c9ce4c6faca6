//! An A2A gateway. Read the modules in this order; each depends only on those above it.

pub mod closed_set;

pub mod ids;

pub mod time;

pub mod deadline;

pub mod shares;

// Work on long bodies.
pub mod offload;

pub mod config;

// The stages of a message.
pub mod stage;

pub mod rejection;

pub mod json_errors;

pub mod breaker;

// The protocol, a crate of its own: pure, no I/O, no clock.
pub use a2a;

// `X-A2A-Hops`.
pub mod hops;

// The formats of the gateway's own responses.
pub mod dialect;

// Observability: metrics, logs, traces.
pub mod metrics;
pub mod telemetry;

// The stores: durable facts (SQL) and shared state. Only these two have exchangeable back ends.
pub mod store;

pub mod db;

pub mod shared;

// Explanations of decisions.
pub mod explain;

// Keys, identity, workspaces, access and addresses of agents, shared by both planes.
pub mod coherence;

pub mod trust;

pub mod identity;

pub mod workspace;

pub mod audit;

pub mod hierarchy;

pub mod caps;

pub mod tasks;

pub mod broadcast;

pub mod events;

// Calls that operators stopped.
pub mod stops;

pub mod directory;

// State that outlives a connection.
pub mod delivery;

// The gateway, assembled.
pub mod drain;

// Live data for operators.
pub mod console;

pub mod gateway;

pub mod access_watch;

// Workspaces, grants and stops as one document.
pub mod policy;

pub mod reload;

// The components of a sidecar, in place of the gateway's.
pub mod sidecar;

// Static files of pages, and their security headers. Served by either plane.
pub mod pages;

// The data plane, then the control plane. Neither imports the other.
pub mod proxy;

pub mod control;

// The admin listener, the process, the command line.
pub mod admin;

pub mod server;

pub mod cli;
