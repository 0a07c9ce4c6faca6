//! `Prefer: respond-async` (RFC 7240): a call to a target that is offline or at capacity is deferred instead of
//! rejected, and made when the target is back. Also answers later requests about a deferred call, as about a task.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use http::{HeaderValue, StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use serde_json::Value;

use crate::admission::{AllowedCaller, client_address};
use crate::body::{check_media_type, expects_continue};
use crate::complete::CheckedCall;
use crate::filters::untranslatable_reply;
use crate::idempotency::{StoredResponse, execute_own_once, send_stored_response};
use crate::listener::PREFERENCE_APPLIED;
use crate::policy::{UncountedCall, count_call};
use crate::record::{Answered, ExchangeError};
use crate::services::Request;
use crate::upstream_request::is_forwarded;
use a2a::Generation;
use a2a::bridge::{write_result, write_task};
use a2a::completion_steps::CompletionSteps;
use a2a::envelope::CompletedCall;
use a2a::method::Method;
use a2a::refs::Refs;
use a2a::state::TaskState;
use access::caps::Charge;
use access::identity::Proof;
use directory::tasks::may_see;
use http1::content_length_of;
use kernel::ids::WorkspaceId;
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;
use kernel::telemetry::traces::context::{context_fields, is_context};
use mailbox::calls::{Answer, Outcome};
use mailbox::inbox::no_task;
use mailbox::jobs::{Call, Content, Kind, NewJob, may_be_deferred, task};

/// Maximum bytes of a deferred call. A larger one is rejected as without the preference.
const CALL_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of a body that is read, while its target is offline, because it may ask for a deferred call. Such
/// bodies are small; all larger ones are rejected unread.
const QUESTION_BYTES_MAX: u64 = 4096;

/// Default of `params.metadata.priority` (0 to 100). Calls to one target are made by descending priority.
const PRIORITY_DEFAULT: i64 = 50;

/// The format in which a task is answered.
#[derive(Clone, Copy)]
pub(super) enum JobFormat {
    /// The result of a JSON-RPC response, in the generation of its caller.
    Rpc(Generation),
    /// The task alone, in the format of 0.3.
    Bare,
}

impl JobFormat {
    /// Returns the format that answers `call`.
    pub(super) fn for_call(call: &CompletedCall) -> Self {
        Self::Rpc(method_generation(call.method_name.as_deref()))
    }
}

/// Returns the generation of a call by its method; without one it is 0.3.
fn method_generation(method: Option<&str>) -> Generation {
    method.map_or(Generation::V0, Generation::of_method)
}

/// Returns the only task that a call asks for, if it may be a deferred call.
pub(super) fn requested_job(method: Method, refs: &Refs) -> Option<&str> {
    match refs.tasks.as_slice() {
        [task] if may_be_deferred(task) && (method.is_of_a_task() || method.sends()) => Some(task),
        _ => None,
    }
}

/// Defers the call. `None` if it is too large.
pub(super) async fn defer_call(
    request: &mut Request<'_>,
    allowed: &AllowedCaller,
    hops: u32,
    call: CheckedCall,
) -> Result<Option<Answered>, ExchangeError> {
    let context = request.context;
    let fits = call.body.len() <= CALL_BYTES_MAX;
    let body = String::from_utf8(call.body.to_vec()).ok().filter(|_| fits);
    let Some(body) = body else {
        return Ok(None);
    };
    let to_count = UncountedCall::from_call(&context.gateway, request.exchange, allowed).await?;
    let generation = method_generation(call.method_name.as_deref());
    let method = call.method_name.clone();
    let new = NewJob {
        owner: allowed.proof.owner(),
        caller: context
            .gateway
            .identity
            .signed
            .to_stored(&allowed.proof, None),
        source: allowed.permit.caller().cloned(),
        target: allowed.permit.target().clone(),
        priority: parse_priority(&body),
        content: Content::Call(Box::new(Call {
            body,
            method: call.method_name.map(Cow::into_owned),
            version_1_0: call.version_1_0,
            fields: forwarded_fields(request),
            client: client_address(request.session, &context.gateway.config().server),
            hops,
        })),
        idempotency_key: None,
        patience: request.exchange.call.config.delegation.deferred_ttl,
    };
    let rpc_id = request.exchange.call.rpc_id.clone();
    let rpc_id = rpc_id.unwrap_or_else(|| "null".to_owned());
    let jobs = Arc::clone(&context.gateway.delivery.jobs);
    let accept = async move {
        let charge = count_call(to_count.as_ref()).await?;
        let accepted = jobs.accept(&new).await.at(Stage::Inbox)?;
        let charge = charge.map(Charge::into_sent);
        let task = task::build_task(&accepted.id, TaskState::Submitted, accepted.created_at);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{rpc_id},"result":{},"status":"queued","delivery_mode":"push","method":{},"activity_id":"{}"}}"#,
            write_result(generation, &task).map_err(untranslatable_reply)?,
            Value::from(method),
            accepted.id,
        );
        Ok((accepted_answer(body), charge))
    };
    let (outcome, replay) = match &call.key {
        None => {
            let (answer, charge) = accept.await?;
            request.exchange.record.charge = charge;
            (Outcome::Whole(Arc::new(answer)), false)
        }
        Some(key) => match execute_own_once(request, key, accept).await? {
            ControlFlow::Continue((answer, charge)) => {
                request.exchange.record.charge = charge;
                (Outcome::Whole(Arc::new(answer)), false)
            }
            ControlFlow::Break(outcome) => (outcome, true),
        },
    };
    let response = StoredResponse::new(outcome, replay, call.done);
    send_stored_response(request, response).await.map(Some)
}

/// Returns the fields of the request that pass to the agent.
fn forwarded_fields(request: &Request<'_>) -> Vec<(String, String)> {
    let headers = &request.head().headers;
    let extra = request.context.extra_fields.get();
    // The span of the deferred call follows from this exchange.
    let context = request.exchange.call.trace.as_ref();
    let fields = headers.iter().filter(|(name, value)| {
        is_forwarded((*name, *value), headers, &extra) && !(context.is_some() && is_context(name))
    });
    let fields = fields.filter_map(|(name, value)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    });
    let context = context.into_iter().flat_map(context_fields);
    let context = context.map(|(name, value)| (name.as_str().to_owned(), value));
    fields.chain(context).collect()
}

/// A call about one task that may be a deferred call.
pub(super) struct JobRequest<'a> {
    /// The caller.
    pub(super) proof: &'a Proof,
    /// The workspace that the call is to; `None` for any.
    pub(super) target: Option<&'a WorkspaceId>,
    /// The id of the task.
    pub(super) id: &'a str,
    /// The format of the answer.
    pub(super) format: JobFormat,
}

/// Answers a call about one task that may be a deferred call. `None` if there is no such job: it may be a task of
/// the agent.
///
/// # Errors
/// `task_not_found`; `conflict` if the job can no longer be canceled; `store_unavailable`.
pub(super) async fn answer_job_request(
    request: &mut Request<'_>,
    query: JobRequest<'_>,
) -> Result<Option<Answered>, ExchangeError> {
    let gateway = &request.context.gateway;
    let jobs = &gateway.delivery.jobs;
    let exchange = &mut *request.exchange;
    let found = jobs.find(query.id).await.map_err(Rejection::from)?;
    let here = |at: &WorkspaceId| query.target.is_none_or(|target| target == at);
    let Some(job) = found.filter(|job| job.kind == Kind::Deferred && here(&job.target)) else {
        return Ok(None);
    };
    if exchange.call.target.is_none() {
        exchange.call.target = Some(job.target.clone());
    }
    exchange.record.task = Some(job.id.clone());
    let method = exchange.call.method;
    let decided = async {
        if !may_see(&gateway.hierarchy, query.proof, &job.owner).await? {
            return Err(no_task());
        }
        match method {
            Method::GetTask => Ok(job),
            Method::CancelTask => jobs.cancel(query.id).await?.ok_or_else(not_cancelable),
            _ => Err(unsupported_method()),
        }
    };
    let job = decided.await.at(Stage::Tasks)?;
    let task = task::from_job(&job);
    let body = match query.format {
        JobFormat::Bare => task.to_string(),
        JobFormat::Rpc(generation) => format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{}}}"#,
            exchange.call.rpc_id.as_deref().unwrap_or("null"),
            write_task(generation, &task).map_err(untranslatable_reply)?,
        ),
    };
    let head = json_head(body.len())?;
    let head = request.response_head(head, CompletionSteps::default())?;
    request.respond(head, body.into()).await.map(Some)
}

/// Builds the head of an answer with a task.
fn json_head(length: usize) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build(StatusCode::OK, Some(10))?;
    head.append_header(header::CONTENT_TYPE, "application/json")?;
    head.append_header(header::CONTENT_LENGTH, length)?;
    head.append_header(header::CACHE_CONTROL, "no-store")?;
    Ok(head)
}

/// Builds the answer for a deferred call.
fn accepted_answer(body: String) -> Answer {
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (PREFERENCE_APPLIED, "respond-async"),
    ];
    let fields = fields.map(|(name, value)| (name, HeaderValue::from_static(value)));
    Answer {
        status: StatusCode::ACCEPTED.as_u16(),
        fields: fields.into_iter().collect(),
        body: body.into(),
        kept: true,
    }
}

fn not_cancelable() -> Rejection {
    let message = "the call was canceled already, is over, or was sent to its agent: ask that one to cancel its task \
        (`metadata.agent_task_id`, once it has answered)";
    // A2A: TaskNotCancelableError.
    Rejection::new(Reason::Conflict, message).with_rpc_code(-32_002)
}

fn unsupported_method() -> Rejection {
    let message = "a call that was kept for its target can be asked for (tasks/get) and canceled (tasks/cancel); \
        to go on with what its agent made of it, name the agent's own task (`metadata.agent_task_id`)";
    // A2A: UnsupportedOperationError.
    Rejection::new(Reason::InvalidRequest, message).with_rpc_code(-32_004)
}

/// True if the body is to be read although its target is offline. A caller that waits for `100 Continue` has not
/// sent its body.
pub(super) fn may_request_job(head: &RequestHeader) -> bool {
    let length = content_length_of(&head.headers);
    let small = length.is_some_and(|length| length <= QUESTION_BYTES_MAX);
    small && !expects_continue(head) && check_media_type(&head.headers).is_ok()
}

/// Reads `params.metadata.priority`, if it is in the range.
fn parse_priority(body: &str) -> i64 {
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
        let parse = |value: &str| {
            parse_priority(&format!(
                r#"{{"params":{{"metadata":{{"priority":{value}}}}}}}"#
            ))
        };
        assert_eq!((parse("0"), parse("7"), parse("100")), (0, 7, 100));
        for other in ["-1", "101", "1.5", "\"7\"", "null"] {
            assert_eq!(parse(other), PRIORITY_DEFAULT, "{other}");
        }
        assert_eq!(parse_priority("{}"), PRIORITY_DEFAULT);
    }
}
