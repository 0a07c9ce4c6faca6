//! Addresses of agents: the URL is parsed once, its host is resolved, each address is checked by the policy and
//! claimed in SQL for one workspace, and the checked address is the one dialled.

mod addresses;
mod endpoint;
mod policy;
mod resolver;

pub use self::addresses::{AddressDecision, Addresses, AgentAddress};
pub use self::endpoint::Endpoint;
pub use self::policy::Policy;
pub(crate) use self::policy::is_private;
pub use self::resolver::LookupFor;
pub(super) use self::resolver::Resolver;
