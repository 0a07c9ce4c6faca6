//! Certificates for the connections to one agent (`upstream_tls`), in Pingora's types, cached per agent.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use secrecy::ExposeSecret;

use directory::{Agent, UpstreamTls};

/// Maximum agents with cached certificates.
const AGENTS_MAX: u64 = 10_000;

/// Time after which unused certificates are dropped. They contain a private key.
const IDLE: Duration = Duration::from_secs(300);

/// Converted `upstream_tls` by fingerprint. A conversion costs more than all other steps of a call.
pub(super) struct Certificates(Cache<[u8; 32], Arc<PreparedTls>>);

/// The certificates of one agent, converted.
struct PreparedTls {
    ca: Option<Arc<[WrappedX509]>>,
    client: Option<Arc<CertKey>>,
}

impl Certificates {
    pub(super) fn new() -> Self {
        let remembered = Cache::builder().max_capacity(AGENTS_MAX);
        Self(remembered.time_to_idle(IDLE).build())
    }

    /// Sets the agent's CA certificates and the gateway's client certificate on the connection.
    ///
    /// Connections are pooled by what Pingora hashes of a peer: address, name and serial number of the client
    /// certificate, but not the CA certificates. Each agent with certificates of its own therefore has connections of
    /// its own.
    pub(super) async fn apply_to(&self, peer: &mut HttpPeer, agent: &Agent, tls: &UpstreamTls) {
        let fingerprint = tls.fingerprint(&agent.id);
        let made = async { Arc::new(PreparedTls::from_config(tls)) };
        let worn = self.0.get_with(fingerprint, made).await;
        peer.options.ca.clone_from(&worn.ca);
        peer.client_cert_key.clone_from(&worn.client);
        let [a, b, c, d, e, f, g, h, ..] = fingerprint;
        peer.group_key = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    }
}

impl PreparedTls {
    fn from_config(tls: &UpstreamTls) -> Self {
        let ca = tls.ca.as_ref().map(|ca| {
            let ders = ca.ders().iter().cloned();
            ders.map(|der| WrappedX509::new(der, parse_x509)).collect()
        });
        let client = tls.client.as_ref().map(|client| {
            let key = client.key.expose_secret().to_vec();
            Arc::new(CertKey::new(client.chain.ders().to_vec(), key))
        });
        Self { ca, client }
    }
}
