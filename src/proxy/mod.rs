//! The data plane, in the order a request meets it: [`hygiene`], [`origin`], [`mod@route`], [`mod@admit`],
//! [`body`], [`relay`], [`cards`] or [`bridge`], [`reject`], and [`exchange`], which is left behind.
//!
//! The gateway is a Pingora `ServerApp` ([`Connections`]): it holds connection and session itself
//! from the first byte to the last, since the phases of `ProxyHttp` can neither bound a body before
//! forwarding it nor run a clock while an agent is silent (`ARCHITECTURE.md`, decisions).

mod addresses;
mod admit;
mod body;
mod bridge;
mod cards;
mod certificates;
mod chunks;
mod connections;
mod ended;
mod exchange;
mod fields;
mod head;
mod http1;
mod http2;
mod hygiene;
mod listener;
mod origin;
mod received;
mod reject;
mod relay;
mod route;
mod sidecar;
mod stream;
mod unary;
mod upstream;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, Method};
use pingora::protocols::http::ServerSession;

use self::addresses::Addresses;
use self::admit::admit;
use self::body::{CallShape, check_media_type, prefers_stream};
use self::cards::{Cards, Words};
// Pure, and for `fuzz/` only: every byte that arrives is judged by these three.
pub use self::chunks::{Broken, Chunks};
pub use self::connections::Connections;
use self::ended::{Clocks, Ended, internal, patiently};
use self::exchange::Exchange;
pub use self::fields::extra_fields;
use self::fields::{Forwarded, request_head, response_head};
pub use self::head::{Scan, Whole, Why};
pub use self::hygiene::check as check_head;
use self::listener::BrokenOff;
pub use self::listener::Listener;
use self::origin::{Origins, client_address};
use self::reject::{Dialect, answer};
use self::relay::{Forward, Relay, refuse_redirect};
pub use self::route::ROUTES as A2A_ROUTES;
use self::route::{Route, route};
use self::upstream::Call;
use crate::a2a::Generation;
use crate::a2a::method::Method as A2aMethod;
use crate::config::Derived;
use crate::directory::{Agent, Destination};
use crate::gateway::Gateway;
use crate::ids::{InvalidWorkspaceId, RequestId, WorkspaceId};
use crate::rejection::{Reason, Rejection};

/// The gateway's data plane.
struct Proxy {
    gateway: Arc<Gateway>,
    control: axum::Router,
    relay: Arc<Relay>,
    cards: Cards,
    receiving: Receiving,
    origins: Derived<Origins>,
    extra_fields: Derived<HashSet<HeaderName>>,
}

impl Proxy {
    fn new(
        gateway: Arc<Gateway>,
        control: axum::Router,
        relay: Arc<Relay>,
    ) -> Result<Self, String> {
        let config = gateway.config();
        // Said at the start. A reload is checked before, and what it names wrongly would not pass.
        extra_fields(&config.forward.headers)?;
        Ok(Self {
            relay,
            origins: Derived::new(&gateway.config, |config, _| Origins::new(config)),
            extra_fields: Derived::new(&gateway.config, |config, _| {
                extra_fields(&config.forward.headers).unwrap_or_default()
            }),
            control,
            cards: Cards::default(),
            receiving: Receiving::default(),
            gateway: Arc::clone(&gateway),
        })
    }

    /// Serves one request.
    async fn serve(self: &Arc<Self>, session: &mut ServerSession) -> Result<(), BrokenOff> {
        let head = session.req_header();
        let request_id =
            RequestId::from_caller(head.headers.get("x-request-id").map(|v| v.as_bytes()));
        match route(head.uri.path()) {
            Route::A2a(target) if matches!(head.method, Method::GET | Method::HEAD) => {
                self.card(session, request_id, target, Words::Rpc).await
            }
            Route::A2a(target) => self.a2a(session, request_id, target).await,
            Route::Card(target) => self.card(session, request_id, target, Words::Rpc).await,
            Route::CardBeside(target) => self.card(session, request_id, target, Words::Plain).await,
            Route::DefaultCard => {
                let default = self.gateway.config().a2a.default_workspace.clone();
                match default {
                    Some(id) => self.card(session, request_id, Ok(id), Words::Plain).await,
                    None => self.control(session, request_id).await,
                }
            }
            Route::BelowBase => self.below_base(session, request_id).await,
            Route::Control => self.control(session, request_id).await,
        }
    }

    /// What holds for every request, whatever its route.
    fn preliminaries(&self, session: &mut ServerSession) -> Result<(), Rejection> {
        hygiene::require(session)?;
        self.origins.get().check(session.req_header())?;
        self.relay.open()
    }

    /// `/workspaces/{id}/a2a`: from admission to the record.
    async fn a2a(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.gateway.drain.enter();
        let events = Some(&self.gateway.events);
        let mut exchange = Exchange::begin(&self.relay, events, request_id);
        let ended = self.exchange(session, &mut exchange, target).await;
        match exchange.ended(ended) {
            Ok(ended) => ended,
            Err(rejection) => self.refuse(session, exchange, rejection, Words::Rpc).await,
        }
    }

    /// Tells the caller of a refusal, with what it may still ask for.
    async fn refuse(
        &self,
        session: &mut ServerSession,
        mut exchange: Exchange,
        rejection: Rejection,
        words: Words,
    ) -> Result<(), BrokenOff> {
        let mut rejection = self.gateway.rates.failed(self.client(session), rejection);
        if let Some(allowance) = &exchange.allowance {
            rejection = allowance.told_with(rejection);
        }
        let origins = self.origins.get();
        let told = reject::refuse(session, &origins, &mut exchange, &rejection, words);
        BrokenOff::unless(told.await)
    }

    /// Admission, body, relay. Each step takes what the one before proved.
    async fn exchange(
        self: &Arc<Self>,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        target: Result<WorkspaceId, InvalidWorkspaceId>,
    ) -> Result<Ended, Ended> {
        self.preliminaries(session)?;
        let _place = self.relay.place()?;
        if session.req_header().method != Method::POST {
            let message = "send A2A calls with POST; GET reads the agent's card";
            return Err(wrong_method(message, "GET, HEAD, POST, OPTIONS").into());
        }
        let client = self.client(session);
        let admitted = admit(&self.gateway, exchange, session.req_header(), target).await?;
        check_media_type(&session.req_header().headers)?;
        let (received, share) = body::read(&self.relay, &exchange.config, session).await?;
        let generation = match &admitted.destination {
            // Boxed: it is rare that there is anything to ask for.
            Destination::Agent(agent) if !agent.has_card => {
                Box::pin(self.generation(exchange, &admitted, agent, &received)).await
            }
            Destination::Agent(agent) => agent.generation,
            Destination::Inbox => Generation::default(),
        };
        let target = (&admitted, generation);
        let prepared = self.prepare(session, exchange, target, received, client)?;
        let extended = match exchange.method {
            A2aMethod::GetExtendedCard => {
                Some(self.gateway.directory.card_source(&admitted.permit).await?)
            }
            _ => None,
        };
        // The proof and the permit have done their work; a stream may last for half an hour.
        drop(admitted);
        let Prepared {
            agent,
            call,
            completed,
            clocks,
        } = prepared;
        let directory = &self.gateway.directory;
        let _slot = directory.slot(&agent)?;
        let address = directory.address(&agent.endpoint).await?;
        let connect = exchange.config.timeouts.connect;
        let forward = Forward {
            peer: self.relay.upstream.peer(&agent, address, connect).await,
            call,
            share,
            clocks,
        };
        if let Some(source) = extended {
            let told = self.extended_card(session, exchange, forward, &source, completed);
            return Box::pin(told).await;
        }
        let answer = |head: &_, session: &ServerSession, exchange: &_| {
            refuse_redirect(head)?;
            let request = &session.req_header().headers;
            response_head(head, request, &self.origins.get(), exchange, completed).map_err(internal)
        };
        self.relay.run(session, exchange, forward, answer).await
    }

    /// Completes the call and writes it for the wire.
    fn prepare(
        &self,
        session: &ServerSession,
        exchange: &mut Exchange,
        (admitted, generation): (&admit::Admitted, Generation),
        received: bytes::Bytes,
        client: IpAddr,
    ) -> Result<Prepared, Rejection> {
        let head = session.req_header();
        let Destination::Agent(agent) = &admitted.destination else {
            return Err(Rejection::new(
                Reason::StoreUnavailable,
                "the target polls for its messages, and this gateway has no inbox",
            )
            .retry_after(Duration::from_secs(15)));
        };
        let call = CallShape {
            complete: agent.complete,
            generation,
            prefers_stream: prefers_stream(&head.headers),
        };
        let completed = body::complete(exchange, admitted, received, &call)?;
        let caller_token = self.gateway.identity.issue_caller_token(
            admitted.permit.pair(&admitted.proof.principal.to_string()),
            completed.method_name.as_deref(),
            &completed.body,
        )?;
        let forwarded = Forwarded {
            head,
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
            version_1_0: completed.wrapped && generation == Generation::V1,
            body_len: completed.body.len(),
        };
        let wire = request_head(&forwarded, &self.extra_fields.get());
        Ok(Prepared {
            agent: Arc::clone(agent),
            clocks: Clocks::new(
                &exchange.config.timeouts,
                exchange.started,
                admitted.timeout,
                agent.idle_timeout,
            ),
            completed: (!completed.done.is_empty()).then(|| completed.done.to_string()),
            call: Call::new(wire, completed.body),
        })
    }

    /// Below the base there is nothing yet but the base itself.
    async fn below_base(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let rejection = self.preliminaries(session).err();
        let rejection = rejection.unwrap_or_else(|| {
            Rejection::new(
                Reason::NotFound,
                "no such A2A route; POST to /workspaces/{id}/a2a",
            )
        });
        let (origins, dialect) = (self.origins.get(), Dialect::Rpc(None));
        BrokenOff::unless(answer(session, &origins, &request_id, &rejection, dialect).await)
    }

    /// Hands everything else to the control plane.
    async fn control(
        self: &Arc<Self>,
        session: &mut ServerSession,
        request_id: RequestId,
    ) -> Result<(), BrokenOff> {
        if let Some(answered) = self.preflight(session, &request_id).await {
            return answered;
        }
        let _running = self.gateway.drain.enter();
        match self.preliminaries(session) {
            Ok(()) => {}
            Err(rejection) => {
                let (origins, dialect) = (self.origins.get(), Dialect::Plain);
                let told = answer(session, &origins, &request_id, &rejection, dialect).await;
                return BrokenOff::unless(told);
            }
        }
        BrokenOff::unless(bridge::pass(self, session, &request_id).await)
    }

    /// Answers a CORS preflight, before any credential is asked for.
    async fn preflight(
        &self,
        session: &mut ServerSession,
        request_id: &RequestId,
    ) -> Option<Result<(), BrokenOff>> {
        let mut head = self.origins.get().preflight(session.req_header())?;
        hygiene::check(session.req_header()).ok()?;
        self.origins.get().check(session.req_header()).ok()?;
        self.origins
            .get()
            .expose(&session.req_header().headers, &mut head);
        // A request id is visible ASCII, so the field can be built.
        let _ = head.insert_header("x-request-id", request_id.as_str());
        let write = patiently(session.get_write_timeout(), async {
            session.write_response_header(Box::new(head)).await?;
            session.write_response_body(bytes::Bytes::new(), true).await
        });
        Some(BrokenOff::unless(write.await))
    }

    fn client(&self, session: &ServerSession) -> IpAddr {
        let peer = session
            .client_addr()
            .and_then(|a| a.as_inet())
            .map(std::net::SocketAddr::ip);
        // Every listener of ours is TCP, so a peer without an address cannot be.
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        client_address(
            peer,
            &session.req_header().headers,
            &self.gateway.config().server.trusted_proxies,
        )
    }
}

/// `method_not_allowed`, with what is.
fn wrong_method(message: &'static str, allow: &'static str) -> Rejection {
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    rejection.allow = Some(allow);
    rejection
}

/// A call as it leaves, and for whom.
struct Prepared {
    agent: Arc<Agent>,
    call: Call,
    /// For `X-A2A-Completed`.
    completed: Option<String>,
    clocks: Clocks,
}

/// Requests to the control plane whose bodies are on their way. They have places of their own, as many
/// as exchanges, so that bodies that never end keep no place from anybody who has proven something.
#[derive(Default)]
struct Receiving {
    all: AtomicUsize,
    addresses: Addresses,
}

/// One of `server.max_exchanges`. Dropping it frees the place.
struct Slot<'a>(&'a AtomicUsize);

impl<'a> Slot<'a> {
    fn take(taken: &'a AtomicUsize, max: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let slot = Self(taken);
        (before < max).then_some(slot)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
