//! The HTTP+JSON binding, below `/workspaces/{id}/a2a`. Requests are forwarded to agents with an HTTP+JSON interface of
//! their generation, and translated for others (`upstream_request.rs`). The gateway's own routes become JSON-RPC.

use bytes::Bytes;
use http::header;
use pingora::http::RequestHeader;
use serde_json::{Value, json};

use crate::admission::{
    AdmittedCall, AllowedCaller, authenticate_caller, declared_version, method_not_allowed,
    open_exchange,
};
use crate::body::{read_any_type, read_json};
use crate::complete::{
    CheckedCall, NOT_A_MESSAGE, RestRoute, authorize_references, check_and_assign,
    check_references, fault_rejection, read_key,
};
use crate::deferral::{self, JobFormat, JobRequest};
use crate::filters::{Rewrite, reject_untranslatable};
use crate::inbox;
use crate::plan::{self, BodyForm, Plan, plan_call, request_hops, send_call};
use crate::policy::{authorize_caller, authorize_target};
use crate::record::{Answered, Exchange, ExchangeError, box_cold_path};
use crate::services::{ReceivedBody, Request};
use crate::upstream_request::{agent_side, choose_rewrite, serves_http_json};
use crate::wake::{WakePlan, may_wake, wait_until_awake};
use a2a::Generation;
use a2a::bridge::{FileBytes, RequestedVersion, Side, parse_version};
use a2a::completion_steps::{CompletionStep, CompletionSteps};
use a2a::envelope::EnvelopeFields;
use a2a::method::Method;
use a2a::refs::{Refs, RestBody};
use a2a::rest::{self, ID_RULE, Rest, RouteError};
use a2a::task::Binding;
use access::identity::Proof;
use directory::Destination;
use kernel::config::{Bridging, CompletionMode};
use kernel::dialect::Dialect;
use kernel::hops::whole_number;
use kernel::ids::{InvalidWorkspaceId, WorkspaceId};
use kernel::offload;
use kernel::rejection::{AtStage as _, Delivery, Reason, Rejection};
use kernel::shares::{Account, Share};
use kernel::stage::Stage;
use mailbox::jobs::may_be_deferred;

/// Serves a request below the base: admission, its checks, and its destination.
pub(super) async fn serve_request(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
    whole: &str,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    let head = request.session.req_header();
    request.exchange.call.binding = Binding::Rest;
    let (tenant, tail) = match rest::parse_request(head.method.as_str(), whole, None) {
        Err(RouteError::Path) => rest::split_tenant(whole).unzip(),
        _ => (None, None),
    };
    let tail = tail.unwrap_or(whole);
    let rest = rest::parse_request(head.method.as_str(), tail, head.uri.query());
    let rest = rest.map_err(|why| route_rejection(&why).at(Stage::Route))?;
    request.exchange.call.method = rest.method;
    let allowed = authorize_caller(&context.gateway, request.exchange, head, target).await?;
    let here = Some(allowed.permit.target());
    if let Some(answered) = answer_about_job(request, &rest, &allowed.proof, here).await? {
        return Ok(answered);
    }
    let (mut admitted, received) = admit_and_read(request, allowed, &rest, false).await?;
    if let Some(tenant) = &tenant {
        check_tenant(request, &admitted, tenant).await?;
    }
    if rest.is_own
        && rest.method.sends()
        && let Some(call) = offload::run_on_body(&received.body, EnvelopeFields::parse).await
    {
        return box_cold_path(send_enveloped(request, admitted, received, call)).await;
    }
    match choose_plan(request, &admitted, &rest).await? {
        RestPlan::Forward => {
            let (mut call, refs) =
                build_forwarded_call(request, &admitted, received, (tenant, tail), rest).await?;
            authorize_references(request, &mut admitted, &mut call, &refs).await?;
            let rewrite = choose_rewrite(context, request.exchange, &admitted, &call).await;
            call.rewrite = rewrite.at(Stage::Call)?;
            request.exchange.record.request_bytes = call.body.len() as u64;
            drop(refs);
            plan::answer_call(request, admitted, call).await
        }
        RestPlan::Send(stream, generation) => {
            let form = BodyForm::Message { stream, generation };
            send_call(request, admitted, received, form).await
        }
        RestPlan::Task(method, params, generation) => {
            request.exchange.call.method = method;
            let call = (admitted, received.share);
            send_task_call(request, call, rest.tasks, (params, generation)).await
        }
    }
}

/// Checks that the target's card names the tenant of the path.
///
/// # Errors
/// `not_found`; there is no card.
async fn check_tenant(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    tenant: &str,
) -> Result<(), ExchangeError> {
    if let Destination::Agent(_) = &admitted.destination {
        let cards = &request.context.cards;
        let card = cards.reachable_card(Some(request.session), request.exchange, admitted);
        if card.await?.said.spoken.has_tenant(tenant) {
            return Ok(());
        }
    }
    let message = "the agent's card names no such tenant for HTTP+JSON; GET the base for its card";
    Err(Rejection::new(Reason::NotFound, message)
        .at(Stage::Route)
        .into())
}

/// Serves `/tasks/{task_id}`: a task of the caller, at whatever agent it was started.
pub(super) async fn serve_task(
    request: &mut Request<'_>,
    segment: &str,
) -> Result<Answered, ExchangeError> {
    let context = request.context;
    let gateway = &context.gateway;
    let _slot = open_exchange(request.session, &context.origins.get(), &context.relay.load)?;
    let head = request.session.req_header();
    let tail = format!("tasks/{segment}");
    let rest = rest::parse_request(head.method.as_str(), &tail, head.uri.query());
    let rest = rest.map_err(|why| route_rejection(&why).at(Stage::Route))?;
    let plan = plan_translation(head, &rest).at(Stage::Route)?;
    let RestPlan::Task(method, params, _) = plan else {
        return Err(no_such_route().at(Stage::Route).into());
    };
    request.exchange.call.method = method;
    let proof = authenticate_caller(gateway, request.exchange, head).await?;
    if let Some(answered) = answer_about_job(request, &rest, &proof, None).await? {
        return Ok(answered);
    }
    let id = params["id"].as_str().unwrap_or_default();
    let mut target = gateway.tasks.target_of(&proof, id).await.at(Stage::Tasks)?;
    if target.is_none() {
        // Inboxes outlive this process and its record of task owners.
        target = inbox::find_target(gateway, &proof, id).await?;
    }
    let target = target.ok_or_else(|| {
        let message = "no task of this id is known to be the caller's: ask its agent, at \
                       /workspaces/{id}/a2a/tasks/{task_id}";
        Rejection::new(Reason::TaskNotFound, message).at(Stage::Tasks)
    })?;
    request.exchange.call.target = Some(target.clone());
    let allowed = authorize_target(gateway, request.exchange, proof, &target).await?;
    let (admitted, received) = admit_and_read(request, allowed, &rest, true).await?;
    let call = (admitted, received.share);
    send_task_call(request, call, rest.tasks, (params, None)).await
}

/// Resolves the target of a request, and reads the body. `any_type`: of any media type, if the target is awake.
async fn admit_and_read(
    request: &mut Request<'_>,
    allowed: AllowedCaller,
    rest: &Rest,
    any_type: bool,
) -> Result<(AdmittedCall, ReceivedBody), ExchangeError> {
    match plan_call(request, allowed).await? {
        Plan::Send(admitted) => {
            let account = admitted.allowed.account();
            // Before the card is fetched, so that the caller's departure during the fetch is noticed.
            let received = match any_type {
                true => read_any_type(request, account).await?,
                false => read_optional_json(request, account).await?,
            };
            Ok((admitted, received))
        }
        Plan::Park(parked) => {
            let (allowed, plan, why) = *parked;
            box_cold_path(wake_target(request, (allowed, plan), why, rest)).await
        }
        Plan::Away(away) => Err(away.1.into()),
    }
}

/// Waits until the target of a request wakes, if it sleeps; its body was read by then, and its tasks are the caller's.
///
/// # Errors
/// `why`, if it does not sleep, or has no waker; as [`wait_until_awake`].
async fn wake_target(
    request: &mut Request<'_>,
    (allowed, plan): (AllowedCaller, WakePlan),
    why: Rejection,
    rest: &Rest,
) -> Result<(AdmittedCall, ReceivedBody), ExchangeError> {
    if !may_wake(request.exchange.call.method) {
        return Err(why.into());
    }
    request_hops(request)?;
    let received = read_optional_json(request, allowed.account()).await?;
    let (body, method) = (&received.body, request.exchange.call.method);
    let mut refs = match offload::run_on_body(body, EnvelopeFields::parse).await {
        // Its references are checked as those of a JSON-RPC call.
        Some(_) if rest.is_own => Refs::default(),
        _ => offload::run_on_body(body, move |body| Refs::from_rest_body(body, method))
            .await
            .map_err(fault_rejection)
            .at(Stage::Envelope)?,
    };
    refs.tasks.extend(rest.tasks.iter().cloned());
    let gateway = &request.context.gateway;
    let options = gateway.resolution.load_options(&allowed.permit).await?;
    let push = options.push_notifications;
    check_references(gateway, method, push, &allowed, &refs).await?;
    let bytes = body.len();
    let admitted = wait_until_awake(request, allowed, plan, bytes).await?;
    Ok((admitted, received))
}

/// Answers a request about a task that is a deferred call. `None` for any other request.
async fn answer_about_job(
    request: &mut Request<'_>,
    rest: &Rest,
    proof: &Proof,
    target: Option<&WorkspaceId>,
) -> Result<Option<Answered>, ExchangeError> {
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
) -> Result<ReceivedBody, ExchangeError> {
    match request.session.is_body_empty() {
        false => read_json(request, account).await,
        true => read_any_type(request, account).await,
    }
}

/// Handles a message in a JSON-RPC envelope, as at the base.
async fn send_enveloped(
    request: &mut Request<'_>,
    admitted: AdmittedCall,
    received: ReceivedBody,
    call: EnvelopeFields,
) -> Result<Answered, ExchangeError> {
    let exchange = &mut *request.exchange;
    exchange.call.dialect = Dialect::JsonRpc;
    exchange.call.binding = Binding::Rpc;
    exchange.call.rpc_id = call.rpc_id;
    if !call.method.sends() {
        let refusal = Rejection::new(Reason::InvalidRequest, NOT_A_MESSAGE);
        return Err(refusal.at(Stage::Envelope).into());
    }
    send_call(request, admitted, received, BodyForm::Call).await
}

/// Returns how a request gets to the target.
async fn choose_plan(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    rest: &Rest,
) -> Result<RestPlan, ExchangeError> {
    if let Destination::Inbox(_) = &admitted.destination {
        return Ok(plan_for_inbox(request.head(), rest).at(Stage::Route)?);
    }
    if rest.is_own {
        return Ok(plan_translation(request.head(), rest).at(Stage::Route)?);
    }
    let cards = &request.context.cards;
    let card = cards.reachable_card(Some(request.session), request.exchange, admitted);
    let spoken = &card.await?.said.spoken;
    if serves_http_json(spoken) {
        return Ok(RestPlan::Forward);
    }
    let (asked, options) = (Side::http_json(rest.generation), admitted.options());
    let bridges = options.bridge == Bridging::Auto;
    let is_also_own = is_also_own(rest) && !(bridges && declares_1_0(request.head()));
    if rest.method.name_in(asked.generation).is_some() && !is_also_own {
        let metrics = &request.context.gateway.metrics;
        let side = agent_side((asked, asked.binding.into()), spoken, options);
        side.map_err(|failure| reject_untranslatable(metrics, &failure, Delivery::NotSent))
            .at(Stage::Call)?;
        if bridges {
            return Ok(RestPlan::Forward);
        }
    }
    Ok(plan_translation(request.head(), rest).at(Stage::Route)?)
}

/// Returns the body unchanged, or with the caller's identity if `a2a.complete` is `full`.
async fn complete_rest_body(
    exchange: &Exchange,
    admitted: &AdmittedCall,
    body: Bytes,
) -> Result<RestBody, Rejection> {
    let method = exchange.call.method;
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
    (tenant, tail): (Option<String>, &str),
    rest: Rest,
) -> Result<(CheckedCall, Refs), Rejection> {
    let head = request.session.req_header();
    let key = read_key(request.exchange, head, None, &body).await;
    let key = key.at(Stage::Envelope)?;
    let RestBody {
        body,
        done,
        mut refs,
    } = complete_rest_body(request.exchange, admitted, body)
        .await
        .at(Stage::Envelope)?;
    let names = request.exchange.read_names(&head.headers, &body);
    names.await;
    refs.tasks.extend(rest.tasks);
    let client = head.headers.get(header::USER_AGENT);
    let client = client.and_then(|name| name.to_str().ok());
    let call = CheckedCall {
        verb: head.method.clone(),
        route: Some(RestRoute {
            tenant,
            tail: tail.to_owned(),
            query: head.uri.query().map(str::to_owned),
            generation: rest.generation,
            files: FileBytes::of_client(client.unwrap_or_default()),
        }),
        done,
        key,
        ..CheckedCall::json_rpc(body, share)
    };
    Ok((call, refs))
}

/// Checks that the caller may make a call about tasks, translated from its route, and passes it to its destination.
/// `generation`: of the call; `None` for the agent's.
async fn send_task_call(
    request: &mut Request<'_>,
    (mut admitted, share): (AdmittedCall, Share),
    tasks: Vec<String>,
    (params, generation): (Value, Option<Generation>),
) -> Result<Answered, ExchangeError> {
    let gateway = &request.context.gateway;
    let refs = Refs {
        tasks,
        ..Refs::default()
    };
    check_and_assign(gateway, request.exchange, &mut admitted, &refs).await?;
    let generation = match generation {
        Some(generation) => generation,
        None => {
            let generation = request.target_generation(&admitted, true).await;
            generation.at(Stage::Call)?
        }
    };
    let call = build_task_call(request.exchange, generation, &params, share);
    plan::answer_call(request, admitted, call).await
}

/// Builds a JSON-RPC call about tasks.
fn build_task_call(
    exchange: &mut Exchange,
    generation: Generation,
    params: &Value,
    share: Share,
) -> CheckedCall {
    let method = exchange.call.method;
    // Lists are of 1.0 only.
    let name = method.name_in(generation).or(method.name());
    let name = name.unwrap_or_default();
    let id = uuid::Uuid::new_v4().to_string();
    let call = json!({"jsonrpc": "2.0", "id": id, "method": name, "params": params});
    let body = Bytes::from(call.to_string());
    exchange.record.request_bytes = body.len() as u64;
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

// Maps HTTP+JSON routes that are not forwarded unchanged to JSON-RPC calls.

/// How a request gets to the agent, with the generation of the call; `None` for the agent's.
pub(super) enum RestPlan {
    /// As it is, or translated: [`AgentCall::route_call`](crate::upstream_request::AgentCall::route_call) decides.
    Forward,
    /// As the send call of `tasks/send`, or of `tasks/send/stream` if it is true: the body is its `params`.
    Send(bool, Option<Generation>),
    /// As a call about one task, with its params.
    Task(Method, Value, Option<Generation>),
}

/// Returns the call of a route of an agent that polls. The gateway implements HTTP+JSON of 1.0 for it.
///
/// # Errors
/// As [`plan_translation`]; `push_not_supported`.
pub(super) fn plan_for_inbox(head: &RequestHeader, rest: &Rest) -> Result<RestPlan, Rejection> {
    let generation = Some(Generation::V1);
    match rest.method {
        _ if rest.generation == Generation::V0 => plan_translation(head, rest),
        method @ (Method::SendMessage | Method::SendStreamingMessage) if !rest.is_own => {
            let streams = method == Method::SendStreamingMessage;
            Ok(RestPlan::Send(streams, generation))
        }
        // The id is the part before the last colon.
        method @ (Method::CancelTask | Method::SubscribeToTask) if !rest.is_own => {
            let params = json!({"id": rest.tasks.last().ok_or_else(no_such_route)?});
            Ok(RestPlan::Task(method, params, generation))
        }
        method @ Method::ListTasks => {
            let params = parse_list_params(head.uri.query())?;
            Ok(RestPlan::Task(method, params, generation))
        }
        method if method.is_of_push() => Err(Rejection::new(
            Reason::PushNotSupported,
            "an agent that polls sends no push notifications: stream, or ask for the task",
        )),
        Method::GetExtendedCard => {
            let message =
                "an agent that polls has no extended card; its card is at the base, by GET";
            Err(Rejection::new(Reason::InvalidRequest, message).with_rpc_code(NO_EXTENDED_CARD))
        }
        _ => {
            // 1.0 has the same route, and its clients declare their version.
            Ok(match plan_translation(head, rest)? {
                RestPlan::Task(method, params, _) if declares_1_0(head) => {
                    RestPlan::Task(method, params, generation)
                }
                plan => plan,
            })
        }
    }
}

/// The error code of ExtendedAgentCardNotConfiguredError.
const NO_EXTENDED_CARD: i32 = -32_007;

/// True if the caller declares 1.x.
pub(super) fn declares_1_0(head: &RequestHeader) -> bool {
    let version = parse_version(declared_version(head).as_deref());
    version == RequestedVersion::Generation(Generation::V1)
}

/// Reads the params of a task list from its query (A2A 1.0, 11.3).
///
/// # Errors
/// `invalid_params`.
fn parse_list_params(query: Option<&str>) -> Result<Value, Rejection> {
    let mut params = json!({});
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    for (name, value) in pairs.filter(|(name, _)| name != "A2A-Version") {
        params[&*name] = match &*name {
            "pageSize" | "historyLength" => {
                let number = whole_number(value.as_bytes());
                number.ok_or_else(not_whole_numbers)?.into()
            }
            "includeArtifacts" => (value == "true").into(),
            _ => value.as_ref().into(),
        };
    }
    Ok(params)
}

fn not_whole_numbers() -> Rejection {
    let message = "pageSize and historyLength are whole numbers";
    Rejection::new(Reason::InvalidParams, message)
}

/// True for a route that is also one of the gateway's own, whose query has more spellings.
pub(super) fn is_also_own(rest: &Rest) -> bool {
    rest.method == Method::GetTask && rest.generation == Generation::V1
}

/// Returns the call of a route, for an agent without HTTP+JSON.
///
/// # Errors
/// `not_found`, `invalid_params` for an invalid query.
pub(super) fn plan_translation(head: &RequestHeader, rest: &Rest) -> Result<RestPlan, Rejection> {
    let id = || rest.tasks.first().ok_or_else(no_such_route);
    match rest.method {
        method @ (Method::SendMessage | Method::SendStreamingMessage) if rest.is_own => {
            let streams = method == Method::SendStreamingMessage;
            Ok(RestPlan::Send(streams, None))
        }
        method @ Method::CancelTask if rest.is_own => {
            Ok(RestPlan::Task(method, json!({"id": id()?}), None))
        }
        method @ Method::GetTask if rest.generation == Generation::V1 => {
            let mut params = json!({"id": id()?});
            if let Some(length) = parse_history_length(head.uri.query())? {
                params["historyLength"] = length.into();
            }
            Ok(RestPlan::Task(method, params, None))
        }
        _ => Err(Rejection::new(
            Reason::NotFound,
            "the agent's card names no HTTP+JSON interface: POST JSON-RPC to /workspaces/{id}/a2a, or use \
             tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel below it",
        )),
    }
}

/// Builds the rejection of a request that matches no route.
pub(super) fn route_rejection(why: &RouteError) -> Rejection {
    match *why {
        RouteError::Path => no_such_route(),
        RouteError::Id => Rejection::new(
            Reason::InvalidParams,
            format!(
                "the path has an id that {ID_RULE}; ask for other ids by JSON-RPC, at the base"
            ),
        ),
        RouteError::Verb(allow) => {
            let message = match allow {
                "POST, OPTIONS" => "this route is called with POST",
                "GET, HEAD, OPTIONS" => "this route is read with GET",
                _ => "this route has the methods that the field Allow names",
            };
            method_not_allowed(message, allow)
        }
        RouteError::Query([]) => Rejection::new(
            Reason::InvalidParams,
            "this route has no query parameters but A2A-Version",
        ),
        RouteError::Query(known) => Rejection::new(
            Reason::InvalidParams,
            format!(
                "this route has the query parameters {} and A2A-Version, each once",
                known.join(", ")
            ),
        ),
    }
}

/// Reads `history_length`, or `historyLength` as A2A spells it.
///
/// # Errors
/// `invalid_params`.
fn parse_history_length(query: Option<&str>) -> Result<Option<u32>, Rejection> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut lengths =
        pairs.filter(|(name, _)| matches!(&**name, "history_length" | "historyLength"));
    let Some((_, length)) = lengths.next() else {
        return Ok(None);
    };
    let number = whole_number(length.as_bytes()).and_then(|number| u32::try_from(number).ok());
    match number {
        Some(length) if lengths.next().is_none() => Ok(Some(length)),
        _ => Err(Rejection::new(
            Reason::InvalidParams,
            "history_length is one whole number: how many messages of the task's history to answer with",
        )),
    }
}

pub(super) fn no_such_route() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "no such A2A route: POST JSON-RPC to /workspaces/{id}/a2a; below it are the paths of HTTP+JSON (A2A 1.0; 0.3's \
         begin with v1/) and tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel",
    )
}
