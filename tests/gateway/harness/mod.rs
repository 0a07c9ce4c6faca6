//! What the cases stand on.

pub(crate) mod relay;
pub(crate) mod servers;
