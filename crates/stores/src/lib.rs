//! The stores: durable facts (SQL), shared state, and what replicas tell one another through them.

pub mod broadcast;
pub mod coherence;
pub mod db;
pub mod shared;
pub mod store;
