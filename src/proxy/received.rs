//! Bodies that are being received, and those that wait to be forwarded: how many bytes they may take
//! together, and, of requests to the control plane, how many may be under way. Those have proven
//! nothing before they are whole.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::rejection::{Reason, Rejection};

/// What all bodies take together.
#[derive(Default)]
pub(super) struct Room(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    all: usize,
    /// The same by whose they are. Never more entries than bodies.
    of_caller: HashMap<Caller, usize>,
}

/// Tells callers apart, as their rates do.
pub(super) type Caller = u64;

/// What bodies may take, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// All together.
    pub(super) all: usize,
    /// Those of one caller.
    pub(super) each: usize,
}

/// The room of one body. Dropping it frees the room.
pub(super) struct Share {
    room: Arc<Room>,
    caller: Option<Caller>,
    bytes: usize,
}

impl Share {
    /// None yet, for a body of `caller`; `None`: of nobody who is known, or whose bodies are not counted.
    pub(super) fn of(room: &Arc<Room>, caller: Option<Caller>) -> Self {
        Self {
            room: Arc::clone(room),
            caller,
            bytes: 0,
        }
    }

    /// Takes room for `bytes` more.
    ///
    /// # Errors
    /// `overloaded`, and nothing more is taken.
    pub(super) fn grow(&mut self, bytes: usize, bound: Bound) -> Result<(), Rejection> {
        let mut taken = self.room.taken();
        let all = taken.all.saturating_add(bytes);
        if all > bound.all {
            return Err(full(
                "the gateway holds as many bytes of bodies as it may (limits.bodies_bytes)",
            ));
        }
        if let Some(caller) = self.caller {
            let held = taken.of_caller.get(&caller).copied().unwrap_or_default();
            if held.saturating_add(bytes) > bound.each {
                return Err(full(
                    "bodies of this caller take a quarter of what all may (limits.bodies_bytes)",
                ));
            }
            taken.of_caller.insert(caller, held + bytes);
        }
        taken.all = all;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.all -= self.bytes;
        if let Some(caller) = self.caller
            && let Some(held) = taken.of_caller.get_mut(&caller)
        {
            *held -= self.bytes;
            if *held == 0 {
                taken.of_caller.remove(&caller);
            }
        }
    }
}

impl Room {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `overloaded`, for want of room for a body.
pub(super) fn full(message: &'static str) -> Rejection {
    Rejection::new(Reason::Overloaded, message).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { all: 100, each: 60 };

    #[test]
    fn what_is_left_or_refused_takes_no_room() {
        let room = Arc::new(Room::default());
        let (mut one, mut other) = (Share::of(&room, Some(1)), Share::of(&room, None));
        one.grow(60, BOUND).unwrap();
        let refused = other.grow(41, BOUND).unwrap_err();
        assert_eq!(refused.reason, Reason::Overloaded);
        other.grow(40, BOUND).unwrap();
        assert!(one.grow(1, BOUND).is_err());
        drop(other);
        let mut others = Share::of(&room, Some(2));
        others.grow(40, BOUND).unwrap();
        drop(others);
        drop(one);
        assert_eq!(room.taken().all, 0);
        assert!(room.taken().of_caller.is_empty());
    }

    #[test]
    fn nobody_has_more_than_a_share() {
        let room = Arc::new(Room::default());
        let [mut one, mut same] = [0; 2].map(|_| Share::of(&room, Some(1)));
        let mut other = Share::of(&room, Some(2));
        let mut unknown = Share::of(&room, None);
        one.grow(40, BOUND).unwrap();
        assert!(same.grow(21, BOUND).is_err());
        same.grow(20, BOUND).unwrap();
        other.grow(40, BOUND).unwrap();
        drop(one);
        same.grow(10, BOUND).unwrap();
        drop((same, other));
        unknown.grow(100, BOUND).unwrap();
    }
}
