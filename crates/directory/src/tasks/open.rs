//! Tasks that agents have begun and not ended, as far as responses tell: what a stop with `cancel_tasks` cancels. Owns
//! the table `open_tasks`; all SQL for it is here.
//!
//! A task is written once it has been open for [`WRITTEN_AFTER`], so that short ones cost the store nothing, or at once
//! when a stop comes. The task that writes owners hands it what it learns; no message waits for it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{bind_now, delete_all};
use access::workspace::Timestamp;
use kernel::config::Live;
use kernel::deadline::ticks;
use kernel::ids::WorkspaceId;
use kernel::telemetry::Chain;
use stores::db::{Connection, Db};
use stores::store::Unavailable;

/// Time after which an open task is written.
const WRITTEN_AFTER: Duration = Duration::from_secs(2);

/// Interval of writes.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Interval of deletions of lapsed rows.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Tasks that wait to be written, or deleted, on one replica at most. Beyond it further ones are not noted.
const WAITING_MAX: usize = 50_000;

/// Ended tasks that are remembered, so that each is deleted once however often it is asked for.
const ENDED_MAX: usize = 20_000;

/// Rows of one transaction.
const BATCH_MAX: usize = 256;

const PUT: &str = "INSERT INTO open_tasks (target, task, caller, caller_org, expires_at) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (target, task) DO UPDATE SET expires_at = excluded.expires_at";

const DELETE: &str = "DELETE FROM open_tasks WHERE target = $1 AND task = $2";

const DELETE_OF: &str = "DELETE FROM open_tasks WHERE target = $1";

const PAGE: &str = "SELECT target, task, caller, caller_org FROM open_tasks \
    WHERE (target > $1 OR (target = $1 AND task > $2)) AND expires_at > $3 ORDER BY target, task LIMIT $4";

const DELETE_LAPSED: &str = "DELETE FROM open_tasks WHERE (target, task) IN \
    (SELECT target, task FROM open_tasks WHERE expires_at <= $2 LIMIT $1)";

/// A task that its agent has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTask {
    /// The workspace of its agent.
    pub target: WorkspaceId,
    /// Its id, as its agent gave it.
    pub task: String,
    /// Its owner.
    pub caller: String,
    /// The org of an owner that is no workspace.
    pub caller_org: Option<String>,
}

type TaskName = (WorkspaceId, String);

#[derive(Default)]
struct PendingTasks {
    /// Tasks to be written, with the time of their beginning.
    begun: HashMap<TaskName, (OpenTask, Instant)>,
    /// Tasks to be deleted.
    over: HashSet<TaskName>,
    /// Tasks that were deleted.
    ended: HashSet<TaskName>,
}

/// The open tasks of this replica, and the table.
pub struct OpenTasks {
    config: Live,
    db: Db,
    waiting: Mutex<PendingTasks>,
    /// Notified when all are to be written at once.
    hurry: Notify,
}

impl OpenTasks {
    /// Forgets the open tasks of a removed workspace whose id begins a new life, in a transaction of the caller.
    ///
    /// # Errors
    /// The error of the driver.
    pub async fn forget_workspace(
        tx: &mut Connection,
        id: &WorkspaceId,
    ) -> Result<(), sqlx::Error> {
        let delete = sqlx::query(DELETE_OF).bind(id.as_str());
        delete.execute(tx).await.map(drop)
    }

    pub(super) fn new(config: Live, db: Db) -> Self {
        Self {
            config,
            db,
            waiting: Mutex::default(),
            hurry: Notify::new(),
        }
    }

    pub(super) fn record_begin(&self, open: OpenTask) {
        let name = (open.target.clone(), open.task.clone());
        let mut waiting = self.waiting.lock();
        waiting.ended.remove(&name);
        waiting.over.remove(&name);
        if waiting.begun.len() < WAITING_MAX {
            waiting.begun.insert(name, (open, Instant::now()));
        }
    }

    pub(super) fn record_end(&self, name: TaskName) {
        let mut waiting = self.waiting.lock();
        if waiting.begun.remove(&name).is_some() || waiting.ended.contains(&name) {
            return;
        }
        if waiting.over.len() < WAITING_MAX {
            waiting.over.insert(name);
        }
    }

    /// Takes what is to be written and deleted now.
    fn take_due(&self, all: bool) -> (Vec<OpenTask>, Vec<TaskName>) {
        let mut waiting = self.waiting.lock();
        let due = |since: &Instant| all || since.elapsed() >= WRITTEN_AFTER;
        let begun = waiting
            .begun
            .extract_if(|_, (_, since)| due(since))
            .take(BATCH_MAX)
            .map(|(_, (open, _))| open)
            .collect();
        let over: Vec<TaskName> = waiting.over.iter().take(BATCH_MAX).cloned().collect();
        for name in &over {
            waiting.over.remove(name);
        }
        (begun, over)
    }

    fn put_back(&self, begun: Vec<OpenTask>, over: Vec<TaskName>) {
        let mut waiting = self.waiting.lock();
        waiting.over.extend(over);
        // They were due.
        let since = Instant::now() - WRITTEN_AFTER;
        for open in begun {
            let name = (open.target.clone(), open.task.clone());
            waiting.begun.entry(name).or_insert((open, since));
        }
    }

    fn record_deleted(&self, over: Vec<TaskName>) {
        let mut waiting = self.waiting.lock();
        if waiting.ended.len() + over.len() > ENDED_MAX {
            waiting.ended.clear();
        }
        waiting.ended.extend(over);
    }

    async fn write_rows(
        &self,
        begun: &[OpenTask],
        over: &[TaskName],
        expires_at: Timestamp,
    ) -> Result<(), Unavailable> {
        let work = async {
            let mut tx = self.db.begin().await?;
            for open in begun {
                let put = sqlx::query(PUT)
                    .bind(open.target.as_str())
                    .bind(&open.task)
                    .bind(&open.caller)
                    .bind(open.caller_org.as_deref())
                    .bind(expires_at.0);
                put.execute(&mut *tx).await?;
            }
            for (target, task) in over {
                let delete = sqlx::query(DELETE).bind(target.as_str()).bind(task);
                delete.execute(&mut *tx).await?;
            }
            tx.commit().await
        };
        self.db.run("open_tasks_write", work).await
    }
}

impl OpenTasks {
    /// Has the open tasks of this replica written at once.
    pub fn write_now(&self) {
        self.hurry.notify_one();
    }

    /// Returns open tasks after the target and task `after`, in order.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn load_page(
        &self,
        after: &(String, String),
        limit: u32,
    ) -> Result<Vec<OpenTask>, Unavailable> {
        let query = sqlx::query(PAGE)
            .bind(&after.0)
            .bind(&after.1)
            .bind(Timestamp::now().0)
            .bind(i64::from(limit));
        type Row = (String, String, String, Option<String>);
        let rows: Vec<Row> = self.db.fetch_all("open_tasks_page", query).await?;
        let open = rows
            .into_iter()
            .filter_map(|(target, task, caller, caller_org)| {
                Some(OpenTask {
                    target: WorkspaceId::parse(&target).ok()?,
                    task,
                    caller,
                    caller_org,
                })
            });
        Ok(open.collect())
    }

    /// Writes open tasks. A background task; runs until it is dropped.
    pub(super) async fn run(&self) {
        let mut tick = ticks(WRITE_EVERY);
        let mut purged = Instant::now();
        loop {
            let all = tokio::select! {
                _ = tick.tick() => false,
                () = self.hurry.notified() => true,
            };
            loop {
                let (begun, over) = self.take_due(all);
                if begun.is_empty() && over.is_empty() {
                    break;
                }
                let expires_at = Timestamp::now().after(self.config.get().a2a.task_ttl);
                if let Err(error) = self.write_rows(&begun, &over, expires_at).await {
                    tracing::debug!(error = %Chain(&error), "failed to write open tasks; will retry");
                    self.put_back(begun, over);
                    break;
                }
                self.record_deleted(over);
            }
            if purged.elapsed() >= PURGE_EVERY {
                purged = Instant::now();
                let lapsed = ("open_tasks_purge", DELETE_LAPSED);
                if let Err(error) = delete_all(&self.db, lapsed, bind_now).await {
                    tracing::debug!(error = %Chain(&error), "failed to delete lapsed open tasks; will retry");
                }
            }
        }
    }
}
