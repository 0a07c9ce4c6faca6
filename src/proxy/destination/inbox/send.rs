//! A message to a polling agent: put into its inbox once, then the requested response to its caller.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::call::Call;
use super::stream::follow;
use super::words::{Words, cut};
use super::{CallerInbox, Outward, answer, shown, source};
use crate::a2a::done::{Done, Step};
use crate::a2a::method::Method;
use crate::a2a::state::TaskState;
use crate::a2a::task::{Binding, TaskScan};
use crate::caps::Charge;
use crate::delivery::calls::{Answer, Key, Outcome};
use crate::delivery::inbox::{Activity, Inbox, InboxTask, NewActivity};
use crate::proxy::admit::Allowed;
use crate::proxy::capped::{ToCount, count};
use crate::proxy::destination::idempotency::{
    Execution, KeptResponse, execute_own_once, forgotten, respond_kept,
};
use crate::proxy::outcome::Ended;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::{Request, prefer};
use crate::proxy::respond::{client_disconnected, internal};
use crate::rejection::{Delivery, Reason, Rejection};

/// Message to send, with its call.
pub(super) struct Message<'a> {
    pub(super) inbox: &'a CallerInbox<'a>,
    pub(super) allowed: &'a Allowed,
    pub(super) call: &'a Call<'a>,
    /// Method of the entry, in a generation that the agent speaks.
    pub(super) method: &'a str,
    /// Body of the entry.
    pub(super) body: &'a Bytes,
    pub(super) key: Option<&'a Key>,
    /// Gateways that the call has passed, this one included.
    pub(super) hops: u32,
}

/// Entry to put into the inbox.
struct ToPut {
    inbox: Arc<Inbox>,
    new: NewActivity,
    /// Task that it continues.
    continued: Option<InboxTask>,
    to_count: Option<ToCount>,
}

/// An entry that was put into the inbox, with its task, and the counts of its call.
type Put = (Activity, InboxTask, Option<Box<Charge>>);

impl ToPut {
    /// Commits the entry. Its task belongs to its sender. No store is asked after the commit, so that a
    /// committed message is never reported as failed.
    async fn put(self) -> Result<Put, Rejection> {
        let charge = count(self.to_count.as_ref()).await?;
        let (target, owner) = (self.new.workspace.clone(), self.new.owner.clone());
        let activity = self.inbox.put(self.new).await?;
        let charge = charge.map(Charge::when_sent);
        let begun = || InboxTask::new(&activity, &target, &owner);
        let task = self.continued.unwrap_or_else(begun);
        Ok((activity, task, charge))
    }
}

impl Message<'_> {
    /// Sends the message and answers its caller.
    pub(super) async fn send(
        &self,
        request: &mut Request<'_>,
        mut outward: Outward,
    ) -> Result<Ended, Ended> {
        let (inbox, call) = (self.inbox, self.call);
        let to_put = self.to_put(request).await?;
        let (activity, task, charge) = match self.key {
            None => to_put.put().await?,
            Some(key) => {
                let state = async |answer: &Answer| {
                    let task = self.task_of(&outward, answer).await?;
                    Ok(task.map(|task| task.state))
                };
                let calls = &inbox.gateway.delivery.calls;
                calls.look_again(key, state).await?;
                let (words, name) = (outward.words.clone(), call.name.clone().into_owned());
                let is_bare = outward.rewrite.is_some();
                let work = async move {
                    let put = to_put.put().await?;
                    let body = words.queued(&name, &put.1, &put.0);
                    Ok((queued(body, is_bare).await?, put))
                };
                match execute_own_once(request, key, work).await? {
                    Execution::Fresh(answer, put) => {
                        outward.kept = answer.kept;
                        put
                    }
                    Execution::Replayed(outcome) => {
                        return self.replay(request, outward, outcome).await;
                    }
                }
            }
        };
        request.exchange.task = Some(task.id.clone());
        request.exchange.charge = charge;
        let tasks = &inbox.gateway.tasks;
        let owner = inbox.proof.owner();
        let owner = (owner.as_str(), None);
        let life = request.exchange.life();
        if let Some(life) = &life {
            tasks.learn(owner, life, &task.id, None).await;
        }
        if request.exchange.method == Method::SendStreamingMessage {
            let first = self.first(&task, call.params.continues().is_some()).await?;
            return follow(request, outward, task, first).await;
        }
        let mut body = None;
        let mut applied = None;
        if let Some(Wait { until, applied: by }) = outward.wait.clone()
            && let Some(_place) = inbox.store().stay_for_reply(&inbox.proof)
        {
            let words = &outward.words;
            body = self.await_reply(request, words, &task, until).await?;
            applied = by.filter(|_| body.is_some());
            if body.is_none() {
                body = self.under_way(words, &task).await;
            }
        }
        let body = body.unwrap_or_else(|| outward.words.queued(&call.name, &task, &activity));
        answer(request, outward, body, applied).await
    }

    /// Returns the document with which a stream of the task begins, and the number of its last update.
    async fn first(&self, task: &InboxTask, continued: bool) -> Result<(Value, i64), Rejection> {
        if continued {
            return self.inbox.store().document(task).await;
        }
        Ok((task.first_document(), 0))
    }

    /// Returns the response with the present document of the task.
    async fn present(&self, words: &Words, task: &InboxTask) -> Result<String, Rejection> {
        let document = self.inbox.document(task).await?;
        Ok(words.sent(&cut(document, &shown(self.call, true))))
    }

    /// Returns the task in its present state, if its agent has begun it.
    async fn under_way(&self, words: &Words, task: &InboxTask) -> Option<String> {
        let found = self.inbox.store().task(&task.target, &task.id);
        let task = found.await.ok()??;
        if task.state == TaskState::Submitted {
            return None;
        }
        self.present(words, &task).await.ok()
    }

    async fn to_put(&self, request: &Request<'_>) -> Result<ToPut, Rejection> {
        let (inbox, call) = (self.inbox, self.call);
        let (proof, target) = (&inbox.proof, &inbox.target);
        let text = std::str::from_utf8(self.body)
            .map_err(|_| Rejection::new(Reason::InvalidRequest, "the body is not UTF-8"))?;
        let mut new = NewActivity::message(
            target,
            source(proof),
            proof.owner(),
            self.method,
            text.to_owned(),
        );
        new.context_id = call.params.context().map(str::to_owned);
        new.hops = Some(self.hops);
        new.account = proof.account;
        let mut continued = None;
        if let Some(id) = call.params.continues() {
            let task = inbox.task(id).await?;
            new.continues = Some(task.id.clone());
            continued = Some(task);
        }
        let call = (&request.head().headers, self.body);
        let to_count = ToCount::of(inbox.gateway, request.exchange, self.allowed, call);
        Ok(ToPut {
            inbox: Arc::clone(inbox.store()),
            new,
            continued,
            to_count: to_count.await?,
        })
    }

    /// Answers a replayed call: as it was answered before, or, if its caller waits or follows, with the later
    /// updates.
    async fn replay(
        &self,
        request: &mut Request<'_>,
        outward: Outward,
        outcome: Outcome,
    ) -> Result<Ended, Ended> {
        let outward = Outward {
            replay: true,
            ..outward
        };
        let follows = request.exchange.method == Method::SendStreamingMessage;
        let waits = outward.wait.clone();
        if let Outcome::Whole(kept) = &outcome
            && (follows || waits.is_some())
        {
            let task = self.task_of(&outward, kept).await?;
            match (task, waits) {
                (Some(task), _) if follows => {
                    let continued = self.call.params.continues() == Some(&task.id);
                    let first = self.first(&task, continued).await?;
                    return follow(request, outward, task, first).await;
                }
                (None, _) if follows => return Err(forgotten().into()),
                (Some(task), Some(Wait { until, applied })) => {
                    if let Some(_place) = self.inbox.store().stay_for_reply(&self.inbox.proof) {
                        let body = self.outcome_of(request, &outward.words, task, until);
                        if let Some(body) = body.await? {
                            return answer(request, outward, body, applied).await;
                        }
                    }
                }
                _ => {}
            }
        }
        let kept = KeptResponse::new(outcome, true, outward.done);
        respond_kept(request, kept).await
    }

    /// Returns the task of a kept response, if it belongs to the inbox.
    async fn task_of(
        &self,
        outward: &Outward,
        answer: &Answer,
    ) -> Result<Option<InboxTask>, Rejection> {
        let binding = match outward.rewrite {
            Some(_) => Binding::Rest,
            None => Binding::Rpc,
        };
        match TaskScan::new(binding).push(&answer.body) {
            Some(id) => Ok(self.inbox.store().task(&self.inbox.target, &id).await?),
            None => Ok(None),
        }
    }

    /// Returns the outcome of a replayed message, from the first update on if the message began the task.
    async fn outcome_of(
        &self,
        request: &mut Request<'_>,
        words: &Words,
        mut task: InboxTask,
        until: Instant,
    ) -> Result<Option<String>, Ended> {
        if self.call.params.continues() != Some(&task.id) {
            task.updates = 0;
        } else if task.state.ends_turn() {
            return Ok(Some(self.present(words, &task).await?));
        }
        self.await_reply(request, words, &task, until).await
    }

    /// Waits for the end of the agent's turn. `None`: the wait timed out, or the process shuts down.
    async fn await_reply(
        &self,
        request: &mut Request<'_>,
        words: &Words,
        task: &InboxTask,
        until: Instant,
    ) -> Result<Option<String>, Ended> {
        let store = self.inbox.store();
        let mut watch = store.watch_task(&task.id);
        let mut seen = task.updates;
        let mut cut = request.context.relay.watch(request.exchange);
        loop {
            // An outage of the store is no failure of the message, which is in the inbox.
            let updates = store.updates_after(&task.id, seen).await;
            for update in updates.unwrap_or_default() {
                seen = update.n;
                if let Some(said) = words.last(&update.update) {
                    return Ok(Some(said));
                }
                if update.update.ends_turn() {
                    return Ok(self.present(words, task).await.ok());
                }
            }
            tokio::select! {
                biased;
                () = watch.changed() => {}
                () = sleep_until(until) => return Ok(None),
                () = self.inbox.gateway.drain.leaves() => return Ok(None),
                why = cut.requested(Delivery::Sent) => return Err(why.into()),
                () = client_disconnected(request.session) => return Err(Ended::CallerLeft),
            }
        }
    }
}

/// Wait of a caller for the outcome of its message.
#[derive(Clone)]
pub(super) struct Wait {
    until: Instant,
    /// Value of `Preference-Applied`, if the wait was requested by `Prefer`.
    applied: Option<String>,
}

impl Wait {
    /// Returns the requested wait: from `Prefer: wait=N`, else from the configuration of the call. A method
    /// that the gateway completed requests none. `timeout` is the call's `X-Timeout`.
    pub(super) fn asked(
        request: &Request<'_>,
        call: &Call<'_>,
        done: Done,
        timeout: Option<Duration>,
    ) -> Option<Self> {
        let exchange = &request.exchange;
        if !exchange.method.sends() {
            return None;
        }
        let total = timeout.unwrap_or(exchange.config.timeouts.total);
        let preferred = prefer::wait(&request.head().headers);
        let wait = match preferred {
            Some(wait) => Some(wait.min(total)).filter(|wait| !wait.is_zero()),
            None => (call.blocks() && !done.has(Step::Method)).then_some(total),
        };
        Some(Self {
            until: exchange.started + wait?,
            applied: preferred.map(|wait| format!("wait={}", wait.as_secs())),
        })
    }
}

/// Returns the answer for a queued message, as kept for replay.
async fn queued(body: String, is_bare: bool) -> Result<Answer, Rejection> {
    let mut head = ResponseHeader::build(200, Some(1)).map_err(internal)?;
    head.append_header(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )
    .map_err(internal)?;
    let body = Bytes::from(body);
    let body = if is_bare {
        Rewrite::BareResult.answer(&mut head, body).await?
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
