//! What calls have shown of agents: the generation in which they take them, where their card says another one, and the
//! path to which they redirect them. Kept until the registration or the card changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use moka::future::Cache;
use tokio::time::Instant;

use super::card::CardSource;
use crate::a2a::Generation;
use crate::a2a::method::Method;
use crate::ids::WorkspaceId;

/// Maximum agents of which something is kept.
const AGENTS_MAX: u64 = 10_000;
/// Time for which a method counts as unknown in both generations.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// Maximum bytes of a path that is kept.
const PATH_BYTES_MAX: usize = 1024;

/// The evidence that an agent has given for a method.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The generation in which it takes calls. `None`: it knows the method in neither.
    pub takes: Option<Generation>,
    /// True if its card says the same.
    agrees: bool,
    /// The time at which it showed that.
    pub learnt_at: Instant,
}

/// The place to which an agent redirects calls of JSON-RPC.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path and query that it redirects.
    pub from: String,
    /// Path and query at which it takes calls.
    pub path: String,
    /// The time at which it took one there.
    pub learnt_at: Instant,
}

/// The findings of one agent. Those of a send hold for all methods without findings of their own.
#[derive(Clone, Default)]
struct Findings {
    /// Fingerprint of the registration of which they are.
    of: [u8; 32],
    /// `None`: shown by a send.
    by_method: Vec<(Option<Method>, Finding)>,
    place: Option<Place>,
}

impl Findings {
    /// Keeps that a call to `from` was taken at `to`. The place that was kept may have redirected it.
    fn keep_place(&mut self, from: &str, to: &str) {
        let earlier = self.place.take().filter(|place| place.path == from);
        let place = Place {
            from: earlier.map_or_else(|| from.to_owned(), |place| place.from),
            path: to.to_owned(),
            learnt_at: Instant::now(),
        };
        let is_kept = place.from != to && to.len() <= PATH_BYTES_MAX;
        self.place = is_kept.then_some(place);
    }

    /// Returns what the owner of the agent can set right, as sentences.
    fn warnings(&self) -> Vec<String> {
        let others = self.by_method.iter().filter(|(_, finding)| !finding.agrees);
        let generations = others.filter_map(|(method, finding)| {
            let takes = finding.takes?;
            let calls = method.and_then(Method::name).unwrap_or("calls");
            let (takes, other) = (takes.version(), takes.other().version());
            Some(format!(
                "the agent's answers show that it takes {calls} in A2A {takes} and not in {other}: its card should say so"
            ))
        });
        let place = self.place.iter().map(|Place { from, path, .. }| {
            format!("the agent redirects calls of {from} to {path}, where they are sent now: register that URL")
        });
        generations.chain(place).collect()
    }
}

/// The findings of all agents. Cheap to clone.
#[derive(Clone)]
pub struct Learnt {
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
    pub fn is_empty(&self) -> bool {
        self.is_empty.load(Ordering::Acquire)
    }

    /// Returns what an agent has shown for `method`.
    pub async fn find(&self, source: &CardSource, method: Method) -> Option<Finding> {
        let known = self.known(source).await?;
        let find = |key| known.by_method.iter().find(|(shown, _)| *shown == key);
        let own = find(key_of(method)).or_else(|| find(None));
        let own = own.map(|(_, finding)| *finding);
        own.filter(|own| own.takes.is_some() || own.learnt_at.elapsed() < UNKNOWN_FOR)
    }

    /// Returns the place to which an agent redirects calls of `path`.
    pub async fn find_place(&self, source: &CardSource, path: &str) -> Option<Place> {
        let place = self.known(source).await?.place.clone();
        place.filter(|place| place.from == path)
    }

    /// Forgets what an agent has shown: its card has changed.
    pub async fn forget(&self, id: &WorkspaceId) {
        self.agents.invalidate(id).await;
    }

    /// Forgets the place of an agent, which has registered again or has another URL.
    pub async fn forget_place(&self, id: &WorkspaceId) {
        if let Some(known) = self.agents.get(id).await.filter(|one| one.place.is_some()) {
            let mut known = Arc::unwrap_or_clone(known);
            known.place = None;
            self.agents.insert(id.clone(), Arc::new(known)).await;
        }
    }

    /// Keeps that an agent redirected a call of JSON-RPC, and took it there.
    pub(super) async fn keep_place(&self, source: &CardSource, from: &str, to: &str) {
        let keep = |known: &mut Findings| known.keep_place(from, to);
        self.change(source, keep).await;
    }

    /// Returns the warnings for the owner of an agent.
    pub(super) async fn warnings(&self, source: &CardSource) -> Vec<String> {
        let known = self.known(source).await;
        known.map_or_else(Vec::new, |known| known.warnings())
    }

    async fn known(&self, source: &CardSource) -> Option<Arc<Findings>> {
        let known = self.agents.get(&source.id).await;
        known.filter(|known| known.of == source.fingerprint)
    }

    async fn change(&self, source: &CardSource, change: impl FnOnce(&mut Findings)) {
        let known = self.known(source).await.unwrap_or_default();
        let mut known = Arc::unwrap_or_clone(known);
        known.of = source.fingerprint;
        change(&mut known);
        self.agents.insert(source.id.clone(), Arc::new(known)).await;
        self.is_empty.store(false, Ordering::Release);
    }
}

/// Keeps what the answer to one call shows.
pub struct Observer {
    pub(super) learnt: Learnt,
    pub(super) source: Arc<CardSource>,
    pub(super) method: Method,
    /// The generation in which the call was sent.
    pub(super) tried: Generation,
    /// True if the agent's card says the same.
    pub(super) agrees: bool,
}

impl Observer {
    /// Keeps that the agent took the call, or did not know it in this generation either.
    pub async fn record(self, has_taken: bool) {
        let takes = has_taken.then_some(self.tried);
        let key = key_of(self.method);
        let found = Finding {
            takes,
            agrees: has_taken && self.agrees,
            learnt_at: Instant::now(),
        };
        let keep = |known: &mut Findings| {
            let is_other = |(shown, found): &(Option<Method>, Finding)| {
                // An agent that takes a call in neither generation may just begin or end.
                *shown != key || !has_taken && found.takes.is_some()
            };
            known.by_method.retain(is_other);
            let is_known = known.by_method.iter().any(|(shown, _)| *shown == key);
            if !is_known {
                known.by_method.push((key, found));
            }
        };
        self.learnt.change(&self.source, keep).await;
    }
}

/// A method that sends a message stands for the agent.
fn key_of(method: Method) -> Option<Method> {
    (!method.sends()).then_some(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_redirects_is_replaced() {
        let mut known = Findings::default();
        for (from, to, kept) in [
            ("/a", "/b", Some(("/a", "/b"))),
            ("/b", "/c", Some(("/a", "/c"))),
            ("/d", "/e", Some(("/d", "/e"))),
            ("/e", "/d", None),
            ("/d", &*"/".repeat(PATH_BYTES_MAX + 1), None),
        ] {
            known.keep_place(from, to);
            let place = known.place.as_ref();
            let place = place.map(|place| (&*place.from, &*place.path));
            assert_eq!(place, kept, "{from}");
        }
    }
}
