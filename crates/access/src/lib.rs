//! Who calls, and what the caller may do: identity, workspaces, the hierarchy, caps.

pub mod caps;
pub mod explain;
pub mod hierarchy;
pub mod identity;

mod rows;
pub mod workspace;

pub use self::identity::revocations;
