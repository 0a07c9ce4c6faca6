//! The certificate while the gateway runs: a new one counts for new connections, a wrong one changes
//! nothing, and callers may be asked for one of their own.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::authority::write_secret;
use crate::harness::{Builder, Gateway, Pair, Request, until_holds};

/// A connection that is open for so long is not closed.
const PATIENCE: Duration = Duration::from_secs(60);

const RELOADED: &str = "a2a_gateway_config_last_reload_successful";

/// Files of a certificate and its key.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        write_secret(&self.at("new"), text);
        std::fs::rename(self.at("new"), self.at(name)).unwrap();
    }

    /// Writes a new pair and answers the certificate.
    fn pair(&self) -> CertificateDer<'static> {
        let (made, cert) = made();
        self.write("key.pem", &made.signing_key.serialize_pem());
        self.write("cert.pem", &made.cert.pem());
        cert
    }

    fn builder(&self) -> Builder {
        let path = |name: &str| self.at(name).display().to_string();
        Builder::new(Pair::Embedded)
            .set("server.tls.cert", &path("cert.pem"))
            .set("server.tls.key", &path("key.pem"))
    }
}

fn made() -> (CertifiedKey<KeyPair>, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let cert = made.cert.der().clone();
    (made, cert)
}

/// A caller's own certificate and key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

async fn connect(
    to: SocketAddr,
    trusted: &CertificateDer<'static>,
    identity: Option<Identity>,
    versions: &[&'static SupportedProtocolVersion],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((certs, key)) => config.with_client_auth_cert(certs, key).unwrap(),
    };
    let stream = TcpStream::connect(to).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::from(to.ip()), stream)
        .await
}

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// One request; its status. In TLS 1.3 a refused certificate shows only here.
async fn ask(stream: &mut TlsStream<TcpStream>, to: SocketAddr) -> io::Result<String> {
    let wire = Request::get("/nowhere").wire(&to.to_string());
    stream.write_all(&wire).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(String::from_utf8_lossy(&answer[9..12]).into_owned())
}

/// Waits until new connections are served with `expected`.
async fn await_served(gateway: &Gateway, expected: &CertificateDer<'static>) {
    let served = async || connect(gateway.public, expected, None, BOTH).await.is_ok();
    until_holds("the certificate is served", served).await;
}

async fn await_metric(gateway: &Gateway, expected: f64) {
    let counted = async || gateway.metric(RELOADED, &[]).await == expected;
    until_holds(RELOADED, counted).await;
}

#[tokio::test]
async fn a_new_certificate_counts_for_new_connections_and_a_wrong_one_for_none() {
    let files = Files::new();
    let first = files.pair();
    let gateway = files.builder().start().await;
    let to = gateway.public;
    let mut old = connect(to, &first, None, BOTH).await.unwrap();
    assert_eq!(ask(&mut old, to).await.unwrap(), "404");

    let mut second = files.pair();
    await_served(&gateway, &second).await;
    let with_first = connect(to, &first, None, BOTH).await;
    with_first.expect_err("the first one is not served any more");
    let goes_on = ask(&mut old, to).await.unwrap();
    assert_eq!(goes_on, "404", "what was open goes on");

    // A key of another certificate, then no key at all: the second one stays.
    for key in [made().0.signing_key.serialize_pem(), String::new()] {
        files.write("key.pem", &key);
        await_metric(&gateway, 0.0).await;
        await_served(&gateway, &second).await;
        gateway
            .until_told("the last good one stays in force", 1)
            .await;
        second = files.pair();
        await_served(&gateway, &second).await;
        await_metric(&gateway, 1.0).await;
    }
}

#[tokio::test]
async fn sighup_reads_the_files_too_and_other_files_take_their_place() {
    let (files, others) = (Files::new(), Files::new());
    let first = files.pair();
    let other = others.pair();
    let config = |of: &Files| {
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| of.at(name));
        format!("[server.tls]\ncert = {cert:?}\nkey = {key:?}\n")
    };
    files.write("gateway.toml", &config(&files));
    let builder = Builder::new(Pair::Embedded).process();
    let gateway = builder.file(files.at("gateway.toml")).start().await;
    await_served(&gateway, &first).await;
    files.write("gateway.toml", &config(&others));
    gateway.signal("HUP");
    await_served(&gateway, &other).await;
    // The other ones are watched from now on.
    let renewed = others.pair();
    await_served(&gateway, &renewed).await;
}

#[tokio::test]
async fn only_tls_1_2_and_1_3_are_spoken() {
    let files = Files::new();
    let cert = files.pair();
    let gateway = files.builder().start().await;
    let to = gateway.public;
    for versions in [&[&version::TLS12][..], &[&version::TLS13]] {
        let mut stream = connect(to, &cert, None, versions).await.unwrap();
        let spoken = stream.get_ref().1.protocol_version().unwrap();
        assert_eq!(spoken, versions[0].version);
        assert_eq!(ask(&mut stream, to).await.unwrap(), "404");
    }
    // A hello of TLS 1.1 (and of SSL 3.0), with a suite that both have: an alert, and the end.
    let (cut, why) = ("a2a_gateway_connections_cut_total", [r#"why="handshake""#]);
    // Whoever only looked whether it listens counts as well.
    let before = gateway.metric(cut, &why).await;
    for minor in [2_u8, 0] {
        let mut hello = vec![3, minor];
        hello.extend([7; 32]);
        hello.extend([0, 0, 2, 0, 0x2f, 1, 0]);
        let length = u8::try_from(hello.len()).unwrap();
        let mut record = vec![0x16, 3, minor, 0, length + 4, 1, 0, 0, length];
        record.extend(hello);
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(&record).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer));
        let _ = read.await.expect("closed");
        let is_alert = answer.first().is_none_or(|first| *first == 0x15);
        assert!(is_alert, "no handshake: {answer:?}");
    }
    gateway.until_counted(cut, &why, before + 2.0).await;
}

#[tokio::test]
async fn callers_without_a_certificate_get_no_connection_where_one_is_asked_for() {
    let files = Files::new();
    let cert = files.pair();
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let names = &mut params.distinguished_name;
        names.push(rcgen::DnType::CommonName, name);
        let cert = params.self_signed(&key).unwrap();
        (cert.pem(), Issuer::new(params, key))
    };
    let identity = |issuer: &Issuer<'_, KeyPair>| -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["caller".to_owned()]).unwrap();
        let cert = params.signed_by(&key, issuer).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        (vec![cert.der().clone()], key)
    };
    let (ours_pem, ours) = authority("ours");
    let (theirs_pem, theirs) = authority("theirs");
    files.write("ca.pem", &ours_pem);
    let builder = files.builder();
    let ca = files.at("ca.pem").display().to_string();
    let gateway = builder.set("server.tls.client_ca", &ca).start().await;
    let to = gateway.public;
    let tried = async |who: Option<Identity>| {
        for versions in [&[&version::TLS12][..], &[&version::TLS13]] {
            let who = who.as_ref().map(|(c, k)| (c.clone(), k.clone_key()));
            let mut stream = connect(to, &cert, who, versions).await?;
            ask(&mut stream, to).await?;
        }
        io::Result::Ok(())
    };
    tried(None).await.expect_err("no certificate");
    let other = tried(Some(identity(&theirs))).await;
    other.expect_err("of somebody else");
    let mine = identity(&ours);
    let known = (mine.0.clone(), mine.1.clone_key());
    tried(Some(known)).await.unwrap();
    // Another authority takes its place, and the certificate is worth nothing.
    files.write("ca.pem", &theirs_pem);
    let counts = async || tried(Some(identity(&theirs))).await.is_ok();
    until_holds("the new authority counts", counts).await;
    let before = tried(Some(mine)).await;
    before.expect_err("of the authority before");
}
