//! SQL texts for the table `workspaces`. Run in [`super::table`] and [`super::change`].

use std::sync::LazyLock;

use super::{Status, Timestamp, Workspace, WorkspaceSettings};
use crate::rows::{fetch_optional, sql};
use kernel::ids::WorkspaceId;
use stores::db::{Connection, Db};
use stores::store::Unavailable;

/// The columns of [`Workspace`].
pub(super) static COLUMNS: LazyLock<String> = LazyLock::new(|| columns_with("agent_card"));

/// Returns the columns with this expression of the card.
fn columns_with(card: &str) -> String {
    format!(
        "id, {}, {card}, idle_timeout_seconds, instances, current_task, active_tasks, last_seen, created_at, updated_at",
        WorkspaceSettings::COLUMNS
    )
}

pub(super) static FIND: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {} FROM workspaces WHERE id = $1", *COLUMNS));

/// Selects `$1` if its card is public; `$2` is the default for a workspace without a setting of its own. One
/// look-up by id in each case.
pub(super) const HAS_PUBLIC_CARD: &str = "SELECT id FROM workspaces \
     WHERE id = $1 AND status <> 'removed' AND COALESCE(card_access, $2) = 'public'";

/// Inserts `$1` with `$2` instances at the time `$3`, and its settings, unless the id was ever used.
pub(super) static CREATE: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = setting_columns().collect();
    let places: Vec<String> = (4..4 + names.len()).map(|n| format!("${n}")).collect();
    format!(
        "INSERT INTO workspaces (id, instances, active_tasks, created_at, updated_at, {}) \
         VALUES ($1, $2, 0, $3, $3, {}) ON CONFLICT (id) DO NOTHING RETURNING {}",
        names.join(", "),
        places.join(", "),
        *COLUMNS
    )
});

fn setting_columns() -> impl Iterator<Item = &'static str> {
    WorkspaceSettings::COLUMNS.split(", ")
}

/// Selects all workspaces but removed ones, `$1` at most, in order of id. Of a card only that there is one.
pub(super) static LIVE: LazyLock<String> = LazyLock::new(|| {
    let card = "CASE WHEN agent_card IS NULL THEN NULL ELSE '{}' END AS agent_card";
    format!(
        "SELECT {} FROM workspaces WHERE status <> 'removed' ORDER BY id LIMIT $1",
        columns_with(card)
    )
});

/// Deletes a removed row, whose id a new generation takes.
pub(super) const BURY: &str = "DELETE FROM workspaces \
     WHERE id = $1 AND status = 'removed' AND updated_at = $2 RETURNING access_generation";

/// Marks `$1` as a generation of its id that begins at `$2`.
pub(super) const BEAR: &str =
    "UPDATE workspaces SET born_at = $2, access_generation = $2 WHERE id = $1";

/// Selects the orgs of the workspaces with the parent `$1`.
pub(super) const ORGS_BELOW: &str =
    "SELECT DISTINCT org FROM workspaces WHERE parent_id = $1 AND status <> 'removed'";

/// Selects `$1` and its ancestors. A removed workspace has no relations, so the line ends there.
pub(super) const LINE: &str = "\
    WITH RECURSIVE line (id, parent_id, org, status, access_generation, born_at, depth) AS ( \
      SELECT id, parent_id, org, status, access_generation, born_at, 0 FROM workspaces WHERE id = $1 \
      UNION ALL \
      SELECT w.id, w.parent_id, w.org, w.status, w.access_generation, w.born_at, line.depth + 1 \
        FROM workspaces w JOIN line ON w.id = line.parent_id \
        WHERE line.depth < 64 AND (line.depth = 0 OR line.status <> 'removed')) \
    SELECT id, parent_id, org, status, access_generation, born_at FROM line ORDER BY depth";

pub(super) static REGISTER: LazyLock<String> = LazyLock::new(|| {
    format!(
        "UPDATE workspaces SET status = CASE WHEN status = 'paused' THEN status ELSE 'online' END, delivery_mode = $2, url = $3, internal_url = $4, \
     agent_card = COALESCE($5, agent_card), name = COALESCE($6, name), last_seen = $7, updated_at = $7, \
     liveness = COALESCE($8, liveness), card_url = COALESCE($9, card_url), \
     upstream_auth_base = CASE WHEN upstream_auth IS NULL THEN NULL ELSE COALESCE(upstream_auth_base, $10) END, \
     proof = COALESCE($11, proof) \
     WHERE id = $1 AND status <> 'removed' RETURNING {}",
        *COLUMNS
    )
});

pub(super) const SET_STATUS: &str = "UPDATE workspaces SET status = $3, updated_at = $4 \
     WHERE id = $1 AND status = $2";

pub(super) const SET_IDLE_TIMEOUT: &str = "UPDATE workspaces SET idle_timeout_seconds = $2, updated_at = $3 \
     WHERE id = $1 AND status <> 'removed'";

/// For tests: moves it anywhere, also into a cycle.
#[cfg(test)]
pub(super) const SET_PLACE: &str = "UPDATE workspaces SET parent_id = $2, org = $3, updated_at = $4 \
     WHERE id = $1 AND status <> 'removed'";

/// Changes nothing, but locks the row until the transaction ends.
pub(super) static HOLD: LazyLock<String> = LazyLock::new(|| {
    format!(
        "UPDATE workspaces SET updated_at = updated_at WHERE id = $1 RETURNING {}",
        *COLUMNS
    )
});

/// Selects whether `$2` is `$1` or one of its ancestors, with removed ones in between counted. A set, so that
/// it ends if the data has a circle.
pub(super) const IS_ABOVE: &str = "\
    WITH RECURSIVE above (id, parent_id) AS ( \
      SELECT id, parent_id FROM workspaces WHERE id = $1 \
      UNION \
      SELECT w.id, w.parent_id FROM workspaces w JOIN above ON w.id = above.parent_id) \
    SELECT id FROM above WHERE id = $2";

/// Selects the number of levels below `$1`. A removed workspace has no relations, so levels below it do not
/// count.
pub(super) const HEIGHT: &str = "\
    WITH RECURSIVE below (id, depth) AS ( \
      SELECT id, 0 FROM workspaces WHERE id = $1 \
      UNION ALL \
      SELECT w.id, below.depth + 1 FROM workspaces w JOIN below ON w.parent_id = below.id \
        WHERE below.depth < 64 AND w.status <> 'removed') \
    SELECT CAST(MAX(depth) AS BIGINT) FROM below";

/// Sets the settings of `$1` at the time `$2`; `$3`: 0 if it stays at its place, `$4`: the number of its instances, or
/// nothing if they stay.
pub(super) static CHANGE: LazyLock<String> = LazyLock::new(|| {
    let sets = setting_columns()
        .zip(5..)
        .map(|(name, n)| format!("{name} = ${n}"));
    format!(
        "UPDATE workspaces SET updated_at = $2, access_generation = CASE WHEN $3 = 0 THEN access_generation \
           WHEN access_generation >= $2 THEN access_generation + 1 ELSE $2 END, \
         instances = COALESCE($4, instances), {} WHERE id = $1 RETURNING {}",
        sets.collect::<Vec<_>>().join(", "),
        *COLUMNS
    )
});

pub(super) const SET_CARD: &str = "UPDATE workspaces SET agent_card = $2, updated_at = $3 \
     WHERE id = $1 AND status <> 'removed'";

/// Clears the data that is not needed any more, with the agent's credential and the gateway's key for it.
pub(super) const REMOVE: &str = "UPDATE workspaces SET status = 'removed', url = NULL, \
     internal_url = NULL, upstream_auth = NULL, upstream_tls = NULL, wake = NULL, probe = NULL, instances = 0, active_tasks = 0, current_task = NULL, \
     updated_at = $2, access_generation = CASE WHEN access_generation >= $2 \
       THEN access_generation + 1 ELSE $2 END \
     WHERE id = $1 AND status <> 'removed'";

/// Selects the workspaces whose agents are probed, along the index of those with a probe. SQLite would take the one on
/// status, which has all workspaces, if the wanted statuses were named.
pub(super) const PROBED: &str = "SELECT id, updated_at FROM workspaces WHERE probe IS NOT NULL \
     AND status NOT IN ('provisioning', 'paused', 'failed', 'hibernated', 'restarting', 'removed') \
     AND liveness = 'assumed' AND delivery_mode = 'push' ORDER BY id LIMIT $1";

pub(super) const SET_PROBED_STATUS: &str = "UPDATE workspaces SET status = $3, updated_at = $4 \
     WHERE id = $1 AND status = $2 AND probe IS NOT NULL AND liveness = 'assumed'";

/// A heartbeat renews the lease before it writes the row. So a row that was written after the lease was found missing
/// may be the work of a heartbeat; one of the future is that of a clock that was set back.
pub(super) const LAPSE: &str = "UPDATE workspaces SET status = 'offline', updated_at = $2 \
     WHERE id = $1 AND status IN ('online', 'degraded') AND liveness = 'heartbeat' \
       AND (updated_at <= $3 OR updated_at > $2)";

/// Three look-ups in the index on status, liveness and last_seen (the last one in that of workspaces never
/// seen): only overdue rows are read, the oldest first, however many rows there are.
pub(super) const OVERDUE: &str = "\
    SELECT id, last_seen FROM (SELECT id, last_seen FROM workspaces \
      WHERE status = 'online' AND liveness = 'heartbeat' AND last_seen <= $1 \
      ORDER BY last_seen LIMIT $2) AS online \
    UNION ALL SELECT id, last_seen FROM (SELECT id, last_seen FROM workspaces \
      WHERE status = 'degraded' AND liveness = 'heartbeat' AND last_seen <= $1 \
      ORDER BY last_seen LIMIT $2) AS degraded \
    UNION ALL SELECT id, last_seen FROM (SELECT id, last_seen FROM workspaces \
      WHERE status IN ('online', 'degraded') AND liveness = 'heartbeat' AND last_seen IS NULL \
      LIMIT $2) AS unseen";

/// `UPDATE … FROM (VALUES …)`: many updates in one statement, in the syntax of both databases. Both name the
/// columns of `VALUES` the same; the first is the id, the second the time.
pub(super) fn news_text(change: &str, rows: &[String]) -> String {
    format!(
        "UPDATE workspaces SET {change} FROM (VALUES {}) AS news WHERE workspaces.id = news.column1 \
         AND (workspaces.last_seen IS NULL OR workspaces.last_seen < news.column2)",
        rows.join(", ")
    )
}

/// Locks a row until the transaction ends, and returns it.
///
/// # Errors
/// The error of the driver.
pub async fn lock_row(
    connection: &mut Connection,
    id: &WorkspaceId,
) -> Result<Option<Workspace>, sqlx::Error> {
    fetch_optional(connection, sql!(HOLD.as_str(), id.as_str())).await
}

/// Changes a status by `statement`; false if the row is not as the statement requires.
pub(super) async fn change_status(
    db: &Db,
    statement: &'static str,
    id: &WorkspaceId,
    (from, to): (Status, Status),
    now: Timestamp,
) -> Result<bool, Unavailable> {
    let change = sql!(statement, id.as_str(), from.as_str(), to.as_str(), now.0);
    Ok(db.execute("workspace_set_status", change).await? > 0)
}
