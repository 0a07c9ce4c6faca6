//! The two sides of a call, and the header fields that each of them knows.

use super::table::{FileBytes, Form};
use crate::card::Binding;
use crate::generation::Generation;
use crate::method::Method;

/// The generation and the binding that one side of a call speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The generation of A2A.
    pub generation: Generation,
    /// The protocol binding.
    pub binding: Binding,
}

impl Side {
    /// JSON-RPC of a generation.
    pub const fn json_rpc(generation: Generation) -> Self {
        Self {
            generation,
            binding: Binding::JsonRpc,
        }
    }

    /// HTTP+JSON of a generation.
    pub const fn http_json(generation: Generation) -> Self {
        Self {
            generation,
            binding: Binding::HttpJson,
        }
    }

    /// Returns the one of the sides that an agent `offers` with which a caller's call is changed least: its own
    /// form, else the other binding of its generation, else JSON-RPC, else HTTP+JSON of the other one.
    pub fn find_nearest(self, offers: impl IntoIterator<Item = Self>) -> Option<Self> {
        let distance = |side: &Self| {
            let other = side.generation != self.generation;
            let is_far = if other { !side.is_rpc() } else { *side != self };
            (other, is_far)
        };
        offers.into_iter().min_by_key(distance)
    }

    pub(super) const fn wire_form(self) -> Form {
        match (self.generation, self.binding) {
            (Generation::V0, Binding::JsonRpc) => Form::V0,
            (Generation::V0, Binding::HttpJson) => Form::V0Rest,
            (Generation::V1, _) => Form::V1,
        }
    }

    pub(super) const fn is_rpc(self) -> bool {
        matches!(self.binding, Binding::JsonRpc)
    }

    /// Returns the media type of its bodies.
    pub(super) const fn content_type(self) -> &'static str {
        match (self.generation, self.binding) {
            (Generation::V1, Binding::HttpJson) => "application/a2a+json",
            _ => "application/json",
        }
    }
}

/// A translation between a caller and an agent.
#[derive(Clone, Copy, Debug)]
pub struct Bridge<'a> {
    /// The form that the caller speaks.
    pub caller: Side,
    /// The form that the agent speaks.
    pub agent: Side,
    /// The tenant of the agent's interface, which callers of 1.0 must name.
    pub tenant: Option<&'a str>,
    /// The meaning of `fileWithBytes` for the side that is HTTP+JSON of 0.3, if one is.
    pub files: FileBytes,
}

impl Bridge<'_> {
    /// Returns true if there is something to translate: the sides differ.
    pub fn is_needed(&self) -> bool {
        self.caller != self.agent
    }

    /// Returns the value of `X-A2A-Bridged`, the caller's generation first: `0.3>1.0`.
    pub const fn label(&self) -> &'static str {
        match (self.caller.generation, self.agent.generation) {
            (Generation::V0, Generation::V0) => "0.3>0.3",
            (Generation::V0, Generation::V1) => "0.3>1.0",
            (Generation::V1, Generation::V0) => "1.0>0.3",
            (Generation::V1, Generation::V1) => "1.0>1.0",
        }
    }

    /// Returns true if a call of `method` needs what [`super::Stream::translate_snapshot`] writes: subscribers of 1.0
    /// get the task first, and agents of 0.3 send its later events only.
    pub fn needs_snapshot(&self, method: Method) -> bool {
        method == Method::SubscribeToTask
            && self.crosses_generations()
            && self.agent.generation == Generation::V0
    }

    pub(super) fn crosses_generations(&self) -> bool {
        self.caller.generation != self.agent.generation
    }
}

/// Returns the header field in which a generation names extensions, in requests and in answers. Several
/// fields are joined by commas.
pub const fn extensions_field(generation: Generation) -> &'static str {
    match generation {
        Generation::V0 => "X-A2A-Extensions",
        Generation::V1 => "A2A-Extensions",
    }
}

/// The meaning of `A2A-Version`, as a header field or a query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedVersion {
    /// It is missing or empty, which 1.0 reads as 0.3 (A2A 1.0, 3.6.2).
    Nothing,
    /// A version of this generation; its patch number does not count.
    Generation(Generation),
    /// Another version, or none: -32009.
    Unknown,
}

/// Reads a value of `A2A-Version`.
pub fn parse_version(version: Option<&str>) -> RequestedVersion {
    let version = version.unwrap_or_default().trim();
    if version.is_empty() {
        return RequestedVersion::Nothing;
    }
    match major_and_minor(version) {
        Some((1, _)) => RequestedVersion::Generation(Generation::V1),
        Some((0, 2..)) => RequestedVersion::Generation(Generation::V0),
        _ => RequestedVersion::Unknown,
    }
}

/// True if a call with this value of `A2A-Version` can be translated: it is empty, 0.3 or 1.0, by its first two
/// numbers.
pub fn is_translated_version(version: &str) -> bool {
    let version = version.trim();
    version.is_empty() || matches!(major_and_minor(version), Some((1, 0) | (0, 3)))
}

/// Returns the first two numbers of a version. One that is missing is 0; the third does not count.
fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    if numbers.clone().count() > 3 || !numbers.clone().all(is_number) {
        return None;
    }
    let mut next = || numbers.next().map_or(Some(0), |number| number.parse().ok());
    Some((next()?, next()?))
}
