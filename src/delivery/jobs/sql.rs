//! The SQL of the table `delegations`.

use crate::delivery::kept_bytes::kept_of;

/// The columns of [`Job`](super::job::Job). Their order does not matter.
macro_rules! columns {
    () => {
        "id, kind, owner, caller, source_id, target_id, task, call, hops, client, run, state, priority, attempts, \
         deadline, inbox_task, result, error, created_at, updated_at, fence"
    };
}

// The bounds are counted in the same statement. Concurrent inserts of several replicas may exceed them by
// their number.
// A caller has none for the target, or has one more within half of what the others leave of $19.
pub(super) const INSERT: &str = concat!(
    "INSERT INTO delegations (id, kind, owner, caller, source_id, target_id, task, call, \
    idempotency_key, state, priority, due_at, deadline, created_at, updated_at, kept_bytes, hops, client, run) \
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11, $12, $11, $11, $14, $16, $17, $18 \
    WHERE (SELECT COUNT(*) FROM delegations \
        WHERE owner = $3 AND state IN ('pending', 'dispatched')) < $13 \
    AND (SELECT COUNT(*) FROM delegations \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) < $13 \
    AND (SELECT COUNT(CASE WHEN caller = $4 THEN 1 END) \
        * (COUNT(CASE WHEN caller = $4 THEN 1 END) + COUNT(*) + 2 - $19) FROM delegations \
        WHERE target_id = $6 AND state IN ('pending', 'dispatched')) <= 0 \
    AND ",
    kept_of!("$3"),
    " + $14 <= $15 ON CONFLICT DO NOTHING"
);

pub(super) const CALLERS: &str = "SELECT caller, COUNT(*) AS jobs FROM delegations \
    WHERE target_id = $1 AND state IN ('pending', 'dispatched') GROUP BY caller";

pub(super) const FIND: &str = concat!("SELECT ", columns!(), " FROM delegations WHERE id = $1");

pub(super) const FIND_KEY: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE kind = $1 AND owner = $2 AND idempotency_key = $3 \
     AND state NOT IN ('failed', 'expired')"
);

// Sizes are read first, so that rows that do not fit into a page are not read.
pub(super) const LIST_SIZES: &str = "SELECT CAST(COALESCE(OCTET_LENGTH(task), 0) + COALESCE(OCTET_LENGTH(result), 0) \
    + COALESCE(OCTET_LENGTH(error), 0) AS BIGINT) AS bytes FROM delegations \
    WHERE owner = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) ORDER BY id DESC LIMIT $3";

pub(super) const LIST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE owner = $1 AND kind = 'delegation' AND ($2 = '' OR id < $2) \
     ORDER BY id DESC LIMIT $3"
);

// No pause is ever ten times the longest one (`BACKOFF_MAX`): such a row was written while the clock was
// ahead, and is due.
macro_rules! is_due {
    ($now:literal) => {
        concat!("(due_at <= ", $now, " OR due_at > ", $now, " + 300000)")
    };
}

// Checked first, so that a second without due rows writes nothing.
pub(super) const ANY_DUE: &str = concat!(
    "SELECT id FROM delegations WHERE state = 'pending' AND ",
    is_due!("$1"),
    " AND leased_until <= $1 LIMIT 1"
);

pub(super) const CLAIM: [&str; 2] = [
    concat!(
        "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
         WHERE id IN (SELECT id FROM delegations WHERE state = 'pending' AND ",
        is_due!("$2"),
        " AND leased_until <= $2 AND deadline > $2 ORDER BY priority DESC, created_at, id LIMIT $3"
    ),
    concat!(
        ") AND state = 'pending' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

pub(super) const DISPATCH: &str = "UPDATE delegations \
    SET state = 'dispatched', attempts = attempts + 1, leased_until = $3, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

pub(super) const RENEW: &str = "UPDATE delegations SET leased_until = $3 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

// Raises the fence: later writes of the former holder have no effect.
pub(super) const PUT_BACK: &str = "UPDATE delegations \
    SET state = 'pending', leased_until = 0, fence = fence + 1, due_at = $3, attempts = attempts + $4, updated_at = $5 \
    WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched')";

pub(super) const PARK: &str = "UPDATE delegations SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND leased_until <= $3 AND due_at < $2";

pub(super) const UNPARK: &str = "UPDATE delegations SET due_at = $2 \
    WHERE target_id = $1 AND state = 'pending' AND due_at > $2";

pub(super) const FINISH: &str = concat!(
    "UPDATE delegations SET state = $3, result = $4, error = $5, leased_until = 0, updated_at = $6, \
     due_at = $7, kept_bytes = kept_bytes + $8, untold = CASE WHEN kind = 'delegation' THEN 1 ELSE 0 END \
     WHERE id = $1 AND fence = $2 AND state IN ('pending', 'dispatched') RETURNING ",
    columns!()
);

pub(super) const IN_INBOX: &str = "UPDATE delegations \
    SET state = 'dispatched', inbox_task = $3, attempts = attempts + 1, leased_until = 0, updated_at = $4 \
    WHERE id = $1 AND fence = $2 AND state = 'pending'";

pub(super) const WAITING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE state = 'dispatched' AND inbox_task IS NOT NULL AND id > $1 \
     ORDER BY id LIMIT $2"
);

pub(super) const WAITING_FOR: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM delegations WHERE state = 'dispatched' AND inbox_task = $1"
);

// Raises the fence: the former holder can write nothing any more.
pub(super) const OVERDUE: [&str; 2] = [
    "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
     WHERE id IN (SELECT id FROM delegations WHERE state = 'pending' AND deadline <= $2 AND leased_until <= $2 \
         LIMIT $3",
    concat!(
        ") AND state = 'pending' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

pub(super) const ANY_OVERDUE: &str = "SELECT id FROM delegations \
    WHERE state = 'pending' AND deadline <= $1 AND leased_until <= $1 LIMIT 1";

pub(super) const LOST: [&str; 2] = [
    "UPDATE delegations SET leased_until = $1, fence = fence + 1 \
     WHERE id IN (SELECT id FROM delegations WHERE state = 'dispatched' AND leased_until <= $2 \
         AND inbox_task IS NULL LIMIT $3",
    concat!(
        ") AND state = 'dispatched' AND leased_until <= $2 RETURNING ",
        columns!()
    ),
];

pub(super) const ANY_LOST: &str = "SELECT id FROM delegations \
    WHERE state = 'dispatched' AND leased_until <= $1 AND inbox_task IS NULL LIMIT 1";

pub(super) const CANCEL: &str = concat!(
    "UPDATE delegations SET state = 'canceled', fence = fence + 1, leased_until = 0, updated_at = $2 \
     WHERE id = $1 AND state = 'pending' RETURNING ",
    columns!()
);

// In an ended row `due_at` is the time of the next delivery attempt.
pub(super) const UNTOLD: &str =
    "SELECT id FROM delegations WHERE untold = 1 AND due_at <= $1 ORDER BY due_at LIMIT $2";

// The row is put off before its delivery, for as long again as it has waited, and $3 at most.
pub(super) const TAKE_UNTOLD: &str = concat!(
    "UPDATE delegations SET due_at = $2 + CASE WHEN $2 - updated_at > $3 THEN $3 ELSE $2 - updated_at END \
     WHERE id = $1 AND untold = 1 AND due_at <= $2 RETURNING ",
    columns!()
);

pub(super) const TOLD: &str = "UPDATE delegations SET untold = 0 WHERE id = $1";

pub(super) const END_LEASES: &str = "UPDATE delegations SET leased_until = 0 \
    WHERE leased_until > 0 AND leased_until < $1 AND state IN ('pending', 'dispatched')";

pub(super) const PURGE: [&str; 2] = [
    "DELETE FROM delegations WHERE id IN (SELECT id FROM delegations \
     WHERE state NOT IN ('pending', 'dispatched') AND untold = 0 AND updated_at < $1 LIMIT $2",
    ")",
];

// A new life of an id has no jobs of the earlier one: those for it fail, and the results of its own are told to no inbox.
// Raises the fence: their holders can write nothing any more.
pub(super) const END_OF: &str = "UPDATE delegations SET fence = fence + 1, leased_until = 0, updated_at = $3, \
     untold = CASE WHEN source_id = $1 THEN 0 \
       WHEN kind = 'delegation' AND state IN ('pending', 'dispatched') THEN 1 ELSE untold END, \
     due_at = CASE WHEN state IN ('pending', 'dispatched') THEN $3 ELSE due_at END, \
     error = CASE WHEN state IN ('pending', 'dispatched') THEN $2 ELSE error END, \
     state = CASE WHEN state IN ('pending', 'dispatched') THEN 'failed' ELSE state END \
     WHERE source_id = $1 OR (target_id = $1 AND state IN ('pending', 'dispatched'))";

pub(super) const BACKLOG: &str = "SELECT COUNT(*) AS entries, MIN(created_at) AS oldest FROM delegations \
    WHERE state = 'pending'";
