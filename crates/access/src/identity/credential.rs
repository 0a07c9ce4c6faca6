//! A credential as presented: its form and its hash. The text is used for the look-up only, and is never
//! printed.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::RngCore;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use kernel::config::value::Sha256Hex;
use kernel::time::Timestamp;

/// Characters of 256 random bits in base64url.
const RANDOM_LEN: usize = 43;

/// Characters of a credential that may be shown and stored.
const PREFIX_LEN: usize = 8;

/// The form of a credential. It decides where the credential is looked up, and proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `a2aa_` + 43.
    Admin,
    /// `a2ae_` + 43: single use, to register.
    Enrolment,
    /// Three parts between two dots.
    Jwt,
    /// `a2ao_` + 43.
    Org,
    /// `a2at_` + 43: single use, to open an event stream.
    Ticket,
    /// `a2aw_` + 43, or a platform's bare 43.
    Workspace,
}

/// The forms of opaque tokens of this gateway, with the prefixes of their 43 characters.
const OPAQUE: [(Form, &str); 5] = [
    (Form::Admin, "a2aa_"),
    (Form::Enrolment, "a2ae_"),
    (Form::Org, "a2ao_"),
    (Form::Ticket, "a2at_"),
    (Form::Workspace, "a2aw_"),
];

impl Form {
    /// Returns the prefix of tokens of this form.
    fn prefix(self) -> &'static str {
        let own = OPAQUE.iter().find(|(form, _)| *form == self);
        own.map_or("", |(_, prefix)| prefix)
    }

    pub(super) fn detect(text: &str) -> Option<Self> {
        let has = |prefix: &str| text.strip_prefix(prefix).is_some_and(is_random);
        match OPAQUE.iter().find(|(_, prefix)| has(prefix)) {
            Some((form, _)) => Some(*form),
            None if is_random(text) => Some(Self::Workspace),
            None if text.bytes().filter(|b| *b == b'.').count() == 2 => Some(Self::Jwt),
            None => None,
        }
    }
}

fn is_random(text: &str) -> bool {
    text.len() == RANDOM_LEN && text.bytes().all(is_base64url)
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// The credential in `Authorization`, borrowed from the request.
#[derive(Clone, Copy)]
pub(super) struct Credential<'a> {
    /// For verifying a signature.
    pub(super) text: &'a str,
    pub(super) form: Form,
}

impl<'a> Credential<'a> {
    /// Parses the value of an `Authorization` field: `Bearer`, in any case, and exactly one credential. `None`: it is
    /// not one bearer credential of a known form.
    pub(super) fn parse(field: &'a [u8]) -> Option<Self> {
        let field = std::str::from_utf8(field).ok()?;
        let (scheme, rest) = field.trim_matches(' ').split_once(' ')?;
        let text = rest.trim_matches(' ');
        // Excludes separators of several credentials or list entries, and control characters.
        let clean = text.bytes().all(|b| is_base64url(b) || b == b'.');
        let form = Form::detect(text)?;
        (clean && scheme.eq_ignore_ascii_case("bearer")).then_some(Self { text, form })
    }

    /// Returns the characters that may be shown.
    pub(super) fn prefix(&self) -> &'a str {
        // The text is ASCII and, by its form, longer; a shorter one (`a.b.`) is shown whole.
        self.text.get(..PREFIX_LEN).unwrap_or(self.text)
    }

    /// Returns the SHA-256 of the text.
    pub(super) fn hash(&self) -> CredentialHash {
        CredentialHash::digest(self.text)
    }
}

impl fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

/// SHA-256 of a credential's text, as it is stored; also the key of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Sha256Hex")]
pub struct CredentialHash([u8; 32]);

impl CredentialHash {
    /// Hashes the text of a credential.
    pub fn digest(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Returns 64 lower-case hexadecimal digits, as in the tables.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Parses the output of [`CredentialHash::to_hex`].
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        hex::FromHex::from_hex(text).ok().map(Self)
    }

    /// True if it is one of `known`. The comparison takes constant time.
    pub(super) fn is_one_of(&self, known: &[Self]) -> bool {
        known
            .iter()
            .fold(subtle::Choice::from(0), |found, hash| {
                found | self.0.ct_eq(&hash.0)
            })
            .into()
    }

    /// Returns a number that distinguishes hashes, for counting. Not secret.
    pub(super) fn to_number(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl Serialize for CredentialHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl From<Sha256Hex> for CredentialHash {
    fn from(hash: Sha256Hex) -> Self {
        Self(hash.0)
    }
}

impl fmt::Debug for CredentialHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[sha256]")
    }
}

/// An opaque credential that was just made. Its text is stored nowhere else.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The token, to be shown once.
    pub token: SecretString,
    /// Its id, by which it is revoked.
    pub token_id: String,
    /// Its first 8 characters.
    pub prefix: String,
    /// Milliseconds since 1970.
    pub created_at: i64,
    pub(super) hash: CredentialHash,
}

impl IssuedToken {
    /// Generates a random credential of an opaque `form`, without storing it.
    pub(super) fn generate(form: Form) -> Self {
        let mut random = [0; 32];
        rand::rng().fill_bytes(&mut random);
        let text = format!("{}{}", form.prefix(), URL_SAFE_NO_PAD.encode(random));
        Self {
            token_id: uuid::Uuid::now_v7().to_string(),
            prefix: text.chars().take(PREFIX_LEN).collect(),
            created_at: Timestamp::now().0,
            hash: CredentialHash::digest(&text),
            token: text.into(),
        }
    }
}

/// Generates an operator's token.
pub fn new_admin_token() -> SecretString {
    IssuedToken::generate(Form::Admin).token
}

/// True if `text` has the form of an admin token: `a2aa_` and 43 base64url characters.
pub fn is_admin_token(text: &str) -> bool {
    Form::detect(text) == Some(Form::Admin)
}

/// True if `text` may be or contain a credential: it has the form of one, or contains a prefix of this
/// gateway's tokens. An unknown name of this form is not written to logs or records.
pub fn may_be_credential(text: &str) -> bool {
    let ours =
        |part: &[u8]| part.starts_with(b"a2a") && part[3].is_ascii_lowercase() && part[4] == b'_';
    Form::detect(text).is_some() || text.as_bytes().windows(5).any(ours)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn random() -> String {
        "x-_9".repeat(11)[..43].to_owned()
    }

    fn form(field: &str) -> Option<Form> {
        Credential::parse(field.as_bytes()).map(|credential| credential.form)
    }

    #[test]
    fn what_may_be_a_credential_is_known_by_its_form() {
        let random = random();
        for held in [
            random.clone(),
            format!("a2aw_{random}"),
            format!("a2ao_{}", &random[..20]),
            format!("Bearer.a2aa_{random}"),
        ] {
            assert!(may_be_credential(&held), "{held}");
        }
        for name in ["", "acme-pm", "a2a_x", "a2a-gateway_1", &random[1..]] {
            assert!(!may_be_credential(name), "{name}");
        }
    }

    #[test]
    fn forms_are_told_apart() {
        let random = random();
        for (label, expected) in [
            ("a2aw_", Form::Workspace),
            ("", Form::Workspace),
            ("a2ao_", Form::Org),
            ("a2aa_", Form::Admin),
            ("a2ae_", Form::Enrolment),
            ("e30.e30.", Form::Jwt),
        ] {
            assert_eq!(form(&format!("Bearer {label}{random}")), Some(expected));
            assert_eq!(form(&format!("bEARER   {label}{random} ")), Some(expected));
        }
    }

    #[test]
    fn anything_but_one_bearer_credential_is_unreadable() {
        let random = random();
        for field in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            format!("Basic {random}"),
            random.clone(),
            format!("Bearer {random}x"),
            format!("Bearer a2ax_{random}"),
            format!("Bearer {random} {random}"),
            format!("Bearer {random},Bearer {random}"),
            format!("Bearer\t{random}"),
            format!("Bearer a2aw_{}=", &random[1..]),
            "Bearer a.b".into(),
            "Bearer a.b.c.d".into(),
        ] {
            assert_eq!(form(&field), None, "{field}");
        }
        assert_eq!(
            Credential::parse(b"Bearer \xff.\xff.\xff").map(|c| c.form),
            None
        );
    }

    #[test]
    fn what_is_made_can_be_presented() {
        for made in [Form::Admin, Form::Enrolment, Form::Org, Form::Workspace] {
            let fresh = IssuedToken::generate(made);
            let text = fresh.token.expose_secret();
            assert_eq!(form(&format!("Bearer {text}")), Some(made));
            assert_eq!(CredentialHash::digest(text), fresh.hash);
            assert_eq!(fresh.prefix, text[..8]);
            assert_eq!(
                CredentialHash::from_hex(&fresh.hash.to_hex()),
                Some(fresh.hash)
            );
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let field = format!("Bearer a2aw_{}", random());
        let credential = Credential::parse(field.as_bytes()).unwrap();
        assert_eq!(
            format!("{credential:?}"),
            "Credential { form: Workspace, .. }"
        );
        assert_eq!(format!("{:?}", credential.hash()), "[sha256]");
    }
}
