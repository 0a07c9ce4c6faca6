//! Resolution of a permitted message to its destination: from the cached entry of the workspace, else from the
//! stores.

mod card;
mod destination;
mod entries;
mod entry;
mod evidence;
mod follow;
mod instances;
mod json_rpc;
mod learnt;
mod resolve;

pub(super) use self::card::hidden_urls;
pub use self::card::{CardLocation, CardSource};
pub use self::destination::{Agent, AgentOptions, Destination, Instance, ResolutionFailure};
pub(super) use self::destination::{Destinations, called_at, card_text};
pub use self::entries::Entries;
pub(super) use self::entry::Entry;
pub(super) use self::instances::CachedInstance;
pub use self::json_rpc::JsonRpc;
pub use self::learnt::{Finding, Learnt, Observer, Place};
pub use self::resolve::Resolution;
