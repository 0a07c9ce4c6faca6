//! Bindings of tasks and contexts to the instances of an agent, learnt from its answers. A call about a task goes to
//! the instance that has it. The first instance that answers about it has it, until a call finds that one gone: an id
//! that another instance uses, too, moves nothing.
//!
//! Owns `gw:bound:{target}:t:{task}` and `gw:bound:{target}:c:{context}` in the shared state; without Redis the table
//! `task_bindings`. They are written by the task that writes owners. An answer waits until its binding is written, for
//! [`WRITTEN_MAX`], so that the next call may come to another replica.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::cache::Cached;
use super::note::{BindingWrite, Note, ReplaceRule};
use super::{Column, Tasks, key};
use a2a::refs::TASK_ID_BYTES_MAX;
use a2a::state::TaskState;
use a2a::task::{Binding, TaskScan};
use access::identity::Proof;
use kernel::ids::{InstanceId, WorkspaceId, WorkspaceIncarnation};
use kernel::shares::Account;
use kernel::telemetry::Chain;
use stores::shared::Shared;
use stores::store::Unavailable;

/// Lifetime of the binding of a task that has ended.
const ENDED_TTL: Duration = Duration::from_secs(300);

/// Time after which a binding is read from the store again: another replica may have changed it.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Longest wait of an answer until its binding is written.
const WRITTEN_MAX: Duration = Duration::from_millis(250);

/// The end of a stored value whose task has ended. No instance id has a space.
const ENDED: &str = " ended";

/// Value of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BindingValue {
    pub(super) instance: InstanceId,
    /// True if the task has ended: a use does not renew the binding.
    has_ended: bool,
}

impl BindingValue {
    /// Returns the value as it is stored.
    pub(super) fn to_text(&self) -> String {
        let ended = if self.has_ended { ENDED } else { "" };
        format!("{}{ended}", self.instance)
    }

    fn parse(text: &str) -> Option<Self> {
        let ended = text.strip_suffix(ENDED);
        Some(Self {
            instance: InstanceId::parse(ended.unwrap_or(text)).ok()?,
            has_ended: ended.is_some(),
        })
    }

    /// Returns the lifetime, where `ttl` is that of others.
    pub(super) fn clamp_ttl(&self, ttl: Duration) -> Duration {
        if self.has_ended {
            ttl.min(ENDED_TTL)
        } else {
            ttl
        }
    }
}

impl BindingWrite {
    /// True if it may be written over a stored value.
    pub(super) fn may_replace(&self, stored: &str) -> bool {
        let ReplaceRule::Gone(gone) = &self.over else {
            return true;
        };
        BindingValue::parse(stored).is_none_or(|stored| {
            stored.instance == self.bound.instance || gone.contains(&stored.instance)
        })
    }
}

/// Task or context that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A task.
    Task(&'a str),
    /// A context.
    Context(&'a str),
}

impl Subject<'_> {
    fn binding_key(self, target: &WorkspaceIncarnation) -> String {
        match self {
            Self::Task(task) => key::bound_task(target, task),
            Self::Context(context) => key::bound_context(target, context),
        }
    }
}

impl Tasks {
    /// Returns those of `subjects` that are bound to instances of `target`, in order, each with its instance. The use
    /// renews the bindings. `owner`: the caller.
    ///
    /// # Errors
    /// [`Unavailable`] if a binding that is not in memory cannot be read.
    pub async fn find_bindings<'s>(
        &self,
        target: &WorkspaceIncarnation,
        subjects: &[Subject<'s>],
        owner: &str,
    ) -> Result<Vec<(Subject<'s>, InstanceId)>, Unavailable> {
        let keys: Vec<String> = subjects.iter().map(|one| one.binding_key(target)).collect();
        let known: Vec<_> = keys.iter().map(|key| self.bindings.get(key)).collect();
        let missing: Vec<&str> = keys
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(key, _)| key.as_str())
            .collect();
        let mut read = self
            .read_values(Column::Binding, &missing)
            .await?
            .into_iter();
        let mut bound = Vec::new();
        for ((subject, key), known) in subjects.iter().zip(&keys).zip(known) {
            let known = known.or_else(|| self.keep_binding(key, &read.next().flatten()?));
            if let Some(known) = known {
                self.renew_binding(key, &known, owner);
                bound.push((*subject, known.value.instance.clone()));
            }
        }
        Ok(bound)
    }

    /// Renews the lifetime of a binding that is used, unless its task has ended.
    fn renew_binding(&self, key: &str, known: &Cached<BindingValue>, owner: &str) {
        let (bound, ttl) = (&known.value, self.config.get().affinity.ttl);
        if bound.has_ended || !self.bindings.claim_renewal(known, ttl) {
            return;
        }
        self.bindings.extend(known, self.binding_ttl(bound));
        let write = BindingWrite {
            key: key.to_owned(),
            bound: bound.clone(),
            over: ReplaceRule::Renewed,
            owner: owner.into(),
            written: None,
        };
        self.queue_note(binding_account(owner), Note::Bind(write));
    }

    /// Returns how long a binding lasts in memory.
    fn binding_ttl(&self, bound: &BindingValue) -> Duration {
        let ttl = bound.clamp_ttl(self.config.get().affinity.ttl);
        if self.is_shared() {
            ttl.min(ASKED_AGAIN_AFTER)
        } else {
            ttl
        }
    }

    /// Binds, unless it is bound already. Returns what resolves when the binding is written. `gone`: instances that
    /// take no call, in whose place it is bound.
    fn queue_binding(
        &self,
        key: String,
        bound: BindingValue,
        gone: &[InstanceId],
        proof: &Proof,
    ) -> Option<oneshot::Receiver<()>> {
        let known = self.bindings.get(&key);
        let over = match &known {
            // A task that has ended does not begin again.
            Some(known) if known.value.instance == bound.instance => {
                if known.value.has_ended || known.value == bound {
                    return None;
                }
                ReplaceRule::Own
            }
            Some(known) if !gone.contains(&known.value.instance) => return None,
            _ => ReplaceRule::Gone(gone.to_vec()),
        };
        let lasts = self.binding_ttl(&bound);
        self.bindings.insert_new(&key, bound.clone(), lasts);
        let owner = proof.owner();
        let account = binding_account(&owner);
        let (written, wait) = oneshot::channel();
        let write = BindingWrite {
            key,
            bound,
            over,
            owner: owner.into(),
            written: Some(written),
        };
        self.queue_note(account, Note::Bind(write));
        Some(wait)
    }

    /// Waits until other replicas can know the bindings, for [`WRITTEN_MAX`] in all.
    async fn await_written(&self, waits: Vec<oneshot::Receiver<()>>) {
        if self.is_shared() && !waits.is_empty() {
            // Each is dropped when it is written, and at once if it is not queued.
            let _ = timeout(WRITTEN_MAX, join_all(waits)).await;
        }
    }

    /// Keeps the binding that is stored.
    pub(super) fn keep_binding(&self, key: &str, value: &str) -> Option<Arc<Cached<BindingValue>>> {
        let stored = BindingValue::parse(value)?;
        let lasts = self.binding_ttl(&stored);
        Some(self.bindings.insert(key, stored, lasts))
    }

    /// Writes a binding to the shared state.
    pub(super) async fn write_binding(
        &self,
        shared: &Shared,
        bind: &BindingWrite,
    ) -> Result<(), Unavailable> {
        let ttl = bind.bound.clamp_ttl(self.config.get().affinity.ttl);
        let (key, text) = (&*bind.key, bind.bound.to_text());
        match &bind.over {
            ReplaceRule::Renewed => return shared.refresh(&[key], ttl).await.map(drop),
            ReplaceRule::Own => return shared.set(key, &text, Some(ttl)).await,
            ReplaceRule::Gone(_) if shared.set_if_absent(key, &text, ttl).await? => {}
            ReplaceRule::Gone(_) => {
                // Another replica may have bound it first.
                let first = shared.get(key).await?;
                match first.filter(|first| !bind.may_replace(first)) {
                    Some(first) => drop(self.keep_binding(key, &first)),
                    None => shared.set(key, &text, Some(ttl)).await?,
                }
            }
        }
        Ok(())
    }

    /// Bounds the bindings of a caller in the shared state, after one was written: beyond the bound its oldest ones are
    /// deleted. Best effort: they lapse.
    pub(super) async fn bound_bindings(&self, shared: &Shared, note: Note) {
        let Note::Bind(bind) = note else { return };
        // Its answer waits no longer.
        drop(bind.written);
        if !matches!(bind.over, ReplaceRule::Gone(_)) {
            return;
        }
        let (max, ttl) = {
            let config = self.config.get();
            (config.a2a.tasks_per_caller, config.affinity.ttl)
        };
        let set = key::bindings_of(&bind.owner);
        let deleted = async {
            let oldest = shared.add_newest(&set, &bind.key, max, ttl).await?;
            let oldest: Vec<&str> = oldest.iter().map(String::as_str).collect();
            match oldest.is_empty() {
                true => Ok(()),
                false => shared.delete(&oldest).await,
            }
        };
        if let Err(error) = deleted.await {
            tracing::debug!(error = %Chain(&error), "failed to bound the bindings of a caller; their lifetime does");
        }
    }
}

/// Returns the account of a caller's bindings in the queue of notes. Owners have one of their own: without an owner a
/// task is open to all callers.
fn binding_account(owner: &str) -> Account {
    Account::of_owner(&format!("bindings of {owner}"))
}

/// Binds what an answer names to the instance that answers.
pub struct Binder {
    tasks: Arc<Tasks>,
    target: WorkspaceIncarnation,
    instance: InstanceId,
    /// The proven caller.
    proof: Arc<Proof>,
    /// Instances that take no call.
    gone: Vec<InstanceId>,
    /// The task, once it is known.
    task: Option<String>,
    has_ended: bool,
}

impl Binder {
    /// `proof`: the caller. `gone`: instances that take no call, in whose place it binds.
    pub fn new(
        tasks: &Arc<Tasks>,
        (target, instance): (WorkspaceIncarnation, &InstanceId),
        proof: &Arc<Proof>,
        gone: Vec<InstanceId>,
    ) -> Self {
        Self {
            tasks: Arc::clone(tasks),
            target,
            instance: instance.clone(),
            proof: Arc::clone(proof),
            gone,
            task: None,
            has_ended: false,
        }
    }

    /// Sets the instance, which answers instead of one that is gone.
    pub fn set_instance(&mut self, instance: &InstanceId) {
        let gone = std::mem::replace(&mut self.instance, instance.clone());
        self.gone.push(gone);
    }

    /// Binds a context and a task. `has_ended`: the task has ended.
    pub async fn bind(&mut self, context: Option<&str>, task: Option<&str>, has_ended: bool) {
        let mut waits = Vec::new();
        if let Some(context) = context {
            let key = key::bound_context(&self.target, context);
            waits.extend(self.bind_key(key, false));
        }
        let fits = |task: &&str| (1..=TASK_ID_BYTES_MAX).contains(&task.len());
        if let Some(task) = task.filter(fits) {
            self.task = Some(key::bound_task(&self.target, task));
        } else if !has_ended {
            return self.tasks.await_written(waits).await;
        }
        self.has_ended |= has_ended;
        if let Some(key) = self.task.clone() {
            waits.extend(self.bind_key(key, self.has_ended));
        }
        self.tasks.await_written(waits).await;
    }

    /// Records that the task has ended.
    pub async fn record_end(&mut self) {
        if !self.has_ended {
            self.bind(None, None, true).await;
        }
    }

    fn bind_key(&self, key: String, has_ended: bool) -> Option<oneshot::Receiver<()>> {
        let bound = BindingValue {
            instance: self.instance.clone(),
            has_ended,
        };
        self.tasks
            .queue_binding(key, bound, &self.gone, &self.proof)
    }
}

/// Scans a response as it passes. The first task counts.
pub struct Learner {
    scan: TaskScan,
    /// `None`: the owner is known already, or does not matter here.
    pub(super) recorder: Option<OwnerRecorder>,
    /// `None`: the target has no instances.
    binder: Option<Box<Binder>>,
    /// Records the end of the task that the response is about. `None`: a response to a message, or it does not matter.
    ender: Option<Box<EndRecorder>>,
}

/// Records the end of one task.
pub struct EndRecorder {
    tasks: Arc<Tasks>,
    target: WorkspaceId,
    by: String,
    task: Option<String>,
}

impl EndRecorder {
    /// Returns one for a task of `target` that is not known yet. `by`: the caller.
    pub fn new(tasks: &Arc<Tasks>, proof: &Proof, target: &WorkspaceId) -> Box<Self> {
        Box::new(Self {
            tasks: Arc::clone(tasks),
            target: target.clone(),
            by: proof.owner(),
            task: None,
        })
    }

    /// Records that the task has ended.
    pub fn record_end(&self) {
        if let Some(task) = &self.task {
            self.tasks.note_end(&self.target, task, &self.by);
        }
    }
}

/// The proven caller, which is recorded as the owner of a task of the target.
type OwnerRecorder = (Arc<Tasks>, Arc<Proof>, WorkspaceIncarnation);

impl Learner {
    /// Returns a learner that records no owner and only reports the state of the task.
    pub fn for_state(binding: Binding) -> Self {
        Self {
            scan: TaskScan::new(binding),
            recorder: None,
            binder: None,
            ender: None,
        }
    }

    /// Sets the protocol binding of the response, where it is not the one the learner was made for.
    pub fn set_binding(&mut self, binding: Binding) {
        self.scan = TaskScan::new(binding);
        if self.binder.is_some() {
            self.scan.want_context();
        }
    }

    /// Sets what binds the task and the context of the response to an instance.
    pub fn set_binder(&mut self, binder: Binder) {
        self.binder = Some(Box::new(binder));
        self.scan.want_context();
    }

    /// Sets the instance to bind to: another one answers instead.
    pub fn set_instance(&mut self, instance: &InstanceId) {
        if let Some(binder) = &mut self.binder {
            binder.set_instance(instance);
        }
    }

    /// Sets what records the end of the task that the response is about.
    pub fn set_end_recorder(&mut self, ender: Box<EndRecorder>) {
        self.ender = Some(ender);
    }

    /// Returns what records the end of `task`, if the response may have begun it.
    pub fn end_recorder_for(&self, task: &str) -> Option<Box<EndRecorder>> {
        let (tasks, proof, target) = self.recorder.as_ref()?;
        let mut ender = EndRecorder::new(tasks, proof, &target.id);
        ender.task = Some(task.to_owned());
        Some(ender)
    }

    /// Returns what binds the task of a stream, whose end is seen by others.
    pub fn into_binder(self) -> Option<Box<Binder>> {
        self.binder
    }

    /// Reads the next piece of a unary response. Returns the task id once, when it is complete.
    pub fn push(&mut self, piece: &[u8]) -> Option<String> {
        self.scan.push(piece)
    }

    /// Reads the next whole events of a stream.
    pub fn push_events(&mut self, events: &[u8]) -> Option<String> {
        self.scan.push_events(events)
    }

    /// Returns the state of the task once, as soon as the response contains it.
    pub fn take_state(&mut self) -> Option<TaskState> {
        self.scan.take_state()
    }

    /// True if there is nothing more to find. The rest of the response need not be scanned.
    pub fn is_over(&self) -> bool {
        self.scan.is_over()
    }

    /// True if a context was found that is to be bound, or `state` ends a binding.
    pub fn has_more_to_learn(&self, state: Option<TaskState>) -> bool {
        let binds = self.binder.is_some() && (state.is_some() || self.scan.has_context());
        binds || (self.ender.is_some() && state.is_some_and(TaskState::is_terminal))
    }

    /// Records the caller as the owner of `task`, if the task has none, and binds the task and the context that were
    /// found.
    pub async fn record_task(&mut self, task: Option<&str>, state: Option<TaskState>) {
        if let (Some((tasks, proof, target)), Some(task)) = (&self.recorder, task) {
            let owner = proof.owner();
            let over = state.is_some_and(TaskState::is_terminal);
            let owner = (owner.as_str(), proof.principal.org());
            tasks.record_owner(owner, target, task, Some(over));
        }
        if let Some(ender) = &mut self.ender {
            if let Some(task) = task {
                ender.task = Some(task.to_owned());
            }
            if state.is_some_and(TaskState::is_terminal) {
                ender.record_end();
            }
        }
        let context = self.scan.take_context();
        if let Some(binder) = &mut self.binder {
            let has_ended = state.is_some_and(TaskState::is_terminal);
            binder.bind(context.as_deref(), task, has_ended).await;
        }
    }
}
