//! Agent cards: what an agent says of itself, and the same with the gateway in front of it.
//!
//! A card is read strictly as an ordered list of members, and what is not the gateway's to change
//! stays as it was spelled. Changed are: every interface ([`interfaces`]), what its generation requires
//! and it lacks ([`complete`]), how callers prove themselves ([`security`]), signatures, which the
//! first change made worthless, and whatever else tells where the agent listens ([`scrub`]).

mod complete;
mod interfaces;
mod scrub;
mod security;
mod signed;

#[cfg(test)]
mod tests;

pub use self::interfaces::{Binding, Interface};

use self::scrub::Addresses;
pub use self::signed::{forms, with_signatures};
use crate::fields::Fields;
use crate::generation::Generation;

/// Longest card that is served: four times the longest that is taken in.
const SERVED_BYTES_MAX: usize = 1024 * 1024;

/// A card that nothing can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Not JSON in UTF-8, nested too deep, no object, or a member of it stands twice.
    #[error("it is no JSON object, or a member stands in it twice")]
    Form,
    /// An object with nothing in it that a card has.
    #[error("it has none of the members that make a card")]
    NoCard,
    /// With the gateway's additions it would be too long.
    #[error("it is too long")]
    TooLong,
}

/// What is known of an agent besides its card, and what its gateway does.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Where callers reach the agent: `…/workspaces/{id}/a2a`.
    pub base: &'a str,
    /// The workspace's name.
    pub name: &'a str,
    /// What it is for.
    pub role: Option<&'a str>,
    /// URLs of the agent that nobody is told.
    pub hidden: &'a [String],
    /// Whether the gateway's scheme is declared.
    pub bearer: bool,
    /// Whether callers may ask for push notifications.
    pub push_notifications: bool,
}

/// An agent's card.
#[derive(Clone, Debug)]
pub struct Card<'a> {
    text: &'a str,
    fields: Fields<'a>,
}

impl<'a> Card<'a> {
    /// Reads a card that somebody answers for: any object is one.
    ///
    /// # Errors
    /// [`Unreadable::Form`].
    pub fn read(text: &'a [u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(text).map_err(|_| Unreadable::Form)?;
        let text = text.trim_start_matches('\u{feff}');
        let mut fields = Fields::read(text).ok_or(Unreadable::Form)?;
        complete::respell(&mut fields);
        Ok(Self { text, fields })
    }

    /// Reads what a server sent when it was asked for a card. Some answer to any path.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn fetched(text: &'a [u8]) -> Result<Self, Unreadable> {
        let card = Self::read(text)?;
        let named = card.fields.text("name").is_some();
        let offers = [
            "url",
            "supportedInterfaces",
            "additionalInterfaces",
            "skills",
        ];
        if named || offers.iter().any(|member| card.fields.has(member)) {
            Ok(card)
        } else {
            Err(Unreadable::NoCard)
        }
    }

    /// Where the agent speaks `binding`, as far as its card says.
    pub fn interfaces(&self, binding: Binding) -> impl Iterator<Item = Interface> {
        let all = interfaces::all(&self.fields).into_iter();
        all.filter(move |interface| interface.binding == Some(binding))
    }

    /// Which generation of A2A the agent speaks.
    pub fn generation(&self) -> Generation {
        let card = serde_json::from_str(self.text);
        card.map_or_else(
            |_| Generation::default(),
            |card| Generation::from_card(&card),
        )
    }

    /// Push notifications, as the card has them; `None`: it does not say.
    pub fn says_push(&self) -> Option<bool> {
        says_push(&serde_json::from_str(self.text).ok()?)
    }

    /// The generations of A2A that its interfaces are of, the older one first; empty where it names none.
    pub fn generations(&self) -> Vec<Generation> {
        let interfaces = interfaces::all(&self.fields);
        let has = |generation| interfaces.iter().any(|one| one.generation == generation);
        let both = [Generation::V0, Generation::V1].into_iter();
        both.filter(|generation| has(*generation)).collect()
    }

    /// The card for callers.
    ///
    /// # Errors
    /// [`Unreadable::TooLong`].
    pub fn served(mut self, facts: &Facts<'_>) -> Result<String, Unreadable> {
        let addresses = addresses(facts.hidden, &interfaces::all(&self.fields), facts.base);
        let card = &mut self.fields;
        complete::fill(card, facts.name, facts.role);
        interfaces::point_at(facts.base, card);
        complete::capabilities(card, facts.push_notifications);
        if facts.bearer {
            security::declare(card);
        }
        conceal(self.fields, &addresses, facts.base)
    }
}

/// Reads `capabilities.pushNotifications`; `None`: the card does not say.
pub fn says_push(card: &serde_json::Value) -> Option<bool> {
    let capabilities = &card["capabilities"];
    let said = capabilities["pushNotifications"].as_bool();
    said.or_else(|| capabilities["push_notifications"].as_bool())
}

/// A registered card for those who may not know where the agent is: with the gateway's `base` in the
/// place of `hidden` and of its interfaces, and nothing filled in. One that tells nothing of it stays as
/// it is, signatures too.
///
/// # Errors
/// [`Unreadable::Form`], [`Unreadable::TooLong`].
pub fn shown(text: &str, base: &str, hidden: &[String]) -> Result<String, Unreadable> {
    let mut card = Fields::read(text).ok_or(Unreadable::Form)?;
    interfaces::respell(&mut card);
    let addresses = addresses(hidden, &interfaces::all(&card), base);
    if interfaces::are_in(&card) {
        interfaces::point_at(base, &mut card);
    } else if addresses.replace(text.to_owned(), base) == text {
        return Ok(text.to_owned());
    }
    conceal(card, &addresses, base)
}

/// What nobody is told: what the gateway knows, and what the card says itself.
fn addresses(hidden: &[String], interfaces: &[Interface], base: &str) -> Addresses {
    let known = hidden.iter().map(String::as_str);
    let told = interfaces.iter().map(|interface| interface.url.as_str());
    Addresses::of(known.chain(told), base)
}

/// The card without what it says of its place elsewhere than in its interfaces, and without signatures,
/// which do not fit any more.
fn conceal(mut card: Fields<'_>, addresses: &Addresses, base: &str) -> Result<String, Unreadable> {
    card.remove("signatures");
    // Pages and pictures of the agent's own that nobody else can open.
    for page in ["documentationUrl", "iconUrl"] {
        if card.text(page).is_some_and(|url| addresses.are_in(&url)) {
            card.remove(page);
        }
    }
    let concealed = addresses.replace(card.write(), base);
    if concealed.len() > SERVED_BYTES_MAX {
        return Err(Unreadable::TooLong);
    }
    Ok(concealed)
}
