//! Addresses of agents: the URL is parsed once, its host is resolved, each address is checked by the policy and
//! claimed in SQL for one workspace, and the checked address is the one dialled.

mod addresses;
mod decision;
mod endpoint;
mod nameservers;
mod origins;
mod own_listeners;
mod policy;
mod resolver;
mod unreachable;
mod vetting;

pub use self::addresses::{Addresses, AgentAddress};
pub use self::decision::AddressDecision;
pub use self::endpoint::Endpoint;
pub use self::policy::Policy;
pub use self::resolver::LookupFor;
pub(super) use self::resolver::Resolver;
pub(super) use self::vetting::{NamedUrls, VettedUrls};
