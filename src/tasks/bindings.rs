//! Bindings of tasks and contexts to the instances of an agent, learnt from its answers. A call about a task goes to the
//! instance that has it. The first instance that answers about it has it, until a call finds that one gone: an id that
//! another instance uses, too, moves nothing.
//!
//! Owns `gw:bound:{target}:t:{task}` and `gw:bound:{target}:c:{context}` in the shared state; without Redis the table
//! `task_bindings`. They are written by the task that writes owners. An answer waits until its binding is written, for
//! [`WRITTEN_MAX`], so that the next call may come to another replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::note::{BindingWrite, Note, ReplaceRule};
use super::{OwnerStore, Tasks, key};
use crate::a2a::refs::TASK_ID_BYTES_MAX;
use crate::identity::Proof;
use crate::ids::{InstanceId, WorkspaceIncarnation};
use crate::shared::Shared;
use crate::store::Unavailable;
use crate::time::to_millis;

/// Lifetime of the binding of a task that has ended.
const ENDED_TTL: Duration = Duration::from_secs(300);
/// Time after which a binding is read from the store again: another replica may have changed it.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Renewals that are written within one time to live.
const RENEWALS_IN_TTL: u32 = 8;
/// Longest wait of an answer until its binding is written.
const WRITTEN_MAX: Duration = Duration::from_millis(250);
/// Bytes of bindings in memory at most, and those that one takes besides its texts.
const BYTES_MAX: u64 = 64 << 20;
const ENTRY_BYTES: usize = 200;
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

/// Binding in memory.
#[derive(Debug)]
struct CachedBinding {
    bound: BindingValue,
    /// Time at which it ends here, in milliseconds of [`BindingCache::now_millis`].
    until: u64,
    /// Time of the last renewal that was written; 0: unknown.
    renewed: AtomicU64,
}

/// Bindings in memory.
pub(super) struct BindingCache {
    known: Cache<String, Arc<CachedBinding>>,
    started: Instant,
}

impl BindingCache {
    pub(super) fn new() -> Self {
        let bytes = |key: &String| u32::try_from(key.len() + ENTRY_BYTES).unwrap_or(u32::MAX);
        Self {
            known: Cache::builder()
                .max_capacity(BYTES_MAX)
                .weigher(move |key: &String, _: &Arc<CachedBinding>| bytes(key))
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            started: Instant::now(),
        }
    }

    fn get(&self, key: &str) -> Option<Arc<CachedBinding>> {
        let known = self.known.get(key)?;
        (self.now_millis() < known.until).then_some(known)
    }

    fn insert(
        &self,
        key: &str,
        bound: BindingValue,
        lasts: Duration,
        renewed: u64,
    ) -> Arc<CachedBinding> {
        let known = Arc::new(CachedBinding {
            bound,
            until: self.now_millis() + to_millis(lasts),
            renewed: AtomicU64::new(renewed),
        });
        self.known.insert(key.to_owned(), Arc::clone(&known));
        known
    }

    /// Never 0.
    fn now_millis(&self) -> u64 {
        to_millis(self.started.elapsed()).max(1)
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
    /// Returns those of `subjects` that are bound to instances of `target`, in order, each with its instance. The use renews
    /// the bindings. `owner`: the caller.
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
        let mut read = self.read_bindings(&missing).await?.into_iter();
        let mut bound = Vec::new();
        for ((subject, key), known) in subjects.iter().zip(&keys).zip(known) {
            let known = match known {
                Some(known) => known,
                None => match read
                    .next()
                    .flatten()
                    .and_then(|text| BindingValue::parse(&text))
                {
                    Some(bound) => {
                        let lasts = self.cached_ttl(&bound);
                        self.bindings.insert(key, bound, lasts, 0)
                    }
                    None => continue,
                },
            };
            self.renew_binding(key, &known, owner);
            bound.push((*subject, known.bound.instance.clone()));
        }
        Ok(bound)
    }

    async fn read_bindings(&self, keys: &[&str]) -> Result<Vec<Option<String>>, Unavailable> {
        match &self.stored {
            OwnerStore::Shared(shared) => shared.get_many(keys).await,
            OwnerStore::Sql(table) => {
                let mut read = Vec::with_capacity(keys.len());
                for key in keys {
                    read.push(table.load_binding(key).await?);
                }
                Ok(read)
            }
        }
    }

    /// Renews the lifetime of a binding that is used, unless its task has ended.
    fn renew_binding(&self, key: &str, known: &CachedBinding, owner: &str) {
        if known.bound.has_ended {
            return;
        }
        let (now, ttl) = (self.bindings.now_millis(), self.config.get().affinity.ttl);
        let last = known.renewed.load(Ordering::Relaxed);
        let due = last == 0 || now >= last + to_millis(ttl / RENEWALS_IN_TTL);
        let relaxed = Ordering::Relaxed;
        // Of several concurrent uses one is written.
        if due
            && known
                .renewed
                .compare_exchange(last, now, relaxed, relaxed)
                .is_ok()
        {
            let bound = known.bound.clone();
            self.bindings
                .insert(key, bound.clone(), self.cached_ttl(&bound), now);
            self.queue_note(Note::Bind(BindingWrite {
                key: key.to_owned(),
                bound,
                over: ReplaceRule::Renewed,
                account: binding_account(owner),
                owner: owner.into(),
                written: None,
            }));
        }
    }

    /// Returns how long a binding lasts in memory.
    fn cached_ttl(&self, bound: &BindingValue) -> Duration {
        let ttl = bound.clamp_ttl(self.config.get().affinity.ttl);
        if self.is_shared() {
            ttl.min(ASKED_AGAIN_AFTER)
        } else {
            ttl
        }
    }

    /// Binds, unless it is bound already. Returns what resolves when the binding is written. `gone`: instances that take no
    /// call, in whose place it is bound.
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
            Some(known) if known.bound.instance == bound.instance => {
                if known.bound.has_ended || known.bound == bound {
                    return None;
                }
                ReplaceRule::Own
            }
            Some(known) if !gone.contains(&known.bound.instance) => return None,
            _ => ReplaceRule::Gone(gone.to_vec()),
        };
        self.bindings.insert(
            &key,
            bound.clone(),
            self.cached_ttl(&bound),
            self.bindings.now_millis(),
        );
        let owner = proof.owner();
        let (written, wait) = oneshot::channel();
        self.queue_note(Note::Bind(BindingWrite {
            key,
            bound,
            over,
            account: binding_account(&owner),
            owner: owner.into(),
            written: Some(written),
        }));
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
    pub(super) fn keep_binding(&self, key: &str, value: &str) {
        if let Some(first) = BindingValue::parse(value) {
            let lasts = self.cached_ttl(&first);
            self.bindings.insert(key, first, lasts, 0);
        }
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
                    Some(first) => self.keep_binding(key, &first),
                    None => shared.set(key, &text, Some(ttl)).await?,
                }
            }
        }
        Ok(())
    }

    /// Bounds the bindings of a caller in the shared state: beyond the bound its oldest ones are deleted.
    pub(super) async fn bound_bindings(
        &self,
        shared: &Shared,
        bind: &BindingWrite,
    ) -> Result<(), Unavailable> {
        if !matches!(bind.over, ReplaceRule::Gone(_)) {
            return Ok(());
        }
        let config = self.config.get();
        let (set, max) = (key::bindings_of(&bind.owner), config.a2a.tasks_per_caller);
        let ttl = config.affinity.ttl;
        let oldest = shared.add_newest(&set, &bind.key, max, ttl).await?;
        let oldest: Vec<&str> = oldest.iter().map(String::as_str).collect();
        if oldest.is_empty() {
            return Ok(());
        }
        shared.delete(&oldest).await
    }
}

/// Returns the account of a caller's bindings in the queue of notes. Owners have one of their own: without an owner a task is
/// open to all callers.
fn binding_account(owner: &str) -> Arc<str> {
    format!("bindings of {owner}").into()
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
