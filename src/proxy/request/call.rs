//! `POST /workspaces/{id}/a2a`: one JSON-RPC call, from admission to the agent.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use pingora::protocols::http::ServerSession;

use super::body;
use super::body::{CallShape, check_media_type};
use crate::a2a::accept::prefers_stream;
use crate::a2a::task::Binding;
use crate::a2a::{Generation, envelope};
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::proxy::admit::{Admitted, allow};
use crate::proxy::destination::deferred::{JobWords, asked_job};
use crate::proxy::destination::idempotency;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::Outgoing;
use crate::proxy::{Proxy, wrong_method};
use crate::shares::Share;

impl Proxy {
    /// Runs admission, body and relay. Each step takes the proof of the step before.
    pub(in crate::proxy) async fn call(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
    ) -> Result<Ended, Ended> {
        let _place = self.enter(session)?;
        if session.req_header().method != Method::POST {
            let message = "send A2A calls with POST; GET reads the agent's card";
            return Err(wrong_method(message, "GET, HEAD, POST, OPTIONS").into());
        }
        let allowed = allow(&self.gateway, exchange, session.req_header(), target).await?;
        let admitted = match self.gateway.directory.resolve(&allowed.permit).await {
            Ok(destination) => {
                Admitted::new(allowed, destination, session.req_header(), &exchange.config)?
            }
            // Boxed, here and below: rarely taken.
            Err(away) => {
                return Box::pin(self.defer_or_reject(session, exchange, allowed, away)).await;
            }
        };
        check_media_type(&session.req_header().headers)?;
        let account = admitted.account();
        let received = body::read(&self.relay.load, &exchange.config, session, account).await?;
        self.rpc(session, exchange, admitted, received).await
    }

    /// Handles one JSON-RPC call, or a body that is made one, from reading the body on.
    pub(in crate::proxy) async fn rpc(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: Admitted,
        (received, share): (Bytes, Share),
    ) -> Result<Ended, Ended> {
        let options = admitted.options();
        let generation = if options.has_card {
            options.generation
        } else {
            // Boxed: rarely taken.
            let is_bare = envelope::is_bare(&received);
            Box::pin(self.generation(Some(session), exchange, &admitted, is_bare)).await?
        };
        let shape = CallShape {
            complete: options.complete,
            generation,
            prefers_stream: prefers_stream(&session.req_header().headers),
        };
        let completed = body::complete(exchange, &admitted.permit, received.clone(), &shape)?;
        if let Some(job) = asked_job(&completed) {
            let asked = (&*admitted.proof, Some(admitted.permit.target()), job);
            let words = JobWords::of(&completed);
            let answered = Box::pin(self.about_job(session, exchange, asked, words));
            if let Some(ended) = answered.await? {
                return Ok(ended);
            }
        }
        let key = idempotency::key(exchange, session.req_header(), Some(&completed), &received)?;
        drop(received);
        let (refs, binding) = (&completed.refs, Binding::Rpc);
        self.authorize_references(session, exchange, &admitted, refs, binding)
            .await?;
        let outgoing = Outgoing {
            verb: Method::POST,
            target: None,
            version_1_0: completed.wrapped && generation == Generation::V1,
            done: completed.done,
            method_name: completed.method_name,
            body: completed.body,
            share,
            rewrite: self.rewrite(exchange, &admitted, Binding::Rpc).await?,
            key,
        };
        self.forward(session, exchange, admitted, outgoing).await
    }
}
