//! Changes an agent's answer before it goes to the caller: if the gateway translated the call, or if the answer
//! contains data that this caller must not see.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use tokio::time::{Instant, sleep_until};

use super::cancel_watch::CancelWatch;
use super::failure::timed_out;
use super::response_translator::ResponseTranslator;
use crate::a2a::bare_result;
use crate::a2a::error::RpcError;
use crate::a2a::reply::Reply;
use crate::a2a::task::Binding;
use crate::a2a::task_list::TaskList;
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceIncarnation;
use crate::proxy::cards::extended::ExtendedCard;
use crate::proxy::guard::CallGuards;
use crate::proxy::guard::stream::EventGuard;
use crate::proxy::outcome::box_in_place;
use crate::proxy::respond::internal_error;
use crate::rejection::{Delivery, Reason, Rejection};

/// The rewrite of an answer.
pub(in crate::proxy) enum Rewrite {
    /// The call came without JSON-RPC and was translated: its result is returned without an envelope.
    BareResult,
    /// The answer contains the agent's card, with the agent's addresses.
    ExtendedCard(Binding, Box<ExtendedCard>),
    /// The answer lists tasks, some of them of other callers.
    Tasks(Binding, Box<TaskListFilter>),
    /// The call was translated for an agent of another generation or binding; then the rewrite of the answer in the
    /// caller's form.
    Bridged(Box<ResponseTranslator>, Option<Box<Rewrite>>),
    /// Guards are asked about the answer, after another rewrite of it.
    Guarded(Arc<CallGuards>, Option<Box<Rewrite>>),
}

/// The filter of a task list: the caller may see only its own tasks.
pub(in crate::proxy) struct TaskListFilter {
    pub(in crate::proxy) gateway: Arc<Gateway>,
    /// The proven caller.
    pub(in crate::proxy) proof: Arc<Proof>,
    /// The asked agent.
    pub(in crate::proxy) target: WorkspaceIncarnation,
}

/// Maximum tasks in one list. A2A 1.0 allows 100 (`pageSize`).
const LISTED_MAX: usize = 1000;

/// Fields that describe the unchanged body.
const OF_THE_BODY: [&str; 6] = [
    "etag",
    "last-modified",
    "content-md5",
    "content-digest",
    "repr-digest",
    "digest",
];

impl Rewrite {
    /// Rejects an answer that cannot be rewritten.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(in crate::proxy) fn refuse_by_head(
        &self,
        head: &ResponseHeader,
        is_stream: bool,
    ) -> Result<(), Rejection> {
        let coded = head.headers.get(header::CONTENT_ENCODING);
        if coded.is_some_and(|coding| coding.as_bytes() != b"identity") {
            return Err(reject_answer(
                "the agent compressed its answer, which was not asked for",
            ));
        }
        if let Self::Guarded(guarded, _) = self {
            guarded
                .refuse_by_head(head, is_stream)
                .map_err(reject_answer)?;
        }
        if is_stream && !self.takes_streams() {
            return Err(reject_answer(
                "the agent answered with a stream where it was asked for one thing",
            ));
        }
        Ok(())
    }

    /// As [`Rewrite::rewrite_body`], until `deadline`, or until the exchange must end.
    ///
    /// # Errors
    /// `agent_timeout`; the reason of the end.
    pub(in crate::proxy) async fn rewrite_body_within(
        self,
        (head, body): (&mut ResponseHeader, Bytes),
        deadline: Instant,
        cut: &mut CancelWatch,
    ) -> Result<Bytes, Rejection> {
        tokio::select! {
            biased;
            answer = box_in_place(|| self.rewrite_body(head, body)) => answer,
            why = cut.cancelled(Delivery::Sent) => Err(why),
            () = sleep_until(deadline) => Err(timed_out("total")),
        }
    }

    /// Returns the body for the caller, and adjusts the head to it.
    ///
    /// # Errors
    /// `agent_protocol_error` if the body cannot be read; `store_unavailable`.
    pub(in crate::proxy) async fn rewrite_body(
        self,
        head: &mut ResponseHeader,
        body: Bytes,
    ) -> Result<Bytes, Rejection> {
        let success = head.status.is_success();
        let changed = match self {
            Self::BareResult => bare_result(head, &body)?,
            Self::ExtendedCard(binding, card) => {
                with_result(binding, success, &body, async |text| card.render(text)).await?
            }
            Self::Tasks(binding, own) => {
                with_result(binding, success, &body, async |text| {
                    own.filter_list(text).await
                })
                .await?
            }
            Self::Guarded(guarded, inner) => {
                let body = match inner {
                    Some(inner) => Box::pin(inner.rewrite_body(head, body)).await?,
                    None => body,
                };
                match guarded.check_response(&body).await? {
                    Some(changed) => {
                        without_digests(head);
                        return Ok(changed);
                    }
                    None => return Ok(body),
                }
            }
            Self::Bridged(back, then) => {
                without_digests(head);
                let (body, is_error) = back.translate_response(head, body).await?;
                return match then {
                    Some(then) if !is_error => Box::pin(then.rewrite_body(head, body)).await,
                    _ => Ok(body),
                };
            }
        };
        let Some(changed) = changed else {
            return Ok(body);
        };
        without_digests(head);
        Ok(changed.into())
    }

    /// Rewrites complete events. Returns the reason that one of them cannot be rewritten with those before it.
    pub(in crate::proxy) fn rewrite_events(&mut self, events: Bytes) -> (Bytes, Option<Rejection>) {
        match self {
            Self::BareResult => (bare_result::unwrap_events(&events).into(), None),
            Self::ExtendedCard(..) | Self::Tasks(..) | Self::Guarded(..) => (events, None),
            Self::Bridged(back, then) => {
                let (events, why) = back.translate_events(&events);
                match then {
                    Some(then) => (then.rewrite_events(events).0, why),
                    None => (events, why),
                }
            }
        }
    }

    /// Rejects an incomplete event of so many bytes.
    ///
    /// # Errors
    /// `response_too_large`.
    pub(in crate::proxy) fn check_pending(&self, bytes: usize) -> Result<(), Rejection> {
        match self {
            Self::Bridged(back, _) => back.check_pending(bytes),
            Self::Guarded(_, inner) => match inner {
                Some(inner) => inner.check_pending(bytes),
                None => Ok(()),
            },
            Self::BareResult | Self::ExtendedCard(..) | Self::Tasks(..) => Ok(()),
        }
    }

    /// Takes the guards off, for a stream: they are asked about its events after the rewrite.
    pub(in crate::proxy) fn split_guards(this: Option<Self>) -> (Option<Self>, Option<EventGuard>) {
        match this {
            Some(Self::Guarded(guarded, inner)) => {
                (inner.map(|inner| *inner), EventGuard::for_call(&guarded))
            }
            rewrite => (rewrite, None),
        }
    }

    fn takes_streams(&self) -> bool {
        match self {
            Self::BareResult => true,
            Self::ExtendedCard(..) | Self::Tasks(..) => false,
            Self::Guarded(_, inner) => inner.as_ref().is_none_or(|inner| inner.takes_streams()),
            Self::Bridged(back, then) => {
                back.is_streaming() && then.as_ref().is_none_or(|then| then.takes_streams())
            }
        }
    }
}

/// Removes the fields that describe the unchanged body.
fn without_digests(head: &mut ResponseHeader) {
    for name in OF_THE_BODY {
        head.remove_header(name);
    }
}

impl TaskListFilter {
    /// Returns the list without other callers' tasks and without invalid entries. `None` if it is unchanged.
    async fn filter_list(&self, text: &str) -> Result<Option<String>, Rejection> {
        let list = TaskList::parse(text)
            .ok_or_else(|| reject_answer("the agent's answer holds no list of tasks"))?;
        let ids = list.ids();
        if ids.len() > LISTED_MAX {
            return Err(reject_answer(
                "the agent lists more than 1000 tasks at once; ask for shorter pages",
            ));
        }
        let known: Vec<String> = ids.iter().flatten().cloned().collect();
        let (tasks, hierarchy) = (&self.gateway.tasks, &self.gateway.hierarchy);
        let visible = tasks.check_visibility(hierarchy, &self.proof, &self.target, &known);
        let mut visible = visible.await?.into_iter();
        let keep: Vec<bool> = ids
            .iter()
            .map(|id| id.is_some() && visible.next().unwrap_or(false))
            .collect();
        Ok(list.retain(&keep))
    }
}

/// Returns the answer with a changed result. `None` if it passes unchanged, as the agent's own errors do.
async fn with_result(
    binding: Binding,
    success: bool,
    body: &[u8],
    change: impl AsyncFnOnce(&str) -> Result<Option<String>, Rejection>,
) -> Result<Option<String>, Rejection> {
    if binding == Binding::Rest {
        if !success {
            return Ok(None);
        }
        let text = std::str::from_utf8(body);
        return change(text.map_err(|_| reject_answer("the agent's answer is not UTF-8"))?).await;
    }
    let reply = Reply::parse(body);
    let Some(result) = reply.as_ref().and_then(Reply::any_result) else {
        let error = reply.is_some_and(|reply| reply.error().is_some());
        return if error || !success {
            Ok(None)
        } else {
            Err(no_response())
        };
    };
    let changed = change(result).await?;
    Ok(changed.and_then(|changed| Some(reply?.with_result(changed))))
}

fn bare_result(head: &mut ResponseHeader, body: &[u8]) -> Result<Option<String>, Rejection> {
    let reply = Reply::parse(body);
    if let Some(error) = reply.as_ref().and_then(Reply::error) {
        let error = RpcError::parse(error);
        // An error status of the agent stays.
        if head.status.is_success() {
            let status = StatusCode::from_u16(error.http_status());
            head.set_status(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
                .map_err(internal_error)?;
        }
        return Ok(Some(error.rest_body(head.status.as_u16())));
    }
    match reply.as_ref().and_then(Reply::result) {
        Some(result) => Ok(Some(result.to_owned())),
        None if head.status.is_success() => Err(no_response()),
        None => Ok(None),
    }
}

fn no_response() -> Rejection {
    reject_answer("the agent's answer is no JSON-RPC response")
}

fn reject_answer(message: &'static str) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}
