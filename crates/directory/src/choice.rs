//! Choice of the instance of an agent that gets a call: the one to which its task or context is bound, else one by
//! rendezvous hashing of its context, else the less busy of two.

use std::sync::Arc;

use rand::Rng as _;
use sha2::{Digest as _, Sha256};

use super::rejections::RETRY_AFTER;
use super::resolution::{Agent, Instance};
use kernel::ids::InstanceId;
use kernel::metrics::InstanceChoice;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;

/// Reasons to prefer an instance for one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference {
    /// Instances to which its tasks and its context are bound, in order, and by which of the two.
    pub bound: Vec<(InstanceId, InstanceChoice)>,
    /// Context or task of the call. Calls with the same one go to the same instance while nothing is bound.
    pub key: Option<String>,
    /// Those of `bound` that take no call: what they have is bound to the instance that answers.
    pub gone: Vec<InstanceId>,
}

/// Returns the instance that gets a call of `account`, and how it was chosen. `tried`: those that it could not reach.
///
/// An instance that drains gets only calls that are bound to it. One with an open breaker gets a call if no other can.
///
/// # Errors
/// `workspace_restarting` if all drain, or were tried.
pub fn choose_instance<'i>(
    instances: &'i [Instance],
    account: Account,
    preference: &Preference,
    tried: &[InstanceId],
) -> Result<(&'i Arc<Agent>, InstanceChoice), Rejection> {
    let is_untried = |one: &&Instance| {
        let id = one.agent.instance.as_ref();
        !id.is_some_and(|id| tried.contains(id))
    };
    let bound = |(id, by): &(InstanceId, InstanceChoice)| {
        let mut untried = instances.iter().filter(is_untried);
        let found = untried.find(|one| one.agent.instance.as_ref() == Some(id))?;
        Some((&found.agent, *by))
    };
    let mut bound = preference.bound.iter().filter_map(bound);
    let first = bound.next();
    let mut all = first.into_iter().chain(bound);
    if let Some(healthy) = all.find(|(agent, _)| agent.slots.is_available(account)) {
        return Ok(healthy);
    }
    if preference.bound.is_empty()
        && preference.key.is_none()
        && let Some(agent) = any_two(instances, account, tried)
    {
        return Ok((agent, InstanceChoice::Load));
    }
    let open: Vec<&Arc<Agent>> = instances
        .iter()
        .filter(|one| !one.is_draining)
        .filter(is_untried)
        .map(|one| &one.agent)
        .collect();
    let is_available = |agent: &&Arc<Agent>| agent.slots.is_available(account);
    let available: Vec<_> = open.iter().copied().filter(is_available).collect();
    let chosen = match (available.as_slice(), first) {
        ([], Some(first)) => return Ok(first),
        ([], None) => pick_agent(&open, preference.key.as_deref()),
        (available, _) => pick_agent(available, preference.key.as_deref()),
    };
    let (agent, choice) = chosen.ok_or_else(|| {
        let message = "all instances of the agent drain (POST /registry/drain): try again once another one has registered";
        Rejection::new(Reason::WorkspaceRestarting, message)
            .with_retry_after(RETRY_AFTER)
            .with_delivery(Delivery::NotSent)
    })?;
    let is_rebound = !preference.bound.is_empty();
    Ok((
        agent,
        if is_rebound {
            InstanceChoice::Rebound
        } else {
            choice
        },
    ))
}

/// Returns the instances in `preference` that take no call: they are gone, or their breakers are open.
pub fn find_gone(
    instances: &[Instance],
    account: Account,
    preference: &Preference,
) -> Vec<InstanceId> {
    let takes_calls = |id: &InstanceId| {
        let mut all = instances.iter();
        let found = all.find(|one| one.agent.instance.as_ref() == Some(id));
        found.is_some_and(|one| one.agent.slots.is_available(account))
    };
    let bound = preference.bound.iter().map(|(id, _)| id);
    bound.filter(|id| !takes_calls(id)).cloned().collect()
}

fn pick_agent<'i>(
    agents: &[&'i Arc<Agent>],
    key: Option<&str>,
) -> Option<(&'i Arc<Agent>, InstanceChoice)> {
    match key {
        Some(key) => {
            let agent = agents
                .iter()
                .max_by_key(|agent| rendezvous_weight(agent, key))?;
            Some((agent, InstanceChoice::Hash))
        }
        None => {
            let free = agents
                .iter()
                .copied()
                .filter(|agent| agent.slots.has_place());
            let free: Vec<_> = free.collect();
            let chosen = less_busy(&free).or_else(|| less_busy(agents));
            chosen.map(|agent| (agent, InstanceChoice::Load))
        }
    }
}

/// Returns the weight of an instance for a key, the same on every replica and in every version.
fn rendezvous_weight(agent: &Agent, key: &str) -> [u8; 32] {
    let id = agent.instance.as_ref().map_or("", InstanceId::as_str);
    let mut hash = Sha256::new();
    hash.update(id);
    // No instance id has it.
    hash.update([0]);
    hash.update(key);
    hash.finalize().into()
}

/// Returns the less busy of two random instances, if both take calls. Most calls need no look at the others.
fn any_two<'i>(
    instances: &'i [Instance],
    account: Account,
    tried: &[InstanceId],
) -> Option<&'i Arc<Agent>> {
    if instances.len() < 2 || !tried.is_empty() {
        return None;
    }
    let takes_calls = |one: &Instance| {
        let slots = &one.agent.slots;
        !one.is_draining && slots.is_available(account) && slots.has_place()
    };
    let (first, second) = pick_two(instances);
    (takes_calls(first) && takes_calls(second)).then(|| less_busy_of(&first.agent, &second.agent))
}

/// Returns two random ones of at least two.
fn pick_two<T>(all: &[T]) -> (&T, &T) {
    let mut random = rand::rng();
    let first = random.random_range(0..all.len());
    let second = (first + random.random_range(1..all.len())) % all.len();
    (&all[first], &all[second])
}

fn less_busy_of<'i>(first: &'i Arc<Agent>, second: &'i Arc<Agent>) -> &'i Arc<Agent> {
    if second.slots.in_progress() < first.slots.in_progress() {
        second
    } else {
        first
    }
}

/// Returns the one of two random instances that has fewer calls in progress at this replica.
fn less_busy<'i>(agents: &[&'i Arc<Agent>]) -> Option<&'i Arc<Agent>> {
    if agents.len() < 2 {
        return agents.first().copied();
    }
    let (first, second) = pick_two(agents);
    Some(less_busy_of(first, second))
}
