//! Whose task is it (contract §5): the owner of a task is who started it, learnt from the agent's answer.
//! Behind a gateway every caller looks the same to an agent, so nobody else can keep callers apart.
//!
//! Owns `gw:task:{target}:{task}` (the owner) and `gw:task-at:{owner}:{task}` (the target) in the shared
//! state, both for `a2a.task_ttl` after the owner's last use, and `gw:tasks-of:{owner}`, by which each caller
//! keeps to `a2a.tasks_per_caller`. A gateway without Redis has the table `task_owners` instead. The first who
//! started a task owns it. What this replica learnt counts here at once, and for the others, and after a
//! restart, as soon as it is written: in the background, off the way of the answer. Where one caller has two
//! tasks of one id, the first is found by it.
//!
//! Invariants: a task that is known to be another caller's is never let through; a store that cannot be
//! read is no "unknown".

mod key;
mod known;
mod learner;
mod note;
mod table;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{Mutex, mpsc};

pub use self::learner::Learner;

use self::known::{Known, Memory};
use self::note::{Claimed, NOTES_MAX, Note, Unwritten};
use self::table::Table;
use crate::a2a::refs::TASK_ID_BYTES_MAX;
use crate::a2a::task::Binding;
use crate::config::Live;
use crate::db::Db;
use crate::hierarchy::Hierarchy;
use crate::identity::{Principal, Proof};
use crate::ids::WorkspaceId;
use crate::metrics::Metrics;
use crate::rejection::{Reason, Rejection};
use crate::shared::Shared;
use crate::store::Unavailable;

/// The room.
pub struct Tasks {
    config: Live,
    metrics: Arc<Metrics>,
    stored: Stored,
    memory: Memory,
    notes: mpsc::Sender<Note>,
    to_write: Mutex<mpsc::Receiver<Note>>,
    /// Notes that are queued or being written.
    unwritten: AtomicUsize,
    by_owner: std::sync::Mutex<Unwritten>,
    /// Owners of rows that were written since they were last counted.
    started: std::sync::Mutex<HashSet<Arc<str>>>,
}

/// Where owners are written down.
enum Stored {
    /// For all replicas.
    Shared(Shared),
    /// This gateway is alone.
    Sql(Table),
}

impl Tasks {
    /// Assembles the room; asks nothing.
    pub fn new(config: Live, (db, shared): (Db, Shared), metrics: Arc<Metrics>) -> Arc<Self> {
        let (notes, to_write) = mpsc::channel(NOTES_MAX);
        Arc::new(Self {
            memory: Memory::new(),
            stored: if shared.is_embedded() {
                Stored::Sql(Table(db))
            } else {
                Stored::Shared(shared)
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

    /// Looks for the task in the answer to a call of whom `proof` proves, and learns whose it is.
    pub fn learner(
        self: &Arc<Self>,
        proof: &Proof,
        target: &WorkspaceId,
        binding: Binding,
    ) -> Learner {
        Learner::new(Arc::clone(self), proof.owner(), target.clone(), binding)
    }

    /// `task` of `target` was started by `owner`, unless it is known to be another's.
    pub async fn learn(&self, owner: &str, target: &WorkspaceId, task: &str) {
        if task.is_empty() || task.len() > TASK_ID_BYTES_MAX {
            return;
        }
        let (key, at) = (key::task(target, task), key::at(owner, task));
        let ttl = self.config.get().a2a.task_ttl;
        let lasts = self.memory.lasts(ttl, self.is_shared());
        let (known, new) = self.memory.claim(&key, owner, lasts).await;
        if *known.owner != *owner {
            return;
        }
        if new {
            self.metrics.tasks.learnt.inc();
            self.memory.claim_at(&at, target, lasts).await;
            let (owner, target) = (Arc::clone(&known.owner), target.clone());
            self.note(Note::Claim(Claimed {
                key,
                at,
                owner,
                target,
            }));
        } else {
            self.renew(&known, target, key, at).await;
        }
    }

    /// Whether whom `proof` proves may ask for all of `tasks` of `target`: their owner, a workspace above
    /// it, an operator. A task that nobody was seen to start is everybody's.
    ///
    /// # Errors
    /// `task_not_found`; `store_unavailable` when nobody knows whose they are.
    pub async fn check(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        target: &WorkspaceId,
        tasks: &[String],
    ) -> Result<(), Rejection> {
        let visible = self.visible(hierarchy, proof, target, tasks).await?;
        if visible.into_iter().all(|visible| visible) {
            return Ok(());
        }
        Err(Rejection::new(
            Reason::TaskNotFound,
            "there is no such task for this caller: a task belongs to whoever started it",
        ))
    }

    /// Which of `tasks` of `target` may be seen, in their order.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn visible(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        target: &WorkspaceId,
        tasks: &[String],
    ) -> Result<Vec<bool>, Rejection> {
        if tasks.is_empty() || proof.principal == Principal::Operator {
            return Ok(vec![true; tasks.len()]);
        }
        let keys: Vec<String> = tasks.iter().map(|task| key::task(target, task)).collect();
        let owners = self.owners(&keys).await?;
        let me = proof.owner();
        let mut visible = Vec::with_capacity(tasks.len());
        for ((known, key), task) in owners.into_iter().zip(keys).zip(tasks) {
            visible.push(match known {
                None => true,
                Some(known) if *known.owner == me => {
                    self.renew(&known, target, key, key::at(&me, task)).await;
                    true
                }
                Some(known) => sees(hierarchy, proof, &known.owner).await?,
            });
        }
        Ok(visible)
    }

    /// Whether whom `proof` proves may ask for a task of `owner`: the owner, a workspace above it, an operator.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn may_ask(
        &self,
        hierarchy: &Hierarchy,
        proof: &Proof,
        owner: &str,
    ) -> Result<bool, Rejection> {
        let own = proof.principal == Principal::Operator || proof.owner() == owner;
        Ok(own || is_above(hierarchy, proof, owner).await?)
    }

    /// At which workspace whom `proof` proves started `task`, if that is known.
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
        let at = key::at(&proof.owner(), task);
        if let Some(target) = self.memory.at(&at).await {
            return Ok(Some(target));
        }
        let target = match &self.stored {
            Stored::Shared(shared) => {
                let found = shared.get(&at).await?;
                found.and_then(|text| WorkspaceId::parse(&text).ok())
            }
            Stored::Sql(_) if self.memory.is_unknown(&at) => None,
            Stored::Sql(table) => {
                let found = table.target(&at).await?;
                if found.is_none() {
                    self.memory.put_unknown(&at);
                }
                found
            }
        };
        if let Some(target) = &target {
            let ttl = self.config.get().a2a.task_ttl;
            let lasts = self.memory.lasts(ttl, true);
            self.memory.put_at(&at, target, lasts).await;
        }
        Ok(target)
    }

    /// Who owns what the keys are of, as far as it is known.
    async fn owners(&self, keys: &[String]) -> Result<Vec<Option<Arc<Known>>>, Unavailable> {
        let mut owners = Vec::with_capacity(keys.len());
        for key in keys {
            owners.push(self.memory.owner(key).await);
        }
        let missing: Vec<usize> = (0..keys.len()).filter(|i| owners[*i].is_none()).collect();
        let asked: Vec<&str> = missing.iter().map(|i| keys[*i].as_str()).collect();
        let found = match &self.stored {
            Stored::Shared(shared) => shared.get_many(&asked).await?,
            Stored::Sql(table) => self.owners_of_rows(table, &asked).await?,
        };
        let lasts = self.memory.lasts(self.config.get().a2a.task_ttl, true);
        for (i, owner) in missing.into_iter().zip(found) {
            if let Some(owner) = owner {
                owners[i] = Some(self.memory.put(&keys[i], &owner, lasts).await);
            }
        }
        Ok(owners)
    }

    /// The same of rows. That there is none is remembered as well, for a moment.
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
            let owner = table.owner(key).await?;
            if owner.is_none() {
                self.memory.put_unknown(key);
            }
            owners.push(owner);
        }
        Ok(owners)
    }

    fn is_shared(&self) -> bool {
        matches!(self.stored, Stored::Shared(_))
    }

    /// The owner uses the task: it lives on.
    async fn renew(&self, known: &Known, target: &WorkspaceId, key: String, at: String) {
        let ttl = self.config.get().a2a.task_ttl;
        let alone = !self.is_shared();
        if !self.memory.renew(known, ttl, !alone) {
            return;
        }
        self.note(Note::Renew {
            key,
            at: at.clone(),
            owner: Arc::clone(&known.owner),
        });
        if !alone {
            return;
        }
        if self.memory.at(&at).await.is_none_or(|at| at == *target) {
            self.memory.put_at(&at, target, ttl).await;
        }
    }
}

/// Whether whom `proof` proves may ask for a task of `owner`: that is who it is, or it is above, or an operator.
///
/// # Errors
/// `store_unavailable`.
pub async fn sees(hierarchy: &Hierarchy, proof: &Proof, owner: &str) -> Result<bool, Rejection> {
    if proof.principal == Principal::Operator || proof.owner() == owner {
        return Ok(true);
    }
    is_above(hierarchy, proof, owner).await
}

/// Whether whom `proof` proves is a workspace above the one that owns a task.
async fn is_above(hierarchy: &Hierarchy, proof: &Proof, owner: &str) -> Result<bool, Rejection> {
    // `:` is in no workspace's id, and in every other owner.
    match (proof.principal.workspace(), WorkspaceId::parse(owner)) {
        (Some(id), Ok(owner)) => hierarchy.is_above(id, &owner).await,
        _ => Ok(false),
    }
}
