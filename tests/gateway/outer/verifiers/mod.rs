//! The verifiers of `docs/design/security.md`, in Python and JavaScript, on what a real gateway signs.

mod cards;
mod sidecar;
