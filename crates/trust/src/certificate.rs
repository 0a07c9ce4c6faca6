//! Parses certificates and private keys in PEM form, as an operator supplies them. Rejects unusable
//! ones while the operator can still be answered.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Longest text of each kind, in bytes. A long chain of RSA certificates has about 10 KiB.
pub const PEM_BYTES_MAX: usize = 32 * 1024;

/// Most certificates in one text.
const CERTIFICATES_MAX: usize = 16;

/// Longest subject of a certificate that is repeated, in characters.
const SUBJECT_CHARS_MAX: usize = 256;

/// The reason that a PEM text is rejected. Contains nothing of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// Longer than [`PEM_BYTES_MAX`].
    #[error("is longer than 32 KiB")]
    TooLong,
    /// More than [`CERTIFICATES_MAX`].
    #[error("holds more than 16 certificates")]
    TooMany,
    /// No certificate in the text.
    #[error("holds no certificate in PEM form, which begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// One of them is not X.509.
    #[error("holds a certificate that cannot be read")]
    Unreadable,
    /// A certificate that has expired.
    #[error("holds a certificate that has expired ({subject}, on {since})")]
    Expired {
        /// The subject of the certificate.
        subject: String,
        /// The time of expiry.
        since: String,
    },
    /// A certificate that cannot be a trust anchor.
    #[error("holds a certificate that nothing can be verified with ({0})")]
    NoAnchor(String),
    /// No private key in the text.
    #[error("holds no private key in PEM form, which begins with -----BEGIN PRIVATE KEY-----")]
    NoKey,
    /// An encrypted key, which needs a passphrase.
    #[error("holds an encrypted key: take the passphrase off (openssl pkey)")]
    EncryptedKey,
    /// A key of an unsupported kind, or a broken one.
    #[error("holds a key that cannot be used: RSA, ECDSA (P-256, P-384) and Ed25519 can")]
    UnusableKey,
    /// A key that belongs to another certificate.
    #[error("does not fit the first certificate of the chain: its public key is another")]
    OtherKey,
}

/// A summary of one certificate for display.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CertificateSummary {
    /// The subject of the certificate.
    pub subject: String,
    /// SHA-256 of the whole certificate, in hexadecimal, as `openssl x509 -fingerprint -sha256`
    /// prints it.
    pub sha256: String,
    /// Time of expiry, as RFC 3339.
    pub expires_at: String,
}

/// Certificates in DER form. Not empty; each is valid X.509.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates(Vec<Vec<u8>>);

impl Certificates {
    /// Parses all certificates of a text and ignores the rest of it.
    ///
    /// # Errors
    /// [`PemError`].
    pub fn parse(pem: &str) -> Result<Self, PemError> {
        if pem.len() > PEM_BYTES_MAX {
            return Err(PemError::TooLong);
        }
        let ders = CertificateDer::pem_slice_iter(pem.as_bytes());
        let ders: Result<Vec<_>, _> = ders.map(|der| der.map(|der| der.to_vec())).collect();
        let ders = ders.map_err(|_| PemError::Unreadable)?;
        match ders.len() {
            0 => return Err(PemError::NoCertificate),
            1..=CERTIFICATES_MAX => {}
            _ => return Err(PemError::TooMany),
        }
        let is_whole = |der: &Vec<u8>| matches!(X509Certificate::from_der(der), Ok((rest, _)) if rest.is_empty());
        if !ders.iter().all(is_whole) {
            return Err(PemError::Unreadable);
        }
        Ok(Self(ders))
    }

    /// Rejects certificates that have expired at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// [`PemError::Expired`].
    pub fn refuse_expired(&self, now: i64) -> Result<(), PemError> {
        let mut parsed = self.0.iter().filter_map(|der| parse_der(der));
        let expired = parsed.find(|certificate| certificate.validity.not_after.timestamp() < now);
        expired.map_or(Ok(()), |certificate| {
            Err(PemError::Expired {
                subject: format_subject(&certificate),
                since: format_expiry(&certificate),
            })
        })
    }

    /// Rejects certificates that cannot be trust anchors.
    ///
    /// # Errors
    /// [`PemError::NoAnchor`].
    pub fn refuse_no_anchors(&self) -> Result<(), PemError> {
        let mut anchors = RootCertStore::empty();
        for der in &self.0 {
            if anchors.add(CertificateDer::from(der.as_slice())).is_err() {
                let subject = parse_der(der).map(|read| format_subject(&read));
                return Err(PemError::NoAnchor(subject.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Returns each certificate in DER form.
    pub fn ders(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Returns summaries of the certificates for display.
    pub fn summaries(&self) -> Vec<CertificateSummary> {
        let summary = |der: &Vec<u8>| {
            parse_der(der).map(|certificate| CertificateSummary {
                subject: format_subject(&certificate),
                sha256: hex::encode(Sha256::digest(der)),
                expires_at: format_expiry(&certificate),
            })
        };
        self.0.iter().filter_map(summary).collect()
    }
}

/// Parses the private key of the first certificate of `chain`. Returns it in DER form.
///
/// # Errors
/// [`PemError`].
pub fn parse_private_key(
    pem: &SecretString,
    chain: &Certificates,
) -> Result<SecretSlice<u8>, PemError> {
    let pem = pem.expose_secret();
    if pem.len() > PEM_BYTES_MAX {
        return Err(PemError::TooLong);
    }
    let encrypted =
        pem.contains("BEGIN ENCRYPTED PRIVATE KEY") || pem.contains("Proc-Type: 4,ENCRYPTED");
    if encrypted {
        return Err(PemError::EncryptedKey);
    }
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| PemError::NoKey)?;
    let der = Zeroizing::new(key.secret_der().to_vec());
    // As the TLS connector will parse it: by its form, whatever the PEM label is.
    let key = PrivateKeyDer::try_from(der.as_slice()).map_err(|_| PemError::UnusableKey)?;
    let certificates = chain.0.iter().map(|der| CertificateDer::from(der.clone()));
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(certificates.collect(), key.clone_key(), &provider).map_err(
        |error| match error {
            rustls::Error::InconsistentKeys(_) => PemError::OtherKey,
            _ => PemError::UnusableKey,
        },
    )?;
    Ok(der.to_vec().into())
}

fn parse_der(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, read)| read)
}

fn format_subject(certificate: &X509Certificate<'_>) -> String {
    let text = certificate.subject().to_string();
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(SUBJECT_CHARS_MAX).collect()
}

fn format_expiry(certificate: &X509Certificate<'_>) -> String {
    let seconds = certificate.validity.not_after.timestamp();
    // A time that RFC 3339 cannot express is shown as the nearest one that it can.
    let seconds = u64::try_from(seconds).unwrap_or(0).min(253_402_300_799);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pair(change: impl FnOnce(&mut CertificateParams)) -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["agent.example".to_owned()]).unwrap();
        change(&mut params);
        (params.self_signed(&key).unwrap().pem(), key)
    }

    fn key_of(pem: &str, chain: &str) -> Result<SecretSlice<u8>, PemError> {
        parse_private_key(&pem.into(), &Certificates::parse(chain).unwrap())
    }

    #[test]
    fn certificates_are_read_and_told_apart() {
        let ((one, _), (other, _)) = (pair(|_| {}), pair(|_| {}));
        let both = Certificates::parse(&format!("a comment\n{one}\n{other}")).unwrap();
        assert_eq!(both.ders().len(), 2);
        let summaries = both.summaries();
        assert_ne!(summaries[0].sha256, summaries[1].sha256);
        assert!(summaries[0].subject.contains("rcgen"), "{summaries:?}");
        assert!(summaries[0].expires_at.ends_with('Z'), "{summaries:?}");
        assert_eq!(both.refuse_expired(0), Ok(()));
        assert_eq!(both.refuse_no_anchors(), Ok(()));
    }

    #[test]
    fn what_is_no_certificate_is_told_apart() {
        let (good, key) = pair(|_| {});
        let cut = good.replacen("MII", "AII", 1);
        for (text, error) in [
            (String::new(), PemError::NoCertificate),
            ("geheim".to_owned(), PemError::NoCertificate),
            (key.serialize_pem(), PemError::NoCertificate),
            (cut, PemError::Unreadable),
            (good.replace("-----END", "%%%%"), PemError::Unreadable),
            (good.repeat(17), PemError::TooMany),
            ("x".repeat(PEM_BYTES_MAX + 1), PemError::TooLong),
        ] {
            assert_eq!(Certificates::parse(&text), Err(error), "{text}");
        }
        let (old, _) = pair(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
        let old = Certificates::parse(&old).unwrap();
        let error = old.refuse_expired(1_700_000_000).unwrap_err().to_string();
        assert!(
            error.contains("expired") && error.contains("2020-01-01"),
            "{error}"
        );
    }

    #[test]
    fn a_key_fits_its_certificate_or_is_refused() {
        let ((chain, key), (_, other)) = (pair(|_| {}), pair(|_| {}));
        assert_eq!(
            key_of(&key.serialize_pem(), &chain)
                .unwrap()
                .expose_secret(),
            key.serialized_der()
        );
        let encrypted = key
            .serialize_pem()
            .replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE");
        let broken = key.serialize_pem().replacen("MI", "MA", 1);
        for (pem, error) in [
            (other.serialize_pem(), PemError::OtherKey),
            (encrypted, PemError::EncryptedKey),
            (chain.clone(), PemError::NoKey),
            (String::new(), PemError::NoKey),
            (broken, PemError::UnusableKey),
            ("x".repeat(PEM_BYTES_MAX + 1), PemError::TooLong),
        ] {
            assert_eq!(key_of(&pem, &chain).err(), Some(error), "{pem}");
        }
    }
}
