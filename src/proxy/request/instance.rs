//! Chooses the instance of the agent that gets a call, by the task and the context that the call names, and has the
//! answer bind them.

use std::sync::Arc;

use crate::a2a::refs::Refs;
use crate::directory::{Destination, Preference, choose_instance, find_gone};
use crate::gateway::Gateway;
use crate::metrics::InstanceChoice;
use crate::proxy::admit::{AdmittedCall, AllowedCaller};
use crate::rejection::Rejection;
use crate::tasks::{Binder, Subject};
use crate::telemetry::Chain;

/// Maximum tasks of a call that are looked up. Each may cost a read of SQL.
const SUBJECTS_MAX: usize = 8;

/// Chooses the instance, if the target has several.
///
/// # Errors
/// `workspace_restarting` if all its instances drain.
pub(in crate::proxy) async fn assign_instance(
    gateway: &Gateway,
    admitted: &mut AdmittedCall,
    refs: &Refs,
) -> Result<(), Rejection> {
    let Destination::Agent(agent) = &admitted.destination else {
        return Ok(());
    };
    if agent.instances.is_empty() {
        return Ok(());
    }
    let mut preference = load_preference(gateway, &admitted.allowed, refs).await;
    let account = admitted.allowed.account();
    preference.gone = find_gone(&agent.instances, account, &preference);
    let (chosen, by) = choose_instance(&agent.instances, account, &preference, &[])?;
    gateway.metrics.capacity.count_choice(by);
    admitted.destination = Destination::Agent(Arc::clone(chosen));
    admitted.preference = Some(Box::new(preference));
    Ok(())
}

/// Returns what the call prefers: the instances that have its tasks, and the one that has its context.
async fn load_preference(gateway: &Gateway, allowed: &AllowedCaller, refs: &Refs) -> Preference {
    let tasks = refs.tasks.iter().take(SUBJECTS_MAX);
    let mut subjects: Vec<_> = tasks.map(|task| Subject::Task(task)).collect();
    subjects.extend(refs.context.as_deref().map(Subject::Context));
    if subjects.is_empty() {
        return Preference::default();
    }
    let (target, owner) = (allowed.permit.target(), allowed.proof.owner());
    let life = allowed.permit.life();
    let bound = gateway.tasks.find_bindings(&life, &subjects, &owner).await;
    let bound = bound.unwrap_or_else(|error| {
        // The hash leads to one instance on all replicas, and often to the one that is bound.
        tracing::debug!(error = %Chain(&error), workspace.id = %target, "failed to read which instance has a task");
        Vec::new()
    });
    let by = |(subject, id)| match subject {
        Subject::Task(_) => (id, InstanceChoice::Task),
        Subject::Context(_) => (id, InstanceChoice::Context),
    };
    Preference {
        bound: bound.into_iter().map(by).collect(),
        gone: Vec::new(),
        key: refs.context.clone().or_else(|| refs.tasks.first().cloned()),
    }
}

/// Returns what binds the task and the context of an answer to the instance that was chosen; `None` if the target has no
/// named instances.
pub(in crate::proxy) fn build_binder(gateway: &Gateway, admitted: &AdmittedCall) -> Option<Binder> {
    let preference = admitted.preference.as_ref()?;
    let Destination::Agent(agent) = &admitted.destination else {
        return None;
    };
    let instance = agent.instance.as_ref()?;
    let names = (admitted.allowed.permit.life(), instance);
    let gone = preference.gone.clone();
    let proof = &admitted.allowed.proof;
    Some(Binder::new(&gateway.tasks, names, proof, gone))
}
