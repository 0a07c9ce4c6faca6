//! What the answers of agents have shown: the generation in which they take calls, where their card says another one. Kept
//! until the registration or the card changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use crate::a2a::Generation;
use crate::a2a::method::Method;
use crate::directory::CardSource;
use crate::ids::WorkspaceId;

/// Maximum agents of which something is kept.
const AGENTS_MAX: u64 = 10_000;

/// What an agent has shown for a method.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Finding {
    /// The generation in which it takes calls. `None`: it knows the method in neither.
    pub(in crate::proxy) takes: Option<Generation>,
    learnt_at: Instant,
}

impl Finding {
    /// Returns the time since it was learnt.
    pub(in crate::proxy) fn age(&self) -> Duration {
        self.learnt_at.elapsed()
    }
}

/// The findings about one agent. What a send showed counts for all methods that showed nothing themselves.
#[derive(Clone)]
struct Findings {
    /// Fingerprint of the registration of which they are.
    of: [u8; 32],
    /// `None`: shown by a send.
    by_method: Vec<(Option<Method>, Finding)>,
}

/// The findings about all agents. Cheap to clone.
#[derive(Clone)]
pub(in crate::proxy) struct Learnt {
    agents: Cache<WorkspaceId, Arc<Findings>>,
    /// True until something was learnt: then calls look nothing up.
    is_empty: Arc<AtomicBool>,
}

impl Default for Learnt {
    fn default() -> Self {
        Self {
            agents: Cache::new(AGENTS_MAX),
            is_empty: Arc::new(AtomicBool::new(true)),
        }
    }
}

impl Learnt {
    /// True if nothing was learnt of any agent.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty.load(Ordering::Acquire)
    }

    /// Returns what the agent `id`, registered as `of`, has shown for `method`.
    pub(super) async fn find(
        &self,
        id: &WorkspaceId,
        of: &[u8; 32],
        method: Method,
    ) -> Option<Finding> {
        let known = self.agents.get(id).await.filter(|known| known.of == *of)?;
        let find = |key| known.by_method.iter().find(|(shown, _)| *shown == key);
        let own = find(key_of(method)).or_else(|| find(None));
        own.map(|(_, finding)| *finding)
    }

    /// Keeps what the agent has shown.
    pub(super) async fn keep(
        &self,
        id: &WorkspaceId,
        of: [u8; 32],
        method: Method,
        takes: Option<Generation>,
    ) {
        let before = self.agents.get(id).await.filter(|known| known.of == of);
        let mut by_method = before.map_or_else(Vec::new, |known| known.by_method.clone());
        let key = key_of(method);
        by_method.retain(|(shown, _)| *shown != key);
        let learnt_at = Instant::now();
        by_method.push((key, Finding { takes, learnt_at }));
        let known = Arc::new(Findings { of, by_method });
        self.agents.insert(id.clone(), known).await;
        self.is_empty.store(false, Ordering::Release);
    }

    /// Forgets what the agent has shown: its card has changed.
    pub(super) async fn forget(&self, id: &WorkspaceId) {
        self.agents.invalidate(id).await;
    }
}

/// Keeps what the answer to one call shows.
pub(in crate::proxy) struct Observer {
    pub(super) learnt: Learnt,
    pub(super) source: Arc<CardSource>,
    pub(super) method: Method,
    /// The generation in which the call was sent.
    pub(super) tried: Generation,
}

impl Observer {
    /// Keeps that the agent took the call, or did not know it in this generation either.
    pub(in crate::proxy) async fn record(self, has_taken: bool) {
        let takes = has_taken.then_some(self.tried);
        let source = &self.source;
        self.learnt
            .keep(&source.id, source.fingerprint, self.method, takes)
            .await;
    }
}

/// A method that sends a message stands for the agent.
fn key_of(method: Method) -> Option<Method> {
    (!method.sends()).then_some(method)
}
