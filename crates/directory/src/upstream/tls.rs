//! TLS towards one agent (`upstream_tls`): certificates that verify the agent, and the client certificate of
//! the gateway. Parsed and checked here.

use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{open_for, seal_for};
use crate::rejections::invalid;
use access::workspace::{SealedTls, Workspace};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{Certificates, PemError, Seal, parse_private_key};

/// Form of the three members, in each rejection.
const FORM: &str = r#"`upstream_tls` is {"ca", "client_cert", "client_key"}, each of them PEM text: `ca` alone, the other two, or all three; null takes it back"#;

/// Member of a body, and the sealed form.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ca: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_cert: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<String>,
}

/// Client certificate and key of the gateway.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Client certificate, and its intermediates.
    pub chain: Certificates,
    /// Private key of the client certificate, in DER form.
    pub key: SecretSlice<u8>,
}

/// TLS towards one agent.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// Certificates that verify the agent. `None`: the system's.
    pub ca: Option<Certificates>,
    /// Client certificate, for an agent that requests one.
    pub client: Option<ClientIdentity>,
    /// Original text, which is sealed.
    whole: SecretString,
}

impl UpstreamTls {
    /// Parses the member `upstream_tls` of a body.
    ///
    /// # Errors
    /// `invalid_params`, with the cause; the message contains no part of a key.
    pub fn parse(json: &RawValue) -> Result<Self, Rejection> {
        // The error of serde may contain a key.
        let form: Form = serde_json::from_str(json.get()).map_err(|_| invalid(FORM))?;
        let tls = Self::of_form(form)?;
        let now = Timestamp::now().0 / 1000;
        let ca = tls.ca.as_ref().map_or(Ok(()), |ca| {
            ca.refuse_expired(now).and_then(|()| ca.refuse_no_anchors())
        });
        ca.map_err(|error| invalid_member("ca", &error))?;
        let client = tls.client.as_ref();
        let client = client.map_or(Ok(()), |client| client.chain.refuse_expired(now));
        client.map_err(|error| invalid_member("client_cert", &error))?;
        Ok(tls)
    }

    fn of_form(form: Form) -> Result<Self, Rejection> {
        let whole = serde_json::to_string(&form).map_err(|_| invalid(FORM))?;
        let read =
            |name, pem: String| Certificates::parse(&pem).map_err(|e| invalid_member(name, &e));
        let ca = form.ca.map(|pem| read("ca", pem)).transpose()?;
        let client = match (form.client_cert, form.client_key) {
            (Some(chain), Some(key)) => {
                let chain = read("client_cert", chain)?;
                let key = parse_private_key(&key.into(), &chain);
                let key = key.map_err(|error| invalid_member("client_key", &error))?;
                Some(ClientIdentity { chain, key })
            }
            (None, None) if ca.is_some() => None,
            _ => return Err(invalid(FORM)),
        };
        Ok(Self {
            ca,
            client,
            whole: whole.into(),
        })
    }

    /// Parses the sealed form. A certificate that has expired since fails in the agent's handshake.
    fn of_secret(secret: &SecretString) -> Option<Self> {
        Self::of_form(serde_json::from_str(secret.expose_secret()).ok()?).ok()
    }

    /// Returns the key of the connection pool: connections with other verifying certificates, or another client
    /// certificate, must not be shared. A private key is identified by its certificate.
    pub fn fingerprint(&self, owner: &WorkspaceId) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(owner.as_str());
        for part in [self.ca.as_ref(), self.client.as_ref().map(|c| &c.chain)] {
            let ders = part.map_or(&[][..], Certificates::ders);
            digest.update(ders.len().to_be_bytes());
            for der in ders {
                digest.update(der.len().to_be_bytes());
                digest.update(der);
            }
        }
        digest.finalize().into()
    }

    /// Returns the form that may be shown.
    fn summarize(&self) -> Value {
        let client = self.client.as_ref().map(|client| client.chain.summaries());
        json!({"ca": self.ca.as_ref().map(Certificates::summaries), "client_cert": client})
    }

    /// Seals it for the row of `id`; it opens for no other row.
    pub(crate) fn seal(&self, seal: &Seal, id: &WorkspaceId) -> Result<SealedTls, Rejection> {
        Ok(SealedTls {
            sealed: seal_for(seal, (id, "upstream_tls"), &self.whole)?,
            about: serde_json::value::to_raw_value(&self.summarize()).map_err(|error| {
                Rejection::new(Reason::Internal, "the certificates cannot be written down")
                    .with_cause(error)
            })?,
        })
    }

    /// Returns the TLS settings towards the agent of `workspace`. If they cannot be opened the message is
    /// rejected: it must not go to a server that has just any publicly trusted certificate.
    pub(crate) fn open(seal: &Seal, workspace: &Workspace) -> Result<Option<Self>, Rejection> {
        let Some(kept) = &workspace.upstream_tls else {
            return Ok(None);
        };
        let row = (&workspace.id, "upstream_tls");
        let wrong = (
            "The certificates for calling this agent (upstream_tls) cannot be opened; its messages are refused",
            "the gateway cannot open the certificates with which it calls this agent: an operator sets upstream_tls again, or restores the key that sealed it",
        );
        open_for(seal, row, &kept.sealed, Self::of_secret, wrong).map(Some)
    }
}

fn invalid_member(member: &str, error: &PemError) -> Rejection {
    invalid(format!("`upstream_tls.{member}` {error}"))
}

/// Rejects a plain-text URL of a workspace with TLS settings.
///
/// # Errors
/// `invalid_params`.
pub(crate) fn require_https(has_tls: bool, url: Option<&str>) -> Result<(), Rejection> {
    if has_tls && url.is_some_and(|url| !url.starts_with("https://")) {
        return Err(invalid(
            "the workspace has upstream_tls, so its url must begin with https://; an operator takes upstream_tls back with null",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &Value) -> Result<UpstreamTls, Rejection> {
        UpstreamTls::parse(&serde_json::value::to_raw_value(json).unwrap())
    }

    /// A certificate and its key.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["agent.example".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn what_was_sealed_is_what_was_said() {
        let ((ca, _), (cert, key)) = (pair(), pair());
        let id = WorkspaceId::parse("a").unwrap();
        let mut fingerprints = std::collections::BTreeSet::new();
        for json in [
            json!({"ca": ca}),
            json!({"ca": cert}),
            json!({"client_cert": cert, "client_key": key}),
            json!({"ca": ca, "client_cert": cert, "client_key": key}),
        ] {
            let tls = parse(&json).unwrap();
            let again = UpstreamTls::of_secret(&tls.whole).unwrap();
            assert_eq!(again.ca, tls.ca);
            let client = |tls: &UpstreamTls| {
                let client = tls.client.as_ref();
                client.map(|c| (c.chain.clone(), c.key.expose_secret().to_vec()))
            };
            assert_eq!(client(&again), client(&tls));
            assert_eq!(again.fingerprint(&id), tls.fingerprint(&id));
            assert!(fingerprints.insert(tls.fingerprint(&id)));
            let other = WorkspaceId::parse("b").unwrap();
            assert!(fingerprints.insert(tls.fingerprint(&other)));
            let shown = format!(
                "{tls:?} {}",
                serde_json::to_string(&tls.summarize()).unwrap()
            );
            assert!(
                !shown.contains("PRIVATE") && !shown.contains(&key[40..80]),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_is_incomplete_or_wrong_is_refused_and_not_repeated() {
        let ((cert, key), (_, other)) = (pair(), pair());
        for (json, part) in [
            (json!("geheim"), "is {"),
            (json!({}), "is {"),
            (json!({"ca": null}), "is {"),
            (json!({"ca": 7}), "is {"),
            (json!({"ca": cert, "insecure": true}), "is {"),
            (json!({"client_cert": cert}), "is {"),
            (json!({"client_key": key}), "is {"),
            (json!({"ca": cert, "client_key": key}), "is {"),
            (
                json!({"ca": "geheim"}),
                "upstream_tls.ca` holds no certificate",
            ),
            (
                json!({"client_cert": "geheim", "client_key": key}),
                "upstream_tls.client_cert`",
            ),
            (
                json!({"client_cert": cert, "client_key": "geheim"}),
                "upstream_tls.client_key`",
            ),
            (
                json!({"client_cert": cert, "client_key": other}),
                "does not fit",
            ),
        ] {
            let refusal = parse(&json).unwrap_err();
            assert_eq!(refusal.reason, Reason::InvalidParams, "{json}");
            let said = &refusal.message;
            assert!(
                said.contains(part) && !said.contains("geheim"),
                "{json}: {said}"
            );
            assert!(!said.contains("BEGIN PRIVATE KEY-----\n"), "{said}");
        }
    }

    #[test]
    fn plain_http_is_no_way_to_an_agent_with_certificates() {
        assert!(require_https(true, Some("https://a/")).is_ok());
        assert!(require_https(true, None).is_ok());
        assert!(require_https(false, Some("http://a/")).is_ok());
        assert!(require_https(true, Some("http://a/")).is_err());
    }
}
