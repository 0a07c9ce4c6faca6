//! Ownership of tasks (`docs/reference/a2a.md`, "Tasks"). The owner of a task is the first caller that started it,
//! learnt from the agent's response: all callers look the same to the agent, so the gateway has to keep them
//! apart.
//!
//! Owns `gw:task:{target}:{task}` (the owner) and `gw:task-at:{owner}:{task}` (the target) in the shared
//! state, both for `a2a.task_ttl` after the owner's last use, and `gw:tasks-of:{owner}`, which bounds a
//! caller to `a2a.tasks_per_caller`; without Redis the table `task_owners`. A new owner counts on this
//! replica at once, and on others or after a restart once a background task has written it. If one caller has
//! two tasks with the same id, the id resolves to the first. Owners and targets are lives of workspace ids
//! ([`WorkspaceIncarnation`]), so a workspace that an operator recreates has no task of the one that was removed.
//!
//! Invariants: a request for a task that is known to belong to another caller is never let through; a store
//! that cannot be read is not treated as "unknown".

mod bindings;
mod cache;
mod key;
mod note;
mod open;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

use self::bindings::BindingValue;
pub use self::bindings::{Binder, EndRecorder, Learner, Subject};
use self::cache::{Cached, TaskCache};
use self::note::{NOTES_MAX, Note, QueuedNote, TaskClaim};
pub use self::open::{OpenTask, OpenTasks};
use self::table::{Column, Table, bind_now, delete_all};
use a2a::refs::TASK_ID_BYTES_MAX;
use a2a::task::Binding;
use access::hierarchy::Hierarchy;
use access::identity::{Proof, Role};
use kernel::config::Live;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::metrics::Metrics;
use kernel::rejection::{Reason, Rejection};
use kernel::shares::{Account, Shares};
use stores::db::Db;
use stores::shared::Shared;
use stores::store::Unavailable;

/// Bytes of owners, of targets and of bindings in memory at most, each: some 200,000 tasks with ids of 36 bytes.
const BYTES_MAX: u64 = 64 << 20;

/// Bytes of the names that the store does not have, at most.
const UNKNOWN_BYTES_MAX: u64 = 8 << 20;

/// Lifetime of a negative entry: the store is not read again for this long.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Lifetime of an owner or target in memory that can be read from the store again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(300);

/// Records and checks the owners of tasks.
pub struct Tasks {
    config: Live,
    metrics: Arc<Metrics>,
    stored: OwnerStore,
    /// Tasks that agents have begun and not ended.
    pub open: OpenTasks,
    owners: TaskCache<Arc<str>>,
    targets: TaskCache<WorkspaceId>,
    bindings: TaskCache<BindingValue>,
    /// Names of owners and targets that SQL does not have.
    unknown: TaskCache<()>,
    notes: mpsc::Sender<QueuedNote>,
    to_write: Mutex<mpsc::Receiver<QueuedNote>>,
    /// Notes that are queued or being written, by account.
    unwritten: Arc<Shares>,
    /// Owners of rows that were written since the last count.
    started: parking_lot::Mutex<HashSet<Arc<str>>>,
}

/// The store of owners.
enum OwnerStore {
    /// Redis, shared by all replicas.
    Shared(Shared),
    /// SQL, for a single gateway.
    Sql(Table),
}

impl Tasks {
    /// Creates it; does not touch the stores.
    pub fn new(config: Live, (db, shared): (Db, Shared), metrics: Arc<Metrics>) -> Arc<Self> {
        let (notes, to_write) = mpsc::channel(NOTES_MAX);
        Arc::new(Self {
            owners: TaskCache::new(BYTES_MAX, |owner| owner.len()),
            targets: TaskCache::new(BYTES_MAX, |target| target.as_str().len()),
            bindings: TaskCache::new(BYTES_MAX, |_| 0),
            unknown: TaskCache::new(UNKNOWN_BYTES_MAX, |()| 0),
            open: OpenTasks::new(config.clone(), db.clone()),
            stored: if shared.is_embedded() {
                OwnerStore::Sql(Table(db))
            } else {
                OwnerStore::Shared(shared)
            },
            config,
            metrics,
            notes,
            to_write: Mutex::new(to_write),
            unwritten: Arc::default(),
            started: parking_lot::Mutex::default(),
        })
    }

    /// Returns a scanner for the response to the caller that `proof` identifies. It finds the task id, for
    /// which the caller is then recorded.
    pub fn new_learner(
        self: &Arc<Self>,
        proof: &Arc<Proof>,
        target: WorkspaceIncarnation,
        binding: Binding,
    ) -> Learner {
        let mut learner = Learner::for_state(binding);
        learner.recorder = Some((Arc::clone(self), Arc::clone(proof), target));
        learner
    }

    /// Records that `owner`, of the org `org` if it is no workspace, started `task` of `target`, unless another owner
    /// is known. `over`: whether the task has ended; `None`: that does not matter.
    pub fn record_owner(
        &self,
        (owner, org): (&str, Option<&str>),
        target: &WorkspaceIncarnation,
        task: &str,
        over: Option<bool>,
    ) {
        if task.is_empty() || task.len() > TASK_ID_BYTES_MAX {
            return;
        }
        let (key, at) = (key::task_owner(target, task), key::task_target(owner, task));
        let lasts = self.cached_ttl(self.is_shared());
        let (known, new) = self.owners.claim(&key, || owner.into(), lasts);
        if *known.value != *owner {
            return;
        }
        if new {
            self.metrics.tasks.learnt.inc();
            self.targets.claim(&at, || target.id.clone(), lasts);
            self.unknown.forget(&key);
            self.unknown.forget(&at);
            let (owner, target) = (Arc::clone(&known.value), target.id.clone());
            let open = (over == Some(false)).then(|| {
                Box::new(OpenTask {
                    target: target.clone(),
                    task: task.to_owned(),
                    caller: owner.to_string(),
                    caller_org: org.map(str::to_owned),
                })
            });
            let account = Account::of_owner(&owner);
            let claim = TaskClaim {
                key,
                at,
                owner,
                target,
                open,
            };
            self.queue_note(account, Note::Claim(claim));
        } else {
            if over == Some(true) {
                self.note_end(&target.id, task, owner);
            }
            self.renew_owner(&known, &target.id, key, at);
        }
    }

    /// Records that `task` of `target` has ended. `by`: the caller whose answer told of it.
    pub fn note_end(&self, target: &WorkspaceId, task: &str, by: &str) {
        let note = Note::End((target.clone(), task.to_owned()));
        self.queue_note(Account::of_owner(by), note);
    }

    /// Checks that the caller may access all of `tasks` of `target`: as their owner, as a workspace above the
    /// owner, or as an operator who sees content. A task without a known owner is open to every caller.
    ///
    /// # Errors
    /// `task_not_found`; `role_required` of another operator; `store_unavailable` when the owners cannot be read.
    pub async fn check(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        target: &WorkspaceIncarnation,
        tasks: &[String],
    ) -> Result<(), Rejection> {
        let visible = self
            .check_visibility(hierarchy, proof, target, tasks)
            .await?;
        if visible.into_iter().all(|visible| visible) {
            return Ok(());
        }
        if proof.sees_no_content() {
            return proof.require_at_least(Role::Admin);
        }
        Err(Rejection::new(
            Reason::TaskNotFound,
            "there is no such task for this caller: a task belongs to the caller that started it",
        ))
    }

    /// Returns for each of `tasks` of `target` whether the caller may see it, in their order.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn check_visibility(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        target: &WorkspaceIncarnation,
        tasks: &[String],
    ) -> Result<Vec<bool>, Rejection> {
        if tasks.is_empty() || proof.sees_all_content() {
            return Ok(vec![true; tasks.len()]);
        }
        let keys: Vec<String> = tasks
            .iter()
            .map(|task| key::task_owner(target, task))
            .collect();
        let owners = self.load_owners(&keys).await?;
        let me = proof.owner();
        let mut visible = Vec::with_capacity(tasks.len());
        for ((known, key), task) in owners.into_iter().zip(keys).zip(tasks) {
            visible.push(match known {
                None => true,
                Some(known) if *known.value == me => {
                    let at = key::task_target(&me, task);
                    self.renew_owner(&known, &target.id, key, at);
                    true
                }
                Some(known) => may_see(hierarchy, proof, &known.value).await?,
            });
        }
        Ok(visible)
    }

    /// Returns the workspace at which the caller started `task`, if it is known.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn target_of(
        &self,
        proof: &Proof,
        task: &str,
    ) -> Result<Option<WorkspaceId>, Rejection> {
        if task.is_empty() || task.len() > TASK_ID_BYTES_MAX {
            return Ok(None);
        }
        let at = key::task_target(&proof.owner(), task);
        if let Some(target) = self.targets.get(&at) {
            return Ok(Some(target.value.clone()));
        }
        let found = self.read_values(Column::Target, &[&at]).await?.pop();
        let target = found
            .flatten()
            .and_then(|text| WorkspaceId::parse(&text).ok());
        if let Some(target) = &target {
            self.targets
                .insert(&at, target.clone(), self.cached_ttl(true));
        }
        Ok(target)
    }

    /// Returns the owners under the keys, as far as they are known.
    async fn load_owners(
        &self,
        keys: &[String],
    ) -> Result<Vec<Option<Arc<Cached<Arc<str>>>>>, Unavailable> {
        let mut owners: Vec<_> = keys.iter().map(|key| self.owners.get(key)).collect();
        let missing: Vec<usize> = (0..keys.len()).filter(|i| owners[*i].is_none()).collect();
        let asked: Vec<&str> = missing.iter().map(|i| keys[*i].as_str()).collect();
        let found = self.read_values(Column::Owner, &asked).await?;
        let lasts = self.cached_ttl(true);
        for (i, owner) in missing.into_iter().zip(found) {
            owners[i] = owner.map(|owner| self.owners.insert(&keys[i], owner.into(), lasts));
        }
        Ok(owners)
    }

    /// Reads values from the store. The absence of an owner or target in SQL is cached as well, briefly.
    async fn read_values(
        &self,
        column: Column,
        keys: &[&str],
    ) -> Result<Vec<Option<String>>, Unavailable> {
        let table = match &self.stored {
            OwnerStore::Shared(shared) => return shared.get_many(keys).await,
            OwnerStore::Sql(table) => table,
        };
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            if self.unknown.get(key).is_some() {
                values.push(None);
                continue;
            }
            let value = table.load(column, key).await?;
            if value.is_none() && column != Column::Binding {
                self.unknown.insert(key, (), UNKNOWN_FOR);
            }
            values.push(value);
        }
        Ok(values)
    }

    /// Returns how long an owner or target lasts in memory. `is_stored`: it can be read from the store again.
    fn cached_ttl(&self, is_stored: bool) -> Duration {
        let ttl = self.config.get().a2a.task_ttl;
        if is_stored {
            ttl.min(ASKED_AGAIN_AFTER)
        } else {
            ttl
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self.stored, OwnerStore::Shared(_))
    }

    /// Renews the time to live of a task that its owner uses.
    fn renew_owner(&self, known: &Cached<Arc<str>>, target: &WorkspaceId, key: String, at: String) {
        let ttl = self.config.get().a2a.task_ttl;
        let alone = !self.is_shared();
        if alone {
            self.owners.extend(known, ttl);
        }
        if !self.owners.claim_renewal(known, ttl) {
            return;
        }
        if alone && self.targets.get(&at).is_none_or(|at| at.value == *target) {
            self.targets.insert(&at, target.clone(), ttl);
        }
        self.queue_note(Account::of_owner(&known.value), Note::Renew { key, at });
    }
}

/// True if the caller may see a task of `owner`: as the owner, a workspace above it, or an operator.
///
/// # Errors
/// `store_unavailable`.
pub async fn may_see(hierarchy: &Hierarchy, proof: &Proof, owner: &str) -> Result<bool, Rejection> {
    if proof.sees_all_content() || proof.owner() == owner {
        return Ok(true);
    }
    // `:` occurs in no workspace id, and in every other owner.
    match (
        proof.principal.workspace(),
        WorkspaceIncarnation::parse(owner),
    ) {
        (Some(id), Some(owner)) => hierarchy.is_above(id, &owner).await,
        _ => Ok(false),
    }
}
