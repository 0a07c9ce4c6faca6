//! The request: its route, checks of its head, its body, and the bindings.

pub(in crate::proxy) mod body;
pub(in crate::proxy) mod call;
pub(in crate::proxy) mod origin;
pub(in crate::proxy) mod ownership;
pub(in crate::proxy) mod prefer;
pub(in crate::proxy) mod rest;
pub(in crate::proxy) mod route;
pub(in crate::proxy) mod validate;
