//! A message to a polling agent: put into its inbox once, then the requested response to its caller.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use tokio::time::{Instant, sleep_until};

use super::call::Call;
use super::words::{Words, cut};
use super::{Outward, Pair, shown, source};
use crate::a2a::done::{Done, Step};
use crate::a2a::method::Method;
use crate::a2a::state::TaskState;
use crate::a2a::task::{Binding, TaskScan};
use crate::delivery::calls::{Answer, Key, Outcome};
use crate::delivery::inbox::{Activity, Inbox, InboxTask, NewActivity};
use crate::proxy::Proxy;
use crate::proxy::destination::idempotency::{Execution, KeptResponse, forgotten};
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::prefer;
use crate::proxy::respond::{client_disconnected, internal};
use crate::rejection::{Reason, Rejection};

/// Message to send, with its call.
pub(super) struct Message<'a> {
    pub(super) pair: &'a Pair,
    pub(super) call: &'a Call<'a>,
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
}

impl ToPut {
    /// Commits the entry. Its task belongs to its sender. No store is asked after the commit, so that a
    /// committed message is never reported as failed.
    async fn put(self) -> Result<(Activity, InboxTask), Rejection> {
        let (target, owner) = (self.new.workspace.clone(), self.new.owner.clone());
        let activity = self.inbox.put(self.new).await?;
        let begun = || InboxTask::new(&activity, &target, &owner);
        let task = self.continued.unwrap_or_else(begun);
        Ok((activity, task))
    }
}

impl Proxy {
    /// Sends a message and answers its caller.
    pub(super) async fn send(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        mut outward: Outward,
        message: Message<'_>,
    ) -> Result<Ended, Ended> {
        let Message {
            pair, call, key, ..
        } = message;
        let to_put = self.to_put(&message).await?;
        let (activity, task) = match key {
            None => to_put.put().await?,
            Some(key) => {
                let state = async |answer: &Answer| {
                    let task = self.task_of(pair, &outward, answer).await?;
                    Ok(task.map(|task| task.state))
                };
                self.gateway.delivery.calls.look_again(key, state).await?;
                let (words, name) = (outward.words.clone(), call.name.clone().into_owned());
                let is_bare = outward.rewrite.is_some();
                let work = async move {
                    let (activity, task) = to_put.put().await?;
                    let body = words.queued(&name, &task, &activity);
                    Ok((queued(body, is_bare).await?, (activity, task)))
                };
                match self.execute_own_once(session, exchange, key, work).await? {
                    Execution::Fresh(answer, put) => {
                        outward.kept = answer.kept;
                        put
                    }
                    Execution::Replayed(outcome) => {
                        return self
                            .sent_before(session, exchange, outward, (pair, call), outcome)
                            .await;
                    }
                }
            }
        };
        exchange.task = Some(task.id.clone());
        let tasks = &self.gateway.tasks;
        tasks
            .learn(&pair.proof.owner(), &pair.target, &task.id)
            .await;
        if exchange.method == Method::SendStreamingMessage {
            let first = if call.params.continues().is_some() {
                self.inbox().document(&task).await?
            } else {
                (task.begun(), 0)
            };
            return self.follow(session, exchange, outward, (task, first)).await;
        }
        let mut body = None;
        let mut applied = None;
        if let Some(Wait { until, applied: by }) = outward.wait.clone()
            && let Some(_place) = self.inbox().stay_for_reply(&pair.proof)
        {
            let words = &outward.words;
            body = self.answered(session, words, (call, &task), until).await?;
            applied = by.filter(|_| body.is_some());
            if body.is_none() {
                body = self.under_way(words, (call, &task)).await;
            }
        }
        let body = body.unwrap_or_else(|| outward.words.queued(&call.name, &task, &activity));
        self.answer(session, exchange, outward, body, applied).await
    }

    /// Returns the task in its present state, if its agent has begun it.
    async fn under_way(
        &self,
        words: &Words,
        (call, task): (&Call<'_>, &InboxTask),
    ) -> Option<String> {
        let task = self.inbox().task(&task.target, &task.id).await.ok()??;
        if task.state == TaskState::Submitted {
            return None;
        }
        let document = self.inbox().document(&task).await.ok()?.0;
        Some(words.sent(&cut(document, &shown(call, true))))
    }

    async fn to_put(&self, message: &Message<'_>) -> Result<ToPut, Rejection> {
        let Message {
            pair, call, body, ..
        } = message;
        let (proof, target) = (&pair.proof, &pair.target);
        let text = std::str::from_utf8(body)
            .map_err(|_| Rejection::new(Reason::InvalidRequest, "the body is not UTF-8"))?;
        let mut new = NewActivity::message(
            target,
            source(proof),
            proof.owner(),
            &call.name,
            text.to_owned(),
        );
        new.context_id = call.params.context().map(str::to_owned);
        new.hops = Some(message.hops);
        let mut continued = None;
        if let Some(id) = call.params.continues() {
            let task = self.own_task(pair, id).await?;
            new.continues = Some(task.id.clone());
            continued = Some(task);
        }
        Ok(ToPut {
            inbox: Arc::clone(self.inbox()),
            new,
            continued,
        })
    }

    /// Answers a replayed call: as it was answered before, or, if its caller waits or follows, with the later
    /// updates.
    async fn sent_before(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        outward: Outward,
        (pair, call): (&Pair, &Call<'_>),
        outcome: Outcome,
    ) -> Result<Ended, Ended> {
        let outward = Outward {
            replay: true,
            ..outward
        };
        let follows = exchange.method == Method::SendStreamingMessage;
        let waits = outward.wait.clone();
        if let Outcome::Whole(answer) = &outcome
            && (follows || waits.is_some())
        {
            let task = self.task_of(pair, &outward, answer).await?;
            match (task, waits) {
                (Some(task), _) if follows => {
                    let first = if call.params.continues() == Some(&task.id) {
                        self.inbox().document(&task).await?
                    } else {
                        (task.begun(), 0)
                    };
                    return self.follow(session, exchange, outward, (task, first)).await;
                }
                (None, _) if follows => return Err(forgotten().into()),
                (Some(task), Some(Wait { until, applied })) => {
                    if let Some(_place) = self.inbox().stay_for_reply(&pair.proof) {
                        let body = self.outcome_of(session, &outward.words, (call, task), until);
                        if let Some(body) = body.await? {
                            return self.answer(session, exchange, outward, body, applied).await;
                        }
                    }
                }
                _ => {}
            }
        }
        let completed = (!outward.done.is_empty()).then(|| outward.done.to_string());
        let told = KeptResponse {
            outcome,
            replay: true,
            live: None,
            completed: completed.as_deref(),
        };
        self.respond_kept(session, exchange, told).await
    }

    /// Returns the task of a kept response, if it belongs to the inbox.
    async fn task_of(
        &self,
        pair: &Pair,
        outward: &Outward,
        answer: &Answer,
    ) -> Result<Option<InboxTask>, Rejection> {
        let binding = match outward.rewrite {
            Some(_) => Binding::Rest,
            None => Binding::Rpc,
        };
        match TaskScan::new(binding).push(&answer.body) {
            Some(id) => Ok(self.inbox().task(&pair.target, &id).await?),
            None => Ok(None),
        }
    }

    /// Returns the outcome of a replayed message, from the first update on if the message began the task.
    async fn outcome_of(
        &self,
        session: &mut ServerSession,
        words: &Words,
        (call, mut task): (&Call<'_>, InboxTask),
        until: Instant,
    ) -> Result<Option<String>, Ended> {
        if call.params.continues() != Some(&task.id) {
            task.updates = 0;
        } else if task.state.ends_turn() {
            let document = self.inbox().document(&task).await?.0;
            return Ok(Some(words.sent(&cut(document, &shown(call, true)))));
        }
        self.answered(session, words, (call, &task), until).await
    }

    /// Waits for the end of the agent's turn. `None`: the wait timed out, or the process shuts down.
    async fn answered(
        &self,
        session: &mut ServerSession,
        words: &Words,
        (call, task): (&Call<'_>, &InboxTask),
        until: Instant,
    ) -> Result<Option<String>, Ended> {
        let mut watch = self.inbox().watch_task(&task.id);
        let mut seen = task.updates;
        loop {
            // An outage of the store is no failure of the message, which is in the inbox.
            let updates = self.inbox().updates_after(&task.id, seen).await;
            for update in updates.unwrap_or_default() {
                seen = update.n;
                if let Some(said) = words.last(&update.update) {
                    return Ok(Some(said));
                }
                if update.update.ends_turn() {
                    let Ok((document, _)) = self.inbox().document(task).await else {
                        return Ok(None);
                    };
                    return Ok(Some(words.sent(&cut(document, &shown(call, true)))));
                }
            }
            tokio::select! {
                biased;
                () = watch.changed() => {}
                () = sleep_until(until) => return Ok(None),
                () = self.gateway.drain.leaves() => return Ok(None),
                () = client_disconnected(session) => return Err(Ended::CallerLeft),
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
        session: &ServerSession,
        exchange: &Exchange,
        (call, done): (&Call<'_>, Done),
        timeout: Option<Duration>,
    ) -> Option<Self> {
        if !exchange.method.sends() {
            return None;
        }
        let total = timeout.unwrap_or(exchange.config.timeouts.total);
        let preferred = prefer::wait(&session.req_header().headers);
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
