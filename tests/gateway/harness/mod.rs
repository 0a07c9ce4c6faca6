//! Shared by the cases: gateways, real stores, and agents and clients with access to raw bytes.

#![allow(dead_code, reason = "each file of cases uses another part")]

pub(crate) mod agent;
pub(crate) mod authority;
pub(crate) mod balancer;
pub(crate) mod builder;
mod cards;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod collector;
pub(crate) mod dns;
pub(crate) mod documents;
pub(crate) mod failover;
pub(crate) mod gateway;
pub(crate) mod issuer;
mod missing;
pub(crate) mod nginx;
pub(crate) mod notes;
pub(crate) mod numbered;
pub(crate) mod packages;
pub(crate) mod planted;
pub(crate) mod pooler;
mod programs;
pub(crate) mod prometheus;
mod redis;
pub(crate) mod refusal;
pub(crate) mod relay;
mod roots;
mod schema;
pub(crate) mod seat;
pub(crate) mod servers;
pub(crate) mod sidecar;
mod spawned;
pub(crate) mod stores;
pub(crate) mod timed;
pub(crate) mod tls;
pub(crate) mod warm;
pub(crate) mod watcher;

pub(crate) use self::agent::{Agent, LAST_CHUNK, Recorded, SSE_HEAD, Step, chunk, ok_json};
pub(crate) use self::builder::Builder;
pub(crate) use self::cards::{answering, card, card_1_0, card_of_both, sse};
pub(crate) use self::client::{Answer, Connection, Request};
pub(crate) use self::gateway::{ADMIN, CALL, Gateway, Pair};
pub(crate) use self::numbered::unnumbered;
pub(crate) use self::refusal::assert_refusal;
pub(crate) use self::seat::Seat;
pub(crate) use self::stores::Stores;
pub(crate) use self::warm::{holds_for, until_found, until_holds};
pub(crate) use crate::ports;
