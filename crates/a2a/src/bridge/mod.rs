//! Translates calls between the generations of A2A, and between its bindings ([`Bridge`]), so that any client
//! reaches any agent.
//!
//! # Use
//!
//! A [`Bridge`] knows both sides of one call; [`Side::find_nearest`] chooses the agent's. [`Bridge::translate_request`]
//! takes the caller's request and returns the request for the agent ([`AgentRequest`]) and an [`Exchange`], which
//! translates what comes back: an answer ([`Exchange::translate_answer`]), or the events of a stream
//! ([`Exchange::start_stream`]). Cards are translated apart from calls ([`card`]). A [`Failure`] has the code and the
//! message for the caller; [`OmittedMembers`] counts by member what has no place on the other side.
//!
//! ```
//! use a2a::Generation::{V0, V1};
//! use a2a::bridge::{Bridge, Call, FileBytes, Side};
//! use a2a::method::Method;
//!
//! let (caller, agent) = (Side::json_rpc(V0), Side::json_rpc(V1));
//! let bridge = Bridge { caller, agent, tenant: None, files: FileBytes::Unknown };
//! let call = br#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t","metadata":{}}}"#;
//! let (sent, exchange) = bridge.translate_request(Method::GetTask, Call::Rpc(call))?;
//! assert_eq!(sent.body, br#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t"}}"#);
//!
//! let answer = br#"{"jsonrpc":"2.0","id":1,"result":{"id":"t","status":{"state":"TASK_STATE_WORKING"}}}"#;
//! let told = br#"{"kind":"task","id":"t","status":{"state":"working"},"contextId":""}"#;
//! assert!(exchange.translate_answer(200, answer)?.body.windows(told.len()).any(|part| part == told));
//! # Ok::<(), a2a::bridge::Failure>(())
//! ```
//!
//! # How
//!
//! There are three forms of JSON: JSON-RPC of 0.3, HTTP+JSON of 0.3, and 1.0. A table (`nodes.rs`) has one row for
//! each member of a typed object, with its name in each form and the rule for its value (`table.rs`). A pass
//! (`pass.rs`) walks over the text once, along the tables (`rules.rs`), and writes one buffer: known members under
//! their other name, and values without a type, such as `metadata`, as they are spelled, so that no number and no
//! escape changes. There is no tree of values. Where members move between objects, their positions are collected
//! first: parts (`part.rs`) and push configurations (`push.rs`). The kind of a result may stand at its end in 0.3,
//! and around it in 1.0 (`result.rs`): the name is put in front once it is known.
//!
//! Members that no table has are left out, since servers of 1.0 refuse a call for them. Members that 0.3 requires
//! and 1.0 omits are filled in. In a request a member that stands twice is refused; in an answer the last one
//! counts. Within 1.0, bodies keep their bytes, and only envelopes and routes (`route.rs`) change.
//!
//! # Choices
//!
//! - `final` is true in terminal states only, as the SDKs' own converters have it.
//! - A part without a content that is known (a kind of a later version) is refused in a request and left out of an
//!   answer, and counted. Content beside another one in the same part is left out.
//! - HTTP+JSON of 0.3 does not wait by default: the agent is always told `blocking`, and a caller that says nothing
//!   waits, as in the other forms.
//! - `fileWithBytes` of HTTP+JSON 0.3 is base64, as its proto says, or what the SDK for Python makes of it
//!   ([`FileBytes`]): bytes are written only to a side that is known, and what both could have written is refused.
//! - The result may have four times the length of its text, and 1 MiB more.
//!
//! `tests/oracles.rs` compares it with the converters of the SDKs and lists the differences with their reasons.

pub mod card;

mod answer;
mod error;
mod exchange;
mod failure;
mod file_bytes;
mod nodes;
mod part;
mod pass;
mod push;
mod request;
mod result;
mod route;
mod rules;
pub(crate) mod schemes;
mod sides;
mod stream;
mod table;
mod words;

#[cfg(test)]
mod tests;

pub use answer::Answer;
pub use exchange::{AgentRequest, Call, Exchange};
pub use failure::{Failure, OmittedMembers};
pub use request::has_v1_message;
pub use result::{Kind, write_result, write_task};
pub use route::{path_below, tenant_prefix};
pub use sides::{
    Bridge, RequestedVersion, Side, extensions_field, is_translated_version, parse_version,
};
pub use stream::{Stream, TranslatedEvent};
pub use table::FileBytes;
