//! Resolution of a permitted message to its destination: from the cached entry of the workspace, else from the
//! stores.

mod card;
mod destination;
mod entries;
mod resolve;

pub(super) use self::card::hidden_urls;
pub use self::card::{CardLocation, CardSource};
pub use self::destination::{Agent, AgentOptions, Destination, Instance, JsonRpc};
pub(super) use self::destination::{called_at, card_text};
pub use self::entries::Entries;
pub(super) use self::entries::{CachedInstance, Entry};
pub use self::resolve::{Finding, Learnt, Observer, Place, Resolution};
