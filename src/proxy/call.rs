//! `POST /workspaces/{id}/a2a`: one JSON-RPC call, from admission to the agent.

use std::sync::Arc;

use http::Method;
use pingora::protocols::http::ServerSession;

use super::admit::admit;
use super::body::{self, CallShape, check_media_type, prefers_stream};
use super::ended::Ended;
use super::exchange::Exchange;
use super::forward::Outgoing;
use super::{Proxy, keyed, references, wrong_method};
use crate::a2a::task::Binding;
use crate::a2a::{Generation, envelope};
use crate::ids::{InvalidWorkspaceId, WorkspaceId};

impl Proxy {
    /// Admission, body, relay. Each step takes what the one before proved.
    pub(super) async fn call(
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
        let admitted = admit(&self.gateway, exchange, session.req_header(), target).await?;
        check_media_type(&session.req_header().headers)?;
        let caller = admitted.caller();
        let (received, share) = body::read(&self.relay, &exchange.config, session, caller).await?;
        let agent = admitted.agent()?;
        let generation = if agent.has_card {
            agent.generation
        } else {
            // Boxed: it is rare that there is anything to ask for.
            let is_bare = envelope::is_bare(&received);
            Box::pin(self.generation(exchange, &admitted, agent, is_bare)).await
        };
        let shape = CallShape {
            complete: agent.complete,
            generation,
            prefers_stream: prefers_stream(&session.req_header().headers),
        };
        let completed = body::complete(exchange, &admitted, received.clone(), &shape)?;
        let key = keyed::key(exchange, session.req_header(), Some(&completed), &received)?;
        drop(received);
        references::check(&self.gateway, exchange, &admitted, &completed.refs).await?;
        references::follow(&self.gateway, exchange, &admitted, Binding::Rpc);
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
