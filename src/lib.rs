//! An A2A gateway, assembled from its crates. `ARCHITECTURE.md` says what is where.

pub use a2a;
pub use access::{caps, explain, hierarchy, identity, workspace};
pub use assembly::{access_watch, console, gateway, pages, policy, sidecar};
pub use audit;
pub use control_plane as control;
pub use control_plane::admin;
pub use data_plane as proxy;
pub use directory;
pub use directory::{events, stops, tasks};
pub use http1;
pub use kernel::{
    breaker, closed_set, config, deadline, dialect, drain, hops, ids, json_errors, metrics,
    offload, rejection, shares, stage, telemetry, time,
};
pub use mailbox as delivery;
pub use server;
pub use stores::{broadcast, coherence, db, shared, store};
pub use trust;

pub mod cli;
