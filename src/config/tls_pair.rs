//! Whether a certificate and a private key can serve TLS, found out before a port is bound.

use std::fmt::Display;
use std::path::Path;

use pingora::tls;

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

/// Refuses a certificate and a key that do not fit together or that no TLS can be served with.
/// Pingora panics in a service with such a pair.
///
/// # Errors
/// What the TLS library says.
pub fn usable(cert: &Path, key: &Path) -> Result<(), String> {
    let path = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| "the path is not text".to_owned())
    };
    let said = |error: &dyn Display| error.to_string();
    let loaded = tls::load_certs_and_key_files(&path(cert)?, &path(key)?).map_err(|e| said(&e))?;
    let (certs, key) = loaded.ok_or("no certificate or no private key in it")?;
    tls::install_default_crypto_provider();
    tls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map(drop)
        .map_err(|e| said(&e))
}
