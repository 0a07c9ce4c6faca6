//! Every SQL text that touches the table `workspaces`. Run in [`super::table`].

use std::fmt::Write as _;

macro_rules! columns {
    () => {
        "id, name, role, parent_id, org, status, delivery_mode, liveness, url, internal_url, card_url, \
         agent_card, complete, max_concurrent, idle_timeout_seconds, current_task, active_tasks, \
         last_seen, created_at, updated_at"
    };
}

pub(super) const FIND: &str = concat!("SELECT ", columns!(), " FROM workspaces WHERE id = $1");

pub(super) const CREATE: &str = concat!(
    "INSERT INTO workspaces (id, name, role, parent_id, org, status, delivery_mode, liveness, url, \
     internal_url, card_url, agent_card, complete, max_concurrent, active_tasks, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 0, $15, $15) \
     ON CONFLICT (id) DO NOTHING RETURNING ",
    columns!()
);

/// Goes up from `$1`. Beyond a removed workspace nothing is related, so the line ends there.
pub(super) const LINE: &str = "\
    WITH RECURSIVE line (id, parent_id, org, status, depth) AS ( \
      SELECT id, parent_id, org, status, 0 FROM workspaces WHERE id = $1 \
      UNION ALL \
      SELECT w.id, w.parent_id, w.org, w.status, line.depth + 1 \
        FROM workspaces w JOIN line ON w.id = line.parent_id \
        WHERE line.depth < 64 AND (line.depth = 0 OR line.status <> 'removed')) \
    SELECT id, parent_id, org, status FROM line ORDER BY depth";

pub(super) const REGISTER: &str = concat!(
    "UPDATE workspaces SET status = 'online', delivery_mode = $2, url = $3, internal_url = $4, \
     agent_card = COALESCE($5, agent_card), name = COALESCE($6, name), last_seen = $7, updated_at = $7 \
     WHERE id = $1 AND status <> 'removed' RETURNING ",
    columns!()
);

pub(super) const SET_STATUS: &str = "UPDATE workspaces SET status = $3, updated_at = $4 \
     WHERE id = $1 AND status = $2 RETURNING id";

pub(super) const SET_IDLE_TIMEOUT: &str = "UPDATE workspaces SET idle_timeout_seconds = $2, updated_at = $3 \
     WHERE id = $1 AND status <> 'removed'";

pub(super) const SET_PLACE: &str = "UPDATE workspaces SET parent_id = $2, org = $3, updated_at = $4 \
     WHERE id = $1 AND status <> 'removed' RETURNING id";

pub(super) const LAPSE: &str = "UPDATE workspaces SET status = 'offline', updated_at = $2 \
     WHERE id = $1 AND status IN ('online', 'degraded') AND liveness = 'heartbeat' RETURNING id";

pub(super) const OVERDUE: &str = "SELECT id, last_seen FROM workspaces \
     WHERE status IN ('online', 'degraded') AND liveness = 'heartbeat' \
     AND (last_seen IS NULL OR last_seen <= $1) AND id > $2 ORDER BY id LIMIT $3";

/// `UPDATE … FROM (one SELECT for each workspace)`: the only form of many updates in one that both
/// databases read.
pub(super) fn last_seen_text(count: usize) -> String {
    let mut text = String::from(
        "UPDATE workspaces SET last_seen = news.seen, active_tasks = news.tasks, \
         current_task = news.task FROM (",
    );
    for i in 0..count {
        let separator = if i == 0 { "" } else { " UNION ALL " };
        let (a, b, c, d) = (4 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{separator}SELECT ${a} AS id, ${b} AS seen, ${c} AS tasks, ${d} AS task"
        );
    }
    text.push_str(
        ") AS news WHERE workspaces.id = news.id \
         AND (workspaces.last_seen IS NULL OR workspaces.last_seen < news.seen)",
    );
    text
}
