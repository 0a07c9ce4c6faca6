//! Conceals the agent's address, which only the gateway may know. Outside its interfaces a card may
//! contain it in a description, an extension or the name of a member; there the gateway's base
//! replaces it ([`Addresses`]).

use url::{Host, Position, Url};

use crate::edit::Edits;
use crate::fields::quote_string;
use crate::texts::{Root, StringKind, walk_strings};

/// Most addresses that are searched for. Those that the gateway knows come first.
const ADDRESSES_MAX: usize = 64;

/// Longest scheme and user name in front of an address that are replaced with it, in bytes.
const URL_START_MAX: usize = 256;

/// Most further passes over a text after a replacement. One is enough for all known cases.
const AGAIN_MAX: usize = 8;

/// The addresses to conceal.
#[derive(Debug, Default)]
pub(super) struct Addresses(Vec<Address>);

/// One address.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// The text in lower case.
    text: String,
    form: Form,
}

/// The kind of match that counts as the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `host:port`, anywhere.
    Authority,
    /// The host after `://`, for the default port, which a URL may omit.
    Origin,
    /// The host, anywhere, with or without a port.
    Host,
}

impl Addresses {
    /// Collects the addresses of `urls`, except those that the gateway's base contains.
    pub(super) fn from_urls<'u>(urls: impl Iterator<Item = &'u str>, base: &str) -> Self {
        let base = base.to_ascii_lowercase();
        let own = addresses_of_url(&base);
        let mut found = Vec::new();
        for address in urls.flat_map(addresses_of_url) {
            let others = !own.contains(&address) && address.find(&base, 0).is_none();
            let new = others && !found.contains(&address);
            if new && found.len() < ADDRESSES_MAX {
                found.push(address);
            }
        }
        Self(found)
    }

    /// Returns true if `text` contains one of the addresses.
    pub(super) fn are_in(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        self.0
            .iter()
            .any(|address| address.find(&text, 0).is_some())
    }

    /// Replaces each address by `base` in all strings of the JSON `text`.
    pub(super) fn replace(&self, text: String, base: &str) -> String {
        let (mut edits, mut names) = (Edits::default(), 0);
        let walked = walk_strings(text.as_bytes(), Root::Free, |said| {
            if let Some(mut clean) = self.replace_in(&said.text, base) {
                // Names stay distinct even if they differed only in an address.
                if said.place == StringKind::Name {
                    names += 1;
                    clean.push_str(&format!("#{names}"));
                }
                edits.replace(said.range, quote_string(&clean));
            }
        });
        // The text was read before, so this walk cannot fail.
        if walked.is_err() {
            return String::new();
        }
        let replaced = edits.apply(&text).map(String::from_utf8);
        replaced.map_or(text, Result::unwrap_or_default)
    }

    /// `None`: there is nothing to replace.
    fn replace_in(&self, said: &str, base: &str) -> Option<String> {
        let mut clean = self.replace_once(said, base)?;
        // The replaced text may have been all that made the text before it a longer name, or a
        // port.
        for _ in 0..AGAIN_MAX {
            match self.replace_once(&clean, base) {
                Some(cleaner) => clean = cleaner,
                None => break,
            }
        }
        Some(clean)
    }

    fn replace_once(&self, said: &str, base: &str) -> Option<String> {
        let lower = said.to_ascii_lowercase();
        let mut clean = String::new();
        let mut copied = 0;
        // Each address is searched once from start to end, independently of the others' matches.
        let found = self.0.iter().map(|address| address.find(&lower, 0));
        let mut found: Vec<_> = found.collect();
        while let Some((start, end)) = found.iter().flatten().min().copied() {
            clean.push_str(&said[copied..start]);
            clean.push_str(base);
            copied = end;
            for (address, place) in self.0.iter().zip(&mut found) {
                if place.is_some_and(|(start, _)| start < copied) {
                    *place = address.find(&lower, copied);
                }
            }
        }
        if copied == 0 {
            return None;
        }
        clean.push_str(&said[copied..]);
        Some(clean)
    }
}

impl Address {
    /// Finds the first match in `text`, which is in lower case, from `from` on. The match includes
    /// the scheme and the user name in front of it, if there are any.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let mut at = from;
        loop {
            let start = at + text[at..].find(&self.text)?;
            let mut end = start + self.text.len();
            at = start + self.text.chars().next().map_or(1, char::len_utf8);
            let before = text[from..start].chars().next_back();
            let part_of_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
            if before.is_some_and(part_of_name) {
                continue;
            }
            let mut behind = text[end..].chars();
            let next = behind.next();
            let goes_on = match next {
                // The end of a sentence, or of a name with its final dot.
                Some('.') => behind.next().is_some_and(char::is_alphanumeric),
                Some(':') => {
                    let port = behind.take_while(char::is_ascii_digit).count();
                    if self.form == Form::Host && port > 0 {
                        end += ":".len() + port;
                    }
                    self.form == Form::Origin && port > 0
                }
                Some(next) => part_of_name(next),
                None => false,
            };
            if goes_on {
                continue;
            }
            let nearby = text
                .floor_char_boundary(start.saturating_sub(URL_START_MAX))
                .max(from);
            let start = scheme_start(&text[nearby..start]) + nearby;
            let scheme = text[start..end].contains("://");
            let fits = match self.form {
                Form::Authority => true,
                Form::Origin => scheme,
                // Otherwise it is the domain of a mail address.
                Form::Host => scheme || before != Some('@'),
            };
            if fits {
                return Some((start, end));
            }
        }
    }
}

/// Returns the start of the URL in `before`, the text in front of an authority: `scheme://`, and
/// perhaps a user name. Returns the length of `before` if there is none.
fn scheme_start(before: &str) -> usize {
    let authority = match before.rfind("://") {
        Some(at) => at + 3,
        None => return before.len(),
    };
    let user = &before[authority..];
    let is_user = user.ends_with('@') && !user.contains(['/', '?', '#', ' ']);
    if !user.is_empty() && !is_user {
        return before.len();
    }
    let before = &before[..authority - 3];
    let scheme = before
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
        .map_or(0, |at| {
            at + before[at..].chars().next().map_or(1, char::len_utf8)
        });
    // A scheme begins with a letter (RFC 3986, 3.1): a digit before it belongs to other text.
    before[scheme..]
        .find(|c: char| c.is_ascii_alphabetic())
        .map_or(before.len(), |letter| scheme + letter)
}

/// Returns the possible spellings of the address in `url`. The address of a gRPC interface is often
/// not a URL: `10.0.0.7:50051`.
fn addresses_of_url(url: &str) -> Vec<Address> {
    let parsed = match Url::parse(url) {
        Ok(parsed) if parsed.has_host() => parsed,
        _ => match Url::parse(&format!("http://{url}")) {
            Ok(parsed) if parsed.port().is_some() => parsed,
            _ => return Vec::new(),
        },
    };
    let Some(host) = parsed.host() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut add = |text: String, form| {
        let text = text.to_ascii_lowercase();
        found.push(Address { text, form });
    };
    if let Some(port) = parsed.port_or_known_default() {
        add(format!("{host}:{port}"), Form::Authority);
    }
    if parsed.port().is_none() {
        add(host.to_string(), Form::Origin);
    }
    match host {
        // On each host they name that host itself.
        Host::Ipv4(address) if address.is_loopback() || address.is_unspecified() => {}
        Host::Ipv6(address) if address.is_loopback() || address.is_unspecified() => {}
        Host::Ipv4(address) => add(address.to_string(), Form::Host),
        Host::Ipv6(address) => {
            add(host.to_string(), Form::Host);
            add(address.to_string(), Form::Host);
        }
        // A single word may mean anything, and a name without a port often belongs to the agent's
        // owner, too.
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            if parsed.port().is_some() && name.contains('.') {
                add(name.to_owned(), Form::Host);
            }
        }
    }
    // The spelling of the card, if it differs from the normalized one: `0x7f.1:80`.
    let spelled = url.split_once("://").map_or(url, |(_, rest)| rest);
    let spelled = spelled.split(['/', '?', '#']).next().unwrap_or_default();
    let spelled = spelled
        .rsplit('@')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let understood = &parsed[Position::BeforeHost..Position::AfterPort];
    if spelled.contains(':') && spelled != understood && spelled.len() > 2 {
        found.push(Address {
            text: spelled,
            form: Form::Authority,
        });
    }
    found
}
