//! How much agents take: calls in progress at each target, by a ceiling, a limit that is learned from the agent's
//! refusals, and a breaker; and the calls that wait for a place (`docs/reference/capacity.md`).
//!
//! All of it is of this replica. Nothing is read from a store for a call.

mod learned_limit;
mod outcome;
mod queue;
mod slots;
mod target;
mod targets;
mod watch;

pub use self::outcome::{CallOutcome, OwnTimeouts};
use self::queue::Queue;
pub use self::slots::{NoSlot, Slot, Slots, TargetSlots};
use self::target::Target;
pub use self::target::{CallKind, CapacityView};
use self::targets::{TargetName, Targets};
use self::watch::CapacityWatch;
