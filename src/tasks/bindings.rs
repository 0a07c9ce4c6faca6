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

use super::note::{Bind, Note, Over};
use super::{Stored, Tasks, key};
use crate::a2a::refs::TASK_ID_BYTES_MAX;
use crate::identity::Proof;
use crate::ids::{InstanceId, Life};
use crate::shared::Shared;
use crate::store::Unavailable;

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
pub(super) struct Bound {
    pub(super) instance: InstanceId,
    /// True if the task has ended: a use does not renew the binding.
    has_ended: bool,
}

impl Bound {
    /// Returns the value as it is stored.
    pub(super) fn text(&self) -> String {
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
    pub(super) fn ttl(&self, ttl: Duration) -> Duration {
        if self.has_ended {
            ttl.min(ENDED_TTL)
        } else {
            ttl
        }
    }
}

impl Bind {
    /// True if it may be written over a stored value.
    pub(super) fn may_replace(&self, stored: &str) -> bool {
        let Over::Gone(gone) = &self.over else {
            return true;
        };
        Bound::parse(stored).is_none_or(|stored| {
            stored.instance == self.bound.instance || gone.contains(&stored.instance)
        })
    }
}

/// Binding in memory.
#[derive(Debug)]
struct Known {
    bound: Bound,
    /// Time at which it ends here, in milliseconds of [`Memory::now`].
    until: u64,
    /// Time of the last renewal that was written; 0: unknown.
    renewed: AtomicU64,
}

/// Bindings in memory.
pub(super) struct Memory {
    known: Cache<String, Arc<Known>>,
    started: Instant,
}

impl Memory {
    pub(super) fn new() -> Self {
        let bytes = |key: &String| u32::try_from(key.len() + ENTRY_BYTES).unwrap_or(u32::MAX);
        Self {
            known: Cache::builder()
                .max_capacity(BYTES_MAX)
                .weigher(move |key: &String, _: &Arc<Known>| bytes(key))
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            started: Instant::now(),
        }
    }

    fn get(&self, key: &str) -> Option<Arc<Known>> {
        let known = self.known.get(key)?;
        (self.now() < known.until).then_some(known)
    }

    fn put(&self, key: &str, bound: Bound, lasts: Duration, renewed: u64) -> Arc<Known> {
        let known = Arc::new(Known {
            bound,
            until: self.now() + millis(lasts),
            renewed: AtomicU64::new(renewed),
        });
        self.known.insert(key.to_owned(), Arc::clone(&known));
        known
    }

    /// Never 0.
    fn now(&self) -> u64 {
        millis(self.started.elapsed()).max(1)
    }
}

fn millis(span: Duration) -> u64 {
    // At most a year, by the configuration.
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX / 4)
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
    fn key(self, target: &Life) -> String {
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
    pub async fn bound<'s>(
        &self,
        target: &Life,
        subjects: &[Subject<'s>],
        owner: &str,
    ) -> Result<Vec<(Subject<'s>, InstanceId)>, Unavailable> {
        let keys: Vec<String> = subjects.iter().map(|one| one.key(target)).collect();
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
                None => match read.next().flatten().and_then(|text| Bound::parse(&text)) {
                    Some(bound) => {
                        let lasts = self.lasts(&bound);
                        self.bindings.put(key, bound, lasts, 0)
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
            Stored::Shared(shared) => shared.get_many(keys).await,
            Stored::Sql(table) => {
                let mut read = Vec::with_capacity(keys.len());
                for key in keys {
                    read.push(table.bound(key).await?);
                }
                Ok(read)
            }
        }
    }

    /// Renews the lifetime of a binding that is used, unless its task has ended.
    fn renew_binding(&self, key: &str, known: &Known, owner: &str) {
        if known.bound.has_ended {
            return;
        }
        let (now, ttl) = (self.bindings.now(), self.config.get().affinity.ttl);
        let last = known.renewed.load(Ordering::Relaxed);
        let due = last == 0 || now >= last + millis(ttl / RENEWALS_IN_TTL);
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
                .put(key, bound.clone(), self.lasts(&bound), now);
            self.note(Note::Bind(Bind {
                key: key.to_owned(),
                bound,
                over: Over::Renewed,
                account: account(owner),
                owner: owner.into(),
                written: None,
            }));
        }
    }

    /// Returns how long a binding lasts in memory.
    fn lasts(&self, bound: &Bound) -> Duration {
        let ttl = bound.ttl(self.config.get().affinity.ttl);
        if self.is_shared() {
            ttl.min(ASKED_AGAIN_AFTER)
        } else {
            ttl
        }
    }

    /// Binds, unless it is bound already. Returns what resolves when the binding is written. `gone`: instances that take no
    /// call, in whose place it is bound.
    fn bind(
        &self,
        key: String,
        bound: Bound,
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
                Over::Own
            }
            Some(known) if !gone.contains(&known.bound.instance) => return None,
            _ => Over::Gone(gone.to_vec()),
        };
        self.bindings
            .put(&key, bound.clone(), self.lasts(&bound), self.bindings.now());
        let owner = proof.owner();
        let (written, wait) = oneshot::channel();
        self.note(Note::Bind(Bind {
            key,
            bound,
            over,
            account: account(&owner),
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
        if let Some(first) = Bound::parse(value) {
            let lasts = self.lasts(&first);
            self.bindings.put(key, first, lasts, 0);
        }
    }

    /// Writes a binding to the shared state.
    pub(super) async fn write_binding(
        &self,
        shared: &Shared,
        bind: &Bind,
    ) -> Result<(), Unavailable> {
        let ttl = bind.bound.ttl(self.config.get().affinity.ttl);
        let (key, text) = (&*bind.key, bind.bound.text());
        match &bind.over {
            Over::Renewed => return shared.refresh(&[key], ttl).await.map(drop),
            Over::Own => return shared.set(key, &text, Some(ttl)).await,
            Over::Gone(_) if shared.set_if_absent(key, &text, ttl).await? => {}
            Over::Gone(_) => {
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
        bind: &Bind,
    ) -> Result<(), Unavailable> {
        if !matches!(bind.over, Over::Gone(_)) {
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
fn account(owner: &str) -> Arc<str> {
    format!("bindings of {owner}").into()
}

/// Binds what an answer names to the instance that answers.
pub struct Binder {
    tasks: Arc<Tasks>,
    target: Life,
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
        (target, instance): (Life, &InstanceId),
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

    /// Notes that the task has ended.
    pub async fn end(&mut self) {
        if !self.has_ended {
            self.bind(None, None, true).await;
        }
    }

    fn bind_key(&self, key: String, has_ended: bool) -> Option<oneshot::Receiver<()>> {
        let bound = Bound {
            instance: self.instance.clone(),
            has_ended,
        };
        self.tasks.bind(key, bound, &self.gone, &self.proof)
    }
}
