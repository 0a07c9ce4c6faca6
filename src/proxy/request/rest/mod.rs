//! The HTTP+JSON binding, below `/workspaces/{id}/a2a`. Requests are forwarded unchanged to agents with an HTTP+JSON
//! interface. For agents without one, a few routes are translated to JSON-RPC.

mod routes;

use std::sync::Arc;

use bytes::Bytes;
use http::Method as Verb;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use self::routes::{Way, no_such_route, polled, refused, translated};
use super::body;
use super::body::{CallShape, check_media_type, refusal};
use super::ownership;
use crate::a2a::Generation;
use crate::a2a::done::{Done, Step};
use crate::a2a::envelope::{Completed, Enveloped};
use crate::a2a::method::Method;
use crate::a2a::refs::Refs;
use crate::a2a::rest::{self, Rest};
use crate::a2a::rest_body::RestBody;
use crate::a2a::task::Binding;
use crate::config::Complete;
use crate::delivery::jobs::may_be_deferred;
use crate::dialect::Dialect;
use crate::directory::Destination;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::Proxy;
use crate::proxy::admit::{Admitted, allow, permit, prove, reach};
use crate::proxy::destination::deferred::JobWords;
use crate::proxy::destination::idempotency;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::Outgoing;
use crate::proxy::relay::rewrite::Rewrite;
use crate::rejection::{Reason, Rejection};
use crate::shares::Share;

impl Proxy {
    /// Runs admission, body and relay.
    pub(in crate::proxy) async fn rest(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
        tail: &str,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        let head = session.req_header();
        exchange.binding = Binding::Rest;
        let rest = rest::read(head.method.as_str(), tail, head.uri.query());
        let rest = rest.map_err(|why| refused(&why))?;
        exchange.method = rest.method;
        let allowed = allow(&self.gateway, exchange, head, target).await?;
        if let Some(job) = rest.tasks.iter().find(|task| may_be_deferred(task)) {
            let asked = (&*allowed.proof, Some(allowed.permit.target()), job.as_str());
            let answered = Box::pin(self.about_job(session, exchange, asked, JobWords::Bare));
            if let Some(ended) = answered.await? {
                return Ok(ended);
            }
        }
        let admitted = reach(&self.gateway, exchange, session.req_header(), allowed).await?;
        if !session.is_body_empty() {
            check_media_type(&session.req_header().headers)?;
        }
        let account = admitted.account();
        // Before the card is fetched, so that the caller's departure during the fetch is noticed.
        let received = body::read(&self.relay.load, &exchange.config, session, account).await?;
        if rest.is_own
            && rest.method.sends()
            && let Some(call) = Enveloped::read(&received.0)
        {
            let answered = self.enveloped(session, exchange, admitted, received, call);
            return Box::pin(answered).await;
        }
        let way = self.way(session, exchange, &admitted, &rest).await?;
        let outgoing = match way {
            Way::Raw { interface } => {
                let key = idempotency::key(exchange, session.req_header(), None, &received.0)?;
                let (body, share) = received;
                let RestBody {
                    body,
                    done,
                    mut refs,
                } = rest_body(exchange, &admitted, body)?;
                refs.tasks.extend(rest.tasks);
                self.authorize_references(session, exchange, &admitted, &refs, Binding::Rest)
                    .await?;
                let rewrite = self.rewrite(exchange, &admitted, Binding::Rest).await?;
                let target = (&*interface, tail);
                let outgoing = raw(session, exchange, target, (body, share), rewrite);
                Outgoing {
                    key,
                    done,
                    ..outgoing
                }
            }
            Way::Send { stream, words } => {
                let how = (stream, words);
                self.send_call(session, exchange, &admitted, how, received)
                    .await?
            }
            Way::Task {
                method,
                params,
                words,
            } => {
                exchange.method = method;
                let call = (rest.tasks, params, words);
                self.about_task(session, exchange, &admitted, call, received.1)
                    .await?
            }
        };
        self.forward(session, exchange, admitted, outgoing).await
    }

    /// Handles `/tasks/{task_id}`: a task of the caller, at whatever agent it was started.
    pub(in crate::proxy) async fn task(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        segment: &str,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        let head = session.req_header();
        let tail = format!("tasks/{segment}");
        let rest = rest::read(head.method.as_str(), &tail, head.uri.query());
        let rest = rest.map_err(|why| refused(&why))?;
        let Way::Task { method, params, .. } = translated(head, &rest)? else {
            return Err(no_such_route().into());
        };
        let tasks = rest.tasks;
        exchange.method = method;
        let proof = prove(&self.gateway, exchange, head).await?;
        if let Some(job) = tasks.iter().find(|task| may_be_deferred(task)) {
            let asked = (&*proof, None, job.as_str());
            let answered = Box::pin(self.about_job(session, exchange, asked, JobWords::Bare));
            if let Some(ended) = answered.await? {
                return Ok(ended);
            }
        }
        let head = session.req_header();
        let target = self
            .gateway
            .tasks
            .target_of(&proof, params["id"].as_str().unwrap_or_default());
        let mut target = target.await?;
        if target.is_none() {
            // Inboxes outlive this process and its record of task owners.
            let id = params["id"].as_str().unwrap_or_default();
            target = self.inbox_of(&proof, id).await?;
        }
        let target = target.ok_or_else(|| {
            let message = "no task of this id is known to be the caller's: ask its agent, at \
                           /workspaces/{id}/a2a/tasks/{task_id}";
            Rejection::new(Reason::TaskNotFound, message)
        })?;
        exchange.callee = Some(target.clone());
        let allowed = permit(&self.gateway, exchange, proof, &target).await?;
        let admitted = reach(&self.gateway, exchange, head, allowed).await?;
        let account = admitted.account();
        let received = body::read(&self.relay.load, &exchange.config, session, account).await?;
        let call = (tasks, params, None);
        let outgoing = self
            .about_task(session, exchange, &admitted, call, received.1)
            .await?;
        self.forward(session, exchange, admitted, outgoing).await
    }

    /// Handles a message in a JSON-RPC envelope, as at the base.
    async fn enveloped(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: Admitted,
        received: (Bytes, Share),
        call: Enveloped,
    ) -> Result<Ended, Ended> {
        exchange.dialect = Dialect::JsonRpc;
        exchange.binding = Binding::Rpc;
        exchange.rpc_id = call.rpc_id;
        if !call.method.sends() {
            return Err(Rejection::new(Reason::InvalidRequest, MESSAGE_WANTED).into());
        }
        self.rpc(session, exchange, admitted, received).await
    }

    /// Handles a message without an envelope.
    async fn send_call(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: &Admitted,
        (stream, words): (bool, Option<Generation>),
        received: (Bytes, Share),
    ) -> Result<Outgoing, Ended> {
        let generation = self.spoken(session, exchange, admitted, words);
        let shape = CallShape {
            // The translation needs an envelope, whatever `a2a.complete` is.
            complete: match admitted.options().complete {
                Complete::Off => Complete::Bare,
                complete => complete,
            },
            generation: generation.await?,
            prefers_stream: stream,
        };
        let (body, share) = received;
        let completed = send(exchange, admitted, &shape, body.clone())?;
        let key = idempotency::key(exchange, session.req_header(), Some(&completed), &body)?;
        drop(body);
        let (refs, binding) = (&completed.refs, Binding::Rpc);
        self.authorize_references(session, exchange, admitted, refs, binding)
            .await?;
        let version_1_0 = shape.generation == Generation::V1;
        Ok(Outgoing {
            verb: Verb::POST,
            target: None,
            version_1_0,
            done: completed.done,
            method_name: completed.method_name,
            body: completed.body,
            share,
            rewrite: Some(Rewrite::BareResult),
            key,
        })
    }

    /// Returns how a request gets to the target.
    async fn way(
        &self,
        session: &mut ServerSession,
        exchange: &Exchange,
        admitted: &Admitted,
        rest: &Rest,
    ) -> Result<Way, Ended> {
        if let Destination::Inbox(_) = &admitted.destination {
            return Ok(polled(session.req_header(), rest)?);
        }
        if rest.is_own {
            return Ok(translated(session.req_header(), rest)?);
        }
        let interface = self.http_json(session, exchange, admitted, rest.generation);
        Ok(match interface.await? {
            Some(interface) => Way::Raw { interface },
            None => translated(session.req_header(), rest)?,
        })
    }

    /// Returns the generation that a route is translated to.
    ///
    /// # Errors
    /// The caller left.
    async fn spoken(
        &self,
        session: &mut ServerSession,
        exchange: &Exchange,
        admitted: &Admitted,
        words: Option<Generation>,
    ) -> Result<Generation, Ended> {
        match words {
            Some(generation) => Ok(generation),
            None => {
                self.generation(Some(session), exchange, admitted, true)
                    .await
            }
        }
    }

    /// Builds a call about one task, after checking that the caller may make it.
    async fn about_task(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: &Admitted,
        (tasks, params, words): (Vec<String>, Value, Option<Generation>),
        share: Share,
    ) -> Result<Outgoing, Ended> {
        let refs = Refs {
            tasks,
            ..Refs::default()
        };
        ownership::check(&self.gateway, exchange, admitted, &refs).await?;
        let generation = self.spoken(session, exchange, admitted, words).await?;
        Ok(task_call(exchange, generation, &params, share))
    }
}

/// Returns the body unchanged, or with the caller's identity if `a2a.complete` is `full`.
fn rest_body(exchange: &Exchange, admitted: &Admitted, body: Bytes) -> Result<RestBody, Rejection> {
    if admitted.options().complete != Complete::Full {
        let refs = Refs::of_rest(&body, exchange.method).map_err(refusal)?;
        return Ok(RestBody {
            body,
            done: Done::default(),
            refs,
        });
    }
    let caller = admitted.permit.caller().map(WorkspaceId::as_str);
    RestBody::complete(body, exchange.method, caller).map_err(refusal)
}

/// Builds the unchanged request, below the path of the agent's interface.
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

/// Message for a body that [`send`] does not accept.
const MESSAGE_WANTED: &str = "this route takes a message alone, {\"message\": {…}}, or in a JSON-RPC call that sends one; POST other calls to \
     /workspaces/{id}/a2a";

/// Builds `message/send` or `message/stream` with the body as its params.
fn send(
    exchange: &mut Exchange,
    admitted: &Admitted,
    shape: &CallShape,
    received: Bytes,
) -> Result<Completed, Rejection> {
    // A body that is not even an object gets the general message.
    let is_object = received.trim_ascii_start().starts_with(b"{");
    let completed = body::complete(exchange, &admitted.permit, received, shape);
    let completed = completed.map_err(|refusal| match is_object {
        true => refusal,
        false => Rejection::new(refusal.reason, MESSAGE_WANTED),
    })?;
    let expected = if shape.prefers_stream {
        Method::SendStreamingMessage
    } else {
        Method::SendMessage
    };
    if completed.wrapped && completed.method == expected {
        return Ok(completed);
    }
    Err(Rejection::new(Reason::InvalidRequest, MESSAGE_WANTED))
}

/// Builds a JSON-RPC call about tasks.
fn task_call(
    exchange: &mut Exchange,
    generation: Generation,
    params: &Value,
    share: Share,
) -> Outgoing {
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
