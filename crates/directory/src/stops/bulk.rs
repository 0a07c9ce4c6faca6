//! Stops of operators in a transaction of the caller (`assembly::policy`), which puts them in force after its commit.

use std::sync::Arc;

use super::table::{self, StopLimits};
use super::watchers::notify_watchers;
use super::{NewStop, STOPS_MAX, Stop, Stops};
use crate::events::Kind;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::db::Connection;

impl Stops {
    /// Makes a stop of an operator; `None` if there are as many as may be.
    ///
    /// # Errors
    /// As [`Stops::all_in`].
    pub async fn stop_in(
        tx: &mut Connection,
        new: &NewStop,
        now: Timestamp,
    ) -> Result<Option<Stop>, sqlx::Error> {
        let (all, own) = (STOPS_MAX, STOPS_MAX);
        table::insert(tx, new, now, StopLimits { all, own }).await
    }

    /// Puts changes in force that were committed, here and on the other replicas, and tells watchers.
    pub async fn publish(self: &Arc<Self>, made: &[Stop], released: &[Stop]) {
        if made.is_empty() && released.is_empty() {
            return;
        }
        self.announce_change(&Ok(())).await;
        for stop in made {
            notify_watchers(self, Kind::WorkspaceStopped, stop, "request");
        }
        for stop in released {
            notify_watchers(self, Kind::WorkspaceReleased, stop, "request");
        }
    }
}

/// Returns the rejection of a stop beyond the bound.
pub fn too_many() -> Rejection {
    let message = format!(
        "as many stops as may be, {STOPS_MAX}, are in force: release some with DELETE /stops/{{id}}"
    );
    Rejection::new(Reason::Conflict, message).with_fact("limit", STOPS_MAX)
}
