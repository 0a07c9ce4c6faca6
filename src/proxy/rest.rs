//! Below `/workspaces/{id}/a2a`: the HTTP+JSON binding, forwarded as it came to agents that have it;
//! for those that have none, a few routes that are translated to JSON-RPC.

use std::sync::Arc;

use bytes::Bytes;
use http::Method as Verb;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use super::admit::{Admitted, admit, permit, prove, reach, whole_number};
use super::body::{self, CallShape, check_media_type, refusal};
use super::ended::Ended;
use super::exchange::Exchange;
use super::forward::Outgoing;
use super::received::Share;
use super::rewrite::Rewrite;
use super::{Proxy, keyed, references, wrong_method};
use crate::a2a::Generation;
use crate::a2a::done::{Done, Step};
use crate::a2a::envelope::Completed;
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::rest;
use crate::a2a::task::Binding;
use crate::config::Complete;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

/// For the `Allow` field.
const VERBS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// How a request gets to the agent.
enum Way {
    /// As it came, below the path of the agent's HTTP+JSON interface.
    Raw { interface: String },
    /// As the send call that `tasks/send` or `tasks/send/stream` stands for: the body is its `params`.
    Send { stream: bool },
    /// As a call about one task.
    Task { method: Method, params: Value },
}

impl Proxy {
    /// Admission, body, relay.
    pub(super) async fn rest(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
        tail: &str,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        let head = session.req_header();
        refuse_verb(&head.method)?;
        let rest = rest::read(head.method.as_str(), tail).ok_or_else(no_such_route)?;
        exchange.method = rest.method;
        let admitted = admit(&self.gateway, exchange, head, target).await?;
        let agent = Arc::clone(admitted.agent()?);
        let way = match self.http_json(exchange, &admitted, rest.generation).await? {
            Some(interface) => Way::Raw { interface },
            None => translated(head, tail, rest.tasks.first())?,
        };
        if !session.is_body_empty() {
            check_media_type(&session.req_header().headers)?;
        }
        let caller = admitted.caller();
        let received = body::read(&self.relay, &exchange.config, session, caller).await?;
        let outgoing = match way {
            Way::Raw { interface } => {
                let mut refs = Refs::of_rest(&received.0, exchange.method).map_err(refusal)?;
                refs.tasks.extend(rest.tasks);
                references::check(&self.gateway, exchange, &admitted, &refs).await?;
                references::follow(&self.gateway, exchange, &admitted, Binding::Rest);
                let rewrite = self.rewrite(exchange, &admitted, Binding::Rest).await?;
                let target = (&*interface, tail);
                let key = keyed::key(exchange, session.req_header(), None, &received.0)?;
                let outgoing = raw(session, exchange, target, received, rewrite);
                Outgoing { key, ..outgoing }
            }
            Way::Send { stream } => {
                let shape = CallShape {
                    // The route itself asks for an envelope, whatever `a2a.complete` says.
                    complete: match agent.complete {
                        Complete::Off => Complete::Bare,
                        complete => complete,
                    },
                    generation: self.generation(exchange, &admitted, &agent, true).await,
                    prefers_stream: stream,
                };
                let (body, share) = received;
                let completed = send(exchange, &admitted, &shape, body.clone())?;
                let key = keyed::key(exchange, session.req_header(), Some(&completed), &body)?;
                drop(body);
                references::check(&self.gateway, exchange, &admitted, &completed.refs).await?;
                references::follow(&self.gateway, exchange, &admitted, Binding::Rpc);
                let version_1_0 = shape.generation == Generation::V1;
                Outgoing {
                    verb: Verb::POST,
                    target: None,
                    version_1_0,
                    done: completed.done,
                    method_name: completed.method_name,
                    body: completed.body,
                    share,
                    rewrite: Some(Rewrite::BareResult),
                    key,
                }
            }
            Way::Task { method, params } => {
                exchange.method = method;
                let call = (rest.tasks, params);
                self.about_task(exchange, &admitted, call, received.1)
                    .await?
            }
        };
        self.forward(session, exchange, admitted, outgoing).await
    }

    /// `/tasks/{task_id}`: the caller's own task, at whichever agent it was started.
    pub(super) async fn task(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        segment: &str,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        let head = session.req_header();
        let tail = format!("tasks/{segment}");
        let tasks =
            rest::read(head.method.as_str(), &tail).map_or_else(Vec::new, |rest| rest.tasks);
        let Way::Task { method, params } = translated(head, &tail, tasks.first())? else {
            return Err(no_such_route().into());
        };
        exchange.method = method;
        let proof = prove(&self.gateway, exchange, head).await?;
        let target = self
            .gateway
            .tasks
            .target_of(&proof, params["id"].as_str().unwrap_or_default());
        let target = target.await?.ok_or_else(|| {
            let message = "no task of this id is known to be the caller's: ask its agent, at \
                           /workspaces/{id}/a2a/tasks/{task_id}";
            Rejection::new(Reason::TaskNotFound, message)
        })?;
        exchange.callee = Some(target.clone());
        let allowed = permit(&self.gateway, exchange, proof, &target).await?;
        let admitted = reach(&self.gateway, exchange, head, allowed).await?;
        let caller = admitted.caller();
        let received = body::read(&self.relay, &exchange.config, session, caller).await?;
        let call = (tasks, params);
        let outgoing = self
            .about_task(exchange, &admitted, call, received.1)
            .await?;
        self.forward(session, exchange, admitted, outgoing).await
    }

    /// A call about one task, and whether the caller may make it.
    async fn about_task(
        &self,
        exchange: &mut Exchange,
        admitted: &Admitted,
        (tasks, params): (Vec<String>, Value),
        share: Share,
    ) -> Result<Outgoing, Rejection> {
        let refs = Refs {
            tasks,
            ..Refs::default()
        };
        references::check(&self.gateway, exchange, admitted, &refs).await?;
        let agent = admitted.agent()?;
        let generation = self.generation(exchange, admitted, agent, true).await;
        Ok(task_call(exchange, generation, &params, share))
    }
}

/// The request as it came, below the path that the agent has it at.
fn raw(
    session: &ServerSession,
    exchange: &mut Exchange,
    (interface, tail): (&str, &str),
    (body, share): (Bytes, Share),
    rewrite: Option<Rewrite>,
) -> Outgoing {
    exchange.request_bytes = body.len() as u64;
    let head = session.req_header();
    let mut target = format!("{interface}/{tail}");
    if let Some(query) = head.uri.query() {
        target.push('?');
        target.push_str(query);
    }
    Outgoing {
        verb: head.method.clone(),
        target: Some(target),
        body,
        share,
        method_name: None,
        version_1_0: false,
        done: Done::default(),
        rewrite,
        key: None,
    }
}

/// The call that a route of an agent without HTTP+JSON stands for; `task`: the id in its path.
///
/// # Errors
/// `not_found`, `method_not_allowed`, `invalid_params` for its query.
fn translated(head: &RequestHeader, tail: &str, task: Option<&String>) -> Result<Way, Rejection> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    let only = |allowed: &Verb, allow| {
        if head.method == *allowed {
            return Ok(());
        }
        Err(wrong_method("the route has another HTTP method", allow))
    };
    match tail.split('/').collect::<Vec<_>>().as_slice() {
        ["tasks", "send"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Way::Send { stream: false })
        }
        ["tasks", "send", "stream"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Way::Send { stream: true })
        }
        ["tasks", _] => {
            only(&Verb::GET, "GET, OPTIONS")?;
            let mut params = json!({"id": task.ok_or_else(no_such_route)?});
            if let Some(length) = history_length(head.uri.query())? {
                params["historyLength"] = length.into();
            }
            Ok(Way::Task {
                method: Method::GetTask,
                params,
            })
        }
        ["tasks", _, "cancel"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Way::Task {
                method: Method::CancelTask,
                params: json!({"id": task.ok_or_else(no_such_route)?}),
            })
        }
        _ => Err(Rejection::new(
            Reason::NotFound,
            "the agent's card names no HTTP+JSON interface: POST JSON-RPC to /workspaces/{id}/a2a, or use \
             tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel below it",
        )),
    }
}

/// `history_length`, or `historyLength` as A2A spells it.
///
/// # Errors
/// `invalid_params`.
fn history_length(query: Option<&str>) -> Result<Option<u32>, Rejection> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut asked = pairs.filter(|(name, _)| matches!(&**name, "history_length" | "historyLength"));
    let Some((_, length)) = asked.next() else {
        return Ok(None);
    };
    let number = whole_number(length.as_bytes()).and_then(|number| u32::try_from(number).ok());
    match number {
        Some(length) if asked.next().is_none() => Ok(Some(length)),
        _ => Err(Rejection::new(
            Reason::InvalidParams,
            "history_length is one whole number: how many messages of the task's history to answer with",
        )),
    }
}

/// `message/send` or `message/stream` of what was sent as its params.
fn send(
    exchange: &mut Exchange,
    admitted: &Admitted,
    shape: &CallShape,
    received: Bytes,
) -> Result<Completed, Rejection> {
    let completed = body::complete(exchange, admitted, received, shape)?;
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if completed.wrapped && completed.method == expected {
        return Ok(completed);
    }
    Err(Rejection::new(
        Reason::InvalidRequest,
        "this route takes the message alone, {\"message\": {…}}; POST JSON-RPC to /workspaces/{id}/a2a",
    ))
}

/// `tasks/get` or `tasks/cancel` of one task.
fn task_call(
    exchange: &mut Exchange,
    generation: Generation,
    params: &Value,
    share: Share,
) -> Outgoing {
    let name = match (exchange.method, generation) {
        (Method::CancelTask, Generation::V0) => "tasks/cancel",
        (Method::CancelTask, Generation::V1) => "CancelTask",
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
    Outgoing {
        verb: Verb::POST,
        target: None,
        body,
        share,
        method_name: Some(name.to_owned()),
        version_1_0: generation == Generation::V1,
        done,
        rewrite: Some(Rewrite::BareResult),
        key: None,
    }
}

fn no_such_route() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "no such A2A route; POST to /workspaces/{id}/a2a",
    )
}

/// # Errors
/// `method_not_allowed`.
fn refuse_verb(verb: &Verb) -> Result<(), Rejection> {
    if VERBS.split(", ").any(|known| known == verb.as_str()) && verb != Verb::OPTIONS {
        return Ok(());
    }
    Err(wrong_method("A2A routes have no such HTTP method", VERBS))
}
