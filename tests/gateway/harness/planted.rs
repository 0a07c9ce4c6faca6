//! Secrets that the suite passes to gateways, and assertions that no output contains one: logs, metrics, the
//! shown configuration, events, rejections. The search runs in every case of the suite.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memmem;
use serde_json::Value;

/// The password in the URL of every database. The server asks for none, and so takes any.
pub(crate) const DATABASE_PASSWORD: &str = "planted-database-password";

/// Shorter ones occur in texts by accident.
const LEN_MIN: usize = 12;

/// Characters of a token, of any form, that may be shown.
const PREFIX_LEN: usize = 8;

/// Secrets without a form of their own, each with the number of its last use.
static PLANTED: Mutex<Planted> = Mutex::new(Planted {
    uses: 0,
    secrets: BTreeMap::new(),
});

struct Planted {
    uses: u64,
    secrets: BTreeMap<String, u64>,
}

/// A point in time: a gateway that started there can only leak what was planted since.
pub(crate) struct Mark(u64);

/// Returns the present.
pub(crate) fn mark() -> Mark {
    Mark(planted().uses)
}

fn planted() -> MutexGuard<'static, Planted> {
    PLANTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a secret, if it is long enough to be distinguished from a word.
pub(crate) fn plant(secret: &str) {
    if secret.len() >= LEN_MIN && !is_token(secret) {
        let mut planted = planted();
        planted.uses += 1;
        let now = planted.uses;
        planted.secrets.insert(secret.to_owned(), now);
    }
}

/// Registers the private key in a PEM text, line by line.
pub(crate) fn plant_key(pem: &str) {
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    lines.filter(|line| line.len() >= 40).for_each(plant);
}

/// Registers the secrets in a request that is sent to a gateway.
pub(crate) fn plant_request(fields: &[(String, String)], body: &[u8]) {
    let credentials = fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    for (_, value) in credentials {
        plant(value.split_once(' ').map_or(value, |(_, token)| token));
    }
    if memmem::find(body, b"upstream_").is_none() {
        return;
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    if let Some(text) = body["upstream_auth"].as_str() {
        plant(text);
    }
    for member in ["token", "password", "value"] {
        body["upstream_auth"][member].as_str().map(plant);
    }
    body["upstream_tls"]["client_key"].as_str().map(plant_key);
}

/// Fails if `text`, an output, contains any secret; `place` is its source.
pub(crate) fn assert_none_in(text: &str, place: &str) {
    Mark(0).assert_none_in(text, place);
}

impl Mark {
    /// As [`assert_none_in`], for secrets that were planted since.
    pub(crate) fn assert_none_in(&self, text: &str, place: &str) {
        // An entry of an inbox has its reader's chain token.
        let text = without_member(text, "on_behalf_of");
        let found = leak(&text, self.0);
        assert_eq!(found, None, "a secret is in {place}");
    }
}

/// Removes the signed statements of checkpoints, which look like tokens but are not.
pub(crate) fn without_statements(text: &str) -> String {
    without_member(text, "statement")
}

fn without_member(text: &str, name: &str) -> String {
    let mark = format!("\"{name}\":\"");
    let mut parts = text.split(&*mark);
    let mut rest = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rest.push_str(part.split_once('"').map_or("", |(_, behind)| behind));
    }
    rest
}

/// The line with a secret in it.
fn leak(text: &str, since: u64) -> Option<String> {
    let line = |at: usize| {
        let begin = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let end = text[at..].find('\n').map_or(text.len(), |more| at + more);
        text[begin..end].to_owned()
    };
    let tokens = ["a2a", "eyJ"].into_iter().flat_map(|begin| {
        let hits = memmem::find_iter(text.as_bytes(), begin.as_bytes());
        hits.filter(|at| is_token(word(&text[*at..]))).map(line)
    });
    // The first token of an operator is shown once, on purpose.
    let tokens = tokens.filter(|line| !line.contains("export A2A_GATEWAY_ADMIN_TOKEN="));
    // The signed end of the audit looks like a token but is not one.
    let mut tokens = tokens.filter(|line| !line.contains(r#""message":"Audit anchor""#));
    if let Some(line) = tokens.next() {
        return Some(line);
    }
    let later = |(secret, used): (&String, &u64)| (*used > since).then(|| secret.clone());
    // A copy: searching a log of megabytes takes seconds, and every request of every case registers secrets.
    let planted: Vec<String> = planted().secrets.iter().filter_map(later).collect();
    let all = planted
        .iter()
        .map(String::as_str)
        .chain([DATABASE_PASSWORD]);
    let mut hits = all.filter_map(|secret| memmem::find(text.as_bytes(), secret.as_bytes()));
    hits.next().map(line)
}

/// The characters of a token that `text` begins with.
fn word(text: &str) -> &str {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    &text[..text.find(ends).unwrap_or(text.len())]
}

/// True if it is more of a token than may be shown: `a2aw_…` and its like, or a signed one.
fn is_token(word: &str) -> bool {
    let ours = word.len() > PREFIX_LEN + 2
        && word.as_bytes()[..3] == *b"a2a"
        && word[3..].starts_with(['a', 'e', 'o', 't', 'w'])
        && word[4..].starts_with('_');
    let signed = word.starts_with("eyJ")
        && word.split('.').count() == 3
        && word.split('.').all(|part| part.len() > PREFIX_LEN);
    ours || signed
}

#[test]
fn a_secret_in_a_text_is_found() {
    plant("planted-by-this-test");
    let token = format!("a2aw_{}", "x".repeat(43));
    let signed = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlc2ln";
    for text in [
        format!("line\nBearer {token}\nline"),
        format!("{{\"t\":\"{signed}\"}}"),
        "x planted-by-this-test".to_owned(),
        format!("postgres://u:{DATABASE_PASSWORD}@h"),
    ] {
        assert!(leak(&text, 0).is_some(), "{text}");
    }
    for text in [
        &token[..PREFIX_LEN],
        "eyJhbGci",
        "an operator's token is `a2aa_` and 43 base64url characters",
        "a2a-gateway is starting, target a2a_gateway::server",
    ] {
        assert_eq!(leak(text, 0), None, "{text}");
    }
}
