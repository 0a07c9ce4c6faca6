//! Sends an admitted request to its agent, whatever binding it came by.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;

use super::fields::{Forwarded, request_head};
use super::rewrite::{OwnTasks, Rewrite};
use super::upstream::Call;
use super::{Forward, refuse_redirect};
use crate::a2a::done::Done;
use crate::a2a::method::Method as A2aMethod;
use crate::a2a::task::Binding;
use crate::delivery::calls::Key;
use crate::directory::{Agent, Destination, LookupFor};
use crate::identity::Principal;
use crate::proxy::Proxy;
use crate::proxy::admit::Admitted;
use crate::proxy::cards::ExtendedCard;
use crate::proxy::destination::idempotency::Claimed;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::record::trace::Callee;
use crate::proxy::relay::Clocks;
use crate::proxy::respond::{internal, response_head};
use crate::rejection::Rejection;
use crate::shares::Share;

/// A request as the agent receives it.
pub(in crate::proxy) struct Outgoing {
    /// The HTTP method.
    pub(in crate::proxy) verb: Method,
    /// The path and query at the agent; `None` for its JSON-RPC path.
    pub(in crate::proxy) target: Option<String>,
    /// The body.
    pub(in crate::proxy) body: Bytes,
    /// The share of the body memory that the body takes.
    pub(in crate::proxy) share: Share,
    /// The JSON-RPC method, for the caller token.
    pub(in crate::proxy) method_name: Option<String>,
    /// True if the gateway wrapped the call for a 1.0 target, so that it must declare the version.
    pub(in crate::proxy) version_1_0: bool,
    /// The completions made, for `X-A2A-Completed`.
    pub(in crate::proxy) done: Done,
    /// The rewrite of the answer.
    pub(in crate::proxy) rewrite: Option<Rewrite>,
    /// The idempotency key.
    pub(in crate::proxy) key: Option<Key>,
}

impl Outgoing {
    /// Sets the path of a JSON-RPC call from the agent's registered card, if it differs from the registered URL's.
    pub(in crate::proxy) fn take_path_of(&mut self, agent: &Agent) {
        if self.target.is_none() {
            let method = self.method_name.as_deref();
            self.target = agent.json_rpc.path_of_method(method).map(str::to_owned);
        }
    }
}

impl Proxy {
    /// Forwards the request and relays the answer; or answers for an agent that polls.
    pub(in crate::proxy) async fn forward(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: Admitted,
        mut outgoing: Outgoing,
    ) -> Result<Ended, Ended> {
        let agent = match &admitted.destination {
            Destination::Agent(agent) => Arc::clone(agent),
            // Boxed: rarely taken.
            Destination::Inbox(_) => {
                return Box::pin(self.deliver(session, exchange, admitted, outgoing)).await;
            }
        };
        if outgoing.target.is_none() && agent.options.path_in_card {
            let method = outgoing.method_name.as_deref();
            let path = Box::pin(self.json_rpc(Some(session), exchange, &admitted, method)).await?;
            outgoing.target = Some(path);
        }
        outgoing.take_path_of(&agent);
        exchange.will_call(&callee(&agent, &outgoing));
        let from = (session.req_header(), self.client(session));
        let head = self.request_head(from, exchange, &admitted, &agent, &outgoing)?;
        let clocks = Clocks::new(
            &exchange.config.timeouts,
            exchange.started,
            admitted.timeout,
            agent.idle_timeout,
        );
        let completed = (!outgoing.done.is_empty()).then(|| outgoing.done.to_string());
        let free = match &outgoing.key {
            None => None,
            Some(key) => {
                let told = (clocks.total, completed.as_deref());
                match Box::pin(self.claim_or_replay(session, exchange, key, told)).await? {
                    Claimed::New(free) => Some((key.clone(), free)),
                    Claimed::Replayed(ended) => return Ok(ended),
                }
            }
        };
        let asker = LookupFor::calling(admitted.account());
        let directory = &self.gateway.directory;
        let slot = match directory.slot(&agent, asker.account) {
            Ok(slot) => slot,
            Err(busy) => {
                // Releases the idempotency key: the deferred call claims it again.
                drop(free);
                return Box::pin(
                    self.defer_at_capacity(session, exchange, &admitted, outgoing, busy),
                )
                .await;
            }
        };
        // The proof and the permit are no longer needed, and a stream may last for half an hour.
        drop(admitted);
        let connect = exchange.config.timeouts.connect;
        let target = outgoing.target.as_deref();
        let forward = Forward {
            peer: self.peer(&agent, target, asker, connect).await?,
            call: Call::new(head, outgoing.body),
            share: outgoing.share,
            clocks,
            rewrite: outgoing.rewrite,
            slot: Some(slot),
        };
        if let Some((key, free)) = free {
            let completed = completed.as_deref();
            let once = self.execute_once(session, exchange, (&key, free), forward, completed);
            return Box::pin(once).await;
        }
        let answer = |head: &_, session: &ServerSession, exchange: &_| {
            self.answer_head(head, session, exchange, completed)
        };
        self.relay.run(session, exchange, forward, answer).await
    }

    /// Returns the address of the agent, or of the path `target` at it, to connect to within `connect`.
    ///
    /// # Errors
    /// `address_forbidden`, `agent_unreachable`, `store_unavailable`.
    async fn peer(
        &self,
        agent: &Agent,
        target: Option<&str>,
        asker: LookupFor,
        connect: Duration,
    ) -> Result<Box<HttpPeer>, Rejection> {
        let directory = &self.gateway.directory;
        let (settled, at) = (&agent.settled, &agent.endpoint);
        let address = match target {
            None => directory.agent_address(settled, at, asker).await?,
            Some(target) => {
                let at = at.at(target.to_owned());
                Box::pin(directory.agent_address(settled, &at, asker)).await?
            }
        };
        Ok(self.relay.upstream.peer(agent, address, connect).await)
    }

    /// Builds the head for the caller from the agent's.
    fn answer_head(
        &self,
        agents: &ResponseHeader,
        session: &ServerSession,
        exchange: &Exchange,
        completed: Option<String>,
    ) -> Result<ResponseHeader, Rejection> {
        refuse_redirect(agents)?;
        let passed = self.relay.response_fields.get().passed(agents);
        let passed = passed.map_err(internal)?;
        let (request, origins) = (&session.req_header().headers, self.origins.get());
        response_head(passed, request, &origins, exchange, completed).map_err(internal)
    }

    /// Returns the rewrite of the answer to a call, by its method.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn rewrite(
        &self,
        exchange: &Exchange,
        admitted: &Admitted,
        binding: Binding,
    ) -> Result<Option<Rewrite>, Rejection> {
        Ok(match exchange.method {
            A2aMethod::GetExtendedCard => {
                let card = ExtendedCard {
                    gateway: Arc::clone(&self.gateway),
                    config: Arc::clone(&exchange.config),
                    source: Box::pin(self.gateway.directory.card_source(&admitted.permit)).await?,
                };
                Some(Rewrite::ExtendedCard(binding, Box::new(card)))
            }
            // Operators may list every task.
            A2aMethod::ListTasks if admitted.proof.principal != Principal::Operator => {
                let own = OwnTasks {
                    gateway: Arc::clone(&self.gateway),
                    proof: Arc::clone(&admitted.proof),
                    target: admitted.permit.target().clone(),
                };
                Some(Rewrite::Tasks(binding, Box::new(own)))
            }
            _ => None,
        })
    }

    /// Writes the request head in wire format, with a new caller token. `head` and `client` are the request's head and
    /// the client's address.
    pub(in crate::proxy) fn request_head(
        &self,
        (head, client): (&RequestHeader, IpAddr),
        exchange: &Exchange,
        admitted: &Admitted,
        agent: &Agent,
        outgoing: &Outgoing,
    ) -> Result<Vec<u8>, Rejection> {
        let caller_token = self.gateway.identity.issue_caller_token(
            admitted.permit.pair(&admitted.proof.principal.to_string()),
            outgoing.method_name.as_deref(),
            &outgoing.body,
        )?;
        let forwarded = Forwarded {
            head,
            verb: &outgoing.verb,
            target: outgoing
                .target
                .as_deref()
                .unwrap_or(&agent.endpoint.path_and_query),
            agent,
            request_id: &exchange.request_id,
            caller: admitted.permit.caller(),
            caller_token: &caller_token,
            hops: admitted.hops,
            client,
            scheme: if exchange.config.server.tls.cert.is_some() {
                "https"
            } else {
                "http"
            },
            version_1_0: outgoing.version_1_0,
            context: exchange.outgoing(),
            body_len: outgoing.body.len(),
        };
        Ok(request_head(&forwarded, &self.extra_fields.get()))
    }
}

/// Returns the attributes of the called agent, for the span.
pub(in crate::proxy) fn callee<'a>(agent: &'a Agent, outgoing: &'a Outgoing) -> Callee<'a> {
    let endpoint = &agent.endpoint;
    Callee {
        verb: &outgoing.verb,
        host: &endpoint.sni,
        port: endpoint.port,
        tls: endpoint.tls,
        rpc: outgoing.method_name.is_some(),
    }
}
