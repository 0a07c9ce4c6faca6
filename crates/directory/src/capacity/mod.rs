//! How much agents take: calls in progress at each target, by a ceiling, a limit that is learned from the agent's
//! refusals, and a breaker; and the calls that wait for a place (`docs/reference/limits.md`).
//!
//! All of it is of this replica. Nothing is read from a store for a call.

mod slot;
mod target;

use self::slot::TargetName;
pub use self::slot::{CallOutcome, NoSlot, OwnTimeouts, Slot, Slots, TargetSlots};
use self::target::Target;
pub use self::target::{CallKind, CapacityView};
