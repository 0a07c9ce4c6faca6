//! Below `/workspaces/{id}/a2a`: the HTTP+JSON binding, forwarded as it came to agents that have it;
//! for those that have none, a few routes that are translated to JSON-RPC.

use std::sync::Arc;

use bytes::Bytes;
use http::Method as Verb;
use pingora::protocols::http::ServerSession;
use serde_json::json;

use super::Proxy;
use super::admit::{Admitted, admit};
use super::body::{self, CallShape, check_media_type};
use super::ended::Ended;
use super::exchange::Exchange;
use super::forward::Outgoing;
use super::received::Share;
use super::rewrite::Rewrite;
use crate::a2a::Generation;
use crate::a2a::done::{Done, Step};
use crate::a2a::method::Method;
use crate::a2a::rest;
use crate::config::Complete;
use crate::directory::Agent;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

/// For the `Allow` field.
const VERBS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// A call that a route without JSON-RPC stands for.
enum Translated {
    /// `tasks/send` and `tasks/send/stream`: the body is what a send call has in `params`.
    Send { stream: bool },
    /// A call about one task.
    Task {
        method: Method,
        task: String,
        history_length: Option<u64>,
    },
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
        self.preliminaries(session)?;
        let _place = self.relay.place()?;
        let head = session.req_header();
        refuse_verb(&head.method)?;
        let rest = rest::read(head.method.as_str(), tail).ok_or_else(no_such_route)?;
        exchange.method = rest.method;
        let admitted = admit(&self.gateway, exchange, head, target).await?;
        let agent = Arc::clone(admitted.agent()?);
        let interface = self.http_json(&agent, rest.generation).await?;
        let translated = match interface {
            Some(_) => None,
            None => Some(translated(&head.method, tail, head.uri.query())?),
        };
        if !session.is_body_empty() {
            check_media_type(&session.req_header().headers)?;
        }
        let (body, share) = body::read(&self.relay, &exchange.config, session).await?;
        let outgoing = match (interface, translated) {
            (Some(interface), _) => raw(session, exchange, &interface, tail, (body, share)),
            (None, Some(Translated::Send { stream })) => {
                let shape = CallShape {
                    // The route itself asks for an envelope, whatever `a2a.complete` says.
                    complete: if agent.complete == Complete::Off {
                        Complete::Bare
                    } else {
                        agent.complete
                    },
                    generation: agent.generation,
                    prefers_stream: stream,
                };
                send(exchange, &admitted, &shape, (body, share))?
            }
            (
                None,
                Some(Translated::Task {
                    method,
                    task,
                    history_length,
                }),
            ) => about_task(exchange, &agent, method, &task, history_length, share),
            (None, None) => return Err(no_such_route().into()),
        };
        self.forward(session, exchange, admitted, outgoing).await
    }

    /// The path of the agent's HTTP+JSON interface, without a slash at its end, if its card names one.
    async fn http_json(
        &self,
        _agent: &Agent,
        _generation: Generation,
    ) -> Result<Option<String>, Rejection> {
        Ok(None)
    }
}

/// The request as it came, under the path that the agent has it at.
fn raw(
    session: &ServerSession,
    exchange: &mut Exchange,
    interface: &str,
    tail: &str,
    (body, share): (Bytes, Share),
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
        rewrite: None,
    }
}

/// The call that a route of an agent without HTTP+JSON stands for.
///
/// # Errors
/// `not_found`, `method_not_allowed`, `invalid_params` for its query.
fn translated(verb: &Verb, tail: &str, query: Option<&str>) -> Result<Translated, Rejection> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    let only = |allowed: &Verb, allow: &'static str| {
        if verb == allowed {
            return Ok(());
        }
        let mut refused = Rejection::new(Reason::MethodNotAllowed, format!("use {allowed} here"));
        refused.allow = Some(allow);
        Err(refused)
    };
    let rest = rest::read("", tail).filter(|rest| rest.generation == Generation::V1);
    let task = rest.and_then(|rest| rest.tasks.into_iter().next());
    match tail.split('/').collect::<Vec<_>>().as_slice() {
        ["tasks", "send"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Translated::Send { stream: false })
        }
        ["tasks", "send", "stream"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Translated::Send { stream: true })
        }
        ["tasks", _] => {
            only(&Verb::GET, "GET, OPTIONS")?;
            Ok(Translated::Task {
                method: Method::GetTask,
                task: task.ok_or_else(no_such_route)?,
                history_length: history_length(query)?,
            })
        }
        ["tasks", _, "cancel"] => {
            only(&Verb::POST, "POST, OPTIONS")?;
            Ok(Translated::Task {
                method: Method::CancelTask,
                task: task.ok_or_else(no_such_route)?,
                history_length: None,
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
fn history_length(query: Option<&str>) -> Result<Option<u64>, Rejection> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut asked = pairs.filter(|(name, _)| matches!(&**name, "history_length" | "historyLength"));
    let Some((_, length)) = asked.next() else {
        return Ok(None);
    };
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    match length.parse::<u32>() {
        Ok(length) if digits && asked.next().is_none() => Ok(Some(length.into())),
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
    (received, share): (Bytes, Share),
) -> Result<Outgoing, Rejection> {
    let completed = body::complete(exchange, admitted, received, shape)?;
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if !completed.wrapped || completed.method != expected {
        return Err(Rejection::new(
            Reason::InvalidRequest,
            "this route takes the message alone, {\"message\": {…}}; POST JSON-RPC to /workspaces/{id}/a2a",
        ));
    }
    Ok(Outgoing {
        verb: Verb::POST,
        target: None,
        version_1_0: shape.generation == Generation::V1,
        done: completed.done,
        method_name: completed.method_name,
        body: completed.body,
        share,
        rewrite: Some(Rewrite::BareResult),
    })
}

/// `tasks/get` or `tasks/cancel` of one task.
fn about_task(
    exchange: &mut Exchange,
    agent: &Agent,
    method: Method,
    task: &str,
    history_length: Option<u64>,
    share: Share,
) -> Outgoing {
    let name = match (method, agent.generation) {
        (Method::CancelTask, Generation::V0) => "tasks/cancel",
        (Method::CancelTask, Generation::V1) => "CancelTask",
        (_, Generation::V0) => "tasks/get",
        (_, Generation::V1) => "GetTask",
    };
    let mut params = json!({"id": task});
    if let Some(length) = history_length {
        params["historyLength"] = length.into();
    }
    let id = uuid::Uuid::new_v4().to_string();
    let call = json!({"jsonrpc": "2.0", "id": id, "method": name, "params": params});
    let body = Bytes::from(call.to_string());
    exchange.method = method;
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
        version_1_0: agent.generation == Generation::V1,
        done,
        rewrite: Some(Rewrite::BareResult),
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
    let mut refused = Rejection::new(
        Reason::MethodNotAllowed,
        "A2A routes have no such HTTP method",
    );
    refused.allow = Some(VERBS);
    Err(refused)
}
