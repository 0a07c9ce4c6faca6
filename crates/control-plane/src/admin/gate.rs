//! Authentication of operators on the admin listener (`admin.auth`).
//!
//! Metrics, health and version expose no data of callers or workspaces, and need no credential.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, header};
use url::{Position, Url};

use super::declared_route;
use crate::Route;
use access::identity::{Principal, Proof};
use assembly::gateway::Gateway;
use audit::Audit;
use audit::change::ChangeRequest;
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection};
use stores::store::Run;

/// Middleware that admits operators and rejects all other requests.
pub(super) async fn operators_only(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let asked = match refuse_foreign(headers) {
        Ok(()) => require_operator(&gateway, headers, client_address(&request)).await,
        Err(rejection) => Err(rejection),
    };
    match asked {
        // Reads, which every role may.
        Ok(()) => next.run(request).await,
        Err(rejection) => rejection.into_response(),
    }
}

/// Request extension: the proof of the operator, for the routes behind [`operators_with_token`].
#[derive(Clone)]
pub(super) struct Operator(pub(super) Arc<Proof>);

/// Middleware that admits operators with a token, also on loopback. For routes that change state
/// and for the data of the console.
pub(super) async fn operators_with_token(
    State(gateway): State<Arc<Gateway>>,
    mut request: Request,
    next: Next,
) -> Response {
    // Entered before the check for a shutdown, so that the shutdown waits for every admitted
    // request.
    let _running = gateway.drain.count_work();
    let headers = request.headers();
    let asked = match refuse_foreign(headers) {
        Ok(()) => authenticate(&gateway, headers).await,
        Err(rejection) => Err(rejection),
    };
    let (proof, rejection) = match asked {
        Ok(proof) => match check_role(&proof, &request)
            .and_then(|()| check_not_draining(&gateway, &request))
        {
            Ok(()) => {
                request.extensions_mut().insert(Operator(proof));
                return next.run(request).await;
            }
            Err(rejection) => (Some(proof), rejection),
        },
        Err(rejection) => (None, rejection),
    };
    refuse_request(&gateway, &request, proof, rejection)
}

/// Checks that the proof is an operator's, and that the role covers the route of the request.
///
/// # Errors
/// `not_permitted`.
fn check_role(proof: &Proof, request: &Request) -> Result<(), Rejection> {
    require_admin(proof)?;
    let pattern = request.extensions().get::<MatchedPath>();
    let pattern = pattern.map_or("", MatchedPath::as_str);
    let route = declared_route(request.method(), pattern);
    proof.require_at_least(Route::required_role(route, request.method(), Run::Real))
}

/// Rejects a request. Counts the failure against its address, and records a rejected change.
pub(super) fn refuse_request(
    gateway: &Gateway,
    request: &Request,
    proof: Option<Arc<Proof>>,
    rejection: Rejection,
) -> Response {
    let reason = rejection.reason;
    let rejection = match client_address(request) {
        Some(client) => gateway.rates.count_failure(client, rejection),
        None => rejection,
    };
    let told = (reason, rejection.reason.status());
    record_refusal(&gateway.audit, request, proof, told);
    rejection.into_response()
}

/// Rejects changes during the shutdown: their audit record might not be written.
///
/// # Errors
/// `shutting_down`.
fn check_not_draining(gateway: &Gateway, request: &Request) -> Result<(), Rejection> {
    if request.method().is_safe() || !gateway.drain.has_begun() {
        return Ok(());
    }
    let message = "this process is shutting down; ask another, or this one when it is back";
    Err(Rejection::new(Reason::ShuttingDown, message).with_retry_after(Duration::from_secs(1)))
}

/// Records a change that was rejected on this listener, as the public listener records those that
/// it rejects. Admitted changes are recorded by their handlers.
pub(super) fn record_refusal(
    audit: &Audit,
    request: &Request,
    proof: Option<Arc<Proof>>,
    (reason, status): (Reason, u16),
) {
    let Some(pattern) = request.extensions().get::<MatchedPath>() else {
        return;
    };
    let (pattern, path) = (pattern.as_str(), request.uri().path());
    let field = request.headers().get("x-request-id");
    let asked = ChangeRequest {
        method: request.method(),
        event_type: Route::event_type(declared_route(request.method(), pattern), request.method()),
        pattern: as_public(pattern),
        path: as_public(path),
        id: &RequestId::from_caller(field.map(HeaderValue::as_bytes)),
        proof,
        client: client_address(request),
    };
    audit.record_change(asked, None, status, Some(reason));
}

/// Returns the path or the pattern that a route of this listener has on the public one.
fn as_public(path: &str) -> &str {
    super::api::strip_api_prefix(path).unwrap_or(path)
}

/// Returns the address that failures are counted against.
fn client_address(request: &Request) -> Option<IpAddr> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.map(|peer| peer.0.ip().to_canonical())
}

/// Rejects requests of pages of other origins, whatever their credential. Browsers send `Origin` or
/// `Sec-Fetch-Site`; a request with neither is not from a browser.
///
/// # Errors
/// `origin_forbidden`.
pub(super) fn refuse_foreign(headers: &HeaderMap) -> Result<(), Rejection> {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let host = host.and_then(|host| Authority::try_from(host).ok());
    let own = match headers.get(header::ORIGIN) {
        Some(origin) => {
            let origin = origin
                .to_str()
                .ok()
                .and_then(|origin| Url::parse(origin).ok());
            let named = origin
                .as_ref()
                .map(|origin| &origin[Position::BeforeHost..Position::AfterPort]);
            let same =
                |(named, host): (&str, &Authority)| named.eq_ignore_ascii_case(host.as_str());
            named.zip(host.as_ref()).is_some_and(same)
        }
        None => {
            let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
            site.is_none_or(|site| matches!(site, b"same-origin" | b"none"))
        }
    };
    if own {
        return Ok(());
    }
    let message =
        "this was sent by a page of another origin; only the admin listener's own pages may ask it";
    Err(Rejection::new(Reason::OriginForbidden, message))
}

/// Checks that a request may read data of callers and workspaces. A credential that is sent must be
/// an operator's even where none is needed: a wrong one is a mistake of the client.
///
/// Failures are counted against `client` (`rate.failures_per_second`).
///
/// # Errors
/// `unauthenticated`, `not_permitted`; `rate_limited` instead for an address with too many
/// failures; `store_unavailable`.
pub(super) async fn require_operator(
    gateway: &Gateway,
    headers: &HeaderMap,
    client: Option<IpAddr>,
) -> Result<(), Rejection> {
    let needed = gateway.config().admin.needs_token();
    if !needed && !headers.contains_key(header::AUTHORIZATION) {
        return Ok(());
    }
    let proven = authenticate(gateway, headers).await;
    let judged = proven.and_then(|proof| require_admin(&proof));
    judged.map_err(|rejection| match client {
        Some(client) => gateway.rates.count_failure(client, rejection),
        None => rejection,
    })
}

/// Authenticates the credential of a request.
///
/// # Errors
/// `unauthenticated`, `store_unavailable`.
async fn authenticate(gateway: &Gateway, headers: &HeaderMap) -> Result<Arc<Proof>, Rejection> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let field = match (fields.next(), fields.next()) {
        (Some(field), None) => field,
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                Reason::Unauthenticated,
                "the request has several `Authorization` fields: send exactly one",
            ));
        }
        (None, _) => return Err(missing_token()),
    };
    let field = Some(HeaderValue::as_bytes(field));
    gateway.identity.authenticate(field).await
}

/// # Errors
/// `not_permitted`.
fn require_admin(proof: &Proof) -> Result<(), Rejection> {
    match proof.principal {
        Principal::Operator => Ok(()),
        Principal::Canvas { .. } | Principal::Org { .. } | Principal::Workspace { .. } => Err(
            Rejection::new(Reason::NotPermitted, "this needs an admin token"),
        ),
    }
}

fn missing_token() -> Rejection {
    Rejection::new(
        Reason::Unauthenticated,
        "this route of the admin listener is for operators: send \
         `Authorization: Bearer <admin token>` (admin.auth)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::config::load::{Layers, load};
    use kernel::config::{AdminAuth, Config, Live};
    use kernel::metrics::Metrics;

    const TOKEN: &str = "a2aa_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
    const OTHER: &str = "a2aa_9999999999abcdefghijklmnopqrstuvwxyzABCDEFG";

    async fn said(change: impl FnOnce(&mut Config), fields: &[&str]) -> Result<(), Reason> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let overrides = vec![
            format!("stores.sql=sqlite:{}", at("gateway.db")),
            format!("keys.dir={}", at("keys")),
        ];
        let layers = Layers {
            overrides,
            ..Layers::default()
        };
        let mut loaded = load(&layers).unwrap();
        loaded.config.auth.admin_token = Some(TOKEN.into());
        change(&mut loaded.config);
        let gateway = Gateway::open(Live::new(loaded), Arc::new(Metrics::new())).unwrap();
        gateway.prepare().await;
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(header::AUTHORIZATION, field.parse().unwrap());
        }
        let answer = require_operator(&gateway, &headers, None).await;
        answer.map_err(|rejection| rejection.reason)
    }

    fn beyond_loopback(config: &mut Config) {
        config.admin.listen = "0.0.0.0:9090".parse().unwrap();
    }

    #[tokio::test]
    async fn a_loopback_listener_needs_no_token_and_others_do() {
        let always = |config: &mut Config| config.admin.auth = AdminAuth::Token;
        assert_eq!(said(|_| {}, &[]).await, Ok(()));
        assert_eq!(said(always, &[]).await, Err(Reason::Unauthenticated));
        let refused = said(beyond_loopback, &[]).await;
        assert_eq!(refused, Err(Reason::Unauthenticated));
        let good = format!("Bearer {TOKEN}");
        for gate in [always, beyond_loopback] {
            assert_eq!(said(gate, &[&good]).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn a_credential_that_is_sent_must_be_an_operators() {
        let (good, wrong) = (format!("Bearer {TOKEN}"), format!("Bearer {OTHER}"));
        assert_eq!(said(|_| {}, &[&good]).await, Ok(()));
        for wrong in [&[wrong.as_str()][..], &["Basic eDp5"], &[&good, &good]] {
            let refused = said(|_| {}, wrong).await;
            assert_eq!(refused, Err(Reason::Unauthenticated), "{wrong:?}");
        }
    }

    #[test]
    fn only_our_own_pages_and_what_is_no_page_may_ask() {
        let said = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost:9090"));
            for (name, value) in fields {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            refuse_foreign(&headers).is_ok()
        };
        for own in [
            &[][..],
            &[("origin", "http://localhost:9090")],
            &[("origin", "https://LOCALHOST:9090")],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert!(said(own), "{own:?}");
        }
        for foreign in [
            &[("origin", "null")][..],
            &[("origin", "http://localhost:8080")],
            &[("origin", "http://localhost")],
            &[
                ("origin", "http://evil.example"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "cross-site")],
        ] {
            assert!(!said(foreign), "{foreign:?}");
        }
    }

    #[tokio::test]
    async fn open_mode_opens_nothing_here() {
        let open = |config: &mut Config| {
            config.auth.mode = kernel::config::AuthMode::Open;
            config.admin.auth = AdminAuth::Token;
        };
        assert_eq!(said(open, &[]).await, Err(Reason::Unauthenticated));
    }
}
