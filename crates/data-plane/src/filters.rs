//! Changes an agent's answer before it goes to the caller: if the gateway translated the call, or if the answer
//! contains data that this caller must not see.

use std::sync::Arc;

use bytes::Bytes;
use http::{StatusCode, header};
use pingora::http::ResponseHeader;
use tokio::time::{Instant, sleep_until};

use crate::cards::ExtendedCard;
use crate::guard::CallGuards;
use crate::guard::stream::EventGuard;
use crate::listener::internal_error;
use crate::record::box_in_place;
use crate::upstream::{CancelWatch, reject_answer, timed_out};
use a2a::bridge::{Exchange, Failure, Stream};
use a2a::error::RpcError;
use a2a::event::split_blocks;
use a2a::reply::{self, Reply};
use a2a::task::Binding;
use a2a::task_list::TaskList;
use a2a::without_mark;
use access::identity::Proof;
use assembly::gateway::Gateway;
use kernel::ids::WorkspaceIncarnation;
use kernel::metrics::Metrics;
use kernel::offload;
use kernel::rejection::{Delivery, Reason, Rejection};

/// The rewrite of an answer.
pub(super) enum Rewrite {
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
pub(super) struct TaskListFilter {
    pub(super) gateway: Arc<Gateway>,
    /// The proven caller.
    pub(super) proof: Arc<Proof>,
    /// The asked agent.
    pub(super) target: WorkspaceIncarnation,
}

/// Maximum tasks in one list. A2A 1.0 allows 100 (`pageSize`).
const LISTED_MAX: usize = 1000;

/// Fields that describe the unchanged body.
const OF_THE_BODY: &str = "etag last-modified content-md5 content-digest repr-digest digest";

impl Rewrite {
    /// Rejects an answer that cannot be rewritten.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) fn refuse_by_head(
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
    pub(super) async fn rewrite_body_within(
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
    pub(super) async fn rewrite_body(
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
                let changed = guarded.check_response(&body).await?;
                if changed.is_some() {
                    without_digests(head);
                }
                return Ok(changed.unwrap_or(body));
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
    pub(super) fn rewrite_events(&mut self, events: Bytes) -> (Bytes, Option<Rejection>) {
        match self {
            Self::BareResult => (reply::unwrap_events(&events).into(), None),
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
    pub(super) fn check_pending(&self, bytes: usize) -> Result<(), Rejection> {
        match self {
            Self::Bridged(back, _) => back.check_pending(bytes),
            Self::Guarded(_, Some(inner)) => inner.check_pending(bytes),
            _ => Ok(()),
        }
    }

    /// Takes the guards off, for a stream: they are asked about its events after the rewrite.
    pub(super) fn split_guards(this: Option<Self>) -> (Option<Self>, Option<EventGuard>) {
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
                back.exchange.streams() && then.as_ref().is_none_or(|then| then.takes_streams())
            }
        }
    }
}

/// Removes the fields that describe the unchanged body.
fn without_digests(head: &mut ResponseHeader) {
    for name in OF_THE_BODY.split(' ') {
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
        let text = std::str::from_utf8(without_mark(body));
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
        return Ok(Some(error.rest_body(head.status.as_u16(), false)));
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

// The way back of a translated call: answers and events in the caller's form.

/// The translation of what the agent answers.
pub(super) struct ResponseTranslator {
    exchange: Exchange,
    /// The translation of a stream, once one began.
    stream: Option<Stream>,
    metrics: Arc<Metrics>,
    /// `limits.event_bytes`.
    event_bytes_max: usize,
}

impl ResponseTranslator {
    pub(super) fn new(exchange: Exchange, metrics: Arc<Metrics>, event_bytes_max: usize) -> Self {
        Self {
            exchange,
            stream: None,
            metrics,
            event_bytes_max,
        }
    }

    /// Translates a whole answer, and adjusts the head to it. True with it if it is an error.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) async fn translate_response(
        self,
        head: &mut ResponseHeader,
        body: Bytes,
    ) -> Result<(Bytes, bool), Rejection> {
        let status = head.status.as_u16();
        let exchange = self.exchange;
        let answer = offload::run_on_body(&body, move |body| {
            let answer = exchange.translate_answer(status, body)?;
            Ok(exchange.as_event(answer))
        })
        .await;
        let answer = answer
            .map_err(|failure| reject_untranslatable(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.count_left_out(&answer.left_out);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
        head.set_status(status).map_err(internal_error)?;
        if let Some(content_type) = answer.content_type {
            head.insert_header(header::CONTENT_TYPE, content_type)
                .map_err(internal_error)?;
        }
        Ok((answer.body.into(), answer.is_error))
    }

    /// Translates whole events. Returns the reason that one of them has no translation with those before it.
    pub(super) fn translate_events(&mut self, events: &Bytes) -> (Bytes, Option<Rejection>) {
        let stream = self
            .stream
            .get_or_insert_with(|| self.exchange.start_stream());
        let mut written = Vec::with_capacity(events.len() + 256);
        let mut why = None;
        for block in split_blocks(events) {
            if block.len() > self.event_bytes_max {
                why = Some(too_long(self.event_bytes_max));
                break;
            }
            match stream.translate_block(block, &mut written) {
                Ok(told) => self.metrics.bridge.count_left_out(&told.left_out),
                Err(failure) => {
                    let metrics = &self.metrics;
                    why = Some(reject_untranslatable(metrics, &failure, Delivery::Sent));
                    break;
                }
            }
        }
        (written.into(), why)
    }

    /// Rejects an incomplete event that is too long.
    ///
    /// # Errors
    /// `response_too_large`.
    pub(super) fn check_pending(&self, bytes: usize) -> Result<(), Rejection> {
        if bytes > self.event_bytes_max {
            return Err(too_long(self.event_bytes_max));
        }
        Ok(())
    }

    /// Translates the agent's answer about the task into the event with which a subscription of 1.0 begins. True with
    /// it if the task can be followed; an error is the last event.
    ///
    /// # Errors
    /// `agent_protocol_error`.
    pub(super) fn translate_snapshot(
        &mut self,
        status: u16,
        body: &[u8],
    ) -> Result<(Bytes, bool), Rejection> {
        let stream = self
            .stream
            .get_or_insert_with(|| self.exchange.start_stream());
        let told = stream.translate_snapshot(status, body);
        let (event, told) =
            told.map_err(|failure| reject_untranslatable(&self.metrics, &failure, Delivery::Sent))?;
        self.metrics.bridge.count_left_out(&told.left_out);
        Ok((event.into(), !told.is_error))
    }
}

fn too_long(limit: usize) -> Rejection {
    let message = format!(
        "an event of the agent is longer than limits.event_bytes, {limit} bytes, the limit for events that are \
         translated between generations of A2A"
    );
    Rejection::new(Reason::ResponseTooLarge, message)
        .with_fact("limit", limit)
        .with_delivery(Delivery::Sent)
}

/// Counts a call or an answer that has no translation, and returns its rejection.
pub(super) fn reject_untranslatable(
    metrics: &Metrics,
    failure: &Failure,
    delivered: Delivery,
) -> Rejection {
    let failed = &metrics.bridge.failed;
    failed.with_label_values(&[failure.label()]).inc();
    let reason = match failure {
        Failure::Push { .. } => Reason::PushNotSupported,
        Failure::List | Failure::GrpcV0 | Failure::Method { .. } | Failure::Off { .. } => {
            Reason::VersionNotSupported
        }
        Failure::Twice(_) | Failure::Params("jsonrpc") | Failure::TooDeep => Reason::InvalidRequest,
        Failure::Params(_) | Failure::TooLong | Failure::FileBytes | Failure::Number => {
            Reason::InvalidParams
        }
        Failure::NotJson(_) => Reason::ParseError,
        Failure::Answer(_) => Reason::AgentProtocolError,
    };
    let rejection = Rejection::new(reason, failure.to_string()).with_delivery(delivered);
    match i32::try_from(failure.code()) {
        Ok(code) if code != reason.rpc_code() => rejection.with_rpc_code(code),
        _ => rejection,
    }
}

/// Rejects what the gateway keeps of an agent, in its form of 0.3, and that has none in 1.0.
pub(super) fn untranslatable_reply(failure: Failure) -> Rejection {
    reject_answer(failure.to_string())
}
