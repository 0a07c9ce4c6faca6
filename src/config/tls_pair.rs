//! What TLS is served with: a certificate, its key and who signs callers' certificates, read and
//! judged before a port is bound, and again when the files change.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pingora::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

/// Refuses a file that cannot be read or that holds nothing with `marker` in PEM form.
///
/// # Errors
/// A sentence with the path.
pub(super) fn pem(path: &Path, marker: &str) -> Result<(), String> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let found = text
        .windows(marker.len())
        .any(|window| window == marker.as_bytes());
    if found {
        Ok(())
    } else {
        let what = marker.trim_end_matches('-').to_lowercase();
        Err(format!("{shown} holds no {what} in PEM form"))
    }
}

/// What TLS is served with: the files of `server.tls` as they were read together.
#[derive(Clone)]
pub struct Serving {
    config: Arc<ServerConfig>,
    /// SHA-256 of what the files held.
    digest: [u8; 32],
}

impl Serving {
    /// Reads the files: TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1, and, with `client_ca`, only for
    /// callers whose certificate one of those signed.
    ///
    /// # Errors
    /// The key at fault, and what the TLS library says: a certificate and a key do not fit together,
    /// or no TLS can be served with them.
    pub fn read(
        cert: &Path,
        key: &Path,
        client_ca: Option<&Path>,
    ) -> Result<Self, (&'static str, String)> {
        let pair = |reason: String| ("server.tls.cert", format!("and server.tls.key: {reason}"));
        let mut hash = Sha256::new();
        let mut content = |path: &Path| {
            let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
            hash.update(bytes.len().to_be_bytes());
            hash.update(&bytes);
            Ok::<_, String>(bytes)
        };
        let certs: Vec<_> = CertificateDer::pem_slice_iter(&content(cert).map_err(pair)?)
            .collect::<Result<_, _>>()
            .map_err(|e| pair(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(&content(key).map_err(pair)?)
            .map_err(|e| pair(e.to_string()))?;
        let of_callers = |reason: String| ("server.tls.client_ca", reason);
        let roots = client_ca
            .map(|path| roots(&content(path)?))
            .transpose()
            .map_err(of_callers)?;
        tls::install_default_crypto_provider();
        let builder = ServerConfig::builder_with_protocol_versions(&[
            &rustls::version::TLS12,
            &rustls::version::TLS13,
        ]);
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| of_callers(e.to_string()))?)
            }
        };
        let mut config = builder
            .with_single_cert(certs, key)
            .map_err(|e| pair(e.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            digest: hash.finalize().into(),
        })
    }

    /// For the TLS library.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// Equal when the files held the same.
impl PartialEq for Serving {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// Nothing of a key.
impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pem) {
        let cert = cert.map_err(|e| e.to_string())?;
        roots.add(cert).map_err(|e| e.to_string())?;
    }
    Ok(roots)
}
