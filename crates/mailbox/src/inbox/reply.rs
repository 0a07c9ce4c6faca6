//! Updates of tasks: agents reply to their messages, and callers read their tasks.

use std::sync::OnceLock;

use serde_json::json;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::activity::{Activity, NewActivity, Source, is_storable};
use super::append::{SET_CONTINUING, no_task};
use super::document::{self, check_depth};
use super::{Inbox, task_changed_event};
use crate::kept_bytes::kept_of;
use crate::mailbox::{count_fitting, decode_column, octets, query};
use crate::wake::{Topic, Watch};
use a2a::Generation;
use a2a::agent_reply::{Subject, Update};
use a2a::method::Method;
use a2a::state::TaskState;
use kernel::ids::WorkspaceId;
use kernel::metrics::RetainedKind;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use kernel::time::Timestamp;
use stores::db::Connection;

/// Updates of one task at most; one that ends it is always accepted.
pub(super) const UPDATES_MAX: i64 = 10_000;

/// Bytes counted for each update that the gateway wrote itself, which is not in `update_bytes`.
const UPDATE_BYTES: i64 = 256;

/// A reply that ends a task is accepted up to this size also where `limits.kept_bytes` are used up: ended
/// tasks can be deleted.
const LAST_WORD_BYTES: i64 = 4096;

/// The rejection of a reply for which there is no room. The limits follow.
const NO_ROOM: &str = "there is no room for the reply; end tasks with at most 4096 bytes and acknowledge them: what is kept for the workspace has";

/// Updates that are read at once.
const UPDATES_PAGE: i64 = 256;

// The first statement locks the row of the task until the commit.
const LOCK: &str = concat!(
    "UPDATE activity_logs SET updates = updates + 1, updated_at = $3 \
    WHERE id = (SELECT task_id FROM activity_logs WHERE id = $1 AND workspace_id = $2) \
    AND workspace_id = $2 AND task_id = id \
    RETURNING id, workspace_id, owner, context_id, status, updates, update_bytes, created_at, updated_at, ",
    kept_of!("'inbox:' || $2"),
    " AS kept"
);

const MOVE: &str = "UPDATE activity_logs SET status = $2, update_bytes = $3 WHERE id = $1";

const ANSWER: &str =
    "UPDATE activity_logs SET response_body = $2, response_bytes = $3 WHERE id = $1";

const INSERT_UPDATE: &str =
    "INSERT INTO task_updates (task_id, n, body, created_at) VALUES ($1, $2, $3, $4)";

const FIND: &str = "SELECT id, workspace_id, owner, context_id, status, updates, created_at, updated_at \
    FROM activity_logs WHERE id = $1 AND workspace_id = $2 AND task_id = id";

const WHERE: &str = "SELECT workspace_id FROM activity_logs WHERE id = $1 AND task_id = id";

const UPDATES: &str = "SELECT n, body, created_at FROM task_updates \
    WHERE task_id = $1 AND n > $2 ORDER BY n LIMIT $3";

const LIST: &str = "SELECT id, workspace_id, owner, context_id, status, updates, update_bytes, created_at, updated_at, seq \
    FROM activity_logs WHERE workspace_id = $1 AND task_id = id AND ($2 = '' OR owner = $2) \
    AND ($3 = '' OR context_id = $3) AND ($4 = '' OR status = $4) AND seq < $5 ORDER BY seq DESC LIMIT $6";

/// A task that was begun by a message to an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxTask {
    /// Its id: that of the entry which began it.
    pub id: String,
    /// The workspace of the agent that works on it.
    pub target: WorkspaceId,
    /// [`Proof::owner`](access::identity::Proof::owner) of the caller that began it.
    pub owner: String,
    /// Its conversation.
    pub context_id: String,
    /// Its state.
    pub state: TaskState,
    /// The number of updates, which is that of the last one.
    pub updates: i64,
    /// Time at which it was begun.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
}

/// One update of a task, with the gateway's ids in it.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskUpdate {
    /// Its number: 1, 2, 3, without gaps.
    pub n: i64,
    /// The update.
    pub update: Update,
    /// Time of the update.
    pub at: Timestamp,
}

/// The tasks of a workspace to list, newest first.
#[derive(Clone, Debug, Default)]
pub struct TaskQuery<'a> {
    /// The owner of the tasks.
    pub owner: Option<&'a str>,
    /// Their conversation.
    pub context: Option<&'a str>,
    /// Their state.
    pub state: Option<TaskState>,
    /// The cursor of the previous page.
    pub before: Option<i64>,
    /// The number of tasks at most.
    pub limit: u32,
}

/// Tasks, newest first, and the cursor of the next page if there is one.
#[derive(Clone, Debug)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<InboxTask>,
    /// The value of [`TaskQuery::before`] for the next page.
    pub next: Option<i64>,
}

impl InboxTask {
    /// Returns the task as it is after the message of `owner` that began it.
    pub fn new(first: &Activity, target: &WorkspaceId, owner: &str) -> Self {
        Self {
            id: first.id.clone(),
            target: target.clone(),
            owner: owner.to_owned(),
            context_id: first.context_id.clone().unwrap_or_default(),
            state: TaskState::Submitted,
            updates: 0,
            created_at: first.created_at,
            updated_at: first.created_at,
        }
    }

    /// Returns the task as JSON before its first update, in the form of A2A 0.3.
    pub fn first_document(&self) -> serde_json::Value {
        self.document_at(self.created_at)
    }

    /// As [`InboxTask::first_document`], at the time of a message that continues it.
    pub fn document_at(&self, at: Timestamp) -> serde_json::Value {
        document::initial_document(&self.subject(), at)
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            task: &self.id,
            context: &self.context_id,
        }
    }
}

impl Inbox {
    /// Commits an update of the agent of `target` on the task that the entry `activity` begins or continues;
    /// `body` is the reply as it arrived.
    ///
    /// # Errors
    /// `task_not_found`; `conflict` when the task is over or has had too many updates; `body_too_large` when
    /// all its updates together are larger than `limits.response_bytes`; `invalid_params`;
    /// `store_unavailable`: then the outcome is unknown.
    pub async fn record_reply(
        &self,
        target: &WorkspaceId,
        activity: &str,
        update: Update,
        body: &str,
    ) -> Result<InboxTask, Rejection> {
        let state = update.state_after();
        let state = state.map_err(|why| Rejection::new(Reason::InvalidParams, why.to_string()))?;
        check_depth(&update)?;
        if body.contains('\0') {
            let message = "a NUL character cannot be kept; leave it out";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        let bytes_max = self.mailbox.config.get().limits.response_bytes.0;
        let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let bounds = &self.mailbox;
        let (kept_max, total_room) = (bounds.per_owner(), bounds.total_room());
        let concerned = OnceLock::<String>::new();
        let work = async {
            let at = Timestamp::now();
            let mut tx = self.mailbox.db.begin().await?;
            let locked = query!(LOCK, activity, target.as_str(), at.0);
            let Some(row) = locked.fetch_optional(&mut *tx).await? else {
                let message = "there is no such entry in this inbox, or none any more, or it has no task (`notify`, \
                    `delegate_result`): nothing is to be replied";
                return Ok(Err(Rejection::new(Reason::TaskNotFound, message)));
            };
            let mut task = read_task(&row)?;
            let _ = concerned.set(task.id.clone());
            if let Some(rejection) = refuse_reply(&task, state) {
                return Ok(Err(rejection));
            }
            let update = update.with_subject(&task.subject(), &at.to_string());
            let text = insert_update(&mut tx, &task.id, task.updates, &update, at).await?;
            let bytes = row.try_get::<i64, _>("update_bytes")? + text;
            if bytes > bytes_max {
                return Ok(Err(too_large(bytes_max)));
            }
            let added = text + octets(body);
            let kept: i64 = row.try_get("kept")?;
            let ends = state.is_some_and(TaskState::is_terminal);
            let fits = kept + added <= kept_max || ends && added <= LAST_WORD_BYTES;
            if !fits || total_room < added {
                return Ok(Err(bounds.count_refusal(RetainedKind::Reply, NO_ROOM)));
            }
            bounds.count_added(added);
            let before = task.state;
            task.state = state.unwrap_or(before);
            let moved = query!(MOVE, &task.id, task.state.as_str(), bytes);
            moved.execute(&mut *tx).await?;
            if task.state != before {
                let others = query!(SET_CONTINUING, &task.id, task.state.as_str());
                others.execute(&mut *tx).await?;
            }
            let answered = query!(ANSWER, activity, body, octets(body));
            answered.execute(&mut *tx).await?;
            tx.commit().await?;
            Ok(Ok(task))
        };
        let replied = self.mailbox.db.run("inbox_reply", work).await;
        let concerned = concerned.into_inner().as_deref().map(Topic::task);
        match &replied {
            Ok(Ok(_)) => {}
            // The task may have ended by a reply without a confirmed commit.
            Ok(Err(_)) => self.mailbox.hub.wake(concerned),
            // This reply may be committed all the same.
            Err(_) => self.wake_late(concerned),
        }
        let task = replied??;
        self.mailbox.hub.wake([Topic::task(&task.id)]);
        self.mailbox.metrics.tasks.states[task.state].inc();
        self.events
            .publish(task_changed_event(target, &task.id, task.state.as_str()));
        Ok(task)
    }

    /// Cancels a task for `owner`: the agent finds an entry with the method `tasks/cancel`, or its name in
    /// `generation`.
    ///
    /// # Errors
    /// `task_not_found`; `invalid_params` when it is over; as [`Inbox::put`].
    pub async fn cancel(
        &self,
        target: &WorkspaceId,
        id: &str,
        (source, owner): (Source, String),
        generation: Generation,
    ) -> Result<InboxTask, Rejection> {
        let method = Method::CancelTask.name_in(generation).unwrap_or_default();
        let body = json!({"jsonrpc": "2.0", "method": method, "params": {"id": id}});
        let new = NewActivity {
            continues: Some(id.to_owned()),
            continues_as: TaskState::Canceled,
            ..NewActivity::message(target, source, owner, method, body.to_string())
        };
        self.put(new).await?;
        self.find_task(target, id).await?.ok_or_else(no_task)
    }

    /// Returns a task of `target`; `None`: there is none of this id.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn find_task(
        &self,
        target: &WorkspaceId,
        id: &str,
    ) -> Result<Option<InboxTask>, Rejection> {
        if !is_storable(id) {
            return Ok(None);
        }
        let find = query!(FIND, id, target.as_str());
        Ok(self.mailbox.fetch("inbox_task", find, read_task).await?)
    }

    /// Returns the workspace of the task `id`; `None`: no inbox has it.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn target_of(&self, id: &str) -> Result<Option<WorkspaceId>, Rejection> {
        if !is_storable(id) {
            return Ok(None);
        }
        let find = query!(WHERE, id);
        let found = self.mailbox.fetch("inbox_task", find, read_workspace);
        Ok(found.await?)
    }

    /// Returns the task as JSON, in the form of A2A 0.3, and the number of the last update in it. It is
    /// current: it may be newer than `task`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn read_document(
        &self,
        task: &InboxTask,
    ) -> Result<(serde_json::Value, i64), Rejection> {
        let mut document = task.first_document();
        let mut after = 0;
        loop {
            let updates = self.updates_after(&task.id, after).await?;
            let Some(last) = updates.last() else {
                // The state of an ended task holds even if its last update cannot be read.
                if task.state.is_terminal() && document["status"]["state"] != task.state.as_str() {
                    document["status"] =
                        json!({"state": task.state.as_str(), "timestamp": task.updated_at});
                }
                return Ok((document, after));
            };
            after = last.n;
            for one in updates {
                document::apply(&mut document, one.update, one.at);
            }
        }
    }

    /// Returns updates after the number `n`, in order, possibly not all of them: an empty result means that
    /// there are no more. An unreadable update is skipped, so that the task stays readable.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn updates_after(&self, task: &str, n: i64) -> Result<Vec<TaskUpdate>, Rejection> {
        let mut after = n;
        loop {
            let query = query!(UPDATES, task, after, UPDATES_PAGE);
            let read = |row: &AnyRow| Ok((row.try_get("n")?, read_or_skip(task, row)));
            let rows = self.mailbox.fetch_all("inbox_updates", query, read).await?;
            let last = rows.last().map(|(n, _)| *n);
            let updates: Vec<_> = rows.into_iter().filter_map(|(_, update)| update).collect();
            match last {
                Some(last) if updates.is_empty() => after = last,
                _ => return Ok(updates),
            }
        }
    }

    /// Returns tasks of `target`, newest first. Fewer than wanted, and at least one, when they are large.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn tasks_of(
        &self,
        target: &WorkspaceId,
        wanted: &TaskQuery<'_>,
    ) -> Result<TaskPage, Rejection> {
        if !wanted.context.is_none_or(is_storable) {
            let (tasks, next) = (Vec::new(), None);
            return Ok(TaskPage { tasks, next });
        }
        let query = sqlx::query(LIST)
            .bind(target.as_str())
            .bind(wanted.owner.unwrap_or_default())
            .bind(wanted.context.unwrap_or_default())
            .bind(wanted.state.map_or("", TaskState::as_str))
            .bind(wanted.before.unwrap_or(i64::MAX))
            .bind(i64::from(wanted.limit) + 1);
        let read = |row: &AnyRow| {
            let task = read_task(row)?;
            let size = row.try_get::<i64, _>("update_bytes")? + task.updates * UPDATE_BYTES;
            Ok((size, (task, row.try_get("seq")?)))
        };
        let found = self.mailbox.fetch_all("inbox_tasks", query, read).await?;
        let (sizes, mut found): (Vec<i64>, Vec<(InboxTask, i64)>) = found.into_iter().unzip();
        let count = count_fitting(&sizes, wanted.limit);
        let more = count < found.len();
        found.truncate(count);
        let next = found.last().filter(|_| more).map(|(_, seq)| *seq);
        let tasks = found.into_iter().map(|(task, _)| task).collect();
        Ok(TaskPage { tasks, next })
    }

    /// Subscribes to changes of a task, by any replica.
    pub fn watch_task(&self, id: &str) -> Watch {
        self.mailbox.hub.watch_topic(Topic::task(id))
    }
}

fn refuse_reply(task: &InboxTask, state: Option<TaskState>) -> Option<Rejection> {
    let conflict = |message| Some(Rejection::new(Reason::Conflict, message));
    if task.state.is_terminal() {
        return conflict("the task is over; nothing can be added to it");
    }
    let ends = state.is_some_and(TaskState::is_terminal);
    if UPDATES_MAX < task.updates && !ends {
        return conflict("the task has as many updates as it may have; end it");
    }
    None
}

fn too_large(max: i64) -> Rejection {
    let message =
        "the updates of the task are larger together than limits.response_bytes; end it with less";
    Rejection::new(Reason::BodyTooLarge, message).with_fact("limit", max)
}

/// Inserts an update and returns its octets.
pub(super) async fn insert_update(
    tx: &mut Connection,
    task: &str,
    n: i64,
    update: &Update,
    at: Timestamp,
) -> Result<i64, sqlx::Error> {
    let body = serde_json::to_string(update).map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    let length = octets(&body);
    let insert = query!(INSERT_UPDATE, task, n, body, at.0);
    insert.execute(&mut *tx).await?;
    Ok(length)
}

fn read_workspace(row: &AnyRow) -> Result<WorkspaceId, sqlx::Error> {
    decode_column(WorkspaceId::parse(row.try_get("workspace_id")?))
}

fn read_task(row: &AnyRow) -> Result<InboxTask, sqlx::Error> {
    let context: Option<String> = row.try_get("context_id")?;
    let state: &str = row.try_get("status")?;
    Ok(InboxTask {
        id: row.try_get("id")?,
        target: read_workspace(row)?,
        owner: row.try_get("owner")?,
        context_id: context.unwrap_or_default(),
        state: TaskState::parse(state).ok_or_else(|| sqlx::Error::Decode("no state".into()))?,
        updates: row.try_get("updates")?,
        created_at: Timestamp(row.try_get("created_at")?),
        updated_at: Timestamp(row.try_get("updated_at")?),
    })
}

/// Reads an update. One that cannot be read is left out.
fn read_or_skip(task: &str, row: &AnyRow) -> Option<TaskUpdate> {
    let read = || {
        Ok(TaskUpdate {
            n: row.try_get("n")?,
            update: decode_column(serde_json::from_str(row.try_get("body")?))?,
            at: Timestamp(row.try_get("created_at")?),
        })
    };
    read()
        .inspect_err(|error: &sqlx::Error| {
            tracing::error!(task, error = %Chain(error), "unreadable task update; skipped");
        })
        .ok()
}
