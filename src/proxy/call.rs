//! `POST /workspaces/{id}/a2a`: one JSON-RPC call, from admission to the agent.

use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use super::Proxy;
use super::admit::admit;
use super::body::{self, CallShape, check_media_type, prefers_stream};
use super::ended::Ended;
use super::exchange::Exchange;
use super::forward::Outgoing;
use crate::a2a::Generation;
use crate::ids::{InvalidWorkspaceId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

impl Proxy {
    /// Admission, body, relay. Each step takes what the one before proved.
    pub(super) async fn call(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
    ) -> Result<Ended, Ended> {
        self.preliminaries(session)?;
        let _place = self.relay.place()?;
        if session.req_header().method != Method::POST {
            let mut rejection =
                Rejection::new(Reason::MethodNotAllowed, "send A2A calls with POST");
            rejection.allow = Some("POST, OPTIONS");
            return Err(rejection.into());
        }
        let admitted = admit(&self.gateway, exchange, session.req_header(), target).await?;
        check_media_type(&session.req_header().headers)?;
        let (received, share) = body::read(&self.relay, &exchange.config, session).await?;
        let agent = admitted.agent()?;
        let shape = CallShape {
            complete: agent.complete,
            generation: agent.generation,
            prefers_stream: prefers_stream(&session.req_header().headers),
        };
        let completed = body::complete(exchange, &admitted, received, &shape)?;
        let outgoing = Outgoing {
            verb: Method::POST,
            target: None,
            version_1_0: completed.wrapped && agent.generation == Generation::V1,
            done: completed.done,
            method_name: completed.method_name,
            body: completed.body,
            share,
            rewrite: None,
        };
        self.forward(session, exchange, admitted, outgoing).await
    }
}
