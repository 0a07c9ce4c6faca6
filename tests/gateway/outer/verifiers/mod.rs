//! The verifiers of `docs/design/security.md`, in Python and JavaScript, on what a real gateway signs.

mod cards;
mod sidecar;

use crate::cards::{add, card_of, generations, patch, serving};
use crate::sidecar::{flaws, gateway};
