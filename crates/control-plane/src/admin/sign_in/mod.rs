//! `/console/sign-in…`: people sign in at the console with an `OpenID` provider, by an authorization code with PKCE
//! (`docs/guide/who-may-operate.md`).
//!
//! A sign-in ends with a token of an operator that lasts as long as the session and never leaves the gateway, so
//! whatever holds for tokens holds for people: roles, revocation on all replicas, records. The provider's answer comes
//! to a page of another origin, to which a browser sends no cookie of the session. So it ends in a code, good once and
//! within a minute, with which the console's own page, and the cookie of the sign-in, begin the session.

mod answer;
mod binding;
mod codes;
mod failure;
mod person;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, RawQuery, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use url::Url;

use self::answer::Answer;
use self::binding::{Binding, Cookie, DerivedValues, SIGN_IN_MAX};
use self::codes::Codes;
use self::failure::{
    Failure, exchange_failure, invalid_token, provider_unreachable, unauthenticated,
};
use super::session::{self, NewSession, Sessions};
use super::{gate, json_response};
use a2a::accept::prefers_media;
use access::identity::{Person, Role};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::{Draft, EventType};
use kernel::config::{Config, SignIn, open_regular, refuse_exposed};
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use trust::{CodeExchange, Provider, TokenError};

/// The routes by method and pattern. They need no credential.
pub const SIGN_IN_ROUTES: &[(&str, &str)] = &[
    ("GET", "/console/sign-in"),
    ("POST", "/console/sign-in"),
    ("GET", "/console/sign-in/callback"),
    ("GET", "/console/sign-in/provider"),
];

/// Header field with the code that ends a sign-in.
const FIELD: &str = "x-a2a-sign-in";

/// Maximum sign-ins that ask the provider at once.
const AT_ONCE: usize = 8;

/// Time for which metadata and keys of the provider are used.
const KNOWN_FOR: Duration = Duration::from_secs(300);

/// Time for which a provider that could not be reached is not asked again; also the least age of keys that are fetched
/// again for an unknown one.
const PAUSE: Duration = Duration::from_secs(2);

/// Time within which the page begins the session.
const CODE_MAX: Duration = Duration::from_secs(60);

/// Maximum sign-ins of which the page has not begun the session.
const CODES_MAX: usize = 64;

/// Longest secret of a client, in bytes.
const SECRET_MAX: u64 = 4096;

/// The provider as it was last asked for.
struct CachedProvider {
    issuer: String,
    at: Instant,
    /// `None`: it could not be reached.
    provider: Option<Arc<Provider>>,
}

/// The state of the routes.
pub(super) struct SignIns {
    gateway: Arc<Gateway>,
    sessions: Arc<Sessions>,
    codes: Codes,
    binding: Binding,
    known: tokio::sync::Mutex<Option<CachedProvider>>,
    places: Semaphore,
}

/// Returns the routes.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(
    gateway: &Arc<Gateway>,
    sessions: &Arc<Sessions>,
) -> Router<S> {
    let state = Arc::new(SignIns {
        gateway: Arc::clone(gateway),
        codes: Codes::new(sessions),
        sessions: Arc::clone(sessions),
        binding: Binding::new(),
        known: tokio::sync::Mutex::default(),
        places: Semaphore::new(AT_ONCE),
    });
    Router::new()
        .route("/console/sign-in", get(begin_sign_in).post(end_sign_in))
        .route("/console/sign-in/callback", get(serve_callback))
        .route("/console/sign-in/provider", get(serve_provider))
        .with_state(state)
}

/// Serves `GET /console/sign-in/provider`: where people sign in, for the page.
async fn serve_provider(State(sign_ins): State<Arc<SignIns>>) -> Response {
    let issuer = &sign_ins.gateway.config().admin.sign_in.issuer;
    json_response(StatusCode::OK, &json!({"issuer": issuer}))
}

/// Serves `GET /console/sign-in`: sends the browser to the provider.
async fn begin_sign_in(State(sign_ins): State<Arc<SignIns>>, request: Parts) -> Response {
    let cookie = Cookie::new();
    match sign_ins.provider_url(&cookie, &request.headers).await {
        Ok(url) => {
            let config = sign_ins.gateway.config().admin.sign_in.clone();
            let response = redirect_to(url.as_str());
            with_cookie(response, &config, &request.headers, cookie.as_str())
        }
        Err(failed) => sign_ins.failure_response(failed, &request, "../"),
    }
}

/// Serves `GET /console/sign-in/callback`, to which the provider sends the browser back.
async fn serve_callback(
    State(sign_ins): State<Arc<SignIns>>,
    RawQuery(query): RawQuery,
    request: Parts,
) -> Response {
    match sign_ins
        .complete(query.as_deref().unwrap_or_default(), &request)
        .await
    {
        // The part behind `#` is sent to no server.
        Ok(code) => redirect_to(&format!("../../#signed-in={code}")),
        Err(failed) => sign_ins.failure_response(failed, &request, "../../"),
    }
}

/// Serves `POST /console/sign-in`: the page begins the session of the sign-in by its code.
async fn end_sign_in(State(sign_ins): State<Arc<SignIns>>, request: Request) -> Response {
    let headers = request.headers();
    let begun = session::require_own_page(&request).and_then(|()| {
        let session = sign_ins.codes.take_session(headers);
        session.ok_or_else(|| {
            let message =
                "the sign-in is not known here, is older than a minute, or was used: sign in again";
            Rejection::new(Reason::Unauthenticated, message)
        })
    });
    match begun {
        Ok(session) => session::open_session(&sign_ins.sessions, session, headers),
        Err(rejection) => gate::refuse_request(&sign_ins.gateway, &request, None, rejection),
    }
}

impl SignIns {
    async fn provider_url(&self, cookie: &Cookie, headers: &HeaderMap) -> Result<Url, Failure> {
        gate::refuse_foreign(headers).map_err(|rejection| Failure("foreign", rejection))?;
        let config = self.gateway.config.snapshot();
        let (issuer, client_id) = issuer_and_client(&config)?;
        let by = &config.admin.sign_in;
        let _place = self.acquire_place()?;
        let provider = self.cached_provider(issuer, KNOWN_FOR).await?;
        let bound = self.binding.derive(cookie);
        Ok(provider.sign_in_url(&[
            ("response_type", "code"),
            ("client_id", client_id),
            ("redirect_uri", &redirect_uri(by, headers)),
            ("scope", &by.scopes.join(" ")),
            ("state", &bound.state),
            ("nonce", &bound.nonce),
            ("code_challenge", &bound.code_challenge()),
            ("code_challenge_method", "S256"),
        ]))
    }

    /// Returns the code with which the page begins the session.
    async fn complete(self: &Arc<Self>, query: &str, request: &Parts) -> Result<String, Failure> {
        let config = self.gateway.config.snapshot();
        let (issuer, client_id) = issuer_and_client(&config)?;
        let answer = Answer::parse(query)?;
        let (cookie, bound) = self.find_cookie(&answer, &request.headers)?;
        // Behind the check of the state: any page can make a browser ask with an error.
        let Some(code) = answer.code else {
            let message = "the provider did not sign you in, or you left; sign in again";
            return Err(unauthenticated("refused", message));
        };
        let _place = self.acquire_place()?;
        let mut provider = self.cached_provider(issuer, KNOWN_FOR).await?;
        if !provider.is_own_issuer(answer.iss.as_deref()) {
            let message =
                "the answer is of another provider than the one that was asked; sign in again";
            return Err(unauthenticated("state", message));
        }
        let by = &config.admin.sign_in;
        let secret = read_client_secret(by)?;
        let exchange = CodeExchange {
            code: &code,
            verifier: &bound.verifier,
            redirect_uri: &redirect_uri(by, &request.headers),
            client_id,
            client_secret: secret.as_ref(),
        };
        let token = provider
            .exchange(&exchange)
            .await
            .map_err(exchange_failure)?;
        let leeway = config.auth.leeway.as_secs();
        let mut claims = provider.verify(&token, client_id, &bound.nonce, leeway);
        if claims == Err(TokenError::UnknownKey) {
            provider = self.cached_provider(issuer, PAUSE).await?;
            claims = provider.verify(&token, client_id, &bound.nonce, leeway);
        }
        let claims = claims.map_err(invalid_token)?;
        // A task of its own, so that a browser that leaves cannot stop it between the token and its record.
        let (this, of) = (Arc::clone(self), RequestOrigin::from_parts(request));
        let work = tokio::spawn(async move { this.admit_person(&claims, &config, &of).await });
        let (session, until) = work.await.map_err(|error| {
            let message = "the sign-in broke off; sign in again";
            Failure(
                "broken",
                Rejection::new(Reason::Internal, message).with_cause(error),
            )
        })??;
        Ok(self.codes.insert_session(&cookie, session, until))
    }

    /// Returns the cookie of the sign-in that an answer is for.
    fn find_cookie(
        &self,
        answer: &Answer,
        headers: &HeaderMap,
    ) -> Result<(Cookie, DerivedValues), Failure> {
        let cookies = session::cookies_named(headers, cookie_name(headers));
        let mut bound = cookies
            .filter_map(Cookie::parse)
            .map(|cookie| (self.binding.derive(&cookie), cookie));
        let found = bound.find(|(bound, _)| bound.matches_state(&answer.state));
        found.map(|(bound, cookie)| (cookie, bound)).ok_or_else(|| {
            let message =
                "this browser did not begin this sign-in within the last 10 minutes: sign in again";
            unauthenticated("state", message)
        })
    }

    /// Makes the token of a person who has a role.
    async fn admit_person(
        &self,
        claims: &Map<String, Value>,
        config: &Config,
        of: &RequestOrigin,
    ) -> Result<(NewSession, Instant), Failure> {
        let gateway = &self.gateway;
        let _running = (gateway.drain.count_work(), gateway.audit.begin_change());
        if gateway.drain.has_begun() {
            let message = "this process is shutting down; sign in again shortly";
            let rejection = Rejection::new(Reason::ShuttingDown, message);
            return Err(Failure(
                "away",
                rejection.with_retry_after(Duration::from_secs(1)),
            ));
        }
        let by = &config.admin.sign_in;
        let issuer = by.issuer.as_deref().unwrap_or_default();
        let Some(person) = person::person_from_claims(issuer, claims, by) else {
            return Err(invalid_token(TokenError::Claims));
        };
        let Some(role) = person::role_from_claims(claims, by) else {
            return Err(self.refuse_without_role(person, by, of));
        };
        let ends = Timestamp::now().after(by.session);
        let until = Instant::now() + by.session;
        let session = self.issue_token(role, &person, ends, of).await;
        let session = session.map_err(|rejection| Failure("away", rejection))?;
        Ok((
            NewSession { until, ..session },
            until.min(Instant::now() + CODE_MAX),
        ))
    }

    async fn issue_token(
        &self,
        role: Role,
        person: &Person,
        ends: Timestamp,
        of: &RequestOrigin,
    ) -> Result<NewSession, Rejection> {
        let (gateway, tokens) = (&self.gateway, &self.gateway.identity.tokens);
        let token = tokens.issue_session(role, person, ends.0).await?;
        let authorization = format!("Bearer {}", token.token.expose_secret());
        let proof = gateway
            .identity
            .authenticate(Some(authorization.as_bytes()))
            .await?;
        gateway.audit.record(Draft {
            request_id: Some(of.id.clone()),
            proof: Some(proof),
            client: gateway.audit.mask_client(of.client),
            status: 303,
            ..Draft::new(EventType::OperatorSignedIn)
                .with_detail(json!({"expires_at": ends.to_string()}))
        });
        Ok(NewSession {
            authorization: authorization.into(),
            token_id: Some(token.token_id),
            until: Instant::now(),
        })
    }

    /// Records and returns the refusal of a person without a role.
    fn refuse_without_role(&self, person: Person, by: &SignIn, of: &RequestOrigin) -> Failure {
        let audit = &self.gateway.audit;
        let named =
            json!({"issuer": person.issuer, "subject": person.subject, "name": person.name});
        let reason = Reason::NotPermitted;
        audit.record(Draft {
            request_id: Some(of.id.clone()),
            client: audit.mask_client(of.client),
            outcome: reason.as_str(),
            status: reason.status(),
            ..Draft::new(EventType::OperatorSignedIn).with_detail(json!({"operator": named}))
        });
        let claim = &by.role_claim;
        let message = format!(
            "you are signed in at the provider, but have no role here: the claim `{claim}` has none of the values in \
             admin.sign_in.roles; ask an administrator of this gateway"
        );
        Failure("no_role", Rejection::new(reason, message))
    }

    fn acquire_place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Failure> {
        self.places.try_acquire().map_err(|_| {
            let message = "as many sign-ins as may be are in progress; sign in again shortly";
            let rejection = Rejection::new(Reason::Overloaded, message);
            Failure("busy", rejection.with_retry_after(Duration::from_secs(1)))
        })
    }

    /// Returns metadata and keys of the provider that are at most this old. Concurrent requests share a fetch.
    async fn cached_provider(
        &self,
        issuer: &str,
        age_max: Duration,
    ) -> Result<Arc<Provider>, Failure> {
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.issuer == issuer) {
            let good_for = known.provider.as_ref().map_or(PAUSE, |_| age_max);
            if known.at.elapsed() < good_for {
                return known
                    .provider
                    .clone()
                    .ok_or_else(|| provider_unreachable(issuer));
            }
        }
        let found = Provider::discover(issuer).await;
        if let Err(failure) = &found {
            let (reason, error) = (failure.outcome.as_str(), Chain(failure.cause.as_ref()));
            tracing::warn!(issuer, reason, %error, "failed to read the metadata or the keys of the provider at which operators sign in");
        }
        let provider = found.ok().map(Arc::new);
        *known = Some(CachedProvider {
            issuer: issuer.to_owned(),
            at: Instant::now(),
            provider: provider.clone(),
        });
        provider.ok_or_else(|| provider_unreachable(issuer))
    }

    /// Answers a sign-in that failed: a browser with the console's page, which says why, and others as every route
    /// does. `page`: the page from the path of the request.
    fn failure_response(&self, failed: Failure, request: &Parts, page: &str) -> Response {
        let Failure(word, rejection) = failed;
        let rejection = match RequestOrigin::from_parts(request).client {
            Some(client) => self.gateway.rates.count_failure(client, rejection),
            None => rejection,
        };
        if prefers_media(&request.headers, "text/html", "application/json") {
            return redirect_to(&format!("{page}#sign-in={word}"));
        }
        rejection.with_fact("sign_in", word).into_response()
    }
}

/// The origin of a request, for its record.
struct RequestOrigin {
    id: RequestId,
    client: Option<std::net::IpAddr>,
}

impl RequestOrigin {
    fn from_parts(request: &Parts) -> Self {
        let field = request.headers.get("x-request-id");
        let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
        Self {
            id: RequestId::from_caller(field.map(HeaderValue::as_bytes)),
            client: peer.map(|peer| peer.0.ip().to_canonical()),
        }
    }
}

/// Returns the issuer and the client id.
fn issuer_and_client(config: &Config) -> Result<(&str, &str), Failure> {
    let by = &config.admin.sign_in;
    by.issuer
        .as_deref()
        .zip(by.client_id.as_deref())
        .ok_or_else(|| {
            let message = "people do not sign in here: admin.sign_in names no provider";
            Failure("off", Rejection::new(Reason::NotFound, message))
        })
}

/// Reads the secret anew, since it may have been replaced.
fn read_client_secret(by: &SignIn) -> Result<Option<SecretString>, Failure> {
    use std::io::Read as _;
    let Some(path) = &by.client_secret_file else {
        return Ok(None);
    };
    let read = || -> std::io::Result<String> {
        let file = open_regular(path)?;
        refuse_exposed(path, &file.metadata()?).map_err(std::io::Error::other)?;
        let mut text = String::new();
        file.take(SECRET_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text.trim().into())),
        Err(error) => {
            let path = path.display();
            tracing::error!(%path, %error, "failed to read admin.sign_in.client_secret_file");
            let message = "the secret of the client cannot be read; the log says why";
            let rejection = Rejection::new(Reason::Internal, message).with_cause(error);
            Err(Failure("setup", rejection))
        }
    }
}

/// Returns the URL to which the provider sends the browser back.
fn redirect_uri(by: &SignIn, headers: &HeaderMap) -> String {
    let host = || {
        headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
    };
    let base = match &by.url {
        Some(url) => Cow::Borrowed(url.as_str().trim_end_matches('/')),
        None => Cow::Owned(format!("http://{}", host().unwrap_or_default())),
    };
    format!("{base}/console/sign-in/callback")
}

/// Returns the name of the cookie of a sign-in, with the port as that of the session has it.
fn cookie_name(headers: &HeaderMap) -> String {
    format!("{}_sign_in", session::cookie_name(headers))
}

/// Sets the cookie of a sign-in. `Lax`: the provider's answer comes from another site.
fn with_cookie(mut response: Response, by: &SignIn, headers: &HeaderMap, value: &str) -> Response {
    let path = by
        .url
        .as_ref()
        .map_or("", |url| url.path().trim_end_matches('/'));
    let is_secure = by.url.as_ref().is_some_and(|url| url.scheme() == "https");
    let cookie = format!(
        "{}={value}; Path={path}/console/sign-in; Max-Age={}; HttpOnly; SameSite=Lax{}",
        cookie_name(headers),
        SIGN_IN_MAX.as_secs(),
        if is_secure { "; Secure" } else { "" },
    );
    if let Ok(mut cookie) = HeaderValue::from_str(&cookie) {
        cookie.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

fn redirect_to(location: &str) -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
