//! Whose task is it (contract §5): the owner of a task is who started it, learnt from the agent's answer.
//! Behind a gateway every caller looks the same to an agent, so nobody else can keep callers apart.
//!
//! Owns `gw:task:{target}:{task}` (the owner) and `gw:task-at:{owner}:{task}` (the target) in the shared
//! state, both for `a2a.task_ttl` after the owner's last use. The first who started a task owns it. What
//! this replica learnt counts here at once, and for the others as soon as it is written: in the
//! background, off the way of the answer. Where one caller has two tasks of one id, the first is found
//! by it. One gateway alone keeps it in memory, within a bound of its own: callers must not be able to
//! fill the store that leases live in.
//!
//! Invariants: a task that is known to be another caller's is never let through; a store that cannot be
//! read is no "unknown".

mod key;
mod known;
mod learner;
mod note;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{Mutex, mpsc};

pub use self::learner::Learner;

use self::known::{Known, Memory};
use self::note::{NOTES_MAX, Note};
use crate::a2a::refs::TASK_ID_BYTES_MAX;
use crate::a2a::task::Binding;
use crate::config::Live;
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
    /// What replicas have in common; `None`: this gateway is alone, and its memory is all there is.
    shared: Option<Shared>,
    memory: Memory,
    notes: mpsc::Sender<Note>,
    to_write: Mutex<mpsc::Receiver<Note>>,
    /// Notes that are queued or being written.
    unwritten: AtomicUsize,
}

impl Tasks {
    /// Assembles the room; asks nothing.
    pub fn new(config: Live, shared: Shared, metrics: Arc<Metrics>) -> Arc<Self> {
        let (notes, to_write) = mpsc::channel(NOTES_MAX);
        Arc::new(Self {
            memory: Memory::new(),
            shared: (!shared.is_embedded()).then_some(shared),
            config,
            metrics,
            notes,
            to_write: Mutex::new(to_write),
            unwritten: AtomicUsize::new(0),
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
        let lasts = self.memory.lasts(ttl, self.shared.is_some());
        let (known, new) = self.memory.claim(&key, owner, lasts).await;
        if *known.owner != *owner {
            return;
        }
        if new {
            self.metrics.tasks.learnt.inc();
            self.memory.claim_at(&at, target, lasts).await;
            let (owner, target) = (Arc::clone(&known.owner), target.clone());
            self.note(Note::Claim {
                key,
                at,
                owner,
                target,
            });
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
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let found = shared.get(&at).await?;
        let target = found.and_then(|text| WorkspaceId::parse(&text).ok());
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
        let Some(shared) = &self.shared else {
            return Ok(owners);
        };
        let missing: Vec<usize> = (0..keys.len()).filter(|i| owners[*i].is_none()).collect();
        let asked: Vec<&str> = missing.iter().map(|i| keys[*i].as_str()).collect();
        let found = shared.get_many(&asked).await?;
        let lasts = self.memory.lasts(self.config.get().a2a.task_ttl, true);
        for (i, owner) in missing.into_iter().zip(found) {
            if let Some(owner) = owner {
                owners[i] = Some(self.memory.put(&keys[i], &owner, lasts).await);
            }
        }
        Ok(owners)
    }

    /// The owner uses the task: it lives on.
    async fn renew(&self, known: &Known, target: &WorkspaceId, key: String, at: String) {
        let ttl = self.config.get().a2a.task_ttl;
        let alone = self.shared.is_none();
        if !self.memory.renew(known, ttl, !alone) {
            return;
        }
        if !alone {
            self.note(Note::Renew { key, at });
        } else if self.memory.at(&at).await.is_none_or(|at| at == *target) {
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
