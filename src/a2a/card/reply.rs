//! A JSON-RPC answer whose result is a card: that of `GetExtendedAgentCard`.

use super::fields::{Fields, kind};
use crate::a2a::json::Kind;

/// An answer that can be read.
pub struct Reply<'a>(Fields<'a>);

impl<'a> Reply<'a> {
    /// `None`: it is no JSON object.
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        Fields::read(text).map(Self)
    }

    /// The result, if it is an object.
    pub fn result(&self) -> Option<&str> {
        let result = self.0.get("result");
        result.filter(|result| kind(result) == Kind::Object)
    }

    /// Whether it says an error, and nothing else.
    pub fn is_error(&self) -> bool {
        self.0.has("error") && !self.0.has("result")
    }

    /// The answer with another result.
    pub fn with_result(mut self, result: String) -> String {
        self.0.set("result", result);
        self.0.write()
    }
}
