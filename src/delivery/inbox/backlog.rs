//! The backlog of inboxes: the number of unacknowledged entries, and the age of the oldest.

use sqlx::Row as _;

use super::Inbox;
use crate::delivery::backlog::Backlog;
use crate::ids::WorkspaceId;
use crate::store::Unavailable;
use crate::workspace::Timestamp;

// One index lookup for each inbox with unacknowledged entries. Numbers have no gaps, so the first such entry
// that is still there gives their count.
const BACKLOG: &str = "SELECT CAST(COALESCE(SUM(h.last_seq - f.seq + 1), 0) AS BIGINT) AS entries, \
    MIN(f.created_at) AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.last_seq > h.acked_seq";

const BACKLOG_OF: &str = "SELECT h.last_seq - f.seq + 1 AS entries, f.created_at AS oldest \
    FROM inbox_heads h JOIN activity_logs f ON f.workspace_id = h.workspace_id \
    AND f.seq = (SELECT MIN(seq) FROM activity_logs \
        WHERE workspace_id = h.workspace_id AND seq > h.acked_seq) \
    WHERE h.workspace_id = $1 AND h.last_seq > h.acked_seq";

impl Inbox {
    /// Returns the number of unacknowledged entries of a workspace's inbox, and the time of the oldest.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn backlog_of(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<(i64, Option<Timestamp>), Unavailable> {
        let query = sqlx::query(BACKLOG_OF).bind(workspace.as_str());
        let work = async {
            let row = query.fetch_optional(self.db.pool()).await?;
            let Some(row) = row else {
                return Ok((0, None));
            };
            let oldest = Timestamp(row.try_get("oldest")?);
            Ok((row.try_get("entries")?, Some(oldest)))
        };
        self.db.run("inbox_backlog_of", work).await
    }

    /// Returns the unacknowledged entries of all inboxes.
    pub(in crate::delivery) async fn read_backlog(&self) -> Result<Backlog, Unavailable> {
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
