//! `Prefer: respond-async` (RFC 7240): a call to a target that is offline or at capacity is deferred instead of
//! rejected, and made when the target is back. Also answers later requests about a deferred call, as about a task.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use serde_json::Value;

use super::idempotency;
use super::idempotency::{Claimed, Execution, KeptResponse};
use crate::a2a::accept::prefers_stream;
use crate::a2a::done::Done;
use crate::a2a::envelope::Completed;
use crate::a2a::method::Method;
use crate::a2a::{Generation, dialect};
use crate::delivery::calls::{Answer, Key, Outcome};
use crate::delivery::jobs::{Call, Content, Kind, NewJob, may_be_deferred, task};
use crate::hierarchy::Permit;
use crate::hops::hops;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::proxy::Proxy;
use crate::proxy::admit::{Admitted, Allowed};
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::record::trace::{context_fields, is_context};
use crate::proxy::relay::content_length_of;
use crate::proxy::relay::fields::passes;
use crate::proxy::relay::forward::Outgoing;
use crate::proxy::request::body;
use crate::proxy::request::body::{CallShape, check_media_type, expects_continue};
use crate::proxy::request::{ownership, prefer};
use crate::proxy::respond::{internal, respond, response_head};
use crate::rejection::{Reason, Rejection};
use crate::tasks::sees;

/// Maximum bytes of a deferred call. A larger one is rejected as without the preference.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of a body that is read, while its target is offline, because it may ask for a deferred call. Such
/// bodies are small; all larger ones are rejected unread.
const QUESTION_BYTES_MAX: u64 = 4096;

/// Default of `params.metadata.priority` (0 to 100). Calls to one target are made by descending priority.
const PRIORITY_DEFAULT: i64 = 50;

pub(in crate::proxy) const PREFERENCE_APPLIED: HeaderName =
    HeaderName::from_static("preference-applied");

/// The format in which a task is answered.
#[derive(Clone, Copy)]
pub(in crate::proxy) enum JobWords {
    /// The result of a JSON-RPC response, in the generation of its caller.
    Rpc(Generation),
    /// The task alone, in the format of 0.3.
    Bare,
}

impl JobWords {
    /// Returns the format that answers `call`.
    pub(in crate::proxy) fn of(call: &Completed) -> Self {
        Self::Rpc(generation_of(call.method_name.as_deref()))
    }
}

/// Returns the generation of a method name: those of 1.0 begin with a capital.
fn generation_of(method: Option<&str>) -> Generation {
    if method.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase())) {
        Generation::V1
    } else {
        Generation::V0
    }
}

/// Returns the only task that a call asks for, if it may be a deferred call.
pub(in crate::proxy) fn asked_job(call: &Completed) -> Option<&str> {
    match call.refs.tasks.as_slice() {
        [task] if may_be_deferred(task) && (call.method.is_of_a_task() || call.method.sends()) => {
            Some(task)
        }
        _ => None,
    }
}

/// The parts of a call to be deferred.
struct ToDefer<'a> {
    proof: &'a Proof,
    permit: &'a Permit,
    body: Bytes,
    method: Option<String>,
    version_1_0: bool,
    done: Done,
    hops: u32,
    key: Option<Key>,
}

impl Proxy {
    /// Handles a call to an unreachable target. Defers it if its caller prefers that, answers a request about a
    /// deferred call, and rejects everything else with `why`.
    pub(in crate::proxy) async fn defer_or_reject(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        Allowed { proof, permit }: Allowed,
        why: Rejection,
    ) -> Result<Ended, Ended> {
        let head = session.req_header();
        let passes_by = matches!(
            why.reason,
            Reason::WorkspaceOffline | Reason::WorkspaceRestarting
        );
        let keeps = prefer::respond_async(&head.headers);
        // A stored answer is replayed whether the target is reachable or not.
        let keyed = head.headers.contains_key(idempotency::IDEMPOTENCY_KEY);
        if !passes_by || !(keeps || keyed || may_ask_for_a_job(head)) {
            return Err(why.into());
        }
        let answered = self.while_away(session, exchange, (&proof, &permit), keeps);
        match answered.await {
            Ok(Some(ended)) => Ok(ended),
            // For a body that is not to be deferred, the unreachable target outranks errors in the body.
            Err(Ended::Refused(_)) if !keeps && exchange.method == Method::Unread => {
                Err(why.into())
            }
            Err(ended) => Err(ended),
            Ok(None) => Err(why.into()),
        }
    }

    /// Returns `None` if the call can be neither deferred nor replayed and does not ask for a deferred call.
    async fn while_away(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        (proof, permit): (&Proof, &Permit),
        keeps: bool,
    ) -> Result<Option<Ended>, Ended> {
        let head = session.req_header();
        let hops = hops(&head.headers, exchange.config.forward.max_hops)?;
        check_media_type(&head.headers)?;
        let prefers_stream = prefers_stream(&head.headers);
        let options = self.gateway.directory.options(permit).await?;
        let read = body::read(&self.relay.load, &exchange.config, session, proof.account).await;
        let (received, _share) = read?;
        let shape = CallShape {
            complete: options.complete,
            generation: options.generation,
            prefers_stream,
        };
        let completed = body::complete(exchange, permit, received.clone(), &shape)?;
        if let Some(job) = asked_job(&completed) {
            let asked = (proof, Some(permit.target()), job);
            let words = JobWords::of(&completed);
            return self.about_job(session, exchange, asked, words).await;
        }
        let key = idempotency::key(exchange, session.req_header(), Some(&completed), &received)?;
        drop(received);
        if let Some(key) = &key {
            let until = exchange.started + exchange.config.timeouts.total;
            let done = completed.done;
            let done = (!done.is_empty()).then(|| done.to_string());
            let told = (until, done.as_deref());
            if let Claimed::Replayed(ended) =
                self.claim_or_replay(session, exchange, key, told).await?
            {
                return Ok(Some(ended));
            }
        }
        if !keeps || completed.method != Method::SendMessage {
            return Ok(None);
        }
        let (of, push) = ((proof, permit.target()), options.push_notifications);
        let (method, refs) = (completed.method, &completed.refs);
        ownership::check_for(&self.gateway, method, push, of, refs).await?;
        let to_defer = ToDefer {
            proof,
            permit,
            version_1_0: completed.wrapped && options.generation == Generation::V1,
            body: completed.body,
            method: completed.method_name,
            done: completed.done,
            hops,
            key,
        };
        self.defer(session, exchange, to_defer).await
    }

    /// Handles a call to a target at capacity: defers it if its caller prefers that, or rejects it with `why`.
    pub(in crate::proxy) async fn defer_at_capacity(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: &Admitted,
        outgoing: Outgoing,
        why: Rejection,
    ) -> Result<Ended, Ended> {
        let translated = outgoing.target.is_some() || outgoing.rewrite.is_some();
        let sends = exchange.method == Method::SendMessage && !translated;
        if !sends || !prefer::respond_async(&session.req_header().headers) {
            return Err(why.into());
        }
        let to_defer = ToDefer {
            proof: &admitted.proof,
            permit: &admitted.permit,
            body: outgoing.body,
            method: outgoing.method_name,
            version_1_0: outgoing.version_1_0,
            done: outgoing.done,
            hops: admitted.hops,
            key: outgoing.key,
        };
        let deferred = self.defer(session, exchange, to_defer).await?;
        deferred.ok_or_else(|| why.into())
    }

    /// Defers the call. `None` if it is too large.
    async fn defer(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        call: ToDefer<'_>,
    ) -> Result<Option<Ended>, Ended> {
        let fits = call.body.len() <= CALL_BYTES_MAX;
        let body = String::from_utf8(call.body.to_vec()).ok().filter(|_| fits);
        let Some(body) = body else {
            return Ok(None);
        };
        let headers = &session.req_header().headers;
        let extra = self.extra_fields.get();
        // The span of the deferred call follows from this exchange.
        let context = exchange.context();
        let fields = headers.iter().filter(|(name, value)| {
            passes((*name, *value), headers, &extra) && !(context.is_some() && is_context(name))
        });
        let fields = fields.filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        });
        let context = context.into_iter().flat_map(context_fields);
        let fields = fields.chain(context.map(|(name, value)| (name.as_str().to_owned(), value)));
        let generation = generation_of(call.method.as_deref());
        let method = call.method.clone();
        let new = NewJob {
            owner: call.proof.owner(),
            caller: call.proof.stored(),
            source: call.permit.caller().cloned(),
            target: call.permit.target().clone(),
            priority: priority(&body),
            content: Content::Call(Box::new(Call {
                body,
                method: call.method,
                version_1_0: call.version_1_0,
                fields: fields.collect(),
                client: self.client(session),
                hops: call.hops,
            })),
            idempotency_key: None,
            patience: exchange.config.delegation.deferred_ttl,
        };
        let rpc_id = exchange.rpc_id.clone().unwrap_or_else(|| "null".to_owned());
        let jobs = Arc::clone(&self.gateway.delivery.jobs);
        let accept = async move {
            let accepted = jobs.accept(&new).await?;
            let task = task::submitted(&accepted.id, accepted.created_at);
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{rpc_id},"result":{},"status":"queued","delivery_mode":"push","method":{},"activity_id":"{}"}}"#,
                dialect::shown(&task, generation),
                Value::from(method),
                accepted.id,
            );
            Ok((accepted_with(body), ()))
        };
        let (outcome, replay) = match &call.key {
            None => (Outcome::Whole(Arc::new(accept.await?.0)), false),
            Some(key) => match self
                .execute_own_once(session, exchange, key, accept)
                .await?
            {
                Execution::Fresh(answer, ()) => (Outcome::Whole(Arc::new(answer)), false),
                Execution::Replayed(outcome) => (outcome, true),
            },
        };
        let completed = (!call.done.is_empty()).then(|| call.done.to_string());
        let told = KeptResponse {
            outcome,
            replay,
            live: None,
            completed: completed.as_deref(),
        };
        self.respond_kept(session, exchange, told).await.map(Some)
    }

    /// Answers a call about one task that may be a deferred call. `None` if there is no such job: it may be a task of
    /// the agent.
    ///
    /// # Errors
    /// `task_not_found`; `conflict` if the job can no longer be canceled; `store_unavailable`.
    pub(in crate::proxy) async fn about_job(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        (proof, target, id): (&Proof, Option<&WorkspaceId>, &str),
        words: JobWords,
    ) -> Result<Option<Ended>, Ended> {
        let jobs = &self.gateway.delivery.jobs;
        let found = jobs.find(id).await?;
        let here = |at: &WorkspaceId| target.is_none_or(|target| target == at);
        let Some(job) = found.filter(|job| job.kind == Kind::Deferred && here(&job.target)) else {
            return Ok(None);
        };
        exchange.callee.get_or_insert_with(|| job.target.clone());
        exchange.task = Some(job.id.clone());
        if !sees(&self.gateway.hierarchy, proof, &job.owner).await? {
            let message = "there is no such task for this caller: a task belongs to the caller that started it";
            return Err(Rejection::new(Reason::TaskNotFound, message).into());
        }
        let job = match exchange.method {
            Method::GetTask => job,
            Method::CancelTask => jobs.cancel(id).await?.ok_or_else(not_cancelable)?,
            _ => return Err(unsupported().into()),
        };
        let task = task::of(&job);
        let body = match words {
            JobWords::Bare => task.to_string(),
            JobWords::Rpc(generation) => format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{}}}"#,
                exchange.rpc_id.as_deref().unwrap_or("null"),
                dialect::bare(&task, generation),
            ),
        };
        let answered = self.respond_json(session, exchange, body);
        answered.await.map(Some)
    }

    /// Answers with a JSON document of the gateway.
    async fn respond_json(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        body: String,
    ) -> Result<Ended, Ended> {
        let build = || {
            let mut head = ResponseHeader::build(StatusCode::OK, Some(10))?;
            head.append_header(header::CONTENT_TYPE, "application/json")?;
            head.append_header(header::CONTENT_LENGTH, body.len())?;
            head.append_header(header::CACHE_CONTROL, "no-store")?;
            let request = &session.req_header().headers;
            response_head(head, request, &self.origins.get(), exchange, None)
        };
        let head = build().map_err(internal)?;
        respond(session, exchange, head, Bytes::from(body)).await
    }
}

/// Builds the answer for a deferred call.
fn accepted_with(body: String) -> Answer {
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (PREFERENCE_APPLIED, "respond-async"),
    ];
    Answer {
        status: StatusCode::ACCEPTED.as_u16(),
        fields: fields
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .into_iter()
            .collect(),
        body: body.into(),
        kept: true,
    }
}

fn not_cancelable() -> Rejection {
    let message = "the call was canceled already, is over, or was sent to its agent: ask that one to cancel its task \
        (`metadata.agent_task_id`, once it has answered)";
    let mut rejection = Rejection::new(Reason::Conflict, message);
    // A2A: TaskNotCancelableError.
    rejection.rpc_code = Some(-32_002);
    rejection
}

fn unsupported() -> Rejection {
    let message = "a call that was kept for its target can be asked for (tasks/get) and canceled (tasks/cancel); \
        to go on with what its agent made of it, name the agent's own task (`metadata.agent_task_id`)";
    let mut rejection = Rejection::new(Reason::InvalidRequest, message);
    // A2A: UnsupportedOperationError.
    rejection.rpc_code = Some(-32_004);
    rejection
}

/// True if the body is to be read although its target is offline. A caller that waits for `100 Continue` has not
/// sent its body.
fn may_ask_for_a_job(head: &RequestHeader) -> bool {
    let length = content_length_of(&head.headers);
    let small = length.is_some_and(|length| length <= QUESTION_BYTES_MAX);
    small && !expects_continue(head) && check_media_type(&head.headers).is_ok()
}

/// Reads `params.metadata.priority`, if it is in the range.
fn priority(body: &str) -> i64 {
    let call: Value = serde_json::from_str(body).unwrap_or_default();
    let priority = call["params"]["metadata"]["priority"].as_i64();
    priority
        .filter(|priority| (0..=100).contains(priority))
        .unwrap_or(PRIORITY_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_a_whole_number_up_to_100() {
        let of = |value: &str| {
            priority(&format!(
                r#"{{"params":{{"metadata":{{"priority":{value}}}}}}}"#
            ))
        };
        assert_eq!((of("0"), of("7"), of("100")), (0, 7, 100));
        for other in ["-1", "101", "1.5", "\"7\"", "null"] {
            assert_eq!(of(other), PRIORITY_DEFAULT, "{other}");
        }
        assert_eq!(priority("{}"), PRIORITY_DEFAULT);
    }
}
