//! The TLS setup of the public listener: certificate, key and issuers of callers' certificates.
//! Read and checked before a port is bound, and again when the files change.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pingora::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use super::exposure::{open_regular, read_at_most};

/// Largest file, in bytes: four times the size of all public certificate authorities together.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Returns the content of a file that contains a PEM block with `marker`.
///
/// # Errors
/// Returns a message with the path.
pub(super) fn read_pem(path: &Path, marker: &str) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let text = open_regular(path).and_then(|file| read_at_most(file, FILE_BYTES_MAX));
    let text = text.map_err(|error| format!("cannot read {shown}: {error}"))?;
    let mut windows = text.windows(marker.len());
    if windows.any(|window| window == marker.as_bytes()) {
        Ok(text)
    } else {
        let what = marker.trim_end_matches('-').to_lowercase();
        Err(format!("{shown} holds no {what} in PEM form"))
    }
}

/// The TLS setup made of the files of `server.tls`, which were read together.
#[derive(Clone)]
pub struct ServingTls {
    config: Arc<ServerConfig>,
    /// SHA-256 of the content of the files.
    digest: [u8; 32],
}

impl ServingTls {
    /// Builds the setup from the content of the files: TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1.
    /// With `client_ca`, callers need a certificate signed by one of these.
    ///
    /// # Errors
    /// Returns the key at fault and the TLS library's reason: a certificate and a key do not match,
    /// or cannot be used.
    pub fn from_pem(
        cert: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
    ) -> Result<Self, (&'static str, String)> {
        let pair = |reason: String| ("server.tls.cert", format!("and server.tls.key: {reason}"));
        let mut hash = Sha256::new();
        for content in [cert, key].into_iter().chain(client_ca) {
            hash.update(content.len().to_be_bytes());
            hash.update(content);
        }
        let certs: Vec<_> = CertificateDer::pem_slice_iter(cert)
            .collect::<Result<_, _>>()
            .map_err(|e| pair(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| pair(e.to_string()))?;
        let of_callers = |reason: String| ("server.tls.client_ca", reason);
        let roots = client_ca.map(parse_roots).transpose().map_err(of_callers)?;
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

    /// Returns the configuration of the TLS library.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// Equal if the files had the same content.
impl PartialEq for ServingTls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// Prints no key material.
impl fmt::Debug for ServingTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServingTls")
    }
}

fn parse_roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(pem) {
        let cert = cert.map_err(|e| e.to_string())?;
        roots.add(cert).map_err(|e| e.to_string())?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_and_nobody_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("cert.pem");
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        for path in [pipe, folder.path().to_owned(), "/dev/zero".into()] {
            let (tell, told) = mpsc::channel();
            let asked = path.clone();
            std::thread::spawn(move || tell.send(read_pem(&asked, "CERTIFICATE-----")));
            let refused = told.recv_timeout(Duration::from_secs(20));
            let refused = refused.expect("an answer").unwrap_err();
            let expected = format!("cannot read {}: it is not a regular file", path.display());
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn a_file_is_read_to_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cert.pem");
        let marker = "CERTIFICATE-----";
        let most = usize::try_from(FILE_BYTES_MAX).unwrap();
        let mut text = marker.as_bytes().to_vec();
        text.resize(most, b' ');
        std::fs::write(&path, &text).unwrap();
        assert_eq!(read_pem(&path, marker).unwrap(), text);
        text.push(b' ');
        std::fs::write(&path, &text).unwrap();
        let refused = read_pem(&path, marker).unwrap_err();
        assert!(refused.ends_with("more than 1048576 bytes"), "{refused}");
    }
}
