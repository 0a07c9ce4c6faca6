//! The statements of calls with a key on the table of the mailbox.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Answer, Calls, Key, LEASE, Outcome, answer_not_kept, outcome_unknown};
use crate::mailbox::{Lease, Settlement, decode_column, item_columns, query, read_json};
use a2a::state::TaskState;
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Bytes of the longest field value that is kept.
const KEPT_FIELD_BYTES_MAX: usize = 1024;

/// Header fields of an agent that are kept with its answer: they describe the body and the negotiated
/// features.
const KEPT_FIELDS: &str =
    "content-type preference-applied content-encoding a2a-version a2a-extensions x-a2a-extensions";

const FIND: &str = concat!(
    "SELECT ",
    item_columns!(),
    " FROM mailbox_items WHERE id = $1 AND kind = 'keyed' AND expires_at > $2"
);

/// Takes a free key, one that lapsed, or that of a claim that is replaced.
const CLAIM: &str = "INSERT INTO mailbox_items \
     (id, kind, owner, body, holder, fence, state, leased_until, created_at, updated_at, expires_at) \
     VALUES ($1, 'keyed', $2, $3, $4, $5, 'running', $6, $7, $7, $8) \
     ON CONFLICT (id) DO UPDATE SET body = excluded.body, holder = excluded.holder, fence = excluded.fence, \
     state = 'running', leased_until = excluded.leased_until, answer = NULL, task_state = NULL, kept_bytes = 0, \
     created_at = excluded.created_at, updated_at = excluded.updated_at, expires_at = excluded.expires_at \
     WHERE mailbox_items.expires_at <= excluded.created_at OR mailbox_items.fence = $9";

const STREAM: &str = "UPDATE mailbox_items SET answer = $3 WHERE id = $1 AND fence = $2";

/// Ends a row with an answer or a recorded stream.
const ENDED: &str = "UPDATE mailbox_items SET state = 'done', task_state = $3 \
     WHERE id = $1 AND fence = $2 AND answer IS NOT NULL";

/// A row with a recorded stream keeps it as its outcome.
const UNKNOWN: &str = "UPDATE mailbox_items SET state = 'unknown' \
     WHERE id = $1 AND fence = $2 AND state = 'running' AND answer IS NULL";

const PURGE: &str = "DELETE FROM mailbox_items WHERE id IN \
     (SELECT id FROM mailbox_items WHERE kind = 'keyed' AND expires_at <= $1 LIMIT $2)";

/// The row of a key.
pub(super) struct Row {
    pub(super) body_hash: String,
    pub(super) fence: i64,
    pub(super) holder: String,
    pub(super) leased_until: i64,
    /// The outcome of its call; `None`: it runs.
    pub(super) outcome: Option<Outcome>,
    pub(super) task_state: Option<TaskState>,
}

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    fields: Vec<(String, String)>,
    /// In Base64.
    body: String,
    /// The name of the stream, if it is one.
    stream: Option<String>,
}

impl StoredAnswer {
    /// Leaves out the fields that are not kept, and values that are not text.
    fn to_json(answer: &Answer, stream: Option<&str>) -> String {
        let fields = KEPT_FIELDS.split(' ').flat_map(|name| {
            let values = answer.fields.get_all(name).iter();
            let values = values.filter(|value| value.len() <= KEPT_FIELD_BYTES_MAX);
            values.filter_map(move |value| Some((name.to_owned(), value.to_str().ok()?.to_owned())))
        });
        let stored = Self {
            status: answer.status,
            fields: fields.collect(),
            body: STANDARD.encode(&answer.body),
            stream: stream.map(str::to_owned),
        };
        serde_json::to_string(&stored).expect("its members are text and numbers")
    }

    fn into_answer(self) -> Result<Arc<Answer>, sqlx::Error> {
        let body = STANDARD.decode(self.body);
        let mut fields = HeaderMap::new();
        for (name, value) in self.fields {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                fields.append(name, value);
            }
        }
        Ok(Arc::new(Answer {
            status: self.status,
            fields,
            body: decode_column(body)?.into(),
            kept: true,
        }))
    }
}

impl Calls {
    pub(super) async fn find(&self, scope: &str) -> Result<Option<Row>, Unavailable> {
        let find = query!(FIND, scope, Timestamp::now().0);
        self.mailbox.fetch("call_find", find, read_row).await
    }

    /// Claims the key; true if that succeeded. `replaced`: the fence of the claim that it replaces.
    pub(super) async fn write_claim(
        &self,
        (key, fence): (&Key, i64),
        replaced: Option<i64>,
    ) -> Result<bool, Unavailable> {
        let now = Timestamp::now();
        let expires_at = now.after(self.mailbox.config.get().idempotency.ttl);
        let claim = query!(
            CLAIM,
            &key.scope,
            &key.owner,
            &key.body,
            &self.mailbox.holder,
            fence
        )
        .bind(now.after(LEASE).0)
        .bind(now.0)
        .bind(expires_at.0)
        .bind(replaced);
        self.mailbox.change("call_claim", claim).await
    }

    /// Stores the answer; true if there was room for it within the bound of the key's owner.
    pub(super) async fn write_answer(
        &self,
        (key, fence): (&Key, i64),
        answer: &Answer,
        task_state: Option<TaskState>,
    ) -> Result<bool, Unavailable> {
        let now = Timestamp::now();
        let end = Settlement {
            owner: &key.owner,
            state: "done",
            answer: StoredAnswer::to_json(answer, None),
            otherwise: ("unkept", None),
            always_fits: false,
            task_state: task_state.map(TaskState::as_str),
            due_at: now,
            expires_at: now.after(self.mailbox.config.get().idempotency.ttl),
        };
        let lease = key.lease(fence);
        let settled = self.mailbox.settle("call_keep", lease, end, |_| Ok(()));
        Ok(settled.await?.is_some_and(|((), is_kept)| is_kept))
    }

    pub(super) async fn record_stream(
        &self,
        lease: Lease<'_>,
        answer: &Answer,
        stream: &str,
    ) -> Result<(), Unavailable> {
        let answer = StoredAnswer::to_json(answer, Some(stream));
        let record = query!(STREAM, lease.id, lease.fence, answer);
        self.mailbox.change("call_stream", record).await.map(drop)
    }

    /// Records the end; true if there was a row to end.
    pub(super) async fn record_end(
        &self,
        lease: Lease<'_>,
        task_state: Option<TaskState>,
    ) -> Result<bool, Unavailable> {
        let state = task_state.map(TaskState::as_str);
        let end = query!(ENDED, lease.id, lease.fence, state);
        self.mailbox.change("call_ended", end).await
    }

    /// Records that the outcome is unknown.
    pub(super) async fn mark_unknown(&self, lease: Lease<'_>) -> Result<(), Unavailable> {
        let mark = query!(UNKNOWN, lease.id, lease.fence);
        self.mailbox.change("call_unknown", mark).await.map(drop)
    }

    /// Deletes lapsed rows.
    pub(super) async fn purge(&self) -> Result<(), Unavailable> {
        let now = Timestamp::now();
        let delete = || query!(PURGE, now.0);
        self.mailbox
            .delete_all("call_purge", delete)
            .await
            .map(drop)
    }
}

fn read_row(row: &AnyRow) -> Result<Row, sqlx::Error> {
    let stored: Option<StoredAnswer> = read_json(row, "answer")?;
    let outcome = match (row.try_get("state")?, stored) {
        ("unknown", _) => Some(Outcome::Refused(outcome_unknown())),
        ("unkept", _) => Some(Outcome::Refused(answer_not_kept())),
        (state, Some(mut stored)) => match stored.stream.take() {
            Some(stream) => Some(Outcome::Stream(stored.into_answer()?, stream)),
            None if state == "done" => Some(Outcome::Whole(stored.into_answer()?)),
            None => None,
        },
        (_, None) => None,
    };
    let task_state: Option<&str> = row.try_get("task_state")?;
    Ok(Row {
        body_hash: row.try_get("body")?,
        fence: row.try_get("fence")?,
        holder: row.try_get("holder")?,
        leased_until: row.try_get("leased_until")?,
        task_state: task_state.and_then(TaskState::parse),
        outcome,
    })
}
