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

pub use self::registry::{BEAT, Call, Registry, RegistryError};

/// Timeout of the address look-up, TCP and TLS, as the default of the gateway's `timeouts.connect`.
const CONNECT: Duration = Duration::from_secs(5);

/// Largest response that is read whole, in bytes: above the gateway's default of 10 MiB.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// No response, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL has another scheme than http and https.
    #[error("{0} is not an http or https URL")]
    Url(String),
    /// The connection was refused.
    #[error("nothing listens at {to}")]
    NotListening {
        /// Scheme, host and port.
        to: String,
    },
    /// The connection could not be made; nothing was sent.
    #[error("no answer from {to}: {why}")]
    Unreachable {
        /// Scheme, host and port.
        to: String,
        /// The innermost cause.
        why: String,
    },
    /// The connection broke.
    #[error("no answer from {to}: {why}")]
    Connection {
        /// Scheme, host and port.
        to: String,
        /// The innermost cause.
        why: String,
    },
    /// The server's certificate is not trusted.
    #[error(
        "the certificate of {to} is not trusted ({why}); SSL_CERT_FILE names a PEM file with the certificates to trust, instead of the system's"
    )]
    Untrusted {
        /// Scheme, host and port.
        to: String,
        /// The TLS library's reason.
        why: String,
    },
    /// The exchange exceeded its timeout.
    #[error("no answer from {to} within {after:?}")]
    TooSlow {
        /// Scheme, host and port.
        to: String,
        /// The timeout.
        after: Duration,
    },
    /// The response is larger than [`ANSWER_BYTES_MAX`].
    #[error("the answer has more than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
}

impl ClientError {
    /// True if the request was certainly not sent. A request that was sent may have had its effect.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Url(_)
            | Self::NotListening { .. }
            | Self::Unreachable { .. }
            | Self::Untrusted { .. } => true,
            Self::Connection { .. } | Self::TooSlow { .. } | Self::TooLarge => false,
        }
    }
}

/// A request.
pub struct Request<'a> {
    /// `GET` or `POST`.
    pub method: Method,
    /// The URL of the request.
    pub url: &'a Url,
    /// The bearer credential.
    pub token: Option<&'a str>,
    /// Media type of the response.
    pub accept: &'static str,
    /// JSON; empty for `GET`.
    pub body: Vec<u8>,
    /// Timeout of the whole exchange.
    pub within: Duration,
}

/// A response of which the head has arrived.
pub struct Response {
    response: reqwest::Response,
    peer: Peer,
}

/// The server of one exchange, and the timeout of the exchange.
struct Peer {
    /// Scheme, host and port.
    to: String,
    within: Duration,
}

impl<'a> Request<'a> {
    /// Returns a request for the JSON at `url`, without a credential.
    pub fn get(url: &'a Url, within: Duration) -> Self {
        Self {
            method: Method::GET,
            url,
            token: None,
            accept: "application/json",
            body: Vec::new(),
            within,
        }
    }

    /// Sends the request and waits for the response head.
    ///
    /// # Errors
    /// [`ClientError`] if there is none within the timeout.
    pub async fn send(self) -> Result<Response, ClientError> {
        let tls = match self.url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(ClientError::Url(self.url.to_string())),
        };
        let peer = Peer {
            to: self.url.origin().ascii_serialization(),
            within: self.within,
        };
        let client = build_client(tls).map_err(|error| peer.to_client_error(error))?;
        let mut request = client
            .request(self.method, self.url.clone())
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
        match request.send().await {
            Ok(response) => Ok(Response { response, peer }),
            Err(error) => Err(peer.to_client_error(error)),
        }
    }
}

/// Returns a client for one exchange. Roots are only loaded for TLS: a machine may have none.
fn build_client(tls: bool) -> reqwest::Result<reqwest::Client> {
    // rustls panics without a provider. An error here means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .http1_only()
        .redirect(Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT)
        .pool_max_idle_per_host(0)
        .user_agent(concat!("a2a-gateway/", env!("CARGO_PKG_VERSION")));
    if tls {
        builder.build()
    } else {
        builder.tls_certs_only([]).build()
    }
}

impl Peer {
    /// Maps an error to its innermost cause, without the HTTP library's own wording.
    fn to_client_error(&self, error: reqwest::Error) -> ClientError {
        let to = self.to.clone();
        if error.is_timeout() {
            let after = if error.is_connect() {
                CONNECT
            } else {
                self.within
            };
            return ClientError::TooSlow { to, after };
        }
        let is_connect = error.is_connect();
        // The innermost cause says it without the URL.
        let error = error.without_url();
        let causes = std::iter::successors(Some(&error as &(dyn Error + 'static)), |error| {
            inner_cause(*error)
        });
        let mut why = String::new();
        for cause in causes {
            if let Some(InvalidCertificate(why)) = cause.downcast_ref() {
                let why = why.to_string();
                return ClientError::Untrusted { to, why };
            }
            let io = cause.downcast_ref::<io::Error>();
            if io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused) {
                return ClientError::NotListening { to };
            }
            why = cause.to_string();
        }
        if is_connect {
            ClientError::Unreachable { to, why }
        } else {
            ClientError::Connection { to, why }
        }
    }
}

/// Returns the error below an error. An I/O error has the error that it wraps below it, which `source` skips.
fn inner_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
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
    /// As [`Response::next_chunk`], or [`ClientError::TooLarge`].
    pub async fn read_body(mut self) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(piece) = self.next_chunk().await? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge);
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
