//! Agent cards ([`Card`]): an agent's own description, and the same with the gateway in front of
//! it.
//!
//! A card is parsed strictly as an ordered list of members, and members that the gateway does not
//! change keep their spelling. It changes all interfaces ([`interfaces`]), adds missing members
//! that the generation requires, declares how callers authenticate (both in [`complete`]),
//! removes the signatures, which any change invalidates, and replaces the agent's addresses
//! elsewhere in the card ([`scrub`]).

mod agent_sides;
mod complete;
mod interfaces;
mod scrub;
mod signed;

#[cfg(test)]
mod tests;

pub(crate) use self::interfaces::write_interface;
pub use self::interfaces::{Binding, Interface};

pub use self::agent_sides::{AgentSide, AgentSides, Carrier};
use self::scrub::Addresses;
pub use self::signed::{signed_forms, with_signatures};
use crate::fields::Fields;
use crate::generation::Generation;

/// Longest card that is served, in bytes: four times the longest that is accepted.
const SERVED_BYTES_MAX: usize = 1024 * 1024;

/// The reason that a card is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Not JSON in UTF-8, nested too deep, not an object, or with a duplicate member.
    #[error("it is no JSON object, or a member stands in it twice")]
    Form,
    /// An object without any member of a card.
    #[error("it has none of the members that make a card")]
    NoCard,
    /// Too long with the gateway's additions.
    #[error("it is too long")]
    TooLong,
}

/// Facts about an agent besides its card, and the settings of its gateway.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The URL at which callers reach the agent: `…/workspaces/{id}/a2a`.
    pub base: &'a str,
    /// The workspace's name.
    pub name: &'a str,
    /// The purpose of the workspace.
    pub role: Option<&'a str>,
    /// URLs of the agent that callers must not learn.
    pub hidden: &'a [String],
    /// True if the gateway's security scheme is declared.
    pub bearer: bool,
    /// True if callers may request push notifications.
    pub push_notifications: bool,
}

/// An agent's card.
#[derive(Clone, Debug)]
pub struct Card<'a> {
    text: &'a str,
    fields: Fields<'a>,
}

impl<'a> Card<'a> {
    /// Parses a registered card: any object is one.
    ///
    /// # Errors
    /// [`CardError::Form`].
    pub fn parse(text: &'a [u8]) -> Result<Self, CardError> {
        let text = std::str::from_utf8(text).map_err(|_| CardError::Form)?;
        let text = text.trim_start_matches('\u{feff}');
        let mut fields = Fields::parse(text).ok_or(CardError::Form)?;
        complete::respell_members(&mut fields);
        Ok(Self { text, fields })
    }

    /// Parses the response of a server that was asked for a card. Some servers answer any path.
    ///
    /// # Errors
    /// [`CardError`].
    pub fn parse_fetched(text: &'a [u8]) -> Result<Self, CardError> {
        let card = Self::parse(text)?;
        let named = card.fields.get_text("name").is_some();
        let offers = "url supportedInterfaces additionalInterfaces skills";
        if named || offers.split(' ').any(|member| card.fields.contains(member)) {
            Ok(card)
        } else {
            Err(CardError::NoCard)
        }
    }

    /// Returns the interfaces with `binding` that the card lists.
    pub fn interfaces(&self, binding: Binding) -> impl Iterator<Item = Interface> {
        let all = interfaces::list_interfaces(&self.fields).into_iter();
        all.filter(move |interface| interface.binding == Some(binding))
    }

    /// Returns the generation of A2A that the agent speaks.
    pub fn generation(&self) -> Generation {
        let card = serde_json::from_str(self.text);
        card.map_or_else(
            |_| Generation::default(),
            |card| Generation::from_card(&card),
        )
    }

    /// Returns the `pushNotifications` capability of the card; `None`: it has none.
    pub fn says_push(&self) -> Option<bool> {
        says_push(&serde_json::from_str(self.text).ok()?)
    }

    /// Returns the card for callers.
    ///
    /// # Errors
    /// [`CardError::TooLong`].
    pub fn into_served(mut self, facts: &Facts<'_>) -> Result<String, CardError> {
        let addresses = collect_addresses(facts.hidden, &self.fields, facts.base);
        let card = &mut self.fields;
        complete::fill_missing(card, facts.name, facts.role);
        interfaces::point_at(facts.base, card);
        complete::set_capabilities(card, facts.push_notifications);
        if facts.bearer {
            complete::declare_scheme(card);
        }
        conceal_card(self.fields, &addresses, facts.base)
    }
}

/// Reads `capabilities.pushNotifications`; `None`: the card has none.
pub fn says_push(card: &serde_json::Value) -> Option<bool> {
    let capabilities = &card["capabilities"];
    let said = capabilities["pushNotifications"].as_bool();
    said.or_else(|| capabilities["push_notifications"].as_bool())
}

/// Returns a registered card for readers that may not learn the agent's address: `base` replaces
/// `hidden` and the interfaces, and nothing is filled in. A card without any address is returned
/// unchanged, with its signatures.
///
/// # Errors
/// [`CardError::Form`], [`CardError::TooLong`].
pub fn conceal_addresses(text: &str, base: &str, hidden: &[String]) -> Result<String, CardError> {
    let mut card = Fields::parse(text).ok_or(CardError::Form)?;
    interfaces::respell_members(&mut card);
    let addresses = collect_addresses(hidden, &card, base);
    if interfaces::are_in(&card) {
        interfaces::point_at(base, &mut card);
    } else if addresses.replace(text.to_owned(), base) == text {
        return Ok(text.to_owned());
    }
    conceal_card(card, &addresses, base)
}

/// Returns the addresses to conceal: those that the gateway knows, and those in the card.
fn collect_addresses(hidden: &[String], card: &Fields<'_>, base: &str) -> Addresses {
    let interfaces = interfaces::list_interfaces(card);
    let known = hidden.iter().map(String::as_str);
    let told = interfaces.iter().map(|interface| interface.url.as_str());
    Addresses::from_urls(known.chain(told), base)
}

/// Returns the card without the agent's addresses outside its interfaces, and without signatures,
/// which are no longer valid.
fn conceal_card(
    mut card: Fields<'_>,
    addresses: &Addresses,
    base: &str,
) -> Result<String, CardError> {
    card.remove("signatures");
    // Pages and pictures on the agent's own host, which callers cannot open.
    for page in ["documentationUrl", "iconUrl"] {
        let url = card.get_text(page);
        if url.is_some_and(|url| addresses.are_in(&url)) {
            card.remove(page);
        }
    }
    let concealed = addresses.replace(card.to_json(), base);
    if concealed.len() > SERVED_BYTES_MAX {
        return Err(CardError::TooLong);
    }
    Ok(concealed)
}
