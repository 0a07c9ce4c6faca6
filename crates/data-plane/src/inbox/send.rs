//! A message to a polling agent: put into its inbox once, then the requested response to its caller.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::admission::AdmittedCall;
use crate::complete::{CheckedCall, preferred_wait};
use crate::filters::Rewrite;
use crate::idempotency::{StoredResponse, execute_own_once, send_stored_response, stream_expired};
use crate::inbox::call::InboxCall;
use crate::inbox::responses::{ResponseForm, trim_task};
use crate::inbox::stream::stream_task;
use crate::inbox::{CallerInbox, ResponseContext, message_source, requested_parts, send_answer};
use crate::listener::{client_disconnected, internal_error};
use crate::policy::{UncountedCall, count_call};
use crate::record::{Answered, ExchangeError};
use crate::services::Request;
use a2a::completion_steps::{CompletionStep, CompletionSteps};
use a2a::method::Method;
use a2a::state::TaskState;
use a2a::task::{Binding, TaskScan};
use access::caps::Charge;
use access::identity::stored_chain;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::calls::{Answer, Outcome};
use mailbox::inbox::{Activity, InboxTask, NewActivity};

/// Message to send, with its call.
pub(super) struct OutgoingMessage<'a> {
    pub(super) inbox: &'a CallerInbox<'a>,
    pub(super) admitted: &'a AdmittedCall,
    /// The call as its caller made it.
    pub(super) call: &'a InboxCall<'a>,
    /// The call for the agent, in a generation that it speaks.
    pub(super) checked: &'a CheckedCall,
}

/// An entry that was put into the inbox, with its task, and the counts of its call.
type StoredEntry = (Activity, InboxTask, Option<Box<Charge>>);

impl OutgoingMessage<'_> {
    /// Sends the message and answers its caller.
    pub(super) async fn send(
        &self,
        request: &mut Request<'_>,
        mut response: ResponseContext,
    ) -> Result<Answered, ExchangeError> {
        let (inbox, call) = (self.inbox, self.call);
        let entry = self.build_entry(request).await?;
        let (activity, task, charge) = match &self.checked.key {
            None => entry.await?,
            Some(key) => {
                let state = async |answer: &Answer| {
                    let task = self.find_stored_task(&response, answer).await?;
                    Ok(task.map(|task| task.state))
                };
                let calls = &inbox.gateway.delivery.calls;
                calls.refresh_task_state(key, state).await?;
                let (form, name) = (response.form.clone(), call.name.clone().into_owned());
                let is_bare = response.rewrite.is_some();
                let work = async move {
                    let put = entry.await?;
                    let body = form.queued_response(&name, &put.1, &put.0);
                    Ok((queued_answer(body, is_bare).await?, put))
                };
                match execute_own_once(request, key, work).await? {
                    ControlFlow::Continue((answer, put)) => {
                        response.kept = answer.kept;
                        put
                    }
                    ControlFlow::Break(outcome) => {
                        return self.answer_replay(request, response, outcome).await;
                    }
                }
            }
        };
        request.exchange.record.task = Some(task.id.clone());
        request.exchange.record.charge = charge;
        let tasks = &inbox.gateway.tasks;
        let owner = inbox.proof.owner();
        let owner = (owner.as_str(), None);
        let life = request.exchange.call.life();
        if let Some(life) = &life {
            tasks.record_owner(owner, life, &task.id, None);
        }
        if request.exchange.call.method == Method::SendStreamingMessage {
            let first = self
                .load_first(&task, call.params.continued_task().is_some())
                .await?;
            return stream_task(request, response, task, first).await;
        }
        let mut body = None;
        let mut applied = None;
        if let Some(ReplyWait { until, applied: by }) = response.wait.clone()
            && let Some(_place) = inbox.store().take_sender_slot(&inbox.proof)
        {
            let form = &response.form;
            body = self.await_reply(request, form, &task, until).await?;
            applied = by.filter(|_| body.is_some());
            if body.is_none() {
                body = self.started_response(form, &task).await;
            }
        }
        let body =
            body.unwrap_or_else(|| response.form.queued_response(&call.name, &task, &activity));
        send_answer(request, response, body, applied).await
    }

    /// Returns the document with which a stream of the task begins, and the number of its last update.
    async fn load_first(
        &self,
        task: &InboxTask,
        continued: bool,
    ) -> Result<(Value, i64), Rejection> {
        if continued {
            return self.inbox.store().read_document(task).await;
        }
        Ok((task.first_document(), 0))
    }

    /// Returns the response with the present document of the task.
    async fn current_response(
        &self,
        form: &ResponseForm,
        task: &InboxTask,
    ) -> Result<String, Rejection> {
        let document = self.inbox.load_document(task).await?;
        Ok(form.message_response(&trim_task(document, &requested_parts(self.call, true))))
    }

    /// Returns the task in its present state, if its agent has begun it.
    async fn started_response(&self, form: &ResponseForm, task: &InboxTask) -> Option<String> {
        let found = self.inbox.store().find_task(&task.target, &task.id);
        let task = found.await.ok()??;
        if task.state == TaskState::Submitted {
            return None;
        }
        self.current_response(form, &task).await.ok()
    }

    /// Builds the entry. What is returned commits it. Its task belongs to its sender. No store is asked after the
    /// commit, so that a committed message is never reported as failed.
    async fn build_entry(
        &self,
        request: &Request<'_>,
    ) -> Result<impl Future<Output = Result<StoredEntry, Rejection>> + Send + use<>, Rejection>
    {
        let (inbox, call) = (self.inbox, self.call);
        let (proof, target) = (&inbox.proof, inbox.target.clone());
        let text = std::str::from_utf8(&self.checked.body)
            .map_err(|_| Rejection::new(Reason::InvalidRequest, "the body is not UTF-8"))?;
        let method = self.checked.method_name.as_deref();
        let method = method.unwrap_or(&call.name);
        let (source, owner) = (message_source(proof), proof.owner());
        let text = text.to_owned();
        let mut new = NewActivity::message(&target, source, owner.clone(), method, text);
        new.context_id = call.params.message_context().map(str::to_owned);
        new.hops = Some(self.admitted.hops);
        new.chain = stored_chain(&inbox.gateway.identity.signed.to_stored(proof, None));
        new.account = proof.account;
        let mut continued = None;
        if let Some(id) = call.params.continued_task() {
            let task = inbox.load_task(id).await?;
            new.continues = Some(task.id.clone());
            continued = Some(task);
        }
        let allowed = &self.admitted.allowed;
        let to_count = UncountedCall::from_call(inbox.gateway, request.exchange, allowed).await?;
        let store = Arc::clone(inbox.store());
        Ok(async move {
            let charge = count_call(to_count.as_ref()).await?;
            let activity = store.put(new).await.at(Stage::Inbox)?;
            let charge = charge.map(Charge::into_sent);
            let begun = || InboxTask::new(&activity, &target, &owner);
            let task = continued.unwrap_or_else(begun);
            Ok((activity, task, charge))
        })
    }

    /// Answers a replayed call: as it was answered before, or, if its caller waits or follows, with the later
    /// updates.
    async fn answer_replay(
        &self,
        request: &mut Request<'_>,
        response: ResponseContext,
        outcome: Outcome,
    ) -> Result<Answered, ExchangeError> {
        let response = ResponseContext {
            replay: true,
            ..response
        };
        let follows = request.exchange.call.method == Method::SendStreamingMessage;
        let waits = response.wait.clone();
        if let Outcome::Whole(kept) = &outcome
            && (follows || waits.is_some())
        {
            let task = self.find_stored_task(&response, kept).await?;
            if follows {
                let task = task.ok_or_else(stream_expired)?;
                let continued = self.call.params.continued_task() == Some(&task.id);
                let first = self.load_first(&task, continued).await?;
                return stream_task(request, response, task, first).await;
            }
            let form = &response.form;
            if let (Some(task), Some(ReplyWait { until, applied })) = (task, waits)
                && let Some(_place) = self.inbox.store().take_sender_slot(&self.inbox.proof)
                && let Some(body) = self.await_replayed(request, form, task, until).await?
            {
                return send_answer(request, response, body, applied).await;
            }
        }
        let stored = StoredResponse::new(outcome, true, response.done);
        send_stored_response(request, stored).await
    }

    /// Returns the task of a kept response, if it belongs to the inbox.
    async fn find_stored_task(
        &self,
        response: &ResponseContext,
        answer: &Answer,
    ) -> Result<Option<InboxTask>, Rejection> {
        let binding = match response.rewrite {
            Some(_) => Binding::Rest,
            None => Binding::Rpc,
        };
        let Some(id) = TaskScan::new(binding).push(&answer.body) else {
            return Ok(None);
        };
        let inbox = self.inbox;
        inbox.store().find_task(&inbox.target, &id).await
    }

    /// Returns the outcome of a replayed message, from the first update on if the message began the task.
    async fn await_replayed(
        &self,
        request: &mut Request<'_>,
        form: &ResponseForm,
        mut task: InboxTask,
        until: Instant,
    ) -> Result<Option<String>, ExchangeError> {
        if self.call.params.continued_task() != Some(&task.id) {
            task.updates = 0;
        } else if task.state.ends_turn() {
            return Ok(Some(self.current_response(form, &task).await?));
        }
        self.await_reply(request, form, &task, until).await
    }

    /// Waits for the end of the agent's turn. `None`: the wait timed out, or the process shuts down.
    async fn await_reply(
        &self,
        request: &mut Request<'_>,
        form: &ResponseForm,
        task: &InboxTask,
        until: Instant,
    ) -> Result<Option<String>, ExchangeError> {
        let store = self.inbox.store();
        let mut watch = store.watch_task(&task.id);
        let mut seen = task.updates;
        let mut cut = request.context.relay.watch_exchange(request.exchange);
        loop {
            // An outage of the store is no failure of the message, which is in the inbox.
            let updates = store.updates_after(&task.id, seen).await;
            for update in updates.unwrap_or_default() {
                seen = update.n;
                if let Some(said) = form.final_response(&update.update) {
                    return Ok(Some(said));
                }
                if update.update.ends_turn() {
                    return Ok(self.current_response(form, task).await.ok());
                }
            }
            tokio::select! {
                biased;
                () = watch.changed() => {}
                () = sleep_until(until) => return Ok(None),
                () = self.inbox.gateway.drain.wait_for_leave() => return Ok(None),
                why = cut.cancelled(Delivery::Sent) => return Err(why.into()),
                () = client_disconnected(request.session) => return Err(ExchangeError::CallerLeft),
            }
        }
    }
}

/// Wait of a caller for the outcome of its message.
#[derive(Clone)]
pub(super) struct ReplyWait {
    until: Instant,
    /// Value of `Preference-Applied`, if the wait was requested by `Prefer`.
    applied: Option<String>,
}

impl ReplyWait {
    /// Returns the requested wait: from `Prefer: wait=N`, else from the configuration of the call. A method
    /// that the gateway completed requests none. `timeout` is the call's `X-Timeout`.
    pub(super) fn from_request(
        request: &Request<'_>,
        call: &InboxCall<'_>,
        done: CompletionSteps,
        timeout: Option<Duration>,
    ) -> Option<Self> {
        let exchange = &request.exchange;
        if !exchange.call.method.sends() {
            return None;
        }
        let total = timeout.unwrap_or(exchange.call.config.timeouts.total);
        let preferred = preferred_wait(&request.head().headers);
        let wait = match preferred {
            Some(wait) => Some(wait.min(total)).filter(|wait| !wait.is_zero()),
            None => (call.is_blocking() && !done.has(CompletionStep::Method)).then_some(total),
        };
        Some(Self {
            until: exchange.call.started + wait?,
            applied: preferred.map(|wait| format!("wait={}", wait.as_secs())),
        })
    }
}

/// Returns the answer for a queued message, as kept for replay.
async fn queued_answer(body: String, is_bare: bool) -> Result<Answer, Rejection> {
    let mut head = ResponseHeader::build(200, Some(1)).map_err(internal_error)?;
    head.append_header(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )
    .map_err(internal_error)?;
    let body = Bytes::from(body);
    let body = if is_bare {
        Rewrite::BareResult.rewrite_body(&mut head, body).await?
    } else {
        body
    };
    Ok(Answer {
        status: head.status.as_u16(),
        fields: head.headers.clone(),
        body,
        kept: true,
    })
}
