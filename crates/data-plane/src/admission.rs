//! Decides whether a request is served at all: its HTTP, the page and the host that it comes from, the load of this
//! process, the credential of its caller, its rate and its role. [`policy`](super::policy) decides about its target.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use serde_json::json;
use url::Position;

use crate::listener::{NOSNIFF, rejection_head, write_response};
use crate::parking::Turn;
use crate::record::{Exchange, ExchangeError, box_cold_path};
use a2a::accept::prefers_stream;
use a2a::refs::Refs;
use access::explain::{Fact, Source, Witness};
use access::hierarchy::Permit;
use access::identity::{Proof, Role, names_chain};
use assembly::gateway::Gateway;
use directory::tasks::{Binder, Subject};
use directory::{AgentOptions, Destination, Preference, choose_instance, find_gone};
use http1::{REQUEST_FIELDS_MAX, TARGET_BYTES_MAX, forwarded_address, is_canonical_segment};
use kernel::config::{Config, Forward, Limits, Live, PASSED_FROM_AGENTS, PASSED_TO_AGENTS, Server};
use kernel::dialect::ReplyForm;
use kernel::drain::Drain;
use kernel::hops::{count_hops, whole_number};
use kernel::ids::{InstanceId, InvalidWorkspaceId, RequestId};
use kernel::metrics::{InstanceChoice, Metrics};
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::shares::{Account, Bound, Share, ShareRefusal, Shares, SlotGuard};
use kernel::stage::Stage;
use kernel::telemetry::Chain;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Minimum length of a credential.
const CREDENTIAL_LEN_MIN: usize = 16;

/// Returns the request's own id, or a new one. An id that contains the caller's credential is replaced: ids are logged.
pub(super) fn request_id(headers: &HeaderMap) -> RequestId {
    let field = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let credential = field(header::AUTHORIZATION)
        .and_then(|field| field.rsplit(|b| *b == b' ').next())
        .filter(|credential| credential.len() >= CREDENTIAL_LEN_MIN);
    let holds_it = |id: &&[u8]| {
        credential
            .is_some_and(|credential| id.windows(credential.len()).any(|part| part == credential))
    };
    RequestId::from_caller(field(REQUEST_ID).filter(|id| !holds_it(id)))
}

/// Rejects heads that two parsers could read differently, or that are larger than any legitimate one.
///
/// # Errors
/// `invalid_request` with the violated rule; for a path, `invalid_workspace_id` or `not_found`.
pub fn check_head(head: &RequestHeader) -> Result<(), Rejection> {
    let refuse = |why: &'static str| Err(Rejection::new(Reason::InvalidRequest, why));
    if head.headers.len() > REQUEST_FIELDS_MAX {
        return refuse("the request head has more than 100 fields");
    }
    let target = head.raw_path();
    if target.len() > TARGET_BYTES_MAX || !target.iter().all(|b| b.is_ascii_graphic() && *b != b'#')
    {
        return refuse("the request target is too long or has characters that must be encoded");
    }
    match find_misspelling(head.uri.path()) {
        None => {}
        Some(PathPart::Name) => return Err(InvalidWorkspaceId.into()),
        Some(PathPart::Other) => {
            return Err(Rejection::new(
                Reason::NotFound,
                "no such path: it has an empty or a dotted segment, or a character that is encoded \
                 and need not be, or that no path here has",
            ));
        }
    }
    if head.headers.get_all(header::HOST).iter().count() > 1 {
        return refuse("the request has several Host fields");
    }
    if authority(head).is_none() {
        return refuse("the request has no Host");
    }
    check_content_length(&head.headers)?;
    let mut expectations = head.headers.get_all(header::EXPECT).iter();
    match (expectations.next(), expectations.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"100-continue") => Ok(()),
        _ => refuse("the only expectation met here is 100-continue"),
    }
}

/// Runs [`check_head`]. The end of a rejected request is uncertain, so the connection is not reused after it.
///
/// # Errors
/// As [`check_head`].
pub(super) fn require_valid(session: &mut ServerSession) -> Result<(), Rejection> {
    check_head(session.req_header()).inspect_err(|_| session.set_keepalive(None))
}

/// The part of a path with a misspelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathPart {
    /// The name of a workspace.
    Name,
    /// Any other part.
    Other,
}

/// Finds a violation of the single spelling of paths. Segments are not empty and neither `.` nor `..`. They consist of
/// the path characters of RFC 3986, 3.3 except `;`, percent-encoded only where necessary, and never contain an encoded
/// slash, backslash, percent sign or control character. One slash may end the path.
fn find_misspelling(path: &str) -> Option<PathPart> {
    let Some(path) = path.strip_prefix('/') else {
        return (path != "*").then_some(PathPart::Other);
    };
    if path.is_empty() {
        return None;
    }
    let mut segments = path.strip_suffix('/').unwrap_or(path).split('/');
    let first = segments.next().unwrap_or_default();
    if !is_canonical_segment(first) {
        return Some(PathPart::Other);
    }
    let names = match first {
        "workspaces" => 1,
        "registry" => 2,
        _ => 0,
    };
    let (at, segment) = segments
        .enumerate()
        .find(|(_, s)| !is_canonical_segment(s))?;
    let named = at < names && !matches!(segment, "." | "..");
    Some(if named {
        PathPart::Name
    } else {
        PathPart::Other
    })
}

/// Requires at most one Content-Length, in digits. Pingora also accepts `5, 5` and two equal fields. RFC 9112, 6.3
/// permits to reject them, and no legitimate client sends them.
fn check_content_length(headers: &HeaderMap) -> Result<(), Rejection> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let digits = |v: &HeaderValue| !v.is_empty() && v.as_bytes().iter().all(u8::is_ascii_digit);
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if digits(one) => Ok(()),
        _ => Err(Rejection::new(
            Reason::InvalidRequest,
            "the request has several Content-Length values, or one that is no number",
        )),
    }
}

/// Returns the host and port of the request: from `:authority`, an absolute target, or `Host`.
pub(super) fn authority(head: &RequestHeader) -> Option<&str> {
    let from_target = head.uri.authority().map(http::uri::Authority::as_str);
    let from_field = || head.headers.get(header::HOST).and_then(|v| v.to_str().ok());
    from_target
        .or_else(from_field)
        .filter(|host| !host.is_empty())
}

/// Returns what the caller says in `A2A-Version`, as a field or a query parameter (A2A 1.0, 3.6.1).
pub(super) fn declared_version(head: &RequestHeader) -> Option<Cow<'_, str>> {
    if let Some(version) = head.headers.get("a2a-version") {
        // What is no text is no version.
        return Some(version.to_str().unwrap_or("?").into());
    }
    let mut pairs = url::form_urlencoded::parse(head.uri.query()?.as_bytes());
    pairs
        .find(|(name, _)| name == "A2A-Version")
        .map(|(_, version)| version)
}

// Browsers: accepted hosts (`Host`), allowed origins (`Origin`), and the CORS fields (Fetch, 3.2).
//
// Runs before credentials are checked, so that a hostile page learns nothing (`docs/reference/a2a.md`, "Order of
// checks").

/// Fields that a page may send and read, besides those that pass to and from agents: the gateway's own.
const OWN_FIELDS: &str = "authorization, x-workspace-id, x-timeout, x-request-id, idempotency-key, prefer, \
    if-none-match, link, www-authenticate, preference-applied, idempotent-replay, idempotent-kept, x-a2a-completed, \
    x-a2a-bridged, x-a2a-speaks, x-a2a-refused, x-a2a-stream, ratelimit, ratelimit-limit, ratelimit-remaining, \
    ratelimit-reset, ratelimit-policy, content-length, location, allow";

/// Returns the fields that a page may send and read.
fn page_fields(forward: &Forward) -> Option<HeaderValue> {
    let passed = PASSED_TO_AGENTS.iter().chain(&PASSED_FROM_AGENTS).copied();
    let added = forward.headers.iter().chain(&forward.response_headers);
    let names = OWN_FIELDS.split(", ").chain(passed);
    let names = names.chain(added.map(String::as_str));
    let names: BTreeSet<String> = names.map(str::to_ascii_lowercase).collect();
    HeaderValue::try_from(Vec::from_iter(names).join(", ")).ok()
}

/// The accepted hosts and allowed origins. The default accepts none.
#[derive(Default)]
pub(super) struct Origins {
    hosts: HashSet<String>,
    own: HashSet<String>,
    allowed: HashSet<String>,
    any: bool,
    /// `Access-Control-Allow-Headers` and `-Expose-Headers`.
    fields: Option<HeaderValue>,
}

impl Origins {
    /// Reads `server.public_url`, `server.hosts`, `cors.origins` and `[forward]`.
    pub(super) fn new(config: &Config) -> Self {
        const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
        let (listen, public) = (config.server.listen, config.server.public_url.as_ref());
        let port = listen.port();
        let (scheme, default_port) = match config.server.tls.cert {
            Some(_) => ("https", 443),
            None => ("http", 80),
        };
        // Only with the listener's own port: other servers on this machine are foreign origins.
        let mut hosts = HashSet::from(LOCAL.map(|name| format!("{name}:{port}")));
        hosts.insert(listen.to_string());
        let mut own: HashSet<String> = hosts
            .iter()
            .map(|host| format!("{scheme}://{host}"))
            .collect();
        if port == default_port {
            let end = format!(":{port}");
            let bare = hosts.iter().filter_map(|host| host.strip_suffix(&end));
            own.extend(bare.map(|host| format!("{scheme}://{host}")));
        }
        hosts.extend(LOCAL.map(str::to_owned));
        if let Some((url, host)) = public.and_then(|url| Some((url, url.host_str()?))) {
            hosts.insert(url[Position::BeforeHost..Position::AfterPort].to_owned());
            let port = url.port_or_known_default();
            hosts.extend(port.map(|port| format!("{host}:{port}")));
        }
        own.extend(public.map(|url| url.origin().ascii_serialization()));
        let listed = config.server.hosts.iter().map(|h| h.to_ascii_lowercase());
        for host in listed {
            let scheme = public.map_or(scheme, url::Url::scheme);
            own.insert(format!("{scheme}://{host}"));
            hosts.insert(host);
        }
        let any = config.cors.origins.iter().any(|o| o == "*");
        Self {
            hosts,
            own,
            allowed: config.cors.origins.iter().cloned().collect(),
            any,
            fields: page_fields(&config.forward),
        }
    }

    /// Rejects requests for other hosts, and pages of other origins.
    ///
    /// # Errors
    /// `misdirected` and `origin_forbidden`.
    pub(super) fn check(&self, head: &RequestHeader) -> Result<(), Rejection> {
        let host = authority(head).unwrap_or_default();
        let hosts = &self.hosts;
        if !hosts.contains(host) && !hosts.contains(&host.to_ascii_lowercase()) {
            return Err(Rejection::new(
                Reason::Misdirected,
                "this gateway does not answer to that Host; add it to server.hosts",
            ));
        }
        match origin_field(&head.headers) {
            Some(origin) if self.is_allowed(origin) => Ok(()),
            Some(_) => Err(Rejection::new(
                Reason::OriginForbidden,
                "pages of this origin may not call; add it to cors.origins",
            )),
            None if says(&head.headers, "sec-fetch-site", "cross-site")
                && !is_canvas_visit(head) =>
            {
                Err(Rejection::new(
                    Reason::OriginForbidden,
                    "a cross-site request without an Origin is not served",
                ))
            }
            None => Ok(()),
        }
    }

    fn is_allowed(&self, origin: &str) -> bool {
        self.any && !origin.is_empty() || self.allowed.contains(origin) || self.own.contains(origin)
    }

    /// Adds the browser fields to an answer, including errors and the heads of streams: those of CORS, and
    /// `X-Content-Type-Options: nosniff`.
    pub(super) fn put_browser_fields(&self, request: &HeaderMap, response: &mut ResponseHeader) {
        // Cannot fail, here and below: the map's limit is far above a handful of fields.
        let _ = response.insert_header("x-content-type-options", NOSNIFF);
        let Some(origin) = origin_field(request).filter(|o| self.is_allowed(o)) else {
            return;
        };
        let Ok(value) = HeaderValue::from_str(origin) else {
            return;
        };
        let allow = if self.any {
            HeaderValue::from_static("*")
        } else {
            value
        };
        let _ = response.append_header(header::ACCESS_CONTROL_ALLOW_ORIGIN, allow);
        let _ = response.append_header(header::VARY, HeaderValue::from_static("Origin"));
        if let Some(fields) = &self.fields {
            let _ = response.append_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, fields.clone());
        }
    }

    /// Returns the answer to a preflight, if the request is one.
    pub(super) fn answer_preflight(&self, head: &RequestHeader) -> Option<ResponseHeader> {
        let asks = head
            .headers
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if head.method != http::Method::OPTIONS || !asks {
            return None;
        }
        let mut response = ResponseHeader::build(204, Some(6)).ok()?;
        let methods = HeaderValue::from_static("GET, POST, PATCH, DELETE, OPTIONS");
        for (name, value) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, methods),
            (
                header::ACCESS_CONTROL_MAX_AGE,
                HeaderValue::from_static("7200"),
            ),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, self.fields.clone()?),
        ] {
            response.append_header(name, value).ok()?;
        }
        Some(response)
    }
}

fn origin_field(headers: &HeaderMap) -> Option<&str> {
    // An origin that is not text, or one of several, never matches: no list contains an empty string.
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let first = origins.next()?.to_str().unwrap_or_default();
    Some(if origins.next().is_some() { "" } else { first })
}

/// True if a browser says `what` in a field.
fn says(headers: &HeaderMap, name: &str, what: &str) -> bool {
    headers.get(name).is_some_and(|value| value == what)
}

/// True if a user follows a link to the canvas in a top-level window: not in a frame, and without access to the answer
/// for the linking page.
fn is_canvas_visit(head: &RequestHeader) -> bool {
    head.method == http::Method::GET
        && matches!(head.uri.path(), "/canvas" | "/canvas/")
        && says(&head.headers, "sec-fetch-mode", "navigate")
        && says(&head.headers, "sec-fetch-dest", "document")
}

/// True if a browser probably made the request. Such a request must declare the type of its body.
pub(super) fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers
            .keys()
            .any(|name| name.as_str().starts_with("sec-fetch-"))
}

/// Returns the client's address: the peer's, or the one that a trusted proxy forwarded.
pub(super) fn client_address(session: &ServerSession, server: &Server) -> IpAddr {
    let peer = session
        .client_addr()
        .and_then(|a| a.as_inet())
        .map(SocketAddr::ip);
    // All listeners are TCP, so every peer has an address.
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    forwarded_address(peer, &session.req_header().headers, &server.trusted_proxies)
}

// Admission of load: slots among the exchanges, memory for bodies, and no new work during a shutdown.

/// The load of this process, with its bounds.
pub(super) struct Load {
    config: Live,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    /// The memory that bodies take.
    bodies: Arc<Shares>,
    exchanges: AtomicUsize,
}

impl Load {
    pub(super) fn new(config: Live, metrics: Arc<Metrics>, drain: Arc<Drain>) -> Self {
        Self {
            config,
            metrics,
            drain,
            bodies: Arc::default(),
            exchanges: AtomicUsize::new(0),
        }
    }

    /// Returns a share of the memory for bodies, with no bytes yet.
    pub(super) fn new_share(&self, account: Account) -> Share {
        Share::empty(&self.bodies, account)
    }

    /// Checks that new work may begin.
    ///
    /// # Errors
    /// `shutting_down`.
    pub(super) fn check_open(&self) -> Result<(), Rejection> {
        if self.drain.has_begun() {
            let message = "this process is shutting down; connect again to reach another one";
            let again = Duration::from_secs(1);
            return Err(Rejection::new(Reason::ShuttingDown, message).with_retry_after(again));
        }
        Ok(())
    }

    /// Reserves memory for `bytes` more of a body.
    ///
    /// # Errors
    /// `overloaded` if all bodies together would exceed `limits.bodies_bytes`, or if those of this caller would exceed
    /// both half of what other callers leave free and the maximum of one body.
    pub(super) fn reserve(&self, share: &mut Share, bytes: usize) -> Result<(), Rejection> {
        let limits = &self.config.get().limits;
        let (all, least) = (limits.bodies_bytes.bytes(), limits.request_bytes.bytes());
        let bound = Bound::with_least(all, least);
        share.grow(bytes, bound).map_err(|full| {
            self.metrics.bodies_refused.inc();
            no_room(full)
        })
    }

    /// Takes a slot for one more exchange.
    ///
    /// # Errors
    /// `overloaded` if `server.max_exchanges` are in progress.
    pub(super) fn take_slot(&self) -> Result<SlotGuard<'_>, Rejection> {
        let limit = self.config.get().server.max_exchanges;
        SlotGuard::take(&self.exchanges, limit).ok_or_else(|| no_slot(limit))
    }

    /// Checks for a free slot without taking it, and records the number of taken slots in `witness`.
    ///
    /// # Errors
    /// As [`Load::take_slot`].
    pub(super) fn check_slot(&self, witness: &mut impl Witness) -> Result<(), Rejection> {
        let limit = self.config.get().server.max_exchanges;
        let (taken, there_is_one) = SlotGuard::count(&self.exchanges, limit);
        witness.record(|| {
            let value = json!({"taken": taken, "limit": limit, "of": "this replica"});
            Fact::new(Stage::Places, Source::Memory, value)
        });
        there_is_one.then_some(()).ok_or_else(|| no_slot(limit))
    }
}

/// Builds `overloaded` for a body without memory.
fn no_room(full: ShareRefusal) -> Rejection {
    let message = match full {
        ShareRefusal::All => {
            "the gateway holds as many bytes of bodies as it may (limits.bodies_bytes)"
        }
        ShareRefusal::Share | ShareRefusal::Each => {
            "bodies of this caller take half of what others leave of limits.bodies_bytes: send fewer at once"
        }
    };
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}

fn no_slot(limit: usize) -> Rejection {
    let message = format!("too many requests in progress (server.max_exchanges = {limit})");
    Rejection::new(Reason::Overloaded, message).with_retry_after(Duration::from_secs(1))
}

const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");

/// Runs the checks that apply to every request on any route.
///
/// # Errors
/// The first rejection.
pub(super) fn check_request(
    session: &mut ServerSession,
    origins: &Origins,
    load: &Load,
) -> Result<(), Rejection> {
    require_valid(session).at(Stage::Http)?;
    origins.check(session.req_header()).at(Stage::Origin)?;
    load.check_open().at(Stage::Process)
}

/// Runs the same checks, and takes a slot among the exchanges.
///
/// # Errors
/// As [`check_request`]; `overloaded`.
pub(super) fn open_exchange<'l>(
    session: &mut ServerSession,
    origins: &Origins,
    load: &'l Load,
) -> Result<SlotGuard<'l>, Rejection> {
    check_request(session, origins, load)?;
    load.take_slot().at(Stage::Places)
}

/// Call that passed all checks except those of its body.
pub(super) struct AdmittedCall {
    /// The caller and its permission for the target.
    pub(super) allowed: AllowedCaller,
    /// The resolved target.
    pub(super) destination: Destination,
    /// The timeout that `X-Timeout` requests.
    pub(super) timeout: Option<Duration>,
    /// The number of gateways that the call has passed, this one included.
    pub(super) hops: u32,
    /// Preference of the call among the instances of its target; `None`: there are no named ones.
    pub(super) preference: Option<Box<Preference>>,
    /// Its turn among the calls that waited for their agent, if it was parked.
    pub(super) turn: Option<Turn>,
}

impl AdmittedCall {
    /// Runs the checks of the call.
    ///
    /// # Errors
    /// The first rejection.
    pub(super) fn new(
        allowed: AllowedCaller,
        destination: Destination,
        head: &RequestHeader,
        config: &Config,
    ) -> Result<Self, Rejection> {
        Ok(Self {
            allowed,
            destination,
            timeout: requested_timeout(head, config.timeouts.max).at(Stage::Fields)?,
            hops: count_hops(&head.headers, config.forward.max_hops).at(Stage::Fields)?,
            preference: None,
            turn: None,
        })
    }

    /// Returns a call that the gateway makes itself, about `refs`, with the instance of the target that gets it.
    ///
    /// # Errors
    /// As [`assign_instance`].
    pub(super) async fn own(
        gateway: &Gateway,
        (allowed, destination): (AllowedCaller, Destination),
        hops: u32,
        refs: &Refs,
    ) -> Result<Self, Rejection> {
        let mut admitted = Self {
            allowed,
            destination,
            timeout: None,
            hops,
            preference: None,
            turn: None,
        };
        let assigned = assign_instance(gateway, &mut admitted, refs).await;
        assigned.at(Stage::Instance).map(|()| admitted)
    }

    /// Returns the instance of the target that gets the call, if it has several.
    pub(super) fn instance(&self) -> Option<&InstanceId> {
        match &self.destination {
            Destination::Agent(agent) => agent.instance.as_ref(),
            Destination::Inbox(_) => None,
        }
    }

    /// The protocol options of the target: what the call must look like.
    pub(super) fn options(&self) -> &AgentOptions {
        self.destination.options()
    }
}

/// Caller that may reach the target, whatever state the target is in.
pub(super) struct AllowedCaller {
    /// The proven caller.
    pub(super) proof: Arc<Proof>,
    /// The permission of the caller for the target.
    pub(super) permit: Permit,
}

impl AllowedCaller {
    /// Returns the proof and the permission.
    pub(super) fn as_pair(&self) -> (&Proof, &Permit) {
        (&self.proof, &self.permit)
    }

    /// Returns the account under which the call takes memory and places.
    pub(super) fn account(&self) -> Account {
        self.proof.account
    }
}

/// Proves the caller's identity, and that its rate, and the role of an operator, allow a request now.
///
/// # Errors
/// The first rejection.
pub(super) async fn authenticate_caller(
    gateway: &Gateway,
    exchange: &mut Exchange,
    head: &RequestHeader,
) -> Result<Arc<Proof>, Rejection> {
    refuse_declared_oversize(&exchange.call.config.limits, head).at(Stage::Size)?;
    let field = authorization_field(head).at(Stage::Caller)?;
    let proof = gateway.identity.authenticate_message(field).await;
    let proof = proof.at(Stage::Caller)?;
    exchange.call.proof = Some(Arc::clone(&proof));
    for claimed in head.headers.get_all("x-workspace-id") {
        let claimed = proof.check_caller(Some(claimed.as_bytes()));
        claimed.at(Stage::Claim)?;
    }
    let allowance = gateway.rates.admit(&proof).at(Stage::Rate)?;
    exchange.call.allowance = allowance;
    proof
        .require_at_least(Role::for_call(&head.method))
        .at(Stage::Role)?;
    if exchange.call.method.returns_content() {
        proof.require_at_least(Role::Admin).at(Stage::Role)?;
    }
    if !names_chain(&proof, &head.headers) {
        return Ok(proof);
    }
    let proof = box_cold_path(gateway.identity.with_chain(proof, &head.headers));
    let proof = proof.await.at(Stage::Chain)?;
    exchange.call.proof = Some(Arc::clone(&proof));
    Ok(proof)
}

/// Returns the only `Authorization` field. Two of them are ambiguous and prove nothing.
///
/// # Errors
/// `unauthenticated`.
pub(super) fn authorization_field(head: &RequestHeader) -> Result<Option<&[u8]>, Rejection> {
    single_field(head, &header::AUTHORIZATION).map_err(|_| {
        let message = "the request has several `Authorization` fields: send exactly one";
        Rejection::new(Reason::Unauthenticated, message)
    })
}

/// Returns the only value of a field that must not be repeated: two proxies could each read a different one.
///
/// # Errors
/// `invalid_request`.
pub(super) fn single_field<'h>(
    head: &'h RequestHeader,
    name: &HeaderName,
) -> Result<Option<&'h [u8]>, Rejection> {
    let mut values = head.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Rejection::new(
            Reason::InvalidRequest,
            format!("the request has several `{name}` fields; send one"),
        )),
        (first, None) => Ok(first.map(HeaderValue::as_bytes)),
    }
}

/// Rejects a body with a declared length above the limit.
///
/// # Errors
/// `body_too_large`.
pub(super) fn refuse_declared_oversize(
    limits: &Limits,
    head: &RequestHeader,
) -> Result<(), Rejection> {
    let declared = head
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok());
    let limit = limits.request_bytes;
    match declared.and_then(|v| v.trim().parse::<u64>().ok()) {
        Some(bytes) if bytes > limit.0 => Err(too_large(limit.0)),
        _ => Ok(()),
    }
}

/// Builds `body_too_large`, with the limit in its message.
pub(super) fn too_large(limit: u64) -> Rejection {
    Rejection::new(
        Reason::BodyTooLarge,
        format!("the request body is larger than limits.request_bytes, {limit} bytes"),
    )
    .with_fact("limit", limit)
}

/// Reads `X-Timeout: <seconds>`, bounded by `timeouts.max`.
///
/// # Errors
/// `invalid_request`.
pub(super) fn requested_timeout(
    head: &RequestHeader,
    max: Duration,
) -> Result<Option<Duration>, Rejection> {
    let Some(field) = single_field(head, &X_TIMEOUT)? else {
        return Ok(None);
    };
    match whole_number(field) {
        Some(seconds) if seconds > 0 => Ok(Some(Duration::from_secs(seconds).min(max))),
        _ => Err(Rejection::new(
            Reason::InvalidRequest,
            "X-Timeout is a positive whole number of seconds",
        )),
    }
}

// Chooses the instance of the agent that gets a call, by the task and the context that the call names, and has the
// answer bind them.

/// Maximum tasks of a call that are looked up. Each may cost a read of SQL.
const SUBJECTS_MAX: usize = 8;

/// Chooses the instance, if the target has several.
///
/// # Errors
/// `workspace_restarting` if all its instances drain.
pub(super) async fn assign_instance(
    gateway: &Gateway,
    admitted: &mut AdmittedCall,
    refs: &Refs,
) -> Result<(), Rejection> {
    let Destination::Agent(agent) = &admitted.destination else {
        return Ok(());
    };
    if agent.instances.is_empty() {
        return Ok(());
    }
    let mut preference = load_preference(gateway, &admitted.allowed, refs).await;
    let account = admitted.allowed.account();
    preference.gone = find_gone(&agent.instances, account, &preference);
    let (chosen, by) = choose_instance(&agent.instances, account, &preference, &[])?;
    gateway.metrics.capacity.choices[by].inc();
    admitted.destination = Destination::Agent(Arc::clone(chosen));
    admitted.preference = Some(Box::new(preference));
    Ok(())
}

/// Returns what the call prefers: the instances that have its tasks, and the one that has its context.
async fn load_preference(gateway: &Gateway, allowed: &AllowedCaller, refs: &Refs) -> Preference {
    let tasks = refs.tasks.iter().take(SUBJECTS_MAX);
    let mut subjects: Vec<_> = tasks.map(|task| Subject::Task(task)).collect();
    subjects.extend(refs.context.as_deref().map(Subject::Context));
    if subjects.is_empty() {
        return Preference::default();
    }
    let (target, owner) = (allowed.permit.target(), allowed.proof.owner());
    let life = allowed.permit.life();
    let bound = gateway.tasks.find_bindings(&life, &subjects, &owner).await;
    let bound = bound.unwrap_or_else(|error| {
        // The hash leads to one instance on all replicas, and often to the one that is bound.
        tracing::debug!(error = %Chain(&error), workspace.id = %target, "failed to read which instance has a task");
        Vec::new()
    });
    let by = |(subject, id)| match subject {
        Subject::Task(_) => (id, InstanceChoice::Task),
        Subject::Context(_) => (id, InstanceChoice::Context),
    };
    Preference {
        bound: bound.into_iter().map(by).collect(),
        gone: Vec::new(),
        key: refs.context.clone().or_else(|| refs.tasks.first().cloned()),
    }
}

/// Returns what binds the task and the context of an answer to the instance that was chosen; `None` if the target has
/// no named instances.
pub(super) fn build_binder(gateway: &Gateway, admitted: &AdmittedCall) -> Option<Binder> {
    let preference = admitted.preference.as_ref()?;
    let Destination::Agent(agent) = &admitted.destination else {
        return None;
    };
    let instance = agent.instance.as_ref()?;
    let names = (admitted.allowed.permit.life(), instance);
    let gone = preference.gone.clone();
    let proof = &admitted.allowed.proof;
    Some(Binder::new(&gateway.tasks, names, proof, gone))
}

/// Builds `method_not_allowed`, with the allowed methods.
pub(super) fn method_not_allowed(message: &'static str, allow: &'static str) -> Rejection {
    let mut rejection = Rejection::new(Reason::MethodNotAllowed, message);
    rejection.allow = Some(allow);
    rejection
}

// Answers with a rejection, in the dialect of the request.

/// Writes the whole rejection. An error that A2A defines is sent as an event if the caller asked for a stream: clients
/// of the streaming methods read only events from an answer with status 200. The connection stays usable: framing is
/// exact, and Pingora drains the rest of the request within its bound.
///
/// # Errors
/// The caller cannot be written to.
pub(super) async fn send_rejection(
    session: &mut ServerSession,
    origins: &Origins,
    request_id: &RequestId,
    rejection: &Rejection,
    form: &ReplyForm,
) -> Result<(), ExchangeError> {
    let mut body = rejection.to_body(form, request_id);
    let status = rejection.status_in(form.dialect);
    let fields = &session.req_header().headers;
    let is_event = status == StatusCode::OK.as_u16() && prefers_stream(fields);
    if is_event {
        body = format!("data: {body}\n\n");
    }
    let mut head = rejection_head(rejection, request_id, status, body.len())?;
    if is_event {
        head.insert_header(header::CONTENT_TYPE, "text/event-stream")?;
    }
    origins.put_browser_fields(&session.req_header().headers, &mut head);
    if session.req_header().method == http::Method::HEAD {
        body.clear();
    }
    let body = Bytes::from(body);
    write_response(session, head, body).await
}

/// Rejects an exchange: records the rejection, counts failures of proof, and answers.
pub(super) async fn reject_exchange(
    session: &mut ServerSession,
    origins: &Origins,
    exchange: &mut Exchange,
    rejection: &Rejection,
) -> Result<(), ExchangeError> {
    exchange.record_rejection(rejection);
    exchange.record.status = rejection.status_in(exchange.call.dialect);
    let (form, request_id) = (exchange.call.reply_form(), &exchange.call.request_id);
    send_rejection(session, origins, request_id, rejection, &form).await
}

#[cfg(test)]
mod validate_tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for good in [
            "/",
            "*",
            "/ws",
            "/workspaces/dev/a2a",
            "/workspaces/dev/a2a/",
            "/workspaces/dev/a2a/v1/message:send",
            "/tasks/a%20b",
            "/tasks/%C3%A4%7B",
            "/tasks/a+b,c=d@e:f!$&'()*~",
            "/.well-known/jwks.json",
        ] {
            assert_eq!(find_misspelling(good), None, "{good}");
        }
        for name in [
            "/workspaces/a%2Fb/a2a",
            "/workspaces/%2e%2e/a2a",
            "/workspaces//a2a",
            "/workspaces/a;b/tokens",
            "/registry/discover/%41",
        ] {
            assert_eq!(find_misspelling(name), Some(PathPart::Name), "{name}");
        }
        for bad in [
            "",
            "x",
            "//",
            "//workspaces/dev/a2a",
            "/tasks//",
            "/tasks/a//b",
            "/./ws",
            "/../ws",
            "/workspaces/../a2a",
            "/workspaces/./a2a",
            "/workspaces/dev/a2a//",
            "/workspaces/dev/a2a/../a2a",
            "/workspaces/dev/a2a/%2e%2e",
            "/workspaces/dev/%612a",
            "/workspaces/dev/a2a%2F",
            "/workspaces/dev/a2a;v=1",
            "/workspaces%2Fdev/a2a",
            "/tasks/%2f",
            "/tasks/%5C",
            "/tasks/%00",
            "/tasks/%7f",
            "/tasks/%3b",
            "/tasks/%252f",
            "/tasks/%",
            "/tasks/%4",
            "/tasks/%g0",
            "/tasks/a\\b",
            "/tasks/a\"b",
            "/tasks/{a}",
            "/tasks/a|b",
        ] {
            assert_eq!(find_misspelling(bad), Some(PathPart::Other), "{bad}");
        }
    }
}

#[cfg(test)]
mod admit_tests {
    use super::*;

    #[test]
    fn x_timeout_is_a_positive_integer_and_bounded() {
        let max = Duration::from_secs(1800);
        let ask = |value: &str| {
            let mut head = RequestHeader::build("POST", b"/", None).unwrap();
            head.insert_header("x-timeout", value).unwrap();
            requested_timeout(&head, max).map_err(|r| r.reason)
        };
        assert_eq!(ask("5"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(ask("99999"), Ok(Some(max)));
        assert_eq!(ask("99999999999999999999999"), Ok(Some(max)));
        for bad in ["0", "000", "-1", "+1", "1.5", "1s", "", " "] {
            assert_eq!(ask(bad), Err(Reason::InvalidRequest), "{bad:?}");
        }
    }
}
