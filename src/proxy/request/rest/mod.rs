//! The HTTP+JSON binding, below `/workspaces/{id}/a2a`. Requests are forwarded to agents with an HTTP+JSON interface of
//! their generation, and translated for others (`proxy/bridge.rs`). The gateway's own routes become JSON-RPC.

mod routes;

use bytes::Bytes;
use serde_json::{Value, json};

use self::routes::{
    RestPlan, declares_1_0, is_also_own, no_such_route, plan_for_inbox, plan_translation,
    route_rejection,
};
use super::body::{self, NOT_A_MESSAGE, ReceivedBody, fault_rejection, read_json};
use super::call::{BodyForm, request_hops, send_call};
use super::checked_call::{CheckedCall, RestRoute};
use super::ownership::authorize_references;
use super::{Request, ownership};
use crate::a2a::Generation;
use crate::a2a::bridge::Side;
use crate::a2a::completion_steps::{CompletionStep, CompletionSteps};
use crate::a2a::envelope::EnvelopeFields;
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::rest::{self, Rest};
use crate::a2a::rest_body::RestBody;
use crate::a2a::task::Binding;
use crate::config::{Bridging, CompletionMode};
use crate::delivery::jobs::may_be_deferred;
use crate::dialect::Dialect;
use crate::directory::Destination;
use crate::identity::Proof;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{
    AdmittedCall, AllowedCaller, authenticate_caller, authorize_caller, authorize_target,
};
use crate::proxy::bridge::{agent_side, serves_http_json};
use crate::proxy::destination::deferral::{JobFormat, JobRequest};
use crate::proxy::destination::{self, deferral, idempotency, inbox, wake_wait};
use crate::proxy::offload;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::outcome::box_cold_path;
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::choose_rewrite;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::translation::reject_untranslatable;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::{Account, Share};

/// Serves a request below the base: admission, its checks, and its destination.
pub(in crate::proxy) async fn serve_request(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
    tail: &str,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let _slot = context.take_slot(request.session)?;
    let head = request.session.req_header();
    request.exchange.binding = Binding::Rest;
    let rest = rest::parse_request(head.method.as_str(), tail, head.uri.query());
    let rest = rest.map_err(|why| route_rejection(&why))?;
    request.exchange.method = rest.method;
    let allowed = authorize_caller(&context.gateway, request.exchange, head, target).await?;
    let here = Some(allowed.permit.target());
    if let Some(answered) = answer_about_job(request, &rest, &allowed.proof, here).await? {
        return Ok(answered);
    }
    let (mut admitted, received) = match context.gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.session.req_header(), &request.exchange.config);
            let admitted = AdmittedCall::new(allowed, destination, head, config)?;
            let account = admitted.allowed.account();
            // Before the card is fetched, so that the caller's departure during the fetch is noticed.
            let received = read_optional_json(request, account).await?;
            (admitted, received)
        }
        Err(away) => box_cold_path(wake_target(request, allowed, away, &rest)).await?,
    };
    if rest.is_own
        && rest.method.sends()
        && let Some(call) = offload::run_on_body(&received.body, EnvelopeFields::parse).await
    {
        return box_cold_path(send_enveloped(request, admitted, received, call)).await;
    }
    match choose_plan(request, &admitted, &rest).await? {
        RestPlan::Forward => {
            let (mut call, refs) =
                build_forwarded_call(request, &admitted, received, tail, rest).await?;
            authorize_references(request, &mut admitted, &refs, Binding::Rest).await?;
            call.rewrite = choose_rewrite(context, request.exchange, &admitted, &call).await?;
            request.exchange.request_bytes = call.body.len() as u64;
            drop(refs);
            destination::answer_call(request, admitted, call).await
        }
        RestPlan::Send { stream, generation } => {
            send_call(
                request,
                admitted,
                received,
                BodyForm::Message { stream, generation },
            )
            .await
        }
        RestPlan::Task {
            method,
            params,
            generation,
        } => {
            request.exchange.method = method;
            let call = TaskCall {
                tasks: rest.tasks,
                params,
                generation,
            };
            call.send(request, admitted, received.share).await
        }
    }
}

/// Serves `/tasks/{task_id}`: a task of the caller, at whatever agent it was started.
pub(in crate::proxy) async fn serve_task(
    request: &mut Request<'_>,
    segment: &str,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let context = request.context;
    let gateway = &context.gateway;
    let _slot = context.take_slot(request.session)?;
    let head = request.session.req_header();
    let tail = format!("tasks/{segment}");
    let rest = rest::parse_request(head.method.as_str(), &tail, head.uri.query());
    let rest = rest.map_err(|why| route_rejection(&why))?;
    let RestPlan::Task { method, params, .. } = plan_translation(head, &rest)? else {
        return Err(no_such_route().into());
    };
    request.exchange.method = method;
    let proof = authenticate_caller(gateway, request.exchange, head).await?;
    if let Some(answered) = answer_about_job(request, &rest, &proof, None).await? {
        return Ok(answered);
    }
    let id = params["id"].as_str().unwrap_or_default();
    let mut target = gateway.tasks.target_of(&proof, id).await?;
    if target.is_none() {
        // Inboxes outlive this process and its record of task owners.
        target = inbox::find_target(gateway, &proof, id).await?;
    }
    let target = target.ok_or_else(|| {
        let message = "no task of this id is known to be the caller's: ask its agent, at \
                       /workspaces/{id}/a2a/tasks/{task_id}";
        Rejection::new(Reason::TaskNotFound, message)
    })?;
    request.exchange.callee = Some(target.clone());
    let allowed = authorize_target(gateway, request.exchange, proof, &target).await?;
    let head = request.session.req_header();
    let (admitted, received) = match gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let admitted = AdmittedCall::new(allowed, destination, head, &request.exchange.config)?;
            let account = admitted.allowed.account();
            (admitted, body::read_any_type(request, account).await?)
        }
        Err(away) => box_cold_path(wake_target(request, allowed, away, &rest)).await?,
    };
    let call = TaskCall {
        tasks: rest.tasks,
        params,
        generation: None,
    };
    call.send(request, admitted, received.share).await
}

/// Waits until the target of a request wakes, if it sleeps; its body was read by then, and its tasks are the caller's.
///
/// # Errors
/// `why`, if it does not sleep, or has no waker; as [`wake_wait::wait_until_awake`].
async fn wake_target(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    why: Rejection,
    rest: &Rest,
) -> Result<(AdmittedCall, ReceivedBody), ExchangeOutcome> {
    let plan = wake_wait::plan_wake(request, &allowed, &why).await?;
    let Some(plan) = plan.filter(|_| wake_wait::may_wake(request.exchange.method)) else {
        return Err(why.into());
    };
    request_hops(request)?;
    let received = read_optional_json(request, allowed.account()).await?;
    let (body, method) = (&received.body, request.exchange.method);
    let mut refs = match offload::run_on_body(body, EnvelopeFields::parse).await {
        // Its references are checked as those of a JSON-RPC call.
        Some(_) if rest.is_own => Refs::default(),
        _ => offload::run_on_body(body, move |body| Refs::from_rest_body(body, method))
            .await
            .map_err(|why| ExchangeOutcome::Refused(fault_rejection(why)))?,
    };
    refs.tasks.extend(rest.tasks.iter().cloned());
    let gateway = &request.context.gateway;
    let options = gateway.resolution.load_options(&allowed.permit).await?;
    let push = options.push_notifications;
    ownership::check_references(gateway, method, push, &allowed, &refs).await?;
    let bytes = body.len();
    let admitted = wake_wait::wait_until_awake(request, allowed, plan, bytes).await?;
    Ok((admitted, received))
}

/// Answers a request about a task that is a deferred call. `None` for any other request.
async fn answer_about_job(
    request: &mut Request<'_>,
    rest: &Rest,
    proof: &Proof,
    target: Option<&WorkspaceId>,
) -> Result<Option<ExchangeOutcome>, ExchangeOutcome> {
    let Some(id) = rest.tasks.iter().find(|task| may_be_deferred(task)) else {
        return Ok(None);
    };
    let query = JobRequest {
        proof,
        target,
        id,
        format: JobFormat::Bare,
    };
    box_cold_path(deferral::answer_job_request(request, query)).await
}

/// Reads a body, if there is one, which is JSON.
async fn read_optional_json(
    request: &mut Request<'_>,
    account: Account,
) -> Result<ReceivedBody, ExchangeOutcome> {
    match request.session.is_body_empty() {
        false => read_json(request, account).await,
        true => body::read_any_type(request, account).await,
    }
}

/// Handles a message in a JSON-RPC envelope, as at the base.
async fn send_enveloped(
    request: &mut Request<'_>,
    admitted: AdmittedCall,
    received: ReceivedBody,
    call: EnvelopeFields,
) -> Result<ExchangeOutcome, ExchangeOutcome> {
    let exchange = &mut *request.exchange;
    exchange.dialect = Dialect::JsonRpc;
    exchange.binding = Binding::Rpc;
    exchange.rpc_id = call.rpc_id;
    if !call.method.sends() {
        return Err(Rejection::new(Reason::InvalidRequest, NOT_A_MESSAGE).into());
    }
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Returns how a request gets to the target.
async fn choose_plan(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    rest: &Rest,
) -> Result<RestPlan, ExchangeOutcome> {
    if let Destination::Inbox(_) = &admitted.destination {
        return Ok(plan_for_inbox(request.head(), rest)?);
    }
    if rest.is_own {
        return Ok(plan_translation(request.head(), rest)?);
    }
    let cards = &request.context.cards;
    let spoken = cards.fetch_sides(Some(request.session), request.exchange, admitted);
    let spoken = spoken.await?;
    if serves_http_json(&spoken) {
        return Ok(RestPlan::Forward);
    }
    let (asked, options) = (Side::http_json(rest.generation), admitted.options());
    let bridges = options.bridge == Bridging::Auto;
    let is_also_own = is_also_own(rest) && !(bridges && declares_1_0(request.head()));
    if rest.method.name_in(asked.generation).is_some() && !is_also_own {
        let metrics = &request.context.gateway.metrics;
        let side = agent_side(asked, &spoken, options);
        side.map_err(|failure| reject_untranslatable(metrics, &failure, Delivery::NotSent))?;
        if bridges {
            return Ok(RestPlan::Forward);
        }
    }
    Ok(plan_translation(request.head(), rest)?)
}

/// Returns the body unchanged, or with the caller's identity if `a2a.complete` is `full`.
async fn complete_rest_body(
    exchange: &Exchange,
    admitted: &AdmittedCall,
    body: Bytes,
) -> Result<RestBody, Rejection> {
    let method = exchange.method;
    if admitted.options().complete != CompletionMode::Full {
        let refs =
            offload::run_on_body(&body, move |body| Refs::from_rest_body(body, method)).await;
        return Ok(RestBody {
            refs: refs.map_err(fault_rejection)?,
            body,
            done: CompletionSteps::default(),
        });
    }
    let caller = admitted.allowed.permit.caller();
    let completed = if offload::is_long(body.len()) {
        let caller = caller.cloned();
        let complete =
            move || RestBody::complete(body, method, caller.as_ref().map(WorkspaceId::as_str));
        box_cold_path(offload::run(complete)).await
    } else {
        RestBody::complete(body, method, caller.map(WorkspaceId::as_str))
    };
    completed.map_err(fault_rejection)
}

/// Builds the call of a route, with its key. Returns its references, which are still to be checked.
async fn build_forwarded_call(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    ReceivedBody { body, share }: ReceivedBody,
    tail: &str,
    rest: Rest,
) -> Result<(CheckedCall, Refs), Rejection> {
    let head = request.session.req_header();
    let key = idempotency::read_key(request.exchange, head, None, &body).await?;
    let RestBody {
        body,
        done,
        mut refs,
    } = complete_rest_body(request.exchange, admitted, body).await?;
    refs.tasks.extend(rest.tasks);
    let call = CheckedCall {
        verb: head.method.clone(),
        route: Some(RestRoute {
            tail: tail.to_owned(),
            query: head.uri.query().map(str::to_owned),
            generation: rest.generation,
        }),
        done,
        key,
        ..CheckedCall::json_rpc(body, share)
    };
    Ok((call, refs))
}

/// A call about tasks, translated from its route.
struct TaskCall {
    tasks: Vec<String>,
    params: Value,
    /// The generation of the call; `None` for the agent's.
    generation: Option<Generation>,
}

impl TaskCall {
    /// Checks that the caller may make the call, and passes it to its destination.
    async fn send(
        self,
        request: &mut Request<'_>,
        mut admitted: AdmittedCall,
        share: Share,
    ) -> Result<ExchangeOutcome, ExchangeOutcome> {
        let gateway = &request.context.gateway;
        let refs = Refs {
            tasks: self.tasks,
            ..Refs::default()
        };
        ownership::check_and_assign(gateway, request.exchange, &mut admitted, &refs).await?;
        let generation = match self.generation {
            Some(generation) => generation,
            None => request.target_generation(&admitted, true).await?,
        };
        let call = build_task_call(request.exchange, generation, &self.params, share);
        destination::answer_call(request, admitted, call).await
    }
}

/// Builds a JSON-RPC call about tasks.
fn build_task_call(
    exchange: &mut Exchange,
    generation: Generation,
    params: &Value,
    share: Share,
) -> CheckedCall {
    let name = match (exchange.method, generation) {
        (Method::CancelTask, Generation::V0) => "tasks/cancel",
        (Method::CancelTask, Generation::V1) => "CancelTask",
        (Method::ListTasks, _) => "ListTasks",
        (Method::SubscribeToTask, Generation::V0) => "tasks/resubscribe",
        (Method::SubscribeToTask, Generation::V1) => "SubscribeToTask",
        (_, Generation::V0) => "tasks/get",
        (_, Generation::V1) => "GetTask",
    };
    let id = uuid::Uuid::new_v4().to_string();
    let call = json!({"jsonrpc": "2.0", "id": id, "method": name, "params": params});
    let body = Bytes::from(call.to_string());
    exchange.request_bytes = body.len() as u64;
    let mut done = CompletionSteps::default();
    done.add(CompletionStep::Envelope);
    done.add(CompletionStep::Method);
    CheckedCall {
        method_name: Some(name.into()),
        version_1_0: generation == Generation::V1,
        done,
        rewrite: Some(Rewrite::BareResult),
        ..CheckedCall::json_rpc(body, share)
    }
}
