//! Sessions of the console: its page can be reloaded without typing the token again.
//!
//! A session has two secrets, and a request needs both. One is in a cookie that no script can read. The other is held
//! by the page and sent in a header field. The cookie alone is also sent to other servers of the same host name, on any
//! port; the page's secret alone could be read by a script. A session stands for the token with which it was created:
//! that token is checked at each request, so the session ends with it. Sessions are in memory only, and end with the
//! process. A person who signed in has a token that only the session has ([`sign_in`](super::sign_in)): it ends with
//! the session.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use parking_lot::{Mutex, MutexGuard};
use rand::RngCore as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::gate::Operator;
use super::{gate, json_response};
use access::identity::CredentialHash;
use assembly::gateway::Gateway;
use audit::{Draft, EventType};
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection};
use stores::store::Run;

/// Header field with the page's secret.
const FIELD: &str = "x-a2a-session";

/// Idle timeout of a session. An open feed keeps it in use.
const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

/// Maximum lifetime of a session.
const LIFE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Maximum open sessions. A further one ends the session with the longest idle time.
const OPEN_MAX: usize = 64;

/// Maximum cookies of the session's name that are tried: another server of the same host name can
/// set some.
const COOKIES_MAX: usize = 4;

/// Revokes the token of a session that ended, by its id.
type Revoke = Box<dyn Fn(String) + Send + Sync>;

/// The open sessions, by the hash of both secrets.
pub(super) struct Sessions {
    all: Mutex<HashMap<CredentialHash, Session>>,
    revoke: Revoke,
}

/// A session to be.
pub(super) struct NewSession {
    /// The value of `Authorization` that it stands for.
    pub(super) authorization: SecretString,
    /// The id of the token, if only this session has it: a person signed in.
    pub(super) token_id: Option<String>,
    /// The time at which it ends at the latest.
    pub(super) until: Instant,
}

struct Session {
    new: NewSession,
    /// Hash of the cookie, which sessions of several tabs share.
    cookie: CredentialHash,
    used: Instant,
}

impl Session {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE_MAX && now < self.new.until
    }
}

impl Sessions {
    /// Creates the sessions, without one. `revoke` is called within a runtime.
    pub(super) fn new(revoke: Revoke) -> Self {
        Self {
            all: Mutex::default(),
            revoke,
        }
    }

    /// Revokes the token of a session that has ended, if only the session had it.
    pub(super) fn revoke_ended(&self, session: &NewSession) {
        if let Some(token_id) = session.token_id.clone() {
            (self.revoke)(token_id);
        }
    }

    /// Creates a session. Returns the page's secret.
    fn insert_session(&self, new: NewSession, cookie: &str, now: Instant) -> String {
        let page = random_secret();
        let mut open = self.lock_open(now);
        if open.len() >= OPEN_MAX
            && let Some(oldest) = open
                .iter()
                .min_by_key(|(_, one)| one.used)
                .map(|(key, _)| *key)
        {
            tracing::info!(
                limit = OPEN_MAX,
                "too many console sessions; ended the one with the longest idle time"
            );
            if let Some(ended) = open.remove(&oldest) {
                self.revoke_ended(&ended.new);
            }
        }
        let session = Session {
            new,
            cookie: CredentialHash::digest(cookie),
            used: now,
        };
        open.insert(session_key(cookie, &page), session);
        page
    }

    /// Marks a session as used. Returns the value of `Authorization` that it stands for, if it is
    /// open.
    fn mark_used(&self, key: CredentialHash, now: Instant) -> Option<SecretString> {
        let mut open = self.lock_open(now);
        let session = open.get_mut(&key)?;
        session.used = now;
        Some(session.new.authorization.clone())
    }

    /// Ends a session. Returns the id of the token that only this session had.
    fn remove_session(&self, key: CredentialHash, now: Instant) -> Option<String> {
        self.lock_open(now).remove(&key)?.new.token_id
    }

    /// True if an open session has this cookie.
    fn has_cookie(&self, cookie: &str, now: Instant) -> bool {
        let hash = CredentialHash::digest(cookie);
        self.lock_open(now).values().any(|one| one.cookie == hash)
    }

    /// Returns the open sessions, after removing expired ones.
    fn lock_open(&self, now: Instant) -> MutexGuard<'_, HashMap<CredentialHash, Session>> {
        // Each operation leaves the map consistent, so a poisoned lock is harmless.
        let mut open = self.all.lock();
        open.retain(|_, session| {
            let stays = session.is_open(now);
            if !stays {
                self.revoke_ended(&session.new);
            }
            stays
        });
        open
    }
}

/// The session of a request.
#[derive(Clone)]
pub(super) struct RequestSession {
    sessions: Arc<Sessions>,
    key: CredentialHash,
    /// True if the request has no token of its own.
    is_needed: bool,
}

impl RequestSession {
    /// True if the feed that the request opened may continue. Marks the session as used.
    pub(super) fn is_still_open(&self) -> bool {
        self.sessions.mark_used(self.key, Instant::now()).is_some() || !self.is_needed
    }
}

/// The state of the middleware [`add_session_token`].
#[derive(Clone)]
pub(super) struct SessionGate {
    gateway: Arc<Gateway>,
    sessions: Arc<Sessions>,
}

impl SessionGate {
    /// Creates the state without sessions.
    pub(super) fn new(gateway: &Arc<Gateway>) -> Self {
        let revoking = Arc::clone(gateway);
        let revoke = move |token_id: String| {
            let gateway = Arc::clone(&revoking);
            tokio::spawn(async move {
                revoke_token(&gateway, &token_id).await;
            });
        };
        Self {
            gateway: Arc::clone(gateway),
            sessions: Arc::new(Sessions::new(Box::new(revoke))),
        }
    }

    /// Returns the sessions.
    pub(super) fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }
}

/// Middleware that adds the token of a session to a request without a token, for the gates behind
/// it. For all routes that need an operator.
pub(super) async fn add_session_token(
    State(door): State<SessionGate>,
    mut request: Request,
    next: Next,
) -> Response {
    let sessions = Arc::clone(&door.sessions);
    request.extensions_mut().insert(Arc::clone(&sessions));
    if let Some(page) = request.headers().get(FIELD) {
        let is_needed = !request.headers().contains_key(header::AUTHORIZATION);
        let found = find_session(&sessions, request.headers(), page);
        match found {
            Some((key, authorization)) => {
                if is_needed {
                    if let Err(rejection) = require_own_page(&request) {
                        return gate::refuse_request(&door.gateway, &request, None, rejection);
                    }
                    request
                        .headers_mut()
                        .insert(header::AUTHORIZATION, authorization);
                }
                let held = RequestSession {
                    sessions,
                    key,
                    is_needed,
                };
                request.extensions_mut().insert(held);
            }
            None if is_needed => {
                let message = "the session has ended, or is not known here: log in again with the admin token";
                let rejection = Rejection::new(Reason::Unauthenticated, message);
                return gate::refuse_request(&door.gateway, &request, None, rejection);
            }
            None => {}
        }
    }
    next.run(request).await
}

/// Returns the session of a request, and its value for `Authorization`.
fn find_session(
    sessions: &Sessions,
    headers: &HeaderMap,
    page: &HeaderValue,
) -> Option<(CredentialHash, HeaderValue)> {
    let page = page.to_str().ok()?;
    let keys = session_cookies(headers).map(|cookie| session_key(cookie, page));
    let mut open = keys.filter_map(|key| Some((key, sessions.mark_used(key, Instant::now())?)));
    let (key, authorization) = open.next()?;
    let mut authorization = HeaderValue::from_str(authorization.expose_secret()).ok()?;
    authorization.set_sensitive(true);
    Some((key, authorization))
}

/// Accepts a session only for requests of the console's own page. Browsers send `Origin` with each
/// change.
///
/// # Errors
/// `origin_forbidden`.
pub(super) fn require_own_page(request: &Request) -> Result<(), Rejection> {
    gate::refuse_foreign(request.headers())?;
    if request.method().is_safe() || request.headers().contains_key(header::ORIGIN) {
        return Ok(());
    }
    let message = "a change that a session makes needs `Origin`, which browsers send; without a browser send the admin token";
    Err(Rejection::new(Reason::OriginForbidden, message))
}

/// Serves `POST /console/session`: creates a session for the token of the request, replacing the
/// session that it has.
pub(super) async fn begin_session(
    Extension(sessions): Extension<Arc<Sessions>>,
    held: Option<Extension<RequestSession>>,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let now = Instant::now();
    if let Some(Extension(held)) = held {
        if held.is_needed {
            let message = "a session begins with the admin token, not with another session";
            return Err(Rejection::new(Reason::NotPermitted, message));
        }
        // A session that has a token of its own ends with it.
        if let Some(token_id) = sessions.remove_session(held.key, now) {
            (sessions.revoke)(token_id);
        }
    }
    // The gate has authenticated it.
    let authorization = headers.get(header::AUTHORIZATION);
    let authorization = authorization
        .and_then(|field| field.to_str().ok())
        .unwrap_or_default();
    let new = NewSession {
        authorization: authorization.into(),
        token_id: None,
        until: now + LIFE_MAX,
    };
    Ok(open_session(&sessions, new, &headers))
}

/// Opens a session for the browser of a request.
pub(super) fn open_session(sessions: &Sessions, new: NewSession, headers: &HeaderMap) -> Response {
    let now = Instant::now();
    let life = new.until.saturating_duration_since(now);
    // All tabs of a browser share the cookie: one that is in use stays.
    let cookie = session_cookies(headers).find(|cookie| sessions.has_cookie(cookie, now));
    let cookie = cookie.map_or_else(random_secret, str::to_owned);
    let page = sessions.insert_session(new, &cookie, now);
    let body = json!({"session": page, "expires_in": life.as_secs()});
    with_cookie(json_response(StatusCode::OK, &body), headers, &cookie, "")
}

/// Revokes the token of a session that ended. Without the session its text is gone, so a failure opens nothing.
async fn revoke_token(gateway: &Gateway, token_id: &str) {
    if let Err(error) = gateway
        .identity
        .tokens
        .revoke_operator(token_id, Run::Real)
        .await
    {
        tracing::warn!(token_id, %error, "failed to revoke the token of a session that ended; it is listed until its end");
    }
}

/// Serves `DELETE /console/session`: ends the session of the request.
pub(super) async fn end_session(
    State(gateway): State<Arc<Gateway>>,
    Extension(sessions): Extension<Arc<Sessions>>,
    Extension(Operator(proof)): Extension<Operator>,
    held: Option<Extension<RequestSession>>,
    headers: HeaderMap,
) -> Response {
    let now = Instant::now();
    let token_id = held.and_then(|Extension(held)| sessions.remove_session(held.key, now));
    let is_person = token_id.is_some();
    if let Some(token_id) = token_id {
        // The page is told that it is over: nothing may be in doubt, so this is not left to the background.
        revoke_token(&gateway, &token_id).await;
        let field = headers.get("x-request-id").map(HeaderValue::as_bytes);
        gateway.audit.record(Draft {
            request_id: Some(RequestId::from_caller(field)),
            proof: Some(proof),
            status: 200,
            ..Draft::new(EventType::OperatorSignedOut)
        });
    }
    let at_provider = is_person
        .then(|| gateway.config().admin.sign_in.issuer.clone())
        .flatten();
    let body = json!({"status": "ended", "signed_in_at": at_provider});
    let answer = json_response(StatusCode::OK, &body);
    if session_cookies(&headers).any(|cookie| sessions.has_cookie(cookie, now)) {
        // Another tab uses the cookie.
        return answer;
    }
    with_cookie(answer, &headers, "", "; Max-Age=0")
}

/// Sets the cookie, without a lifetime: it ends with the browser.
fn with_cookie(mut answer: Response, headers: &HeaderMap, value: &str, life: &str) -> Response {
    let name = cookie_name(headers);
    // A proxy in front may terminate TLS: `Origin` has the scheme that the browser used.
    let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    let secure = origin.is_some_and(|origin| origin.starts_with(b"https://"));
    let secure = if secure { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{life}");
    if let Ok(mut cookie) = HeaderValue::from_str(&cookie) {
        cookie.set_sensitive(true);
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

/// Returns the values of the session cookie in a request.
fn session_cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    cookies_named(headers, cookie_name(headers))
}

/// Returns the values of the cookie `name` in a request.
pub(super) fn cookies_named(headers: &HeaderMap, name: String) -> impl Iterator<Item = &str> {
    let fields = headers.get_all(header::COOKIE).iter();
    let pairs = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'));
    let values = pairs.filter_map(move |pair| pair.trim().strip_prefix(&*name)?.strip_prefix('='));
    values.take(COOKIES_MAX)
}

/// Returns the name of the cookie. It contains the port: a host's ports share cookies, and each
/// port may have a gateway.
pub(super) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let port = host.and_then(|host| Authority::try_from(host).ok()?.port_u16());
    port.map_or_else(
        || "a2a_console".to_owned(),
        |port| format!("a2a_console_{port}"),
    )
}

/// Returns the key of a session, or of a sign-in, by its two secrets.
pub(super) fn session_key(cookie: &str, page: &str) -> CredentialHash {
    CredentialHash::digest(&format!("{cookie}.{page}"))
}

/// Returns 256 random bits in base64url.
pub(super) fn random_secret() -> String {
    let mut random = [0; 32];
    rand::rng().fill_bytes(&mut random);
    URL_SAFE_NO_PAD.encode(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (Sessions, Arc<Mutex<Vec<String>>>) {
        let revoked = Arc::<Mutex<Vec<String>>>::default();
        let note = Arc::clone(&revoked);
        let revoke = move |id| note.lock().push(id);
        (Sessions::new(Box::new(revoke)), revoked)
    }

    fn begin(sessions: &Sessions, cookie: &str, now: Instant) -> CredentialHash {
        let new = NewSession {
            authorization: "Bearer x".into(),
            token_id: Some(cookie.to_owned()),
            until: now + LIFE_MAX,
        };
        session_key(cookie, &sessions.insert_session(new, cookie, now))
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_when_it_is_old() {
        let ((sessions, revoked), start) = (sessions(), Instant::now());
        let second = Duration::from_secs(1);
        let idle = begin(&sessions, "a", start);
        let busy = begin(&sessions, "b", start);
        let mut now = start;
        while now + IDLE_MAX - second < start + LIFE_MAX {
            now += IDLE_MAX - second;
            assert!(sessions.mark_used(busy, now).is_some());
        }
        assert!(sessions.mark_used(idle, now).is_none());
        assert!(sessions.mark_used(busy, start + LIFE_MAX).is_none());
        let late = begin(&sessions, "c", now);
        assert!(sessions.mark_used(late, now + IDLE_MAX).is_none());
        assert!(sessions.all.lock().is_empty());
        assert_eq!(*revoked.lock(), ["a", "b", "c"]);
    }

    #[test]
    fn there_is_an_end_to_how_many_are_open() {
        let ((sessions, revoked), start) = (sessions(), Instant::now());
        let at = |n: usize| start + Duration::from_millis(u64::try_from(n).unwrap());
        let keys: Vec<_> = (0..OPEN_MAX)
            .map(|n| begin(&sessions, "a", at(n)))
            .collect();
        // The first is used again, so the second has the longest idle time.
        assert!(sessions.mark_used(keys[0], at(OPEN_MAX)).is_some());
        let last = begin(&sessions, "a", at(OPEN_MAX));
        assert_eq!(sessions.all.lock().len(), OPEN_MAX);
        assert_eq!(revoked.lock().len(), 1);
        for (key, open) in [
            (keys[0], true),
            (keys[1], false),
            (keys[2], true),
            (last, true),
        ] {
            assert_eq!(sessions.mark_used(key, at(OPEN_MAX)).is_some(), open);
        }
    }

    #[test]
    fn the_cookie_is_the_ports_own_and_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("[::1]:9090"));
        for field in [
            "x=1; a2a_console_9090=one",
            "a2a_console_9091=no; a2a_console_9090x=no;a2a_console_9090=two",
        ] {
            headers.append(header::COOKIE, HeaderValue::from_static(field));
        }
        assert_eq!(
            session_cookies(&headers).collect::<Vec<_>>(),
            ["one", "two"]
        );
        headers.insert(header::HOST, HeaderValue::from_static("gateway"));
        assert_eq!(cookie_name(&headers), "a2a_console");
    }
}
