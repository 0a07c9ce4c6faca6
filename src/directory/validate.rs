//! Validates registrations and creations, before a store is written.

use serde_json::value::RawValue;

use super::endpoint::{Endpoint, read};
use super::{Directory, LookupFor};
use crate::ids::WorkspaceId;
use crate::rejection::{Reason, Rejection};
use crate::shares::Account;
use crate::workspace::Origins;

/// Longest agent card, in bytes.
pub const AGENT_CARD_BYTES_MAX: usize = 256 * 1024;
/// Longest name, role and org, in characters.
const LABEL_CHARS_MAX: usize = 256;

/// Account for look-ups of registrations: together they have at most half of what calls leave.
pub(super) const REGISTRATIONS: Account = Account::alone(u64::MAX);

/// Handling of a name that cannot be resolved from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The gateway itself connects to it.
    Required,
    /// A name on the agents' own network, which the gateway may not be on.
    Optional,
}

/// URLs in a body.
pub(super) struct NamedUrls<'a> {
    pub(super) url: Option<&'a str>,
    pub(super) internal_url: Option<&'a str>,
    pub(super) card_url: Option<&'a str>,
}

/// Checked URLs, and their origins.
#[derive(Clone)]
pub(super) struct VettedUrls {
    pub(super) url: Option<String>,
    pub(super) internal_url: Option<String>,
    pub(super) card_url: Option<String>,
    pub(super) origins: Origins,
}

/// Checks an agent card: an object within the limit.
pub(super) fn check_card(card: &RawValue) -> Result<(), Rejection> {
    if !card.get().starts_with('{') {
        return Err(invalid("agent_card must be a JSON object"));
    }
    if card.get().len() > AGENT_CARD_BYTES_MAX {
        return Err(invalid("agent_card is longer than 256 KiB"));
    }
    Ok(())
}

/// Checks a label: not empty, within the limit, without invisible characters.
pub(super) fn check_label(name: &'static str, text: &str) -> Result<(), Rejection> {
    let bad = text.trim().is_empty()
        || text.chars().count() > LABEL_CHARS_MAX
        || text.chars().any(char::is_control);
    if bad {
        return Err(invalid(format!(
            "{name} must have 1 to {LABEL_CHARS_MAX} characters, none of them a control character"
        )));
    }
    Ok(())
}

impl Directory {
    /// Checks the URL in `member` of a body by the address policy, as for each connection. Returns its
    /// normalized form.
    pub(super) async fn vet(
        &self,
        member: &'static str,
        url: Option<&str>,
        lookup: Lookup,
    ) -> Result<Option<String>, Rejection> {
        let Some(url) = url else { return Ok(None) };
        read(url).map_err(|wrong| invalid(format!("{member} {wrong}")))?;
        let endpoint = Endpoint::parse_as(member, url, &self.resolver.policy())?;
        match self.address(&endpoint, LookupFor::registering()).await {
            Err(refusal)
                if refusal.reason == Reason::AddressForbidden || lookup == Lookup::Required =>
            {
                Err(refusal)
            }
            Ok(_) | Err(_) => Ok(Some(endpoint.url())),
        }
    }

    /// Checks the URLs of a registration or a creation of `id`; `may_share` as in [`Directory::origins_of`].
    pub(super) async fn vet_urls(
        &self,
        id: &WorkspaceId,
        named: NamedUrls<'_>,
        may_share: bool,
    ) -> Result<VettedUrls, Rejection> {
        let url = self.vet("url", named.url, Lookup::Required).await?;
        let internal_url = named.internal_url;
        let internal_url = self.vet("internal_url", internal_url, Lookup::Optional);
        let internal_url = internal_url.await?;
        let card_url = self.vet("card_url", named.card_url, Lookup::Required);
        let card_url = card_url.await?;
        let urls = [url.as_deref(), internal_url.as_deref(), card_url.as_deref()];
        let origins = self.origins_of(id, urls, may_share).await?;
        Ok(VettedUrls {
            url,
            internal_url,
            card_url,
            origins,
        })
    }
}

pub(super) fn conflict(message: &'static str) -> Rejection {
    Rejection::new(Reason::Conflict, message)
}

pub(super) fn not_permitted(message: &'static str) -> Rejection {
    Rejection::new(Reason::NotPermitted, message)
}

pub(super) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_card_is_an_object_of_at_most_256_kib() {
        let of_length = |bytes: usize| card(&format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8)));
        assert!(check_card(&card(" {} ")).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX)).is_ok());
        assert!(check_card(&of_length(AGENT_CARD_BYTES_MAX + 1)).is_err());
        for wrong in ["null", "[]", "\"{}\"", "1"] {
            assert!(check_card(&card(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_are_visible_text() {
        assert!(check_label("name", "Développeur 1").is_ok());
        for wrong in ["", "  ", "a\0b", "a\nb", &"x".repeat(257)] {
            assert!(check_label("name", wrong).is_err(), "{wrong:?}");
        }
    }
}
