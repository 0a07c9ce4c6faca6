//! The A2A protocol: methods, JSON-RPC envelopes, HTTP+JSON routes, stream events, agent cards.
//!
//! Pure: no I/O, no clock, no framework. [`envelope::complete`] completes a request, [`event::Splitter`] cuts a
//! stream into events, [`card::Card`] rewrites an agent card, [`bridge::Bridge`] translates between generations and
//! bindings. Bytes that are not edited pass unchanged.

pub mod accept;
pub mod agent_reply;
pub mod bare_result;
pub mod bridge;
pub mod call_names;
pub mod card;
pub mod completion_steps;
pub mod envelope;
pub mod error;
pub mod event;
pub mod generation;
pub mod method;
pub mod names;
pub mod refs;
pub mod reply;
pub mod rest;
pub mod rest_body;
pub mod stamp;
pub mod state;
pub mod task;
pub mod task_list;
pub mod texts;
pub mod update;

mod ambiguity;
mod bare;
mod call;
mod edit;
mod fields;
mod json;
mod message;
mod part;
mod walker;

#[cfg(test)]
mod tests;

pub use generation::Generation;
pub use json::without_mark;

/// Completion mode of requests (`a2a.complete`, also per workspace).
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum CompletionMode {
    /// Envelope and message.
    Full,
    /// Only bodies without `jsonrpc`.
    Bare,
    /// Nothing: bytes pass, or are refused.
    Off,
}

impl CompletionMode {
    /// Returns its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Bare => "bare",
            Self::Off => "off",
        }
    }

    /// Parses a word.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [Self::Full, Self::Bare, Self::Off];
        all.into_iter().find(|mode| mode.as_str() == word)
    }
}
