//! What outlives a connection (contract §6): calls that are sent again, streams that are taken up again
//! where they broke off.

pub mod calls;
pub mod streams;

use std::sync::Arc;

use self::calls::Calls;
use self::streams::Streams;

/// The room.
pub struct Delivery {
    /// Calls with a key, and what came of them.
    pub calls: Arc<Calls>,
    /// What passed in streams, for those who come back.
    pub streams: Arc<Streams>,
}
