//! (to come)
use std::sync::Arc;

use crate::gateway::Gateway;

/// (to come)
pub fn router(_: Arc<Gateway>) -> axum::Router {
    axum::Router::new()
}
