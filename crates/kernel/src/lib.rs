//! Checked names, times, bounds, configuration, rejections, metrics and logs: what every other crate uses.

pub mod breaker;
pub mod closed_set;
pub mod config;
pub mod deadline;
pub mod dialect;
pub mod drain;
pub mod health;
pub mod hops;
pub mod ids;
pub mod json_errors;
pub mod metrics;
pub mod offload;
pub mod rejection;
pub mod shares;
pub mod stage;
pub mod telemetry;
pub mod time;
