//! Certificate authorities, their certificates, and agents behind TLS.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::agent::Agent;
use super::cards::answering;

/// Writes a file with a secret, readable by its owner only.
pub(crate) fn write_secret(path: &Path, text: impl AsRef<[u8]>) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(path).expect("a file");
    std::io::Write::write_all(&mut file, text.as_ref()).expect("written");
}

/// An authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
pub(crate) struct Issued {
    pub(crate) pem: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names and addresses.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_until(names, 2999)
    }

    /// One that expires with the first day of that year.
    pub(crate) fn issue_until(&self, names: &[&str], year: i32) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let cert = params(names, year).signed_by(&key, &self.0);
        Issued::of(&cert.expect("a certificate"), &key)
    }
}

/// A self-signed certificate.
pub(crate) fn self_signed(names: &[&str]) -> Issued {
    let key = KeyPair::generate().expect("a key");
    let cert = params(names, 2999).self_signed(&key);
    Issued::of(&cert.expect("a certificate"), &key)
}

fn params(names: &[&str], year: i32) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params
}

impl Issued {
    fn of(cert: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self {
            pem: cert.pem(),
            key: key.serialize_pem(),
            der: cert.der().clone(),
            key_der: key.serialize_der(),
        }
    }
}

/// An agent behind TLS. Requests reach it only over a handshake that both sides accepted.
pub(crate) struct TlsAgent {
    pub(crate) agent: Agent,
    pub(crate) port: u16,
    /// Connections that were tried, good or not.
    tried: Arc<AtomicUsize>,
    door: JoinHandle<()>,
}

impl Drop for TlsAgent {
    fn drop(&mut self) {
        self.door.abort();
    }
}

impl TlsAgent {
    /// Presents `certificate`, and requires one of `clients` if given.
    pub(crate) async fn start(certificate: &Issued, clients: Option<&Authority>) -> Self {
        let agent = answering().await;
        let config = server_config(certificate, clients);
        let tried = Arc::new(AtomicUsize::new(0));
        let (port, door) = door("127.0.0.1", agent.port, config, Arc::clone(&tried)).await;
        Self {
            agent,
            port,
            tried,
            door,
        }
    }

    pub(crate) fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/", self.port)
    }

    pub(crate) fn tried(&self) -> usize {
        self.tried.load(Ordering::SeqCst)
    }
}

/// Listens on a free port with TLS, and passes connections on to the port behind.
pub(crate) async fn door(
    host: &str,
    behind: u16,
    config: ServerConfig,
    tried: Arc<AtomicUsize>,
) -> (u16, JoinHandle<()>) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((host, 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let passing = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tried.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(stream).await else {
                    return;
                };
                let plain = TcpStream::connect(("127.0.0.1", behind)).await;
                let _ = copy_bidirectional(&mut tls, &mut plain.expect("it listens")).await;
            });
        }
    });
    (port, passing)
}

pub(crate) fn server_config(certificate: &Issued, clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.0.der().clone()).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let key = PrivateKeyDer::try_from(certificate.key_der.clone()).expect("a key");
    let chain = vec![certificate.der.clone()];
    builder.with_single_cert(chain, key).expect("a pair")
}
