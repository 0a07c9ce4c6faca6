//! The request for an agent: translated if the agent does not speak the call's generation or binding, with its path and
//! its head on the wire, for one place of the agent.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::upstreams::peer::HttpPeer;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::admission::{AdmittedCall, AllowedCaller, authority, client_address};
use crate::cards::ExtendedCard;
use crate::complete::{CheckedCall, TranslatedHeaders};
use crate::filters::{ResponseTranslator, Rewrite, TaskListFilter, reject_untranslatable};
use crate::grpc_agent::{GrpcPlace, grpc_peer};
use crate::policy::{ContentCall, check_content};
use crate::record::{Exchange, ExchangeError, TranslationFields, box_cold_path};
use crate::services::{CALLER_TOKEN, Context, Request};
use crate::trace::Callee;
use crate::upstream::WireRequest;
use a2a::Generation;
use a2a::bridge::{
    AgentRequest, Bridge, Call, Exchange as BridgedExchange, Failure, FileBytes, Side,
    has_v1_message, path_below, tenant_prefix,
};
use a2a::card::{AgentSide, AgentSides, Binding as Carried, Carrier};
use a2a::method::Method;
use a2a::task::Binding;
use access::identity::{CallerToken, ON_BEHALF_OF, Principal, SentChain};
use access::workspace::CallerProof;
use directory::{Agent, AgentAddress, AgentOptions, LookupFor};
use http1::{HeadWriter, named_by_connection};
use kernel::config::{Bridging, PASSED_TO_AGENTS};
use kernel::dialect::Dialect;
use kernel::offload;
use kernel::rejection::{AtStage as _, Delivery, Rejection};
use kernel::stage::Stage;
use kernel::telemetry::traces::context::{context_fields, is_context};
use tokio::time::Instant;
use trust::{Pair, body_hash};

/// The request that a call stands for: its head, and the address of its client.
pub(super) struct Origin<'a> {
    pub(super) head: &'a RequestHeader,
    pub(super) client: IpAddr,
}

/// A call, with its caller and its agent.
pub(super) struct AgentCall<'a> {
    pub(super) context: &'a Context,
    pub(super) admitted: &'a AdmittedCall,
    pub(super) agent: &'a Agent,
}

impl AgentCall<'_> {
    /// Finds where a call goes, after translating it if its agent does not speak it; and where the request for its task
    /// goes, if the answer begins with that. `caller`: a caller that may leave meanwhile.
    ///
    /// # Errors
    /// As [`translate_for_agent`]; as [`AgentCall::set_path`].
    pub(super) async fn route_call(
        &self,
        mut caller: Option<&mut ServerSession>,
        exchange: &mut Exchange,
        call: &mut CheckedCall,
    ) -> Result<(), ExchangeError> {
        translate_for_agent(self, caller.as_deref_mut(), exchange, call).await?;
        self.set_path(caller.as_deref_mut(), exchange, call).await?;
        if let Some(asks) = &mut call.snapshot {
            box_cold_path(self.set_path(caller, exchange, asks)).await?;
        }
        Ok(())
    }

    /// Sets the path of a JSON-RPC call: from the card at the agent's card URL, or from its registered card, or where
    /// the agent redirected an earlier call. `caller`: a caller that may leave meanwhile.
    ///
    /// # Errors
    /// As [`Cards::json_rpc_path`](crate::cards::Cards::json_rpc_path).
    async fn set_path(
        &self,
        caller: Option<&mut ServerSession>,
        exchange: &Exchange,
        call: &mut CheckedCall,
    ) -> Result<(), ExchangeError> {
        if call.grpc.is_some() {
            return Ok(());
        }
        if call.path.is_none() && call.route.is_none() && self.agent.options.path_in_card {
            let method = call.method_name.as_deref();
            let cards = &self.context.cards;
            let path = cards.json_rpc_path(caller, exchange, self.admitted, method);
            call.path = Some(box_cold_path(path).await?);
        }
        call.set_path_from(self.agent);
        let resolution = &self.context.gateway.resolution;
        if call.method_name.is_some() && !resolution.learnt.is_empty() {
            let path = call.path.as_ref();
            let path = path.unwrap_or(&self.agent.endpoint.path_and_query);
            let place = resolution.place(&self.admitted.allowed.permit, path);
            let place = box_cold_path(place).await?;
            if let Some(place) = place {
                call.path = Some(place.path);
            }
        }
        Ok(())
    }

    /// Returns the request for the task with which a subscription begins.
    ///
    /// # Errors
    /// As [`AgentCall::write_head`].
    pub(super) async fn snapshot_request(
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
    pub(super) async fn write_head(
        &self,
        origin: &Origin<'_>,
        exchange: &Exchange,
        call: &CheckedCall,
    ) -> Result<Vec<u8>, Rejection> {
        let AllowedCaller { proof, permit } = &self.admitted.allowed;
        let agent = self.agent;
        let caller = proof.principal.name();
        let chain = match proof.sends_chain(agent.chain) {
            true => Some(box_cold_path(self.chain_token(origin, exchange, call)).await?),
            false => None,
        };
        let pair = Pair {
            chain_hash: chain.as_deref().map(SentChain::hash),
            ..permit.pair(&caller)
        };
        let signed = &self.context.gateway.identity.signed;
        let caller_token = match agent.proof {
            CallerProof::Pair => signed.caller_token_for_pair(pair),
            CallerProof::Request => {
                let hash = offload::run_on_body(&call.body, body_hash).await;
                signed.caller_token_for_request(pair, call.method_name.as_deref(), hash)
            }
        }?;
        let scheme = match exchange.call.config.server.tls.cert {
            Some(_) => "https",
            None => "http",
        };
        let extra = self.context.extra_fields.get();
        let mut head = self.write_caller_fields(origin, exchange, call, (&caller_token, &extra));
        head.write_field("x-request-id", exchange.call.request_id.as_str());
        if let Some(caller) = permit.caller() {
            head.write_field("x-workspace-id", caller.as_str());
        }
        head.write_display("x-forwarded-for", origin.client);
        head.write_field("x-forwarded-proto", scheme);
        if let Some(host) = authority(origin.head) {
            head.write_field("x-forwarded-host", host);
        }
        head.write_display("x-a2a-hops", self.admitted.hops);
        if let Some(chain) = &chain {
            head.write_field(ON_BEHALF_OF.as_str(), chain.token());
        }
        head.write_field("via", "1.1 a2a-gateway");
        Ok(head.finish())
    }

    /// Returns the chain token for the agent. One is used for all requests of an exchange.
    ///
    /// # Errors
    /// `chain_invalid`; the token cannot be signed.
    async fn chain_token(
        &self,
        origin: &Origin<'_>,
        exchange: &Exchange,
        call: &CheckedCall,
    ) -> Result<Arc<SentChain>, Rejection> {
        if let Some(sent) = exchange.call.chain.get() {
            return Ok(Arc::clone(sent));
        }
        let (proof, permit) = self.admitted.allowed.as_pair();
        let headers = &origin.head.headers;
        let names = exchange.call.read_names(headers, &call.body).await;
        let run = names.run.as_deref().filter(|_| proof.chain().is_none());
        let method = exchange.call.method;
        let methods =
            [Generation::V0, Generation::V1].map(|one| method.name_in(one).unwrap_or_default());
        let call = (proof, permit, &methods[..], run);
        let sent = self.context.gateway.sign_chain(call).await?;
        Ok(Arc::clone(exchange.call.chain.get_or_init(|| sent)))
    }

    /// Begins the head, up to the trace context: the fields that pass, and those that depend on them.
    fn write_caller_fields(
        &self,
        origin: &Origin<'_>,
        exchange: &Exchange,
        call: &CheckedCall,
        (caller_token, extra): (&CallerToken, &HashSet<HeaderName>),
    ) -> HeadWriter {
        let (endpoint, body_len) = (&self.agent.endpoint, call.body.len());
        let target = call.path.as_ref().unwrap_or(&endpoint.path_and_query);
        let mut head = HeadWriter::new(call.verb.as_str(), target, &endpoint.host, body_len);
        let auth = self.agent.upstream_auth.as_ref();
        if let Some(auth) = auth {
            head.write_field(auth.name.as_str(), auth.value.expose_secret());
            head.write_field(CALLER_TOKEN, caller_token.bare_token());
        } else {
            head.write_field("authorization", caller_token.authorization());
        }
        let context = exchange.call.outgoing_trace();
        let (headers, wire) = (&origin.head.headers, call.wire.as_ref());
        let mut typed = false;
        for (name, value) in headers {
            let own = auth.is_some_and(|auth| auth.name.as_str() == name.as_str())
                || context.is_some() && is_context(name)
                || wire.is_some() && is_translated(name);
            if !own && is_forwarded((name, value), headers, extra) {
                typed |= *name == header::CONTENT_TYPE;
                head.write_field(name.as_str(), value);
            }
        }
        if let Some(wire) = wire {
            head.write_field("accept", wire.accept);
            head.write_field("a2a-version", wire.version);
            if body_len > 0 {
                head.write_field("content-type", wire.content_type);
            }
            for value in EXTENSIONS.iter().flat_map(|name| headers.get_all(*name)) {
                head.write_field(wire.extensions, value);
            }
        } else if !typed && body_len > 0 {
            head.write_field("content-type", "application/json");
        }
        if wire.is_none() && call.version_1_0 && !headers.contains_key("a2a-version") {
            head.write_field("a2a-version", "1.0");
        }
        let left = exchange.call.deadline.filter(|_| call.grpc.is_some());
        if let Some(left) = left.map(|end| end.saturating_duration_since(Instant::now())) {
            // Eight digits at most.
            let millis = left.as_millis().min(99_999_999);
            head.write_display("grpc-timeout", format_args!("{millis}m"));
        }
        // RFC 9110, 8.6: Content-Length is sent if the method gives a body a meaning.
        let verbs = ["POST", "PUT", "PATCH"];
        if body_len > 0 || verbs.contains(&call.verb.as_str()) {
            head.write_display("content-length", body_len);
        }
        for (name, value) in context.into_iter().flat_map(context_fields) {
            head.write_field(name.as_str(), value);
        }
        head
    }
}

/// Returns the addresses of the agent, or of `path` at it.
///
/// # Errors
/// `address_forbidden`, `agent_unreachable`, `store_unavailable`.
async fn resolve_address(
    context: &Context,
    agent: &Agent,
    path: Option<&str>,
    asker: LookupFor,
) -> Result<AgentAddress, Rejection> {
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

/// Returns the place of the agent that gets `call`, to connect to within `connect`.
///
/// # Errors
/// As [`resolve_address`], [`grpc_peer`].
pub(super) async fn resolve_peer(
    context: &Context,
    agent: &Agent,
    call: &CheckedCall,
    asker: LookupFor,
    connect: Duration,
) -> Result<Box<HttpPeer>, Rejection> {
    if let Some(place) = &call.grpc {
        return box_cold_path(grpc_peer(context, agent, place, asker, connect)).await;
    }
    let address = resolve_address(context, agent, call.path.as_deref(), asker).await?;
    let upstream = &context.relay.upstream;
    Ok(upstream.agent_peer(agent, address, connect).await)
}

/// Returns the rewrite of the answer to a call, by its method.
///
/// # Errors
/// `store_unavailable`.
pub(super) async fn choose_rewrite(
    context: &Context,
    exchange: &Exchange,
    admitted: &AdmittedCall,
    call: &CheckedCall,
) -> Result<Option<Rewrite>, Rejection> {
    let AllowedCaller { proof, permit } = &admitted.allowed;
    let binding = call.binding();
    Ok(match exchange.call.method {
        Method::GetExtendedCard => {
            let card = ExtendedCard {
                gateway: Arc::clone(&context.gateway),
                config: Arc::clone(&exchange.call.config),
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
pub(super) fn callee_attributes<'a>(agent: &'a Agent, call: &'a CheckedCall) -> Callee<'a> {
    let endpoint = &agent.endpoint;
    Callee {
        verb: &call.verb,
        host: &endpoint.sni,
        port: endpoint.port,
        tls: endpoint.tls,
        rpc: call.method_name.is_some(),
    }
}

// The head of a request to an agent: the fields that pass, and those that the gateway sets.

/// The fields in which either generation names extensions.
const EXTENSIONS: [&str; 2] = ["a2a-extensions", "x-a2a-extensions"];

/// True for a field that a translated request has anew.
fn is_translated(name: &HeaderName) -> bool {
    matches!(name.as_str(), "accept" | "content-type" | "a2a-version")
        || EXTENSIONS.contains(&name.as_str())
}

/// True if a request field passes to the agent.
pub(super) fn is_forwarded(
    (name, value): (&HeaderName, &HeaderValue),
    headers: &HeaderMap,
    extra: &HashSet<HeaderName>,
) -> bool {
    let passed = PASSED_TO_AGENTS.contains(&name.as_str()) || extra.contains(name);
    passed && !named_by_connection(name, headers) && !(name == "last-event-id" && is_ours(value))
}

/// Puts the agent's own id of the last event that a caller has in place of the gateway's: an agent resumes by its own.
pub(super) async fn restore_event_id(request: &mut Request<'_>) {
    let (context, call) = (request.context, &request.exchange.call);
    let id = request.head().headers.get("last-event-id");
    let id = id.filter(|id| is_ours(id)).and_then(|id| id.to_str().ok());
    let (Some(id), Some(proof), Some(target)) = (id, call.proof.as_ref(), call.life()) else {
        return;
    };
    let (id, owner, request_id) = (id.trim().to_owned(), proof.owner(), call.request_id.clone());
    let streams = &context.gateway.delivery.streams;
    let own = streams.agent_event_id((&owner, &target), &id, request_id);
    if let Some(own) = own.await.and_then(|own| HeaderValue::from_bytes(&own).ok()) {
        let head = request.session.req_header_mut();
        let _ = head.insert_header("last-event-id", own);
    }
}

/// True if an event id has the gateway's own form, `<stream>-<number>`. Agents do not receive such ids: callers
/// recognize the gateway's own events by the name of a stream, so agents must not learn it.
fn is_ours(id: &HeaderValue) -> bool {
    let id = id.as_bytes().trim_ascii();
    let (name, number) = id.split_at(id.len().min(32));
    let number = number.strip_prefix(b"-");
    name.iter().all(u8::is_ascii_hexdigit)
        && number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
}

// Translates a call for an agent that does not speak its generation or its binding, and the agent's answer
// ([`a2a::bridge`]; `docs/reference/bridge.md`): a stage between completion and forwarding, and one on the way
// back. A call that the agent speaks passes by.

/// Returns the form in which a call is, if it is one that has a translation: a method that its generation defines.
fn side_of(method: Method, call: &CheckedCall) -> Option<Side> {
    if let Some(route) = &call.route {
        return method
            .name_in(route.generation)
            .map(|_| Side::http_json(route.generation));
    }
    let name = call.method_name.as_deref()?;
    let generation = Generation::of_method(name);
    (method.name_in(generation) == Some(name)).then(|| Side::json_rpc(generation))
}

/// Returns the side on which the agent gets a call of `asked`: another one than that if the call is to be translated.
/// `None`: the call passes as it is.
///
/// # Errors
/// The agent does not speak its generation, and translation is off.
pub(super) fn agent_side(
    (asked, by): (Side, Carrier),
    spoken: &AgentSides,
    options: &AgentOptions,
) -> Result<Option<AgentSide>, Failure> {
    let spoke = match spoken.choose((asked, by), options.transport) {
        Some(spoke) => spoke.clone(),
        // Nothing says what the agent speaks: a call of JSON-RPC passes as it is.
        None if asked.binding == Carried::JsonRpc => return Ok(None),
        None => AgentSide::json_rpc(options.generation),
    };
    let is_grpc = spoke.grpc.is_some();
    if is_grpc && spoke.side.generation == Generation::V0 {
        return Err(Failure::GrpcV0);
    }
    if spoke.side == asked || options.bridge == Bridging::Auto {
        return Ok(Some(spoke));
    }
    if spoke.side.generation == asked.generation {
        return Ok(Some(spoke).filter(|_| is_grpc));
    }
    Err(Failure::Off {
        caller: asked.generation,
        agent: spoke.side.generation,
    })
}

/// Returns the side on which the agent gets a call, by its card and by the generation that its answers have `shown`:
/// that counts for JSON-RPC where calls are translated. `None`: the call passes as it is.
pub(super) fn correct_side(
    asked: Side,
    by_card: Option<AgentSide>,
    shown: Option<Generation>,
    options: &AgentOptions,
) -> Option<AgentSide> {
    let spoke = by_card.as_ref().map_or(asked, |spoke| spoke.side);
    let over_http = by_card.as_ref().is_none_or(|spoke| spoke.grpc.is_none());
    let counts = over_http && spoke.binding == Carried::JsonRpc && options.bridge == Bridging::Auto;
    match shown.filter(|shown| counts && *shown != spoke.generation) {
        Some(generation) => Some(AgentSide::json_rpc(generation)),
        None => by_card,
    }
}

/// True if an agent has an HTTP+JSON interface of its own.
pub(super) fn serves_http_json(spoken: &AgentSides) -> bool {
    spoken.sides().any(|side| side.binding == Carried::HttpJson)
}

/// Returns the side on which an agent that polls gets a call of `asked`, if it speaks only the other generation.
/// Entries of inboxes are calls of JSON-RPC.
pub(super) fn inbox_side(asked: Generation, options: &AgentOptions) -> Option<&AgentSide> {
    let spoke = options.spoken.find_nearest(Side::json_rpc(asked))?;
    (options.bridge == Bridging::Auto && spoke.side.generation != asked).then_some(spoke)
}

/// Translates a message for the inbox of an agent that does not speak its generation.
///
/// # Errors
/// The reason that the call has no translation.
pub(super) async fn translate_for_inbox(
    context: &Context,
    options: &AgentOptions,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
) -> Result<(), Rejection> {
    let method = exchange.call.method;
    let asked = side_of(method, call).filter(|_| method.sends());
    let spoke = asked.and_then(|asked| Some((asked, inbox_side(asked.generation, options)?)));
    let Some((caller, spoke)) = spoke else {
        return Ok(());
    };
    let agent = Side::json_rpc(spoke.side.generation);
    let (tenant, files) = (spoke.tenant.clone(), FileBytes::Unknown);
    let (sent, ..) = bridge_call(context, exchange, call, (caller, agent), (tenant, files)).await?;
    call.body = sent.body.into();
    call.method_name = sent.method.map(Cow::Borrowed);
    Ok(())
}

/// Refuses a call of JSON-RPC that no translation knows for an agent that does not speak JSON-RPC.
fn check_untranslated(spoken: &AgentSides) -> Result<(), Failure> {
    let has_rpc = spoken.sides().any(|side| side.binding == Carried::JsonRpc);
    let first = spoken.sides().next().map(|first| first.generation);
    let first = first.or(spoken.is_grpc_only().then_some(Generation::V1));
    match first.filter(|_| !has_rpc) {
        Some(agent) => Err(Failure::Method { agent }),
        None => Ok(()),
    }
}

/// Sets the address of an HTTP+JSON call, and translates the call if its agent does not speak its form.
///
/// # Errors
/// `version_not_supported` if translation is off; the reason that the call has no translation; as
/// [`Cards::http_json_path`](crate::cards::Cards::http_json_path).
async fn translate_for_agent(
    agents: &AgentCall<'_>,
    mut caller: Option<&mut ServerSession>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
) -> Result<(), ExchangeError> {
    let (cards, metrics) = (&agents.context.cards, &agents.context.gateway.metrics);
    let refuse = |failure: Failure| reject_untranslatable(metrics, &failure, Delivery::NotSent);
    let is_grpc = matches!(caller, Some(ServerSession::Custom(_)));
    let carrier = is_grpc.then_some(Carrier::Grpc);
    call.grpc = None;
    let Some(asked) = side_of(exchange.call.method, call) else {
        if call.route.is_none() {
            let spoken = cards.sides(caller, exchange, agents.admitted).await?;
            return Ok(check_untranslated(&spoken).map_err(refuse)?);
        }
        return Ok(());
    };
    let options = &agents.agent.options;
    let spoken = if call.route.is_some() {
        // The card says the path, so it is fetched in any case.
        let fetched = cards.reachable_card(caller.as_deref_mut(), exchange, agents.admitted);
        box_cold_path(fetched).await?.said.spoken.clone()
    } else {
        let known = cards.sides(caller.as_deref_mut(), exchange, agents.admitted);
        known.await?
    };
    let by = carrier.unwrap_or_else(|| asked.binding.into());
    let side = agent_side((asked, by), &spoken, options).map_err(refuse)?;
    let names = |generation| {
        spoken
            .sides()
            .any(|side| side == Side::json_rpc(generation))
    };
    // A card of both generations is not corrected.
    call.may_repeat &= !(names(Generation::V0) && names(Generation::V1));
    let shown = match call.speaks {
        Some(generation) => {
            call.agrees = names(generation);
            Some(generation)
        }
        None => {
            let resolution = &agents.context.gateway.resolution;
            let permit = &agents.admitted.allowed.permit;
            let finding = resolution.finding(permit, exchange.call.method);
            finding.await?.and_then(|finding| finding.takes)
        }
    };
    let Some(spoke) = correct_side(asked, side, shown, options) else {
        return Ok(());
    };
    if spoke.grpc.is_some() {
        let translated = translate_for_grpc(agents, exchange, call, ((asked, by), &spoke));
        return Ok(box_cold_path(translated).await?);
    }
    // An agent that is said to speak 1.0 may take its messages by the methods of 0.3.
    let passes = call.may_repeat && shown.is_none() && asked == Side::json_rpc(Generation::V0);
    if passes && spoke.side != asked && exchange.call.method.sends() && has_v1_message(&call.body) {
        return Ok(());
    }
    let interface = match spoke.side.binding {
        Carried::HttpJson => {
            let generation = spoke.side.generation;
            let path = cards.http_json_path(caller.take(), exchange, agents.admitted, generation);
            Some(box_cold_path(path).await?)
        }
        Carried::JsonRpc => None,
    };
    if spoke.side == asked {
        if let (Some(route), Some(interface)) = (&call.route, interface) {
            // Callers are not asked for it.
            let is_v1 = spoke.side.generation == Generation::V1;
            let tenant = route.tenant.as_deref().or(spoke.tenant.as_deref());
            let tenant = tenant_prefix(tenant.filter(|_| is_v1));
            let (tenant, tail) = (tenant.map_err(refuse)?, &route.tail);
            let query = route.query.as_deref().unwrap_or_default();
            call.path = Some(path_below(&interface, &format!("{tenant}{tail}?{query}")));
        }
    } else {
        let sides = (asked, &spoke);
        box_cold_path(translate_call(agents, exchange, call, sides, interface)).await?;
    }
    if let Some(label) = bindings_label((asked, by), &spoke) {
        exchange.call.translation = Some(TranslationFields::new(label, asked.generation));
    }
    Ok(())
}

/// Returns the value of `X-A2A-Bridged` where the bindings differ and one of them is gRPC.
pub(super) fn bindings_label(
    (asked, by): (Side, Carrier),
    spoke: &AgentSide,
) -> Option<&'static str> {
    let generations = (asked.generation, spoke.side.generation);
    Some(match (generations, by, spoke.carrier()) {
        ((Generation::V1, Generation::V1), Carrier::JsonRpc, Carrier::Grpc) => "jsonrpc>grpc",
        ((Generation::V1, Generation::V1), Carrier::HttpJson, Carrier::Grpc) => "http+json>grpc",
        ((Generation::V0, _), Carrier::JsonRpc, Carrier::Grpc) => "0.3>1.0,jsonrpc>grpc",
        ((Generation::V0, _), Carrier::HttpJson, Carrier::Grpc) => "0.3>1.0,http+json>grpc",
        ((_, Generation::V1), Carrier::Grpc, Carrier::JsonRpc) => "grpc>jsonrpc",
        ((_, Generation::V1), Carrier::Grpc, Carrier::HttpJson) => "grpc>http+json",
        ((_, Generation::V0), Carrier::Grpc, Carrier::JsonRpc) => "1.0>0.3,grpc>jsonrpc",
        ((_, Generation::V0), Carrier::Grpc, Carrier::HttpJson) => "1.0>0.3,grpc>http+json",
        _ => return None,
    })
}

/// Makes the call one of JSON-RPC 1.0, of which [`crate::grpc_agent`] makes the call of gRPC, and refuses numbers that
/// protobuf does not have.
async fn translate_for_grpc(
    agents: &AgentCall<'_>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
    ((asked, by), spoke): ((Side, Carrier), &AgentSide),
) -> Result<(), Rejection> {
    call.may_repeat = false;
    call.grpc = spoke.grpc.as_ref().map(|url| {
        Box::new(GrpcPlace {
            url: Arc::clone(url),
            tenant: spoke.tenant.clone(),
        })
    });
    if asked != spoke.side {
        translate_call(agents, exchange, call, (asked, spoke), None).await?;
    }
    let label = bindings_label((asked, by), spoke);
    exchange.call.translation = label.map(|label| TranslationFields::new(label, asked.generation));
    let is_exact = offload::run_on_body(&call.body, |body| {
        let call: Option<RpcParams<'_>> = serde_json::from_slice(body).ok();
        let params = call.and_then(|call| call.params);
        params.is_none_or(|params| grpc::has_exact_numbers(params.get().as_bytes()))
    });
    if !is_exact.await {
        let metrics = &agents.context.gateway.metrics;
        let failure = Failure::Number;
        return Err(reject_untranslatable(metrics, &failure, Delivery::NotSent));
    }
    Ok(())
}

/// The params of a call of JSON-RPC.
#[derive(Deserialize)]
struct RpcParams<'a> {
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Translates the call for an agent that speaks `spoke`.
async fn translate_call(
    agents: &AgentCall<'_>,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
    (asked, spoke): (Side, &AgentSide),
    interface: Option<String>,
) -> Result<(), Rejection> {
    let (context, side) = (agents.context, spoke.side);
    let files = match &call.route {
        Some(route) if route.generation == Generation::V0 => route.files,
        _ => spoke.files,
    };
    let (sent, back, snapshot) = bridge_call(
        context,
        exchange,
        call,
        (asked, side),
        (spoke.tenant.clone(), files),
    )
    .await?;
    if let Some(learner) = &mut call.learner {
        learner.set_binding(match side.binding {
            Carried::JsonRpc => Binding::Rpc,
            Carried::HttpJson => Binding::Rest,
        });
    }
    if call.rewrite.is_none() && call.route.is_none() {
        call.original = Some(Box::new((call.body.clone(), call.method_name.clone())));
    }
    let inner = call.rewrite.take();
    let limit = exchange.call.config.limits.event_bytes.bytes();
    let back = back.with_error_alone(exchange.call.dialect == Dialect::HttpJsonStatus);
    let back = ResponseTranslator::new(back, Arc::clone(&context.gateway.metrics), limit);
    let snapshot = snapshot.map(|sent| {
        let share = context.relay.load.new_share(Default::default());
        let mut asks = CheckedCall::json_rpc(bytes::Bytes::new(), share);
        replace_call(&mut asks, sent, interface.as_deref(), false);
        Box::new(asks)
    });
    let streams = exchange.call.method.streams();
    replace_call(call, sent, interface.as_deref(), streams);
    call.rewrite = Some(Rewrite::Bridged(Box::new(back), inner.map(Box::new)));
    call.snapshot = snapshot;
    Ok(())
}

/// Translates a call, charges its caller for the request that it becomes, and counts it. Returns also what translates
/// the answer, and the request for the task with which a stream begins.
///
/// # Errors
/// `version_not_supported`; the reason that the call has no translation; `overloaded`, as
/// [`Load::reserve`](crate::admission::Load::reserve).
async fn bridge_call(
    context: &Context,
    exchange: &mut Exchange,
    call: &mut CheckedCall,
    (caller, agent): (Side, Side),
    (tenant, files): (Option<String>, FileBytes),
) -> Result<(AgentRequest, BridgedExchange, Option<AgentRequest>), Rejection> {
    exchange.call.check_version()?;
    let (method, route) = (exchange.call.method, call.route.clone());
    let work = move |body: &[u8]| {
        let bridge = Bridge {
            caller,
            agent,
            tenant: tenant.as_deref(),
            files,
        };
        let asked = match &route {
            None => Call::Rpc(body),
            Some(route) => Call::Rest {
                tail: &route.tail,
                query: route.query.as_deref(),
                body,
            },
        };
        let snapshot = match bridge.needs_snapshot(method) {
            true => Some(bridge.snapshot_request(asked)?),
            false => None,
        };
        let (sent, back) = bridge.translate_request(method, asked)?;
        Ok((sent, back, snapshot, bridge.label()))
    };
    let metrics = &context.gateway.metrics;
    let done: Result<_, Failure> = box_cold_path(offload::run_on_body(&call.body, work)).await;
    let (sent, back, snapshot, label) =
        done.map_err(|failure| reject_untranslatable(metrics, &failure, Delivery::NotSent))?;
    let load = &context.relay.load;
    load.reserve(&mut call.share, sent.body.len())?;
    metrics.bridge.count_call(caller.generation, agent, method);
    metrics.bridge.count_left_out(&sent.left_out);
    exchange.call.translation = Some(TranslationFields::new(label, caller.generation));
    Ok((sent, back, snapshot))
}

/// Replaces the call by the translated request.
fn replace_call(
    call: &mut CheckedCall,
    sent: AgentRequest,
    interface: Option<&str>,
    streams: bool,
) {
    call.verb = match sent.verb {
        "GET" => http::Method::GET,
        "DELETE" => http::Method::DELETE,
        _ => http::Method::POST,
    };
    let interface = interface.unwrap_or_default();
    call.path = sent.target.map(|target| path_below(interface, &target));
    call.body = sent.body.into();
    call.method_name = sent.method.map(Cow::Borrowed);
    call.route = None;
    call.wire = Some(TranslatedHeaders {
        content_type: sent.content_type,
        accept: if streams {
            "text/event-stream"
        } else {
            "application/json"
        },
        version: sent.version,
        extensions: sent.extensions,
    });
}

/// A request for the agent, with the one for its task if the answer begins with that.
pub(super) struct PreparedRequest {
    pub(super) head: Vec<u8>,
    pub(super) snapshot: Option<WireRequest>,
}

/// Translates the call if its agent does not speak it, and writes its head.
pub(super) async fn prepare_request(
    request: &mut Request<'_>,
    admitted: &AdmittedCall,
    agent: &Agent,
    call: &mut CheckedCall,
) -> Result<PreparedRequest, ExchangeError> {
    let context = request.context;
    let agents = AgentCall {
        context,
        admitted,
        agent,
    };
    let (caller, exchange) = (Some(&mut *request.session), &mut *request.exchange);
    let routed = agents.route_call(caller, exchange, call).await;
    routed.at(Stage::Call)?;
    if call.guarded.is_some() {
        let content = ContentCall {
            context,
            admitted,
            caller: Some(&mut *request.session),
            exchange: request.exchange,
            call,
        };
        box_cold_path(check_content(content)).await?;
    }
    let callee = callee_attributes(agent, call);
    request.exchange.begin_call_span(&callee);
    let origin = Origin {
        head: request.session.req_header(),
        client: client_address(request.session, &context.gateway.config().server),
    };
    let head = agents.write_head(&origin, request.exchange, call).await?;
    let snapshot = match &call.snapshot {
        Some(asks) => {
            Some(box_cold_path(agents.snapshot_request(&origin, request.exchange, asks)).await?)
        }
        None => None,
    };
    Ok(PreparedRequest { head, snapshot })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;
    use directory::UpstreamAuth;

    #[test]
    fn an_agent_gets_its_own_ids_of_events_and_none_of_ours() {
        let name = "01a20410667173f9b0570ddf9405f3b5";
        let ours = [
            format!("{name}-17"),
            format!(" {name}-1\t"),
            format!("{}-0", name.to_uppercase()),
            format!("{name}-"),
        ];
        for id in ours {
            assert!(is_ours(&id.parse().unwrap()), "{id:?}");
        }
        let theirs = [
            String::new(),
            "e-7".to_owned(),
            name.to_owned(),
            format!("{name}-x"),
            format!("{name}1-17"),
            format!("{}-17", &name[1..]),
            uuid::Uuid::nil().to_string(),
        ];
        for id in theirs {
            assert!(!is_ours(&id.parse().unwrap()), "{id:?}");
        }
    }

    #[test]
    fn an_agents_credential_takes_the_place_of_no_field_of_ours() {
        let own = [
            "host",
            "content-length",
            "x-request-id",
            "x-workspace-id",
            CALLER_TOKEN,
            "x-a2a-hops",
            "via",
        ];
        let client = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
        for name in PASSED_TO_AGENTS.iter().chain(&own).chain(&client) {
            let auth = json!({"type": "header", "name": name, "value": "v"});
            let taken = UpstreamAuth::parse(&to_raw_value(&auth).unwrap());
            assert!(taken.is_err(), "{name}");
        }
    }
}
