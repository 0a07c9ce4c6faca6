//! How much waits in all inboxes, and since when.

use sqlx::Row as _;

use super::Inbox;
use crate::delivery::backlog::Backlog;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

// One look into the index for each inbox with anything that nobody acknowledged. Numbers are without gaps, so the first
// of them that is still there tells how many are.
const BACKLOG: &str = "SELECT CAST(COALESCE(SUM(h.last_seq - f.seq + 1), 0) AS BIGINT) AS entries, \
    MIN(f.created_at) AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.last_seq > h.acked_seq";

impl Inbox {
    /// What nobody acknowledged yet, over all inboxes.
    pub(in crate::delivery) async fn backlog(&self) -> Result<Backlog, Unavailable> {
        let work = async {
            let row = sqlx::query(BACKLOG).fetch_one(self.db.pool()).await?;
            let oldest: Option<i64> = row.try_get("oldest")?;
            Ok(Backlog {
                entries: row.try_get("entries")?,
                oldest: oldest.map(Timestamp),
            })
        };
        self.db.run("inbox_backlog", work).await
    }
}
