//! The parts of a call to an agent: its path, its head on the wire, the address, and the head and rewrite of the
//! answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;

use super::fields::{RequestHeadInput, request_head};
use super::refuse_redirect;
use super::rewrite::{Rewrite, TaskListFilter};
use super::upstream::WireRequest;
use crate::a2a::completion_steps::CompletionSteps;
use crate::a2a::method::Method;
use crate::a2a::task::Binding;
use crate::directory::{Agent, LookupFor};
use crate::identity::Principal;
use crate::proxy::admit::{AdmittedCall, AllowedCaller};
use crate::proxy::cards::extended::ExtendedCard;
use crate::proxy::context::Context;
use crate::proxy::offload;
use crate::proxy::outcome::ExchangeOutcome;
use crate::proxy::outcome::box_cold_path;
use crate::proxy::record::Exchange;
use crate::proxy::record::trace::Callee;
use crate::proxy::request::checked_call::CheckedCall;
use crate::proxy::respond::internal_error;
use crate::rejection::Rejection;
use crate::trust::body_hash;
use crate::workspace::CallerProof;

/// The request that a call stands for: its head, and the address of its client.
pub(in crate::proxy) struct Origin<'a> {
    pub(in crate::proxy) head: &'a RequestHeader,
    pub(in crate::proxy) client: IpAddr,
}

/// A call, with its caller and its agent.
pub(in crate::proxy) struct AgentCall<'a> {
    pub(in crate::proxy) context: &'a Context,
    pub(in crate::proxy) admitted: &'a AdmittedCall,
    pub(in crate::proxy) agent: &'a Agent,
}

impl AgentCall<'_> {
    /// Sets the path of a JSON-RPC call: from the card at the agent's card URL, or from its registered card. `caller`:
    /// a caller that may leave meanwhile.
    ///
    /// # Errors
    /// As [`Cards::json_rpc_path`](crate::proxy::cards::store::Cards::json_rpc_path).
    pub(in crate::proxy) async fn set_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        call: &mut CheckedCall,
    ) -> Result<(), ExchangeOutcome> {
        if call.path.is_none() && call.route.is_none() && self.agent.options.path_in_card {
            let method = call.method_name.as_deref();
            let cards = &self.context.cards;
            let path = cards.json_rpc_path(caller, exchange, self.admitted, method);
            call.path = Some(box_cold_path(path).await?);
        }
        call.set_path_from(self.agent);
        Ok(())
    }

    /// Returns the request for the task with which a subscription begins.
    ///
    /// # Errors
    /// As [`AgentCall::write_head`].
    pub(in crate::proxy) async fn snapshot_request(
        &self,
        origin: &Origin<'_>,
        exchange: &Exchange,
        asks: &CheckedCall,
    ) -> Result<WireRequest, Rejection> {
        let head = self.write_head(origin, exchange, asks).await?;
        Ok(WireRequest::new(head, asks.body.clone()))
    }

    /// Writes the request head in wire format, with a caller token of the proof that the agent asks for.
    ///
    /// # Errors
    /// The token cannot be signed.
    pub(in crate::proxy) async fn write_head(
        &self,
        origin: &Origin<'_>,
        exchange: &Exchange,
        call: &CheckedCall,
    ) -> Result<Vec<u8>, Rejection> {
        let AllowedCaller { proof, permit } = &self.admitted.allowed;
        let agent = self.agent;
        let caller = proof.principal.name();
        let pair = permit.pair(&caller);
        let signed = &self.context.gateway.identity.signed;
        let caller_token = match agent.proof {
            CallerProof::Pair => signed.caller_token_for_pair(pair),
            CallerProof::Request => {
                let hash = offload::run_on_body(&call.body, body_hash).await;
                signed.caller_token_for_request(pair, call.method_name.as_deref(), hash)
            }
        }?;
        let path = call.path.as_deref();
        let forwarded = RequestHeadInput {
            head: origin.head,
            verb: &call.verb,
            target: path.unwrap_or(&agent.endpoint.path_and_query),
            agent,
            request_id: &exchange.request_id,
            caller: permit.caller(),
            caller_token: &caller_token,
            hops: self.admitted.hops,
            client: origin.client,
            scheme: if exchange.config.server.tls.cert.is_some() {
                "https"
            } else {
                "http"
            },
            version_1_0: call.version_1_0,
            wire: call.wire.as_ref(),
            context: exchange.outgoing_context(),
            body_len: call.body.len(),
        };
        Ok(request_head(&forwarded, &self.context.extra_fields.get()))
    }
}

/// Returns the address of the agent, or of `path` at it.
///
/// # Errors
/// `address_forbidden`, `agent_unreachable`, `store_unavailable`.
pub(in crate::proxy) async fn resolve_address(
    context: &Context,
    agent: &Agent,
    path: Option<&str>,
    asker: LookupFor,
) -> Result<SocketAddr, Rejection> {
    let addresses = &context.gateway.directory.addresses;
    let (decision, at) = (&agent.address_decision, &agent.endpoint);
    match path {
        None => addresses.agent_address(decision, at, asker, &mut ()).await,
        Some(path) => {
            let at = at.with_path(path.to_owned());
            box_cold_path(addresses.agent_address(decision, &at, asker, &mut ())).await
        }
    }
}

/// Returns the agent, or `path` at it, to connect to within `connect`.
///
/// # Errors
/// As [`resolve_address`].
pub(in crate::proxy) async fn resolve_peer(
    context: &Context,
    agent: &Agent,
    path: Option<&str>,
    asker: LookupFor,
    connect: Duration,
) -> Result<Box<HttpPeer>, Rejection> {
    let address = resolve_address(context, agent, path, asker).await?;
    Ok(context
        .relay
        .upstream
        .agent_peer(agent, address, connect)
        .await)
}

/// Builds the head for the caller from the agent's.
///
/// # Errors
/// `agent_redirected`; a field cannot be built, which is a bug.
pub(in crate::proxy) fn answer_head(
    context: &Context,
    agents: &ResponseHeader,
    session: &ServerSession,
    exchange: &Exchange,
    done: CompletionSteps,
) -> Result<ResponseHeader, Rejection> {
    refuse_redirect(agents)?;
    let passed = context.relay.response_fields.get().filter_head(agents);
    context.response_head(session, exchange, passed.map_err(internal_error)?, done)
}

/// Returns the rewrite of the answer to a call, by its method.
///
/// # Errors
/// `store_unavailable`.
pub(in crate::proxy) async fn choose_rewrite(
    context: &Context,
    exchange: &Exchange,
    admitted: &AdmittedCall,
    call: &CheckedCall,
) -> Result<Option<Rewrite>, Rejection> {
    let AllowedCaller { proof, permit } = &admitted.allowed;
    let binding = match call.route {
        Some(_) => Binding::Rest,
        None => Binding::Rpc,
    };
    Ok(match exchange.method {
        Method::GetExtendedCard => {
            let card = ExtendedCard {
                gateway: Arc::clone(&context.gateway),
                config: Arc::clone(&exchange.config),
                source: box_cold_path(context.gateway.resolution.card_source(permit)).await?,
                generation: call.generation(),
            };
            Some(Rewrite::ExtendedCard(binding, Box::new(card)))
        }
        // Operators may list every task.
        Method::ListTasks if proof.principal != Principal::Operator => {
            let own = TaskListFilter {
                gateway: Arc::clone(&context.gateway),
                proof: Arc::clone(proof),
                target: permit.life(),
            };
            Some(Rewrite::Tasks(binding, Box::new(own)))
        }
        _ => None,
    })
}

/// Returns the attributes of the called agent, for the span.
pub(in crate::proxy) fn callee_attributes<'a>(
    agent: &'a Agent,
    call: &'a CheckedCall,
) -> Callee<'a> {
    let endpoint = &agent.endpoint;
    Callee {
        verb: &call.verb,
        host: &endpoint.sni,
        port: endpoint.port,
        tls: endpoint.tls,
        rpc: call.method_name.is_some(),
    }
}
