//! The data plane. A request passes the stages in this order; each takes the proof of the stage before:
//!
//! | Stage | takes | yields |
//! |---|---|---|
//! | [`connection`] | bytes | a session with a complete head, within the bounds of its address |
//! | [`request::route`] | the path | the form of the request |
//! | [`record`] | the request id | the `Exchange`, which reports the outcome when it is dropped |
//! | [`admit`] | the head | `AdmittedCall`: the caller is proven and permitted, and the target is resolved |
//! | [`request::body`] | `AdmittedCall` | `ReceivedBody`: a JSON body within its bounds, and its share of the memory |
//! | [`request::call`], [`request::rest`] | `ReceivedBody` | `CheckedCall`: completed, with its key, and with allowed references |
//! | [`destination`] | `CheckedCall` | the response: of the agent, an inbox, an earlier call, or of deferral |
//! | [`relay`] | the call on the wire | the agent's answer, within clocks and bounds |
//! | [`respond`] | a rejection, or an own answer | the bytes for the caller |
//!
//! [`guard_stage`] asks guards ([`guard`]) about a call that is about to be sent or stored, and about what comes back.
//!
//! A call to an agent that sleeps waits in [`parking`], between `ReceivedBody` and `CheckedCall`, while [`waker`] has
//! the agent started.
//!
//! [`cards`] and [`control_plane`] answer other routes; [`dispatch`] makes deferred calls; [`prober`] asks agents whether
//! they live; [`explain`] predicts a call; [`sidecar`] uses the relay behind a token.
//!
//! Before a request or a short answer is sent, the calls of the thread that are ready get as far ([`batch`]).
//!
//! [`Connections`] owns connection and session from the first byte to the last. The phases of `ProxyHttp` can neither bound a body before it is forwarded nor run a clock while an agent
//! is silent (`ARCHITECTURE.md`, decisions).

mod admit;
mod batch;
mod bridge;
mod canceller;
mod caps_stage;
mod cards;
mod connect_wait;
mod connection;
mod context;
mod control_plane;
mod destination;
mod dispatch;
mod explain;
mod guard;
mod guard_stage;
mod hop_by_hop;
mod load;
mod offload;
mod outcome;
mod parking;
mod pipeline;
mod prober;
mod record;
mod relay;
mod request;
mod respond;
mod sidecar;
#[cfg(test)]
mod tests;
mod thread_buffer;
mod translation;
mod waker;

// Pure, and for `fuzz/` only: these parsers read every byte that arrives.
pub use self::canceller::Canceller;
pub use self::connection::Connections;
pub use self::connection::chunks::{ChunkParser, InvalidChunks};
pub use self::connection::head::{HeadError, HeadScanner, ScannedHead};
pub use self::connection::listener::Listener;
pub use self::dispatch::Dispatcher;
pub use self::explain::Explainer;
pub use self::prober::Prober;
pub use self::relay::answer::{AnswerHead, AnswerReader};
pub use self::relay::fields::extra_fields;
pub use self::relay::pool::serve_on_this_thread;
pub use self::request::route::{REST_ROUTES, ROUTES as A2A_ROUTES};
pub use self::request::validate::check_head;
