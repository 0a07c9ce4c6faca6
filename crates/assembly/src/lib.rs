//! The rooms, assembled for both planes.

pub mod access_watch;
pub mod chain;
pub mod console;
pub mod gateway;
pub mod health;
pub mod pages;
pub mod policy;
pub mod sidecar;
