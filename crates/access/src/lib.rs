//! Who calls, and what the caller may do: identity, workspaces, the hierarchy, caps.

pub mod caps;
pub mod explain;
pub mod hierarchy;
pub mod identity;
pub mod revocations;
mod rows;
pub mod workspace;
