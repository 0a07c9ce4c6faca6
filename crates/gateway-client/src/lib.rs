//! The HTTP client of the command line and the demo: one request per connection, no redirects, no proxies of the
//! environment. Certificates are verified with the system's roots, or those of `SSL_CERT_FILE`.

mod registry;

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use reqwest::redirect::Policy;
use rustls::Error::InvalidCertificate;
use serde_json::Value;
use url::Url;

pub use self::registry::{BEAT, Registry, RegistryError, advice_for, in_commands};

/// Timeout of the address look-up, TCP and TLS, as the default of the gateway's `timeouts.connect`.
const CONNECT: Duration = Duration::from_secs(5);

/// Largest response that is read whole, in bytes: above the gateway's default of 10 MiB.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// No response, or an incomplete one.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ClientError {
    message: String,
    /// How far the request came.
    pub reached: RequestProgress,
}

/// How far a request came that has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// Nothing listens at the address.
    NoListener,
    /// No connection was made, so it was certainly not sent.
    NoConnection,
    /// It may have been sent, and have had its effect.
    Connection,
}

impl ClientError {
    fn new(reached: RequestProgress, message: String) -> Self {
        Self { message, reached }
    }
}

/// A request.
#[derive(Clone)]
pub struct Request<'a> {
    /// Its method.
    pub method: Method,
    /// The URL of the request.
    pub url: Url,
    /// The bearer credential.
    pub token: Option<&'a str>,
    /// Media type of the response.
    pub accept: &'static str,
    /// JSON; empty for none.
    pub body: Vec<u8>,
    /// Timeout of the whole exchange.
    pub within: Duration,
    /// What a user does if nothing listens there; empty for a program.
    pub advice: &'static str,
}

/// A response of which the head has arrived.
pub struct Response {
    response: reqwest::Response,
    peer: Peer,
}

/// The server of one exchange.
struct Peer {
    /// Scheme, host and port.
    to: String,
    /// Timeout of the exchange.
    within: Duration,
    /// What a user does if nothing listens there; empty for a program.
    advice: &'static str,
}

impl Request<'_> {
    /// Returns a request for the JSON at `url`, without a credential.
    pub fn get(url: Url, within: Duration) -> Self {
        Self {
            method: Method::GET,
            url,
            token: None,
            accept: "application/json",
            body: Vec::new(),
            within,
            advice: "",
        }
    }

    /// Puts JSON in; null is none.
    pub fn with_body(mut self, body: &Value) -> Self {
        if !body.is_null() {
            self.body = body.to_string().into_bytes();
        }
        self
    }

    /// Sends the request and waits for the response head.
    ///
    /// # Errors
    /// [`ClientError`] if there is none within the timeout.
    pub async fn send(self) -> Result<Response, ClientError> {
        if !matches!(self.url.scheme(), "http" | "https") {
            let message = format!("{} is not an http or https URL", self.url);
            return Err(ClientError::new(RequestProgress::NoConnection, message));
        }
        let peer = Peer {
            to: self.url.origin().ascii_serialization(),
            within: self.within,
            advice: self.advice,
        };
        match self.exchange().await {
            Ok(response) => Ok(Response { response, peer }),
            Err(error) => Err(peer.to_client_error(error)),
        }
    }

    /// Sends the request by a client of its own.
    async fn exchange(self) -> reqwest::Result<reqwest::Response> {
        // rustls panics without a provider. An error here means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .http1_only()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("a2a-gateway/", env!("CARGO_PKG_VERSION")));
        if self.url.scheme() == "http" {
            // Roots are only loaded for TLS: a machine may have none.
            client = client.tls_certs_only([]);
        }
        let mut request = client
            .build()?
            .request(self.method, self.url)
            .timeout(self.within)
            .header(header::ACCEPT, self.accept);
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if !self.body.is_empty() {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(self.body);
        }
        request.send().await
    }
}

impl Peer {
    /// Maps an error to its innermost cause, without the HTTP library's own wording.
    fn to_client_error(&self, error: reqwest::Error) -> ClientError {
        let (to, is_connect) = (&self.to, error.is_connect());
        if error.is_timeout() {
            let after = if is_connect { CONNECT } else { self.within };
            let message = format!("no answer from {to} within {after:?}");
            return ClientError::new(RequestProgress::Connection, message);
        }
        // The innermost cause says it without the URL.
        let error = error.without_url();
        let first = Some(&error as &(dyn Error + 'static));
        let mut why = String::new();
        for cause in std::iter::successors(first, |error| inner_cause(*error)) {
            if let Some(InvalidCertificate(why)) = cause.downcast_ref() {
                let message = format!(
                    "the certificate of {to} is not trusted ({why}); SSL_CERT_FILE names a PEM file with the certificates to trust, instead of the system's"
                );
                return ClientError::new(RequestProgress::NoConnection, message);
            }
            let io = cause.downcast_ref::<io::Error>();
            if io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused) {
                let message = format!("nothing listens at {to}{}", self.advice);
                return ClientError::new(RequestProgress::NoListener, message);
            }
            why = cause.to_string();
        }
        let reached = match is_connect {
            true => RequestProgress::NoConnection,
            false => RequestProgress::Connection,
        };
        ClientError::new(reached, format!("no answer from {to}: {why}"))
    }
}

/// Returns the error below an error. An I/O error has the error that it wraps below it, which `source` skips.
fn inner_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let wrapped = error.downcast_ref::<io::Error>();
    match wrapped.and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

impl Response {
    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Returns the id that the gateway gave the request.
    pub fn request_id(&self) -> Option<&str> {
        self.header_value("x-request-id")
    }

    /// Returns a header field, if it is text.
    pub fn header_value(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Returns the delay that `Retry-After` asks for, if it is a number of seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header_value(header::RETRY_AFTER.as_str())?;
        seconds.trim().parse().ok().map(Duration::from_secs)
    }

    /// True if the body is a stream of events.
    pub fn is_stream(&self) -> bool {
        let content_type = self.header_value(header::CONTENT_TYPE.as_str());
        content_type.is_some_and(|text| text.starts_with("text/event-stream"))
    }

    /// Returns the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`ClientError`] if the body breaks off, or is not complete within the timeout.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let piece = self.response.chunk().await;
        piece.map_err(|error| self.peer.to_client_error(error))
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// As [`Response::next_chunk`], or the body is larger than [`ANSWER_BYTES_MAX`].
    pub async fn read_body(mut self) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(piece) = self.next_chunk().await? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                let message = format!("the answer has more than {ANSWER_BYTES_MAX} bytes");
                return Err(ClientError::new(RequestProgress::Connection, message));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// Returns the status and the whole body as JSON; null if it is not JSON.
    ///
    /// # Errors
    /// As [`Response::read_body`].
    pub async fn read_json(self) -> Result<(u16, Value), ClientError> {
        let status = self.status().as_u16();
        let body = self.read_body().await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}
