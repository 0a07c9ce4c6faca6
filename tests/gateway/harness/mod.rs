//! What the cases share: the real binary, real stores, agents and clients that show raw bytes.

pub mod agent;
pub mod client;
pub mod gateway;
pub mod relay;
pub mod servers;

pub use self::agent::{Agent, LAST_CHUNK, SSE_HEAD, Step, chunk, ok_json};
pub use self::client::{Answer, Connection, Request};
pub use self::gateway::{ADMIN, Builder, CALL, Gateway, Pair, Seat, card, card_1_0};
