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
mod key;
mod learner;
mod note;
mod open;
mod owner_cache;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{Mutex, mpsc};

pub use self::bindings::{Binder, Subject};
pub use self::learner::{EndRecorder, Learner};
pub use self::open::{OpenTask, OpenTasks};

use self::bindings::BindingCache;
use self::note::{NOTES_MAX, Note, NoteCounts, TaskClaim};
use self::owner_cache::{CachedOwner, OwnerCache};
use self::table::Table;
use crate::a2a::refs::TASK_ID_BYTES_MAX;
use crate::a2a::task::Binding;
use crate::config::Live;
use crate::db::Db;
use crate::hierarchy::Hierarchy;
use crate::identity::{Proof, Role};
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::metrics::Metrics;
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::store::Unavailable;

/// Records and checks the owners of tasks.
pub struct Tasks {
    config: Live,
    metrics: Arc<Metrics>,
    stored: OwnerStore,
    /// Tasks that agents have begun and not ended.
    pub open: OpenTasks,
    memory: OwnerCache,
    bindings: BindingCache,
    notes: mpsc::Sender<Note>,
    to_write: Mutex<mpsc::Receiver<Note>>,
    /// Notes that are queued or being written.
    unwritten: AtomicUsize,
    by_owner: std::sync::Mutex<NoteCounts>,
    /// Owners of rows that were written since the last count.
    started: std::sync::Mutex<HashSet<Arc<str>>>,
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
            memory: OwnerCache::new(),
            bindings: BindingCache::new(),
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
            unwritten: AtomicUsize::new(0),
            by_owner: std::sync::Mutex::default(),
            started: std::sync::Mutex::default(),
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
        let proof = Arc::clone(proof);
        Learner::new(Arc::clone(self), proof, target, binding)
    }

    /// Records that `owner`, of the org `org` if it is no workspace, started `task` of `target`, unless another owner is
    /// known. `over`: whether the task has ended; `None`: that does not matter.
    pub async fn record_owner(
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
        let ttl = self.config.get().a2a.task_ttl;
        let lasts = self.memory.cached_ttl(ttl, self.is_shared());
        let (known, new) = self.memory.claim_owner(&key, owner, lasts).await;
        if *known.owner != *owner {
            return;
        }
        if new {
            self.metrics.tasks.learnt.inc();
            self.memory.claim_target(&at, &target.id, lasts).await;
            let (owner, target) = (Arc::clone(&known.owner), target.id.clone());
            let open = (over == Some(false)).then(|| {
                Box::new(OpenTask {
                    target: target.clone(),
                    task: task.to_owned(),
                    caller: owner.to_string(),
                    caller_org: org.map(str::to_owned),
                })
            });
            self.queue_note(Note::Claim(TaskClaim {
                key,
                at,
                owner,
                target,
                open,
            }));
        } else {
            if over == Some(true) {
                self.note_end(&target.id, task, owner);
            }
            self.renew_owner(&known, &target.id, key, at).await;
        }
    }

    /// Records that `task` of `target` has ended. `by`: the caller whose answer told of it.
    pub fn note_end(&self, target: &WorkspaceId, task: &str, by: &str) {
        self.queue_note(Note::End {
            name: (target.clone(), task.to_owned()),
            by: by.into(),
        });
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
                Some(known) if *known.owner == me => {
                    let at = key::task_target(&me, task);
                    self.renew_owner(&known, &target.id, key, at).await;
                    true
                }
                Some(known) => may_see(hierarchy, proof, &known.owner).await?,
            });
        }
        Ok(visible)
    }

    /// True if the caller may access a task of `owner`: as the owner, a workspace above it, or an operator.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn may_ask(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        owner: &str,
    ) -> Result<bool, Rejection> {
        let own = proof.sees_all_content() || proof.owner() == owner;
        Ok(own || is_above(hierarchy, proof, owner).await?)
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
        if let Some(target) = self.memory.get_target(&at).await {
            return Ok(Some(target));
        }
        let target = match &self.stored {
            OwnerStore::Shared(shared) => {
                let found = shared.get(&at).await?;
                found.and_then(|text| WorkspaceId::parse(&text).ok())
            }
            OwnerStore::Sql(_) if self.memory.is_unknown(&at) => None,
            OwnerStore::Sql(table) => {
                let found = table.load_target(&at).await?;
                if found.is_none() {
                    self.memory.insert_unknown(&at);
                }
                found
            }
        };
        if let Some(target) = &target {
            let ttl = self.config.get().a2a.task_ttl;
            let lasts = self.memory.cached_ttl(ttl, true);
            self.memory.insert_target(&at, target, lasts).await;
        }
        Ok(target)
    }

    /// Returns the owners under the keys, as far as they are known.
    async fn load_owners(
        &self,
        keys: &[String],
    ) -> Result<Vec<Option<Arc<CachedOwner>>>, Unavailable> {
        let mut owners = Vec::with_capacity(keys.len());
        for key in keys {
            owners.push(self.memory.get_owner(key).await);
        }
        let missing: Vec<usize> = (0..keys.len()).filter(|i| owners[*i].is_none()).collect();
        let asked: Vec<&str> = missing.iter().map(|i| keys[*i].as_str()).collect();
        let found = match &self.stored {
            OwnerStore::Shared(shared) => shared.get_many(&asked).await?,
            OwnerStore::Sql(table) => self.owners_of_rows(table, &asked).await?,
        };
        let lasts = self.memory.cached_ttl(self.config.get().a2a.task_ttl, true);
        for (i, owner) in missing.into_iter().zip(found) {
            if let Some(owner) = owner {
                owners[i] = Some(self.memory.insert_owner(&keys[i], &owner, lasts).await);
            }
        }
        Ok(owners)
    }

    /// Returns owners from SQL. A missing row is cached as well, briefly.
    async fn owners_of_rows(
        &self,
        table: &Table,
        keys: &[&str],
    ) -> Result<Vec<Option<String>>, Unavailable> {
        let mut owners = Vec::with_capacity(keys.len());
        for key in keys {
            if self.memory.is_unknown(key) {
                owners.push(None);
                continue;
            }
            let owner = table.load_owner(key).await?;
            if owner.is_none() {
                self.memory.insert_unknown(key);
            }
            owners.push(owner);
        }
        Ok(owners)
    }

    fn is_shared(&self) -> bool {
        matches!(self.stored, OwnerStore::Shared(_))
    }

    /// Renews the time to live of a task that its owner uses.
    async fn renew_owner(
        &self,
        known: &CachedOwner,
        target: &WorkspaceId,
        key: String,
        at: String,
    ) {
        let ttl = self.config.get().a2a.task_ttl;
        let alone = !self.is_shared();
        if !self.memory.renew(known, ttl, !alone) {
            return;
        }
        self.queue_note(Note::Renew {
            key,
            at: at.clone(),
            owner: Arc::clone(&known.owner),
        });
        if !alone {
            return;
        }
        if self
            .memory
            .get_target(&at)
            .await
            .is_none_or(|at| at == *target)
        {
            self.memory.insert_target(&at, target, ttl).await;
        }
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
    is_above(hierarchy, proof, owner).await
}

/// True if the caller is a workspace above the one that owns a task.
async fn is_above(hierarchy: &Hierarchy, proof: &Proof, owner: &str) -> Result<bool, Rejection> {
    // `:` occurs in no workspace id, and in every other owner.
    match (
        proof.principal.workspace(),
        WorkspaceIncarnation::parse(owner),
    ) {
        (Some(id), Some(owner)) => hierarchy.is_above(id, &owner).await,
        _ => Ok(false),
    }
}
