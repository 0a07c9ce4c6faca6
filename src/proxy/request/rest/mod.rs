//! The HTTP+JSON binding, below `/workspaces/{id}/a2a`. Requests are forwarded to agents with an HTTP+JSON interface of
//! their generation, and translated for others (`proxy/bridge.rs`). The gateway's own routes become JSON-RPC.

mod routes;

use bytes::Bytes;
use serde_json::{Value, json};

use self::routes::{Way, is_short, no_such_route, polled, refused, speaks_1_0, translated};
use super::body::{self, MESSAGE_WANTED, Received, read_json, refusal};
use super::call::{Form, hops_of, send};
use super::checked::{CheckedCall, Route};
use super::ownership::authorize_references;
use super::{Request, ownership};
use crate::a2a::Generation;
use crate::a2a::bridge::Side;
use crate::a2a::done::{Done, Step};
use crate::a2a::envelope::Enveloped;
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::rest::{self, Rest};
use crate::a2a::rest_body::RestBody;
use crate::a2a::task::Binding;
use crate::config::{Bridging, Complete};
use crate::delivery::jobs::may_be_deferred;
use crate::dialect::Dialect;
use crate::directory::Destination;
use crate::identity::Proof;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Admitted, Allowed, allow, permit, prove};
use crate::proxy::beside;
use crate::proxy::bridge::{agents_side, serves_http_json};
use crate::proxy::bridged::refuse;
use crate::proxy::destination::deferred::{AskedJob, JobWords};
use crate::proxy::destination::{self, deferred, idempotency, inbox, parked};
use crate::proxy::outcome::Ended;
use crate::proxy::outcome::rare;
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::rewrite;
use crate::proxy::relay::rewrite::Rewrite;
use crate::rejection::{Delivery, Reason, Rejection};
use crate::shares::{Account, Share};

/// Serves a request below the base: admission, its checks, and its destination.
pub(in crate::proxy) async fn call(
    request: &mut Request<'_>,
    target: Result<WorkspaceId, InvalidWorkspaceId>,
    tail: &str,
) -> Result<Ended, Ended> {
    let context = request.context;
    let _place = context.enter(request.session)?;
    let head = request.session.req_header();
    request.exchange.binding = Binding::Rest;
    let rest = rest::read(head.method.as_str(), tail, head.uri.query());
    let rest = rest.map_err(|why| refused(&why))?;
    request.exchange.method = rest.method;
    let allowed = allow(&context.gateway, request.exchange, head, target).await?;
    let here = Some(allowed.permit.target());
    if let Some(answered) = answer_about_job(request, &rest, &allowed.proof, here).await? {
        return Ok(answered);
    }
    let (mut admitted, received) = match context.gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let (head, config) = (request.session.req_header(), &request.exchange.config);
            let admitted = Admitted::new(allowed, destination, head, config)?;
            let account = admitted.allowed.account();
            // Before the card is fetched, so that the caller's departure during the fetch is noticed.
            let received = read_any(request, account).await?;
            (admitted, received)
        }
        Err(away) => rare(wake(request, allowed, away, &rest)).await?,
    };
    if rest.is_own
        && rest.method.sends()
        && let Some(call) = beside::on(&received.body, Enveloped::read).await
    {
        return rare(enveloped(request, admitted, received, call)).await;
    }
    match way(request, &admitted, &rest).await? {
        Way::Forward => {
            let (mut call, refs) = forwarded(request, &admitted, received, tail, rest).await?;
            authorize_references(request, &mut admitted, &refs, Binding::Rest).await?;
            call.rewrite = rewrite(context, request.exchange, &admitted, &call).await?;
            request.exchange.request_bytes = call.body.len() as u64;
            drop(refs);
            destination::answer(request, admitted, call).await
        }
        Way::Send { stream, words } => {
            let generation = words;
            send(
                request,
                admitted,
                received,
                Form::Message { stream, generation },
            )
            .await
        }
        Way::Task {
            method,
            params,
            words,
        } => {
            request.exchange.method = method;
            let call = TaskCall {
                tasks: rest.tasks,
                params,
                generation: words,
            };
            call.send(request, admitted, received.share).await
        }
    }
}

/// Serves `/tasks/{task_id}`: a task of the caller, at whatever agent it was started.
pub(in crate::proxy) async fn task(
    request: &mut Request<'_>,
    segment: &str,
) -> Result<Ended, Ended> {
    let context = request.context;
    let gateway = &context.gateway;
    let _place = context.enter(request.session)?;
    let head = request.session.req_header();
    let tail = format!("tasks/{segment}");
    let rest = rest::read(head.method.as_str(), &tail, head.uri.query());
    let rest = rest.map_err(|why| refused(&why))?;
    let Way::Task { method, params, .. } = translated(head, &rest)? else {
        return Err(no_such_route().into());
    };
    request.exchange.method = method;
    let proof = prove(gateway, request.exchange, head).await?;
    if let Some(answered) = answer_about_job(request, &rest, &proof, None).await? {
        return Ok(answered);
    }
    let id = params["id"].as_str().unwrap_or_default();
    let mut target = gateway.tasks.target_of(&proof, id).await?;
    if target.is_none() {
        // Inboxes outlive this process and its record of task owners.
        target = inbox::target_of(gateway, &proof, id).await?;
    }
    let target = target.ok_or_else(|| {
        let message = "no task of this id is known to be the caller's: ask its agent, at \
                       /workspaces/{id}/a2a/tasks/{task_id}";
        Rejection::new(Reason::TaskNotFound, message)
    })?;
    request.exchange.callee = Some(target.clone());
    let allowed = permit(gateway, request.exchange, proof, &target).await?;
    let head = request.session.req_header();
    let (admitted, received) = match gateway.resolution.resolve(&allowed.permit).await {
        Ok(destination) => {
            let admitted = Admitted::new(allowed, destination, head, &request.exchange.config)?;
            let account = admitted.allowed.account();
            (admitted, body::read_any(request, account).await?)
        }
        Err(away) => rare(wake(request, allowed, away, &rest)).await?,
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
/// `why`, if it does not sleep, or has no waker; as [`parked::wait_until_awake`].
async fn wake(
    request: &mut Request<'_>,
    allowed: Allowed,
    why: Rejection,
    rest: &Rest,
) -> Result<(Admitted, Received), Ended> {
    let sleeper = parked::sleeper(request, &allowed, &why).await?;
    let Some(sleeper) = sleeper.filter(|_| parked::wakes(request.exchange.method)) else {
        return Err(why.into());
    };
    hops_of(request)?;
    let received = read_any(request, allowed.account()).await?;
    let (body, method) = (&received.body, request.exchange.method);
    let mut refs = match beside::on(body, Enveloped::read).await {
        // Its references are checked as those of a JSON-RPC call.
        Some(_) if rest.is_own => Refs::default(),
        _ => beside::on(body, move |body| Refs::of_rest(body, method))
            .await
            .map_err(|why| Ended::Refused(refusal(why)))?,
    };
    refs.tasks.extend(rest.tasks.iter().cloned());
    let gateway = &request.context.gateway;
    let options = gateway.resolution.options(&allowed.permit).await?;
    let push = options.push_notifications;
    ownership::check_for(gateway, method, push, &allowed, &refs).await?;
    let bytes = body.len();
    let admitted = parked::wait_until_awake(request, allowed, sleeper, bytes).await?;
    Ok((admitted, received))
}

/// Answers a request about a task that is a deferred call. `None` for any other request.
async fn answer_about_job(
    request: &mut Request<'_>,
    rest: &Rest,
    proof: &Proof,
    target: Option<&WorkspaceId>,
) -> Result<Option<Ended>, Ended> {
    let Some(id) = rest.tasks.iter().find(|task| may_be_deferred(task)) else {
        return Ok(None);
    };
    let asked = AskedJob {
        proof,
        target,
        id,
        words: JobWords::Bare,
    };
    rare(deferred::answer_about(request, asked)).await
}

/// Reads a body, if there is one, which is JSON.
async fn read_any(request: &mut Request<'_>, account: Account) -> Result<Received, Ended> {
    match request.session.is_body_empty() {
        false => read_json(request, account).await,
        true => body::read_any(request, account).await,
    }
}

/// Handles a message in a JSON-RPC envelope, as at the base.
async fn enveloped(
    request: &mut Request<'_>,
    admitted: Admitted,
    received: Received,
    call: Enveloped,
) -> Result<Ended, Ended> {
    let exchange = &mut *request.exchange;
    exchange.dialect = Dialect::JsonRpc;
    exchange.binding = Binding::Rpc;
    exchange.rpc_id = call.rpc_id;
    if !call.method.sends() {
        return Err(Rejection::new(Reason::InvalidRequest, MESSAGE_WANTED).into());
    }
    send(request, admitted, received, Form::Call).await
}

/// Returns how a request gets to the target.
async fn way(request: &mut Request<'_>, admitted: &Admitted, rest: &Rest) -> Result<Way, Ended> {
    if let Destination::Inbox(_) = &admitted.destination {
        return Ok(polled(request.head(), rest)?);
    }
    if rest.is_own {
        return Ok(translated(request.head(), rest)?);
    }
    let cards = &request.context.cards;
    let spoken = cards.fetched(Some(request.session), request.exchange, admitted);
    let spoken = spoken.await?;
    if serves_http_json(&spoken) {
        return Ok(Way::Forward);
    }
    let (asked, options) = (Side::http_json(rest.generation), admitted.options());
    let bridges = options.bridge == Bridging::Auto;
    let is_short = is_short(rest) && !(bridges && speaks_1_0(request.head()));
    if rest.method.name_in(asked.generation).is_some() && !is_short {
        let metrics = &request.context.gateway.metrics;
        let side = agents_side(asked, &spoken, options);
        side.map_err(|failure| refuse(metrics, &failure, Delivery::NotSent))?;
        if bridges {
            return Ok(Way::Forward);
        }
    }
    Ok(translated(request.head(), rest)?)
}

/// Returns the body unchanged, or with the caller's identity if `a2a.complete` is `full`.
async fn rest_body(
    exchange: &Exchange,
    admitted: &Admitted,
    body: Bytes,
) -> Result<RestBody, Rejection> {
    let method = exchange.method;
    if admitted.options().complete != Complete::Full {
        let refs = beside::on(&body, move |body| Refs::of_rest(body, method)).await;
        return Ok(RestBody {
            refs: refs.map_err(refusal)?,
            body,
            done: Done::default(),
        });
    }
    let caller = admitted.allowed.permit.caller();
    let completed = if beside::is_long(body.len()) {
        let caller = caller.cloned();
        let complete =
            move || RestBody::complete(body, method, caller.as_ref().map(WorkspaceId::as_str));
        rare(beside::run(complete)).await
    } else {
        RestBody::complete(body, method, caller.map(WorkspaceId::as_str))
    };
    completed.map_err(refusal)
}

/// Builds the call of a route, with its key. Returns its references, which are still to be checked.
async fn forwarded(
    request: &mut Request<'_>,
    admitted: &Admitted,
    Received { body, share }: Received,
    tail: &str,
    rest: Rest,
) -> Result<(CheckedCall, Refs), Rejection> {
    let head = request.session.req_header();
    let key = idempotency::key(request.exchange, head, None, &body).await?;
    let RestBody {
        body,
        done,
        mut refs,
    } = rest_body(request.exchange, admitted, body).await?;
    refs.tasks.extend(rest.tasks);
    let call = CheckedCall {
        verb: head.method.clone(),
        route: Some(Route {
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
        mut admitted: Admitted,
        share: Share,
    ) -> Result<Ended, Ended> {
        let gateway = &request.context.gateway;
        let refs = Refs {
            tasks: self.tasks,
            ..Refs::default()
        };
        ownership::check(gateway, request.exchange, &mut admitted, &refs).await?;
        let generation = match self.generation {
            Some(generation) => generation,
            None => request.generation(&admitted, true).await?,
        };
        let call = task_call(request.exchange, generation, &self.params, share);
        destination::answer(request, admitted, call).await
    }
}

/// Builds a JSON-RPC call about tasks.
fn task_call(
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
    let mut done = Done::default();
    done.add(Step::Envelope);
    done.add(Step::Method);
    CheckedCall {
        method_name: Some(name.into()),
        version_1_0: generation == Generation::V1,
        done,
        rewrite: Some(Rewrite::BareResult),
        ..CheckedCall::json_rpc(body, share)
    }
}
