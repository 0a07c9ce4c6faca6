//! TLS towards the gateway: a certificate made for the case, a proxy that terminates TLS for the plain
//! client, and an HTTP/2 client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::authority::write_secret;
use super::builder::Builder;
use super::client::{Answer, Request};
use super::gateway::Gateway;
use super::planted;

/// Time limit of all responses.
const PATIENCE: Duration = Duration::from_secs(60);

/// A certificate for the loopback names, and its key, as files.
pub(crate) struct Certificate {
    dir: tempfile::TempDir,
    der: CertificateDer<'static>,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).expect("written");
        let key = made.signing_key.serialize_pem();
        write_secret(&dir.path().join("key.pem"), key);
        let der = made.cert.der().clone();
        Self { dir, der }
    }

    /// Sets the keys that make a gateway use it.
    pub(crate) fn configure(&self, builder: Builder) -> Builder {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        builder
            .set("server.tls.cert", &path("cert.pem"))
            .set("server.tls.key", &path("key.pem"))
    }

    /// The file that it is in.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("cert.pem")
    }

    /// Opens a TLS connection that offers `protocols` by ALPN.
    pub(crate) async fn connect(
        &self,
        to: SocketAddr,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(to.ip());
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}

/// A gateway with TLS, and a proxy in front through which the plain client reaches it: HTTP/1.1 over TLS, and
/// all of the harness that sets it up.
pub(crate) struct Secure {
    pub(crate) gateway: Gateway,
    pub(crate) certificate: Arc<Certificate>,
    /// The gateway's own address; `gateway.public` is the proxy in front.
    pub(crate) address: SocketAddr,
    door: tokio::task::JoinHandle<()>,
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.door.abort();
    }
}

impl Secure {
    pub(crate) async fn start(builder: Builder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let door_address = listener.local_addr().expect("bound");
        let certificate = Arc::new(Certificate::new());
        let builder = builder.set("server.hosts", &door_address.to_string());
        let mut gateway = certificate.configure(builder).start().await;
        let address = gateway.public;
        gateway.public = door_address;
        let through = Arc::clone(&certificate);
        let door = tokio::spawn(async move {
            while let Ok((mut plain, _)) = listener.accept().await {
                let _ = plain.set_nodelay(true);
                let certificate = Arc::clone(&through);
                tokio::spawn(async move {
                    let tls = certificate.connect(address, &["http/1.1"]).await;
                    let _ = copy_bidirectional(&mut plain, &mut tls.expect("TLS")).await;
                });
            }
        });
        Self {
            gateway,
            certificate,
            address,
            door,
        }
    }

    /// An HTTP/2 connection.
    pub(crate) async fn http2(&self) -> Http2 {
        let stream = self
            .certificate
            .connect(self.address, &["h2", "http/1.1"])
            .await
            .expect("TLS");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(stream)
            .await
            .expect("a handshake");
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        Http2 {
            sender,
            scheme: "https",
            authority: self.address.to_string(),
            driver,
        }
    }
}

/// One HTTP/2 connection.
pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    scheme: &'static str,
    authority: String,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Http2 {
    /// A connection without TLS, by prior knowledge.
    pub(crate) async fn in_the_clear(address: SocketAddr) -> Self {
        let connection = Self::try_in_the_clear(address).await;
        connection.expect("HTTP/2 in the clear")
    }

    /// The same; `None` if the gateway speaks no HTTP/2 there.
    pub(crate) async fn try_in_the_clear(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (sender, connection) = h2::client::handshake(stream).await.ok()?;
        let driver = tokio::spawn(async move {
            let _ = connection.await;
        });
        let http2 = Self {
            sender,
            scheme: "http",
            authority: address.to_string(),
            driver,
        };
        // The client's half of a handshake needs no answer.
        let request = Request::get("/healthz");
        http2.begin(&request, true).await.answer().await.ok()?;
        Some(http2)
    }

    /// Sends the head. `ended`: there is no body.
    pub(crate) async fn begin(&self, request: &Request, ended: bool) -> Begun {
        planted::plant_request(&request.fields, &request.body);
        let uri = format!("{}://{}{}", self.scheme, self.authority, request.path);
        let mut head = http::Request::builder()
            .method(request.method.as_str())
            .uri(uri)
            .version(http::Version::HTTP_2);
        for (name, value) in &request.fields {
            head = head.header(name.to_ascii_lowercase(), value);
        }
        let head = head.body(()).expect("a request");
        let mut sender = self.sender.clone().ready().await.expect("a connection");
        let (answer, body) = sender.send_request(head, ended).expect("a stream");
        Begun { answer, body }
    }

    /// Sends a request with its body in one piece and a declared length.
    pub(crate) async fn call(&self, request: &Request) -> Answer {
        let length = request.body.len().to_string();
        let request = request.clone().field("Content-Length", length);
        let mut begun = self.begin(&request, false).await;
        begun.send(&request.body, true).await;
        begun.answer().await.expect("a whole answer")
    }

    /// Requests another host from here on.
    pub(crate) fn set_authority(&mut self, authority: &str) {
        self.authority = authority.to_owned();
    }

    /// Waits until the gateway accepts no more streams here, and returns its error.
    pub(crate) async fn told_to_leave(&self) -> h2::Error {
        let told = async {
            loop {
                if let Err(error) = self.sender.clone().ready().await {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, told).await.expect("GOAWAY")
    }

    /// True if the connection is still open.
    pub(crate) fn stands(&self) -> bool {
        !self.driver.is_finished()
    }
}

/// One request under way.
pub(crate) struct Begun {
    answer: ResponseFuture,
    pub(crate) body: SendStream<Bytes>,
}

impl Begun {
    /// Sends a piece of the body, as flow control lets it; ends early when the gateway has answered.
    pub(crate) async fn send(&mut self, piece: &[u8], last: bool) {
        let mut rest = Bytes::copy_from_slice(piece);
        if rest.is_empty() {
            let _ = self.body.send_data(rest, last);
            return;
        }
        while !rest.is_empty() {
            self.body.reserve_capacity(rest.len());
            let capacity = std::future::poll_fn(|cx| self.body.poll_capacity(cx));
            let Some(Ok(room)) = timeout(PATIENCE, capacity).await.expect("room in time") else {
                return;
            };
            let next = rest.split_to(room.min(rest.len()));
            if self.body.send_data(next, last && rest.is_empty()).is_err() {
                return;
            }
        }
    }

    /// The head of the answer, and its body still to be read.
    pub(crate) async fn head(&mut self) -> Result<(Answer, RecvStream), h2::Error> {
        let head = timeout(PATIENCE, &mut self.answer)
            .await
            .expect("an answer in time")?;
        let (parts, body) = head.into_parts();
        let fields = parts.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        let answer = Answer {
            status: parts.status.as_u16(),
            fields: fields.collect(),
            body: Vec::new(),
            pieces: Vec::new(),
            whole: false,
        };
        Ok((answer, body))
    }

    /// The whole answer, or how the stream was reset.
    pub(crate) async fn answer(mut self) -> Result<Answer, h2::Error> {
        let (mut answer, mut body) = self.head().await?;
        while let Some(piece) = next(&mut body).await {
            let piece = piece?;
            answer.body.extend_from_slice(&piece);
            answer.pieces.push((Instant::now(), piece.to_vec()));
        }
        let trailers = timeout(PATIENCE, body.trailers()).await;
        for (name, value) in trailers.expect("an end in time")?.iter().flatten() {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            answer.fields.push((name.as_str().to_owned(), value));
        }
        answer.whole = true;
        answer.assert_no_secret();
        Ok(answer)
    }
}

/// The next piece of a body that is not empty; `None` after END_STREAM.
pub(crate) async fn next(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    loop {
        let piece = timeout(PATIENCE, body.data())
            .await
            .expect("a piece in time")?;
        if let Ok(piece) = &piece {
            let _ = body.flow_control().release_capacity(piece.len());
        }
        if piece.as_ref().is_err() || piece.as_ref().is_ok_and(|p| !p.is_empty()) {
            return Some(piece);
        }
    }
}
