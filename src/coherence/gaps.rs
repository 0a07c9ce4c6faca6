//! The table `coherence_gaps`: one number that grows with each invalidation that could not be
//! published. Only this file has SQL for it.

use std::time::Duration;

use crate::db::Db;
use crate::store::Unavailable;

/// Poll interval: a third of the second within which a revocation takes effect.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(330);

const NOTE: &str = "INSERT INTO coherence_gaps (id, noted) VALUES (1, 1) \
    ON CONFLICT (id) DO UPDATE SET noted = coherence_gaps.noted + 1";
const NEWEST: &str = "SELECT noted FROM coherence_gaps WHERE id = 1";

/// The table.
pub(super) struct Gaps {
    db: Db,
}

impl Gaps {
    pub(super) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Increments the number, so that each replica empties its caches.
    pub(super) async fn increment(&self) -> Result<(), Unavailable> {
        let work = async { sqlx::query(NOTE).execute(self.db.pool()).await };
        self.db.run("coherence_note", work).await.map(|_| ())
    }

    /// Returns the number of increments so far.
    pub(super) async fn read_number(&self) -> Result<i64, Unavailable> {
        let query = sqlx::query_scalar(NEWEST);
        let work = async { query.fetch_optional(self.db.pool()).await };
        let noted: Option<i64> = self.db.run("coherence_look", work).await?;
        Ok(noted.unwrap_or(0))
    }
}
