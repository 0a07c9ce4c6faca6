//! The HTTP client of the command line, on Pingora's connector: one request per connection.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use pingora::connectors::http::v1::Connector;
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use tokio::time::{Instant, timeout_at};
use url::Url;

/// Timeout of TCP and TLS, as the default of the gateway's `timeouts.connect`.
const CONNECT: Duration = Duration::from_secs(5);

/// Largest response that is read whole, in bytes: above the gateway's default of 10 MiB.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Prefix of every rustls error about a certificate that is not trusted.
const UNTRUSTED: &str = "invalid peer certificate: ";

/// No response, or an incomplete one.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The URL has another scheme than http and https, or no host.
    #[error("{0} is not an http or https URL with a host")]
    Url(String),
    /// The name has no address.
    #[error("cannot find the address of {host}")]
    Name {
        /// The name that was looked up.
        host: String,
        /// The resolver's error.
        #[source]
        source: std::io::Error,
    },
    /// The connection was refused.
    #[error("nothing listens at {to}")]
    Nobody {
        /// Scheme, host and port.
        to: String,
    },
    /// The connection could not be made, or broke.
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
    /// Maps a Pingora error to its innermost cause, without Pingora's own wording where there is a
    /// cause below it.
    fn broken(to: &str, error: &pingora::Error) -> Self {
        let to = to.to_owned();
        if *error.root_etype() == pingora::ErrorType::ConnectRefused {
            return Self::Nobody { to };
        }
        let mut inner = error;
        let why = loop {
            let Some(cause) = &inner.cause else {
                break inner.etype.as_str().to_owned();
            };
            match cause.downcast_ref::<Box<pingora::Error>>() {
                Some(deeper) => inner = deeper,
                None => break cause.to_string(),
            }
        };
        // Pingora keeps the TLS error in the context, followed by the server name.
        let of_tls = inner.etype == pingora::ErrorType::TLSHandshakeFailure;
        let context = inner.context.as_ref().filter(|_| of_tls);
        let why = context.map_or(why, |context| {
            let context = context.as_str();
            let said = context.split_once(", SNI: ").map_or(context, |it| it.0);
            said.to_owned()
        });
        match why.split_once(UNTRUSTED) {
            Some((_, why)) => Self::Untrusted {
                to,
                why: why.to_owned(),
            },
            None => Self::Connection { to, why },
        }
    }
}

/// A request.
pub(super) struct Ask<'a> {
    /// `GET` or `POST`.
    pub(super) method: Method,
    /// The URL of the request.
    pub(super) url: &'a Url,
    /// The bearer credential.
    pub(super) token: Option<&'a str>,
    /// Media type of the response.
    pub(super) accept: &'static str,
    /// JSON; empty for `GET`.
    pub(super) body: Vec<u8>,
    /// Timeout of the whole exchange.
    pub(super) within: Duration,
}

/// A response of which the head has arrived.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) content_type: String,
    session: HttpSession,
    to: String,
    deadline: Instant,
    within: Duration,
}

/// Sends a request and waits for the response head.
pub(super) async fn ask(connector: &Connector, ask: Ask<'_>) -> Result<Answer, ClientError> {
    let deadline = Instant::now() + ask.within;
    let to = ask.url.origin().ascii_serialization();
    let exchange = async {
        let peer = peer(ask.url).await?;
        send(connector, &peer, &ask, &to).await
    };
    let session = timeout_at(deadline, exchange)
        .await
        .map_err(|_| ClientError::TooSlow {
            to: to.clone(),
            after: ask.within,
        })??;
    let status = session.get_status().unwrap_or(StatusCode::BAD_GATEWAY);
    let content_type = session.get_header_bytes(header::CONTENT_TYPE);
    Ok(Answer {
        status,
        content_type: String::from_utf8_lossy(content_type).into_owned(),
        session,
        to,
        deadline,
        within: ask.within,
    })
}

async fn peer(url: &Url) -> Result<HttpPeer, ClientError> {
    let wrong = || ClientError::Url(url.to_string());
    let tls = match url.scheme() {
        "http" => false,
        "https" => true,
        _ => return Err(wrong()),
    };
    let host = url.host_str().ok_or_else(wrong)?;
    let port = url.port_or_known_default().ok_or_else(wrong)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let unknown = |source| ClientError::Name {
        host: host.to_owned(),
        source,
    };
    let address: SocketAddr = tokio::net::lookup_host((bare, port))
        .await
        .map_err(unknown)?
        .next()
        .ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))?;
    let mut peer = HttpPeer::new(address, tls, bare.to_owned());
    peer.options.total_connection_timeout = Some(CONNECT);
    Ok(peer)
}

async fn send(
    connector: &Connector,
    peer: &HttpPeer,
    ask: &Ask<'_>,
    to: &str,
) -> Result<HttpSession, ClientError> {
    let broken = |error: Box<pingora::Error>| ClientError::broken(to, &error);
    let head = head(ask).map_err(broken)?;
    let (mut session, _) = connector.get_http_session(peer).await.map_err(broken)?;
    session
        .write_request_header(Box::new(head))
        .await
        .map_err(broken)?;
    session.write_body(&ask.body).await.map_err(broken)?;
    session.finish_body().await.map_err(broken)?;
    session.read_response().await.map_err(broken)?;
    Ok(session)
}

fn head(ask: &Ask<'_>) -> Result<RequestHeader, Box<pingora::Error>> {
    let url = ask.url;
    let path = url.query().map_or_else(
        || url.path().to_owned(),
        |query| format!("{}?{query}", url.path()),
    );
    let host = url.host_str().unwrap_or_default();
    let host = url
        .port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let mut head = RequestHeader::build(ask.method.clone(), path.as_bytes(), None)?;
    head.insert_header(header::HOST, host)?;
    head.insert_header(header::ACCEPT, ask.accept)?;
    head.insert_header(header::CONNECTION, "close")?;
    head.insert_header(
        header::USER_AGENT,
        concat!("a2a-gateway/", env!("CARGO_PKG_VERSION")),
    )?;
    if let Some(token) = ask.token {
        head.insert_header(header::AUTHORIZATION, format!("Bearer {token}"))?;
    }
    if !ask.body.is_empty() {
        head.insert_header(header::CONTENT_TYPE, "application/json")?;
        head.insert_header(header::CONTENT_LENGTH, ask.body.len())?;
    }
    Ok(head)
}

impl Answer {
    /// Returns the next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        timeout_at(self.deadline, self.session.read_body_bytes())
            .await
            .map_err(|_| ClientError::TooSlow {
                to: self.to.clone(),
                after: self.within,
            })?
            .map_err(|error| ClientError::broken(&self.to, &error))
    }

    /// Reads the whole body.
    pub(super) async fn whole(mut self) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge);
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }
}
