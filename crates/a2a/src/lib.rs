//! The A2A protocol: methods, JSON-RPC envelopes, HTTP+JSON routes, stream events, agent cards.
//!
//! Pure: no I/O, no clock, no framework. [`envelope::complete`] completes a request, [`event::Splitter`] cuts a
//! stream into events, [`card::Card`] rewrites an agent card, [`bridge::Bridge`] translates between generations and
//! bindings. Bytes that are not edited pass unchanged.

pub mod accept;
pub mod agent_reply;
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
pub mod stamp;
pub mod state;
pub mod task;
pub mod task_list;
pub mod texts;

mod bare;
mod call;
mod edit;
mod fields;
mod json;
mod message;
mod part;
mod walker;
mod words;

#[cfg(test)]
mod tests;

pub use generation::Generation;
pub use json::without_mark;

words::words! {
    /// Completion mode of requests (`a2a.complete`, also per workspace).
    #[derive(serde::Deserialize, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    CompletionMode {
        /// Envelope and message.
        Full => "full",
        /// Only bodies without `jsonrpc`.
        Bare => "bare",
        /// Nothing: bytes pass, or are refused.
        Off => "off",
    }
}

impl CompletionMode {
    /// Parses a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == word)
    }
}
