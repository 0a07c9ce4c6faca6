//! A card in the forms in which it is asked for: that of one generation of A2A, or the members of both.

use std::time::SystemTime;

use bytes::Bytes;

use crate::a2a::Generation;
use crate::a2a::bridge::Side;
use crate::a2a::bridge::card::{Facts, RequestedForm, translate_card};
use crate::a2a::card::{AgentSides, Card};
use crate::config::Bridging;

/// The sides that the gateway translates, for agents that do not speak them. An inbox has no routes of the last one.
const TRANSLATED: [Side; 4] = [
    Side::json_rpc(Generation::V0),
    Side::json_rpc(Generation::V1),
    Side::http_json(Generation::V1),
    Side::http_json(Generation::V0),
];

/// A card in its form for callers.
#[derive(Clone)]
pub(in crate::proxy) struct ServedCard {
    /// JSON.
    pub(in crate::proxy) body: Bytes,
    /// Value of `ETag`.
    pub(in crate::proxy) tag: String,
    /// Time of its last change.
    pub(in crate::proxy) modified: SystemTime,
    /// Generations of A2A in its interfaces, for `X-A2A-Speaks`.
    pub(in crate::proxy) speaks: Option<&'static str>,
}

/// The forms, in the order of their use.
const FORMS: [RequestedForm; 3] = [
    RequestedForm::Both,
    RequestedForm::Only(Generation::V1),
    RequestedForm::Only(Generation::V0),
];

/// A card for callers, in each form.
#[derive(Clone)]
pub(in crate::proxy) struct CardForms([ServedCard; 3]);

impl CardForms {
    /// Makes the forms of a card, with `serve` for each text. `text`: the card with the gateway's interfaces. `polls`: the
    /// agent has an inbox.
    pub(super) fn build(
        text: &str,
        base: &str,
        (bridge, polls): (Bridging, bool),
        mut serve: impl FnMut(usize, String) -> ServedCard,
    ) -> Self {
        let sides = CallerSides::from_card(text, bridge, polls);
        let speaks = sides.generations();
        let forms = [0, 1, 2].map(|at| ServedCard {
            speaks,
            ..serve(at, sides.write_form(text, FORMS[at], base))
        });
        Self(forms)
    }

    /// Returns the card in a form.
    pub(in crate::proxy) fn get(&self, asked: RequestedForm) -> &ServedCard {
        let at = FORMS.iter().position(|form| *form == asked);
        &self.0[at.unwrap_or_default()]
    }

    /// Returns the form at a place.
    pub(super) fn form_at(&self, at: usize) -> Option<&ServedCard> {
        self.0.get(at)
    }

    /// Returns the bytes of all forms.
    pub(super) fn total_bytes(&self) -> usize {
        self.0.iter().map(|served| served.body.len()).sum()
    }
}

/// The sides on which callers can use an agent, by its card.
struct CallerSides {
    bridge: Bridging,
    /// Those of the agent, and what the gateway translates.
    all: Vec<Side>,
    /// The generations in which a call is not translated.
    native: Vec<Generation>,
}

impl CallerSides {
    fn from_card(text: &str, bridge: Bridging, polls: bool) -> Self {
        let own = Card::parse(text.as_bytes()).map(|card| AgentSides::from_card(&card));
        let mut all: Vec<Side> = own.unwrap_or_default().sides().collect();
        let native = match bridge {
            Bridging::Auto => all.iter().map(|side| side.generation).collect(),
            Bridging::Off => vec![Generation::V0, Generation::V1],
        };
        if bridge == Bridging::Auto {
            let translated = &TRANSLATED[..TRANSLATED.len() - usize::from(polls)];
            let missing = translated.iter().filter(|side| !all.contains(side));
            let missing: Vec<Side> = missing.copied().collect();
            all.extend(missing);
        }
        Self {
            bridge,
            all,
            native,
        }
    }

    /// Returns the card in a form. Where nothing is translated, that of both generations is the agent's own.
    fn write_form(&self, text: &str, asked: RequestedForm, base: &str) -> String {
        if self.bridge == Bridging::Off && asked == RequestedForm::Both {
            return text.to_owned();
        }
        let facts = Facts {
            base,
            sides: &self.all,
            native: &self.native,
        };
        translate_card(text, asked, &facts).map_or_else(|| text.to_owned(), |(text, _)| text)
    }

    /// Returns the generations, for `X-A2A-Speaks`.
    fn generations(&self) -> Option<&'static str> {
        let has = |generation| self.all.iter().any(|side| side.generation == generation);
        match (has(Generation::V0), has(Generation::V1)) {
            (true, false) => Some("0.x"),
            (false, true) => Some("1.x"),
            (true, true) => Some("0.x, 1.x"),
            (false, false) => None,
        }
    }
}

/// Returns a card in the form of the call that it answers, unless nothing is translated for its agent.
pub(super) fn form_for_call(
    text: &str,
    base: &str,
    bridge: Bridging,
    generation: Generation,
) -> String {
    let asked = match bridge {
        Bridging::Auto => RequestedForm::Only(generation),
        Bridging::Off => RequestedForm::Both,
    };
    CallerSides::from_card(text, bridge, false).write_form(text, asked, base)
}
