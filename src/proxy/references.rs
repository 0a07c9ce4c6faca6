//! What a call refers to, asked of the rooms before it is forwarded: may the caller ask for these tasks, and
//! may the agent be asked to call these URLs? And whose the task is that the answer is about.

use super::admit::Admitted;
use super::exchange::Exchange;
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::task::Binding;
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};

/// Checks what the call refers to. One that refers to nothing asks nobody.
///
/// # Errors
/// `task_not_found`, `push_not_supported`, `address_forbidden`; `store_unavailable`.
pub(super) async fn check(
    gateway: &Gateway,
    exchange: &mut Exchange,
    admitted: &Admitted,
    refs: &Refs,
) -> Result<(), Rejection> {
    if exchange.task.is_none() {
        exchange.task = refs.tasks.first().cloned();
    }
    let push = admitted.manners().push_notifications;
    let (proof, target) = (&admitted.proof, admitted.permit.target());
    check_for(gateway, exchange.method, push, (proof, target), refs).await
}

/// The same, whether or not the agent can be reached; `push`: whether callers may ask it for push
/// notifications.
///
/// # Errors
/// As [`check`].
pub(super) async fn check_for(
    gateway: &Gateway,
    method: Method,
    push: bool,
    (proof, target): (&Proof, &WorkspaceId),
    refs: &Refs,
) -> Result<(), Rejection> {
    require_push(push, method, refs)?;
    if !refs.tasks.is_empty() {
        let asked = gateway
            .tasks
            .check(&gateway.hierarchy, proof, target, &refs.tasks);
        // Boxed, here and below: rare, and their futures would widen every exchange's.
        Box::pin(asked).await?;
    }
    for url in &refs.push_urls {
        Box::pin(gateway.directory.vet_webhook(url, proof.account)).await?;
    }
    Ok(())
}

/// Has the answer to a message looked at for its task, and that to a question for a task for where that stands.
pub(super) fn follow(
    gateway: &Gateway,
    exchange: &mut Exchange,
    admitted: &Admitted,
    binding: Binding,
) {
    if exchange.method.sends() {
        let target = admitted.permit.target();
        let learner = gateway.tasks.learner(&admitted.proof, target, binding);
        exchange.learner = Some(Box::new(learner));
    } else {
        exchange.watch_state(binding);
    }
}

/// Whether a call has to do with push notifications.
pub(super) fn is_about_push(method: Method, refs: &Refs) -> bool {
    method.is_of_push() || refs.sets_push
}

/// # Errors
/// `push_not_supported`.
pub(super) fn require_push(allowed: bool, method: Method, refs: &Refs) -> Result<(), Rejection> {
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
