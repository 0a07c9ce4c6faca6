//! Queries on the table `idempotent_calls`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Answer, Key};
use crate::a2a::state::TaskState;
use crate::db::Db;
use crate::delivery::kept_bytes::{KeptBytes, kept_of};
use crate::store::Unavailable;

/// Rows that one purge deletes at most.
const PURGE_MAX: i64 = 1000;

/// Bytes of the longest field value that is kept.
const KEPT_FIELD_BYTES_MAX: usize = 1024;

/// Header fields of an agent that are kept with its answer: they describe the body and the negotiated
/// features.
const KEPT_FIELDS: &str =
    "content-type preference-applied content-encoding a2a-version a2a-extensions x-a2a-extensions";

const FIND: &str = "SELECT body_hash, run, holder, state, lease_until, status, fields, body, task_state, stream \
     FROM idempotent_calls WHERE scope = $1 AND expires_at > $2";

/// Takes a free key, one that lapsed, or that of a run that is replaced.
const CLAIM: &str = "INSERT INTO idempotent_calls \
     (scope, body_hash, run, holder, state, lease_until, created_at, expires_at) \
     VALUES ($1, $2, $3, $4, 'running', $5, $6, $7) \
     ON CONFLICT (scope) DO UPDATE SET body_hash = excluded.body_hash, run = excluded.run, \
     holder = excluded.holder, state = 'running', lease_until = excluded.lease_until, status = NULL, \
     fields = NULL, body = NULL, task_state = NULL, stream = NULL, kept_bytes = 0, created_at = excluded.created_at, \
     expires_at = excluded.expires_at \
     WHERE idempotent_calls.expires_at <= excluded.created_at OR idempotent_calls.run = $8";

/// Selects `$then` if the owner's kept bytes stay within $9 with another $8 bytes.
macro_rules! if_kept {
    ($then:literal, $otherwise:literal) => {
        concat!(
            "CASE WHEN ",
            kept_of!("$7"),
            " + $8 <= $9 THEN ",
            $then,
            " ELSE ",
            $otherwise,
            " END"
        )
    };
}

const KEEP: &str = concat!(
    "UPDATE idempotent_calls SET state = ",
    if_kept!("'done'", "'unkept'"),
    ", body = ",
    if_kept!("$4", "NULL"),
    ", kept_bytes = ",
    if_kept!("$8", "0"),
    ", fields = ",
    if_kept!("$3", "'[]'"),
    ", status = $2, task_state = $5, expires_at = $6, owner = $7 WHERE run = $1 RETURNING state"
);

const STREAM: &str =
    "UPDATE idempotent_calls SET status = $2, fields = $3, stream = $4 WHERE run = $1";

/// Ends a row with an answer or a recorded stream.
const ENDED: &str = "UPDATE idempotent_calls SET state = 'done', task_state = $2 \
     WHERE run = $1 AND status IS NOT NULL";

/// A row with a recorded stream keeps it as its outcome.
const UNKNOWN: &str = "UPDATE idempotent_calls SET state = 'unknown' \
     WHERE run = $1 AND state = 'running' AND stream IS NULL";

const RELEASE: &str = "DELETE FROM idempotent_calls WHERE run = $1";

const RENEW: &str =
    "UPDATE idempotent_calls SET lease_until = $2 WHERE holder = $1 AND state = 'running'";

const PURGE: &str = "DELETE FROM idempotent_calls WHERE scope IN \
     (SELECT scope FROM idempotent_calls WHERE expires_at <= $1 LIMIT $2)";

/// The row of a key.
pub(super) struct Row {
    pub(super) body_hash: String,
    pub(super) run: String,
    pub(super) holder: String,
    pub(super) lease_until: i64,
    pub(super) state: State,
    pub(super) task_state: Option<TaskState>,
}

/// The state of its call.
pub(super) enum State {
    Running,
    Unknown,
    /// The agent answered, and the answer was only passed on.
    Unkept,
    /// The agent answered.
    Kept(Answer),
    /// The agent streams, or did.
    Streams {
        answer: Answer,
        stream: String,
    },
}

/// The times of a new row.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) now: i64,
    pub(super) lease_until: i64,
    pub(super) expires_at: i64,
}

pub(super) struct Table(pub(super) Db);

impl Table {
    pub(super) async fn find(&self, scope: &str, now: i64) -> Result<Option<Row>, Unavailable> {
        let query = sqlx::query(FIND).bind(scope).bind(now);
        let work = async {
            let row = query.fetch_optional(self.0.pool()).await?;
            row.as_ref().map(read_row).transpose()
        };
        self.0.run("call_find", work).await
    }

    /// Claims the key; true if that succeeded. `replaced`: the run that it replaces.
    pub(super) async fn claim(
        &self,
        key: &Key,
        (run, holder): (&str, &str),
        times: Times,
        replaced: &str,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(CLAIM)
            .bind(&key.scope)
            .bind(&key.body)
            .bind(run)
            .bind(holder)
            .bind(times.lease_until)
            .bind(times.now)
            .bind(times.expires_at)
            .bind(replaced);
        Ok(self.0.execute("call_claim", query).await? == 1)
    }

    /// Stores the answer; true if there was room for it within the bound of the key's owner.
    pub(super) async fn store_answer(
        &self,
        (run, owner, bytes): (&str, &str, &KeptBytes),
        answer: &Answer,
        task_state: Option<TaskState>,
        expires_at: i64,
    ) -> Result<bool, Unavailable> {
        let body = STANDARD.encode(&answer.body);
        let fields = fields_to_json(&answer.fields);
        let length = i64::try_from(body.len() + fields.len()).unwrap_or(i64::MAX);
        let adding = bytes.announce_bytes(owner, length);
        let query = sqlx::query(KEEP)
            .bind(run)
            .bind(i64::from(answer.status))
            .bind(fields)
            .bind(body)
            .bind(task_state.map(TaskState::as_str))
            .bind(expires_at)
            .bind(owner)
            .bind(length)
            .bind(adding.limit);
        let work = async {
            let row = self.0.fetch_changed(query).await?;
            let state = row.map(|row| row.try_get::<String, _>("state"));
            Ok(state.transpose()?.is_some_and(|state| state == "done"))
        };
        let kept = self.0.run("call_keep", work).await?;
        if kept {
            bytes.count_added(length);
        }
        Ok(kept)
    }

    pub(super) async fn record_stream(
        &self,
        run: &str,
        answer: &Answer,
        stream: &str,
    ) -> Result<(), Unavailable> {
        let query = sqlx::query(STREAM)
            .bind(run)
            .bind(i64::from(answer.status))
            .bind(fields_to_json(&answer.fields))
            .bind(stream);
        self.0.execute("call_stream", query).await.map(drop)
    }

    /// Records the end; true if there was a row to end.
    pub(super) async fn record_end(
        &self,
        run: &str,
        task_state: Option<TaskState>,
    ) -> Result<bool, Unavailable> {
        let query = sqlx::query(ENDED)
            .bind(run)
            .bind(task_state.map(TaskState::as_str));
        Ok(self.0.execute("call_ended", query).await? == 1)
    }

    /// Records that the outcome is unknown.
    pub(super) async fn mark_unknown(&self, run: &str) -> Result<(), Unavailable> {
        let query = sqlx::query(UNKNOWN).bind(run);
        self.0.execute("call_unknown", query).await.map(drop)
    }

    /// Deletes the row: the key is free.
    pub(super) async fn release(&self, run: &str) -> Result<(), Unavailable> {
        let query = sqlx::query(RELEASE).bind(run);
        self.0.execute("call_release", query).await.map(drop)
    }

    pub(super) async fn renew(&self, holder: &str, lease_until: i64) -> Result<(), Unavailable> {
        let query = sqlx::query(RENEW).bind(holder).bind(lease_until);
        self.0.execute("call_renew", query).await.map(drop)
    }

    /// Deletes lapsed rows. True if there may be more.
    pub(super) async fn purge_lapsed(&self, now: i64) -> Result<bool, Unavailable> {
        let query = sqlx::query(PURGE).bind(now).bind(PURGE_MAX);
        let purged = self.0.execute("call_purge", query).await?;
        Ok(i64::try_from(purged).is_ok_and(|purged| purged >= PURGE_MAX))
    }
}

fn read_row(row: &AnyRow) -> Result<Row, sqlx::Error> {
    let state: String = row.try_get("state")?;
    let stream: Option<String> = row.try_get("stream")?;
    let state = match (state.as_str(), stream) {
        ("unknown", _) => State::Unknown,
        ("unkept", _) => State::Unkept,
        (_, Some(stream)) => State::Streams {
            answer: read_answer(row)?,
            stream,
        },
        ("done", None) => State::Kept(read_answer(row)?),
        _ => State::Running,
    };
    let task_state: Option<String> = row.try_get("task_state")?;
    Ok(Row {
        body_hash: row.try_get("body_hash")?,
        run: row.try_get("run")?,
        holder: row.try_get("holder")?,
        lease_until: row.try_get("lease_until")?,
        task_state: task_state.as_deref().and_then(TaskState::parse),
        state,
    })
}

fn read_answer(row: &AnyRow) -> Result<Answer, sqlx::Error> {
    let status: i64 = row.try_get("status")?;
    let fields: String = row.try_get("fields")?;
    let body: Option<String> = row.try_get("body")?;
    let body = STANDARD.decode(body.unwrap_or_default());
    let wrong = |error| sqlx::Error::Decode(Box::new(error));
    let fields: Vec<(String, String)> =
        serde_json::from_str(&fields).map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::try_from(value.as_str()),
        ) {
            map.append(name, value);
        }
    }
    Ok(Answer {
        status: u16::try_from(status).unwrap_or(200),
        fields: map,
        body: Bytes::from(body.map_err(wrong)?),
        kept: true,
    })
}

/// Returns the fields to keep, as JSON, without values that are not text.
fn fields_to_json(fields: &HeaderMap) -> String {
    let kept = KEPT_FIELDS.split(' ').flat_map(|name| {
        let values = fields.get_all(name).iter();
        let values = values.filter(|value| value.len() <= KEPT_FIELD_BYTES_MAX);
        values.filter_map(move |value| Some((name, value.to_str().ok()?)))
    });
    serde_json::json!(kept.collect::<Vec<_>>()).to_string()
}
