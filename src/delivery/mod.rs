//! What outlives a connection (contract §6): streams that are taken up again where they broke off.

pub mod streams;

use std::sync::Arc;

use self::streams::Streams;

/// The room.
pub struct Delivery {
    /// What passed in streams, for those who come back.
    pub streams: Arc<Streams>,
}
