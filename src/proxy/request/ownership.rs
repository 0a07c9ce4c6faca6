//! Checks the references of a call before it is forwarded: the caller may ask for these tasks, and the agent may be
//! asked to call these URLs. Also records the owner of the task in the answer.

use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::task::Binding;
use crate::gateway::Gateway;
use crate::proxy::admit::{AdmittedCall, AllowedCaller};
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::outcome::box_cold_path;
use crate::proxy::record::Exchange;
use crate::proxy::request::Request;
use crate::proxy::request::instance::{assign_instance, build_binder};
use crate::rejection::{Reason, Rejection};
use crate::tasks::EndRecorder;

/// Checks the tasks and URLs that a call refers to, and has the answer searched for its task.
///
/// # Errors
/// As [`check_and_assign`]; or the caller left.
pub(in crate::proxy) async fn authorize_references(
    request: &mut Request<'_>,
    admitted: &mut AdmittedCall,
    refs: &Refs,
    binding: Binding,
) -> Result<(), ExchangeOutcome> {
    let context = request.context;
    let cards = &context.cards;
    let asked = cards.check_push(request.session, request.exchange, admitted, refs);
    asked.await?;
    check_and_assign(&context.gateway, request.exchange, admitted, refs).await?;
    watch_answer(&context.gateway, request.exchange, admitted, binding);
    Ok(())
}

/// Checks the references of a call, and chooses the instance of the agent by them. A call without references causes no
/// lookup.
///
/// # Errors
/// `task_not_found`, `push_not_supported`, `address_forbidden`; `store_unavailable`; `workspace_restarting`.
pub(in crate::proxy) async fn check_and_assign(
    gateway: &Gateway,
    exchange: &mut Exchange,
    admitted: &mut AdmittedCall,
    refs: &Refs,
) -> Result<(), Rejection> {
    if exchange.task.is_none() {
        exchange.task = refs.tasks.first().cloned();
    }
    let push = admitted.options().push_notifications;
    check_references(gateway, exchange.method, push, &admitted.allowed, refs).await?;
    box_cold_path(assign_instance(gateway, admitted, refs)).await?;
    exchange.instance = admitted.instance().cloned();
    Ok(())
}

/// Checks the references, whether or not the agent can be reached. `push`: callers may ask the agent for push
/// notifications.
///
/// # Errors
/// As [`check_and_assign`].
pub(in crate::proxy) async fn check_references(
    gateway: &Gateway,
    method: Method,
    push: bool,
    AllowedCaller { proof, permit }: &AllowedCaller,
    refs: &Refs,
) -> Result<(), Rejection> {
    require_push(push, method, refs)?;
    if !refs.tasks.is_empty() {
        let life = permit.life();
        let asked = gateway
            .tasks
            .check(&gateway.hierarchy, proof, &life, &refs.tasks);
        box_cold_path(asked).await?;
    }
    for url in &refs.push_urls {
        box_cold_path(gateway.directory.addresses.vet_webhook(url, proof.account)).await?;
    }
    Ok(())
}

/// Starts to search the answer to a message for its task, and the answer to a task request for the task's state.
fn watch_answer(
    gateway: &Gateway,
    exchange: &mut Exchange,
    admitted: &AdmittedCall,
    binding: Binding,
) {
    if exchange.method.sends() {
        let AllowedCaller { proof, permit } = &admitted.allowed;
        let learner = gateway.tasks.new_learner(proof, permit.life(), binding);
        exchange.learner = Some(Box::new(learner));
    } else {
        exchange.watch_state(binding);
        let AllowedCaller { proof, permit } = &admitted.allowed;
        if let Some(learner) = &mut exchange.learner {
            learner.set_end_recorder(EndRecorder::new(&gateway.tasks, proof, permit.target()));
        }
    }
    if let (Some(learner), Some(binder)) = (&mut exchange.learner, build_binder(gateway, admitted))
    {
        learner.set_binder(binder);
    }
}

/// True if a call is about push notifications.
pub(in crate::proxy) fn is_about_push(method: Method, refs: &Refs) -> bool {
    method.is_of_push() || refs.sets_push
}

/// Rejects a call about push notifications if the target does not support them.
///
/// # Errors
/// `push_not_supported`.
pub(in crate::proxy) fn require_push(
    allowed: bool,
    method: Method,
    refs: &Refs,
) -> Result<(), Rejection> {
    if allowed || !is_about_push(method, refs) {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::PushNotSupported,
        "push notifications are switched off for this workspace, or its agent's card says that it sends none: leave \
         the configuration out, and stream or ask for the task",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switched_off_nothing_that_asks_for_push_notifications_passes() {
        let plain = Refs::default();
        let sets = Refs {
            sets_push: true,
            ..Refs::default()
        };
        for method in Method::ALL {
            let why = require_push(false, method, &plain).map_err(|r| r.reason);
            let expected = if method.is_of_push() {
                Err(Reason::PushNotSupported)
            } else {
                Ok(())
            };
            assert_eq!(why, expected, "{method:?}");
            assert!(require_push(false, method, &sets).is_err(), "{method:?}");
            assert!(require_push(true, method, &sets).is_ok(), "{method:?}");
        }
    }
}
