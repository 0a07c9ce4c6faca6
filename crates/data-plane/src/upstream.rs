//! Connections to agents, a request sent once, and the head of the answer awaited and judged. HTTP/1.1 only: agents'
//! servers all support it, and a broken HTTP/2 connection would take several exchanges with it (`ARCHITECTURE.md`). An
//! agent of gRPC is reached through [`crate::grpc_agent`].

use crate::admission::Load;
use crate::certificates::Certificates;
use crate::dial::Dialling;
use crate::grpc_pool::GrpcPool;
use crate::listener::caller_gone;
use crate::record::{Exchange, ExchangeError};
use a2a::accept::is_json;
use access::identity::Proof;
use assembly::access_watch::{AccessBasis, CutOff};
use assembly::gateway::Gateway;
use bytes::Bytes;
use directory::{Agent, AgentAddress, Endpoint, LookupFor, Slot};
use futures_util::TryFutureExt as _;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http1::{
    ANSWER_HEAD_BYTES_MAX, AnswerError, AnswerHead, AnswerReader, Connector, Failure, Pool,
    SendError, build_peer, content_length_of, is_local_failure, named_by_connection,
};
use kernel::config::{Config, Derived, Live, PASSED_FROM_AGENTS, Timeouts};
use kernel::drain::{Drain, DrainSignal, DrainWatch};
use kernel::ids::WorkspaceId;
use kernel::metrics::Metrics;
use kernel::rejection::{Delivery, Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
use kernel::telemetry::traces::Traces;
use mailbox::streams::Streams;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use pingora::{Error, ErrorType};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub(super) use http1::{Connection as AgentConnection, PoolHandle, WireRequest, is_event_stream};

/// Connections to agents.
pub(super) struct Upstream {
    pub(super) connector: Connector,
    /// Connections to agents that are called by gRPC.
    pub(super) grpc: Arc<GrpcPool>,
    pub(super) certificates: Certificates,
}

/// Returns the peer of an agent at `address`, without its own settings of TLS.
pub(super) fn build_agent_peer(
    address: AgentAddress,
    endpoint: &Endpoint,
    connect: Duration,
) -> Box<HttpPeer> {
    let mut peer = build_peer(address.first, endpoint.tls, &endpoint.sni, connect);
    if address.has_others() {
        peer.options.custom_l4 = Some(Arc::new(Dialling(address)));
    }
    peer
}

/// Reason why there is no connection to an agent.
pub(super) struct ConnectFailure {
    /// The rejection of the call.
    pub(super) why: Rejection,
    /// True if the agent was not there: a connection was refused, or not made in time. A later attempt may succeed.
    pub(super) is_away: bool,
    /// True if a connection was refused.
    pub(super) is_refused: bool,
}

impl From<ConnectFailure> for Rejection {
    fn from(failed: ConnectFailure) -> Self {
        failed.why
    }
}

impl Upstream {
    /// Creates a pool of at most `pool_size` unused connections, of `threads` and all others, which are closed when the
    /// drain begins.
    pub(super) fn new(pool_size: usize, threads: usize, drain: &Drain) -> Self {
        let pool = Pool::new(pool_size, threads, drain.begun_flag());
        Self {
            connector: Connector::new(pool),
            grpc: GrpcPool::new(threads, drain.begun_flag()),
            certificates: Certificates::new(),
        }
    }

    /// Returns Pingora's peer for the agent. `address` was checked by the policy, and is dialled, with those of the
    /// same name behind it. A certificate is verified for [`directory::Endpoint::sni`], which is never empty: for an
    /// empty name Pingora would verify nothing.
    pub(super) async fn agent_peer(
        &self,
        agent: &Agent,
        address: AgentAddress,
        connect: Duration,
    ) -> Box<HttpPeer> {
        let endpoint = &agent.endpoint;
        let mut peer = build_agent_peer(address, endpoint, connect);
        if let Some(tls) = agent.upstream_tls.as_ref().filter(|_| endpoint.tls) {
            // Boxed: it is rare, and its future would otherwise widen that of every exchange.
            Box::pin(self.certificates.apply_to(&mut peer, agent, tls)).await;
        }
        peer
    }

    /// Returns a connection to the agent, a pooled one if there is one. Sends no byte.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`.
    pub(super) async fn connect(&self, peer: &HttpPeer) -> Result<AgentConnection, ConnectFailure> {
        if let Some(connection) = self.connector.take_idle(peer) {
            return Ok(connection);
        }
        tracing::debug!(%peer, "no idle connection to the agent; dialling");
        self.connect_anew(peer).await
    }

    /// Returns a new connection to the agent, which no call has used. Sends no byte.
    ///
    /// # Errors
    /// As [`Upstream::connect`].
    pub(super) async fn connect_anew(
        &self,
        peer: &HttpPeer,
    ) -> Result<AgentConnection, ConnectFailure> {
        let connected = self.connector.connect(peer).await;
        connected.map_err(|error| connect_failure(error, peer))
    }

    /// As [`Upstream::connect`], until `deadline`.
    ///
    /// # Errors
    /// As [`Upstream::connect`].
    pub(super) async fn connect_by(
        &self,
        peer: &HttpPeer,
        deadline: Instant,
    ) -> Result<AgentConnection, ConnectFailure> {
        let connected = timeout_at(deadline, self.connect(peer)).await;
        connected.unwrap_or_else(|_| Err(connect_timed_out()))
    }

    /// Sends the call once. It is sent again only if no byte of it was sent: a pooled connection that has died
    /// may accept none, and then a new one is opened, as far as the budget of retries of `slot` allows.
    ///
    /// # Errors
    /// `agent_unreachable`, `agent_timeout`, `agent_protocol_error`, each with its [`Delivery`].
    pub(super) fn send_over(
        &self,
        connection: AgentConnection,
        peer: &HttpPeer,
        call: &WireRequest,
        deadline: Instant,
        (metrics, slot): (&Metrics, Option<&Slot>),
    ) -> impl Future<Output = Result<AnswerReader, Rejection>> {
        let may_resend = move || {
            let may_resend = slot.is_none_or(Slot::may_retry);
            if may_resend {
                metrics.resends.inc();
            }
            may_resend
        };
        let sending = (self.connector).send(connection, peer, call, deadline, may_resend);
        sending.map_err(move |error| send_failure(error, peer))
    }
}

/// Returns the rejection of a call that was not sent, or may not have been.
fn send_failure(error: SendError, peer: &HttpPeer) -> Rejection {
    match error {
        SendError::NotConnected(error) => connect_failure(error, peer).why,
        SendError::LateConnection => connect_timed_out().why,
        SendError::Late => Rejection::new(
            Reason::AgentTimeout,
            "the agent did not take the request in time (timeouts.total)",
        )
        .with_fact("clock", "total")
        .with_delivery(Delivery::Unknown),
        SendError::NotSent(error) => Rejection::new(
            Reason::AgentUnreachable,
            "the agent closed the connection at once",
        )
        .with_delivery(Delivery::NotSent)
        .with_cause(error),
        SendError::BrokenOff(error) => Rejection::new(
            Reason::AgentProtocolError,
            "the agent closed the connection while the request was being sent",
        )
        .with_delivery(Delivery::Unknown)
        .with_cause(error),
    }
}

/// Returns the rejection of a call with a deadline before `timeouts.connect`.
fn connect_timed_out() -> ConnectFailure {
    let message = "no connection to the agent in time (timeouts.total; of a gateway, X-Timeout may ask for more)";
    let why = Rejection::new(Reason::AgentTimeout, message)
        .with_fact("clock", "total")
        .with_delivery(Delivery::NotSent);
    ConnectFailure {
        why,
        is_away: false,
        is_refused: false,
    }
}

fn connect_failure(error: Box<Error>, peer: &HttpPeer) -> ConnectFailure {
    let connect = peer.options.connection_timeout.unwrap_or_default();
    let timed_out = matches!(
        error.etype(),
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout
    );
    let handshake = *error.etype() == ErrorType::TLSHandshakeFailure;
    let is_refused = *error.etype() == ErrorType::ConnectRefused;
    let own = is_local_failure(&error);
    let rejection = if own {
        Rejection::new(
            Reason::Overloaded,
            "the gateway can open no more connections: its open files, its memory or its local ports are used up",
        )
        .with_retry_after(Duration::from_secs(1))
    } else if handshake {
        Rejection::new(
            Reason::AgentUnreachable,
            "no TLS connection to the agent: its certificate must be valid for the host of its URL, from an \
             authority that the system or its upstream_tls.ca trusts, and an agent may ask for upstream_tls.client_cert",
        )
    } else if timed_out {
        Rejection::new(
            Reason::AgentTimeout,
            format!(
                "no connection to the agent within {} (timeouts.connect)",
                humantime::format_duration(connect)
            ),
        )
        .with_fact("clock", "connect")
    } else {
        Rejection::new(
            Reason::AgentUnreachable,
            "no connection to the agent: check that it listens at the url of its workspace, or its card_url",
        )
    };
    ConnectFailure {
        why: rejection
            .with_delivery(Delivery::NotSent)
            .with_cause(Failure(error)),
        is_away: !handshake && !own,
        is_refused,
    }
}

// The end of an exchange that neither its caller nor its agent causes: the end of the drain, or a stop of an operator.

/// Pause between two looks for a stop while the store is away.
const STORE_PAUSE: Duration = Duration::from_millis(250);

/// The watch of one exchange over what may end it.
pub(super) struct CancelWatch {
    drain: DrainWatch,
    /// The call. `None`: only the drain ends the exchange.
    call: Option<WatchedCall>,
}

/// A call that a stop may cover.
struct WatchedCall {
    gateway: Arc<Gateway>,
    proof: Arc<Proof>,
    target: WorkspaceId,
}

impl CancelWatch {
    /// Returns the watch of an exchange that only the drain ends.
    pub(super) fn for_drain(drain: &Drain) -> Self {
        Self {
            drain: drain.watch(),
            call: None,
        }
    }

    /// True if the drain has ended: exchanges must end now.
    pub(super) fn is_requested(&self) -> bool {
        self.drain.is_requested()
    }

    /// Waits until the exchange must end, and returns the reason. Cancellation-safe.
    pub(super) async fn cancelled(&mut self, delivered: Delivery) -> Rejection {
        loop {
            let recheck = match self.drain.next_signal().await {
                DrainSignal::End => {
                    let why = shutting_down(delivered);
                    return match delivered {
                        Delivery::NotSent => why.at(Stage::Process),
                        Delivery::Sent | Delivery::Unknown => why,
                    };
                }
                DrainSignal::Recheck(recheck) => recheck,
            };
            if let Some(call) = &self.call {
                // Boxed: rare, and each wait would be larger by it.
                let stopped = Box::pin(call.gateway.why_stopped(&call.proof, &call.target));
                match stopped.await {
                    Ok(Some(why)) => return why.at(Stage::Stop).with_delivery(delivered),
                    Ok(None) => {}
                    Err(_) => {
                        // Not checked: the next signal asks for the check again.
                        sleep(STORE_PAUSE).await;
                        continue;
                    }
                }
            }
            self.drain.mark_checked(recheck);
        }
    }
}

// Rejections of calls that an agent was sent, and that it did not answer.

/// Builds `agent_protocol_error`: the request was sent, and the answer is none that may pass.
pub(super) fn reject_answer(message: impl Into<Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::AgentProtocolError, message).with_delivery(Delivery::Sent)
}

/// Builds `agent_protocol_error`: the request was sent, and the response is not HTTP.
pub(super) fn broken_http(cause: Option<Failure>) -> Rejection {
    let rejection = reject_answer(
        "the agent closed the connection or broke HTTP before its answer was complete",
    );
    match cause {
        Some(cause) => rejection.with_cause(cause),
        None => rejection,
    }
}

/// Builds `agent_protocol_error` for an answer that was not read to its end.
pub(super) fn reject_unread(error: AnswerError) -> Rejection {
    match error {
        AnswerError::Broken(cause) => broken_http(cause),
        AnswerError::HeadTooLong => {
            reject_long_head(format_args!("more than {ANSWER_HEAD_BYTES_MAX}"))
        }
    }
}

fn reject_long_head(bytes: impl Display) -> Rejection {
    reject_answer(format!(
        "the head of the agent's answer has {bytes} bytes, and may have {ANSWER_HEAD_BYTES_MAX}"
    ))
}

/// Builds `agent_timeout`, with the name of the clock. The request was already sent.
pub(super) fn timed_out(clock: &'static str) -> Rejection {
    Rejection::new(
        Reason::AgentTimeout,
        format!("the agent did not answer in time (timeouts.{clock}); of a gateway, X-Timeout may ask for more"),
    )
    .with_fact("clock", clock)
    .with_delivery(Delivery::Sent)
}

/// Builds `shutting_down` for a call that was already started.
pub(super) fn shutting_down(delivered: Delivery) -> Rejection {
    Rejection::new(
        Reason::ShuttingDown,
        "this process is shutting down before the agent was done; ask again for the task",
    )
    .with_delivery(delivered)
}

/// Builds `agent_silent`.
pub(super) fn agent_silent(idle: Duration) -> Rejection {
    Rejection::new(
        Reason::AgentSilent,
        format!(
            "the agent sent nothing for {}",
            humantime::format_duration(idle)
        ),
    )
    .with_fact("clock", "idle")
    .with_delivery(Delivery::Sent)
}

pub(super) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::ResponseTooLarge,
        format!("the agent's answer is larger than {limit} bytes"),
    )
    .with_fact("limit", limit)
    .with_delivery(Delivery::Sent)
}

// The head of an agent's answer: refused, or passed with a closed list of fields, plus `forward.response_headers`. The
// answer comes from the gateway's origin, so fields that set policy for an origin, or instruct a proxy in front, would
// act with the gateway's authority.

/// Maximum fields of that head.
const ANSWER_FIELDS_MAX: usize = 100;

/// Fields for which the head for a caller has room at first: the usual ones, and the gateway's own.
const FIELDS: usize = 12;

/// The parsed names of `forward.response_headers`.
pub(super) struct ResponseFields {
    added: HashSet<HeaderName>,
}

impl ResponseFields {
    /// Parses the names. The check of the configuration has already rejected invalid ones.
    pub(super) fn new(config: &Config) -> Self {
        let names = config.forward.response_headers.iter();
        let added = names.filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        Self {
            added: added.collect(),
        }
    }

    /// Returns the agent's head with the fields that pass, and capacity for the gateway's own. A type other than JSON
    /// or an event stream is sandboxed, so that a browser that opens it runs no code in the gateway's origin.
    ///
    /// # Errors
    /// A field cannot be built. The parser of the answer rules this out.
    pub(super) fn filter_head(&self, agent: &ResponseHeader) -> pingora::Result<ResponseHeader> {
        // Without the map of spelled names, which is as large as that of the fields: a stream keeps its head.
        let mut head = ResponseHeader::build_no_case(agent.status, Some(FIELDS))?;
        for (name, value) in &agent.headers {
            // Of several media types a browser takes the last one, but the check below reads the first.
            let repeats = *name == header::CONTENT_TYPE && head.headers.contains_key(name);
            if self.allows_field(name, agent) && !repeats {
                head.append_header(name, value)?;
            }
        }
        if !is_event_stream(agent) && !is_json_answer(agent) {
            head.insert_header(
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static("sandbox"),
            )?;
        }
        Ok(head)
    }

    fn allows_field(&self, name: &HeaderName, agent: &ResponseHeader) -> bool {
        let listed = PASSED_FROM_AGENTS.contains(&name.as_str())
            || self.added.contains(name)
            || *name == header::WWW_AUTHENTICATE && agent.status == StatusCode::UNAUTHORIZED;
        listed && !named_by_connection(name, &agent.headers)
    }
}

fn is_json_answer(agent: &ResponseHeader) -> bool {
    let content_type = agent.headers.get(header::CONTENT_TYPE);
    // A browser takes the last type of a list.
    content_type.is_some_and(|value| {
        value
            .to_str()
            .is_ok_and(|value| is_json(value) && !value.contains(','))
    })
}

/// Rejects an answer with a head that is too large, with ambiguous framing, or with a transfer coding that would be
/// lost, as for requests (RFC 9112, 6.1 and 6.3).
pub(super) fn refuse_by_framing(head: &AnswerHead) -> Result<(), Rejection> {
    let fields = head.fields.headers.len();
    if head.bytes > ANSWER_HEAD_BYTES_MAX {
        return Err(reject_long_head(head.bytes));
    }
    if fields > ANSWER_FIELDS_MAX {
        let message = format!(
            "the head of the agent's answer has {fields} fields, and may have {ANSWER_FIELDS_MAX}"
        );
        return Err(reject_answer(message));
    }
    let headers = &head.fields.headers;
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    if head.framed_twice || !chunked {
        return Err(broken_http(None));
    }
    Ok(())
}

/// Rejects a redirect, which is not passed on: its target was not checked.
pub(super) fn refuse_redirect(head: &ResponseHeader) -> Result<(), Rejection> {
    if !head.status.is_redirection() {
        return Ok(());
    }
    let message = "the agent answered with a redirect: for a call, 307 and 308 to the same scheme, host and port are \
                   followed once, and others never; register its final URL";
    Err(Rejection::new(Reason::AgentRedirected, message).with_delivery(Delivery::Sent))
}

/// Rejects an answer by its framing, its coding or its length.
pub(super) fn refuse_by_head(head: &ResponseHeader, limit: u64) -> Result<(), Rejection> {
    let coded = head.headers.get(header::CONTENT_ENCODING);
    if is_event_stream(head) && coded.is_some_and(|c| c.as_bytes() != b"identity") {
        return Err(reject_answer(
            "the agent compressed a stream of events, which can't be passed on event by event",
        ));
    }
    match content_length_of(&head.headers) {
        Some(length) if length > limit && !is_event_stream(head) => Err(too_large(limit)),
        _ => Ok(()),
    }
}

/// Maximum pooled connections to all agents, of all threads.
const POOL_SIZE: usize = 4096;

/// The state of forwarding, for the gateway or a sidecar: connections to agents, configuration, bounds and shutdown.
pub(super) struct Relay {
    /// The configuration in force.
    pub(super) config: Live,
    /// The metrics of this process.
    pub(super) metrics: Arc<Metrics>,
    /// The shutdown of this process.
    pub(super) drain: Arc<Drain>,
    /// Connections to agents.
    pub(super) upstream: Upstream,
    /// The load that is admitted.
    pub(super) load: Load,
    /// The store of streamed events. `None`: streams cannot be resumed.
    pub(super) streams: Option<Arc<Streams>>,
    /// The gateway that can revoke a caller's access to a stream. `None`: access is never revoked.
    standing: Option<Arc<Gateway>>,
    /// The exporter of spans.
    pub(super) traces: Traces,
    /// The fields of agents' answers that pass.
    pub(super) response_fields: Derived<ResponseFields>,
}

/// The clocks of one exchange (`docs/reference/a2a.md`, "Clocks and limits").
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    /// Maximum time from the sent request to the response head.
    pub(super) head: Duration,
    /// Maximum silence between two pieces.
    pub(super) idle: Duration,
    /// Deadline of a unary exchange.
    pub(super) total: Instant,
    /// Deadline of a stream.
    pub(super) stream: Instant,
}

impl Clocks {
    /// Takes the configured clocks, or `idle` and what the request asks for instead.
    pub(super) fn new(
        timeouts: &Timeouts,
        started: Instant,
        asked: Option<Duration>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            head: asked.unwrap_or(timeouts.head),
            idle: idle.unwrap_or(timeouts.idle),
            total: started + asked.unwrap_or(timeouts.total),
            stream: started + timeouts.stream.max(asked.unwrap_or_default()),
        }
    }

    /// Ends both at `deadline`, if that is sooner.
    pub(super) fn until(self, deadline: Option<Instant>) -> Self {
        let end = |clock: Instant| deadline.map_or(clock, |deadline| clock.min(deadline));
        Self {
            total: end(self.total),
            stream: end(self.stream),
            ..self
        }
    }
}

impl Relay {
    /// Creates the state. Opens no connection.
    pub(super) fn new(
        config: Live,
        metrics: Arc<Metrics>,
        drain: Arc<Drain>,
        streams: Option<Arc<Streams>>,
        traces: Traces,
    ) -> Self {
        let threads = config.get().server.threads();
        Self {
            standing: None,
            streams,
            traces,
            response_fields: Derived::new(&config, |config, _| ResponseFields::new(config)),
            load: Load::new(config.clone(), Arc::clone(&metrics), Arc::clone(&drain)),
            config,
            metrics,
            upstream: Upstream::new(POOL_SIZE, threads, &drain),
            drain,
        }
    }

    /// Sets the gateway, which ends a stream when its caller loses access.
    pub(super) fn with_gateway(self, gateway: &Arc<Gateway>) -> Self {
        Self {
            standing: Some(Arc::clone(gateway)),
            ..self
        }
    }

    /// Forgets the place to which the agent of a workspace redirected calls: it is not there any more.
    pub(super) async fn forget_place(&self, id: Option<&WorkspaceId>) {
        if let (Some(gateway), Some(id)) = (&self.standing, id) {
            gateway.resolution.learnt.forget_place(id).await;
        }
    }

    /// Returns a future that ends when the caller loses access to the target's stream. `None` if it never does.
    pub(super) fn cut_off(
        &self,
        needs: AccessBasis,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> Option<CutOff> {
        let (gateway, proof) = self.standing.as_ref().zip(proof)?;
        Some(gateway.cut_off(needs, Arc::clone(proof), target?.clone()))
    }

    /// Returns the watch of an exchange over what may end it: the drain, or a stop of an operator.
    pub(super) fn watch_exchange(&self, exchange: &Exchange) -> CancelWatch {
        self.watch_call(exchange.call.proof.as_ref(), exchange.call.target.as_ref())
    }

    /// As [`Relay::watch_exchange`], for a call that may have no exchange any more.
    pub(super) fn watch_call(
        &self,
        proof: Option<&Arc<Proof>>,
        target: Option<&WorkspaceId>,
    ) -> CancelWatch {
        let mut watch = CancelWatch::for_drain(&self.drain);
        let Some(gateway) = &self.standing else {
            return watch;
        };
        // A stop or a revocation that came after the check of the call and before this is looked at, too.
        if !gateway.stops.is_idle() || !gateway.identity.revocations.is_idle() {
            watch.drain.check_once();
        }
        watch.call = proof.zip(target).map(|(proof, target)| WatchedCall {
            gateway: Arc::clone(gateway),
            proof: Arc::clone(proof),
            target: target.clone(),
        });
        watch
    }
}

/// A call that was sent.
pub(super) struct SentCall<'a> {
    pub(super) peer: &'a HttpPeer,
    pub(super) call: &'a WireRequest,
    /// The agent, if a redirect at the same server is followed.
    pub(super) agent: Option<&'a Arc<Agent>>,
    /// The workspace, if its next calls go where the redirect leads.
    pub(super) place: Option<&'a WorkspaceId>,
}

impl SentCall<'_> {
    /// Returns the call for the path to which its agent redirects it, at the same server: nothing has run. `None`:
    /// `answer` says something else.
    ///
    /// # Errors
    /// `address_forbidden`, if the address policy does not let the call go to that path.
    pub(super) async fn redirected(
        &self,
        relay: &Relay,
        answer: &ResponseHeader,
    ) -> Result<Option<WireRequest>, Rejection> {
        let again = self.call.redirected(answer, self.peer.tls());
        let (Some(gateway), Some(agent), Some(again)) = (&relay.standing, self.agent, again) else {
            return Ok(None);
        };
        let path = again.target().unwrap_or_default().to_owned();
        let (at, asker) = (
            agent.endpoint.with_path(path),
            LookupFor::for_call(Account::default()),
        );
        let addresses = &gateway.directory.addresses;
        let (decision, witness) = (&agent.address_decision, &mut ());
        addresses
            .agent_address(decision, &at, asker, witness)
            .await?;
        Ok(Some(again))
    }

    /// Lets the next calls go to the path of `again`, if the agent took this one there.
    pub(super) async fn keep_place(
        &self,
        relay: &Relay,
        again: &WireRequest,
        answer: &ResponseHeader,
    ) {
        let content_type = answer.headers.get(header::CONTENT_TYPE);
        let is_json =
            content_type.is_some_and(|name| name.as_bytes().starts_with(b"application/json"));
        let is_taken = answer.status.is_success() && (is_json || is_event_stream(answer));
        let ends = (self.place, self.call.target(), again.target());
        if let (Some(gateway), true, (Some(id), Some(from), Some(to))) =
            (&relay.standing, is_taken, ends)
        {
            gateway.resolution.keep_place(id, from, to).await;
        }
    }
}

/// Sends a call once more if its agent redirects it to another path of the same server ([`SentCall::redirected`]).
/// Returns that answer and its head.
///
/// # Errors
/// As [`SentCall::redirected`]; those of a call.
pub(super) async fn follow_redirect(
    relay: &Relay,
    session: Option<&mut ServerSession>,
    sent: SentCall<'_>,
    answer: &ResponseHeader,
    clocks: &Clocks,
    cut: &mut CancelWatch,
) -> Result<Option<(AnswerReader, Box<AnswerHead>)>, ExchangeError> {
    let Some(again) = sent.redirected(relay, answer).await? else {
        return Ok(None);
    };
    let (upstream, metrics) = (&relay.upstream, &*relay.metrics);
    let sending = async {
        let connection = upstream.connect_by(sent.peer, clocks.total).await?;
        let over = (metrics, None);
        let sending = upstream.send_over(connection, sent.peer, &again, clocks.total, over);
        sending.await
    };
    let mut answer = tokio::select! {
        biased;
        answer = sending => answer?,
        why = cut.cancelled(Delivery::Unknown) => return Err(why.into()),
    };
    await_head(session, &mut answer, clocks, cut).await?;
    let head = answer.take_head().map_err(reject_unread)?;
    sent.keep_place(relay, &again, &head.fields).await;
    Ok(Some((answer, head)))
}

/// Waits for the head, after informational ones, until a clock or the caller, if there is one, ends the wait.
pub(super) async fn await_head(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut CancelWatch,
) -> Result<(), ExchangeError> {
    let head = Instant::now() + clocks.head;
    let deadline = head.min(clocks.total);
    tokio::select! {
        biased;
        read = upstream.read_head() => Ok(read.map_err(reject_unread)?),
        () = sleep_until(deadline) => {
            let clock = if head <= clocks.total { "head" } else { "total" };
            Err(timed_out(clock).into())
        }
        () = caller_gone(&mut session) => Err(ExchangeError::CallerLeft),
        why = cut.cancelled(Delivery::Sent) => Err(why.into()),
    }
}

/// An agent's answer that is being read, and the handle that returns its connection to the pool.
pub(super) struct AgentResponse<'a> {
    pub(super) upstream: AnswerReader,
    pub(super) home: PoolHandle<'a>,
}

/// Returns the next piece of the body, or what ended the wait: a clock, or the caller, if there is one.
pub(super) async fn next_piece(
    mut session: Option<&mut ServerSession>,
    upstream: &mut AnswerReader,
    clocks: &Clocks,
    cut: &mut CancelWatch,
) -> Result<Option<Bytes>, ExchangeError> {
    if upstream.is_done() {
        return Ok(None);
    }
    let now = Instant::now();
    // An agent that sends without a pause leaves no poll to the clock below.
    if now >= clocks.total {
        return Err(timed_out("total").into());
    }
    let idle = now + clocks.idle;
    tokio::select! {
        biased;
        read = upstream.read_piece() => Ok(read.map_err(reject_unread)?),
        () = sleep_until(idle.min(clocks.total)) => {
            Err(if idle < clocks.total { agent_silent(clocks.idle) } else { timed_out("total") }.into())
        }
        () = caller_gone(&mut session) => Err(ExchangeError::CallerLeft),
        why = cut.cancelled(Delivery::Sent) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {

    use tokio::io::AsyncWriteExt as _;
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn a_piece_that_is_ready_after_the_last_clock_is_not_passed() {
        let (ours, mut agents) = duplex(1024);
        let mut reader = AnswerReader::new(Box::new(ours));
        let begun = b"HTTP/1.1 200 OK\r\n\r\n";
        agents.write_all(begun).await.unwrap();
        reader.read_head().await.unwrap();
        agents.write_all(b"more").await.unwrap();
        let mut cut = CancelWatch::for_drain(&Drain::default());
        let now = Instant::now();
        let mut clocks = Clocks {
            head: Duration::from_secs(1),
            idle: Duration::from_secs(1),
            total: now + Duration::from_secs(60),
            stream: now,
        };
        let piece = next_piece(None, &mut reader, &clocks, &mut cut).await;
        assert_eq!(piece.ok().flatten().as_deref(), Some(&b"more"[..]));
        agents.write_all(b"more").await.unwrap();
        clocks.total = now;
        let late = next_piece(None, &mut reader, &clocks, &mut cut).await;
        assert!(
            matches!(late, Err(ExchangeError::Refused(why)) if why.reason == Reason::AgentTimeout)
        );
    }
}
