//! Certificates for the connections to one agent (`upstream_tls`), in the form that Pingora takes.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use secrecy::ExposeSecret;

use crate::directory::{Agent, UpstreamTls};

/// Agents whose certificates are remembered in that form, at most.
const AGENTS_MAX: u64 = 10_000;

/// How long those of an agent that nobody calls are. They hold a private key.
const IDLE: Duration = Duration::from_secs(300);

/// What was made of `upstream_tls`, by its fingerprint: making it costs more than a call's other steps.
pub(super) struct Certificates(Cache<[u8; 32], Arc<Worn>>);

struct Worn {
    ca: Option<Arc<[WrappedX509]>>,
    client: Option<Arc<CertKey>>,
}

impl Certificates {
    pub(super) fn new() -> Self {
        let remembered = Cache::builder().max_capacity(AGENTS_MAX);
        Self(remembered.time_to_idle(IDLE).build())
    }

    /// Has connections to `agent` verified by its own certificates, and shown ours.
    ///
    /// Pingora's pool tells connections apart by address, name, and serial number of our certificate, not
    /// by whose certificates they were verified with: so each agent with its own has a pool of its own.
    pub(super) async fn put_on(&self, peer: &mut HttpPeer, agent: &Agent, tls: &UpstreamTls) {
        let fingerprint = tls.fingerprint(&agent.id);
        let made = async { Arc::new(Worn::of(tls)) };
        let worn = self.0.get_with(fingerprint, made).await;
        peer.options.ca.clone_from(&worn.ca);
        peer.client_cert_key.clone_from(&worn.client);
        let [a, b, c, d, e, f, g, h, ..] = fingerprint;
        peer.group_key = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    }
}

impl Worn {
    fn of(tls: &UpstreamTls) -> Self {
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
