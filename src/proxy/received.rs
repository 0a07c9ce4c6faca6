//! Bodies that are being received, and those that wait to be forwarded: how many bytes they may take
//! together, and, of requests to the control plane, how many may be under way. Those have proven
//! nothing before they are whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::rejection::{Reason, Rejection};

/// What all bodies take together.
#[derive(Default)]
pub(super) struct Room(AtomicUsize);

/// The room of one body. Dropping it frees the room.
pub(super) struct Share {
    room: Arc<Room>,
    bytes: usize,
}

impl Share {
    /// None yet.
    pub(super) fn of(room: &Arc<Room>) -> Self {
        Self {
            room: Arc::clone(room),
            bytes: 0,
        }
    }

    /// Takes room for `bytes` more, where all may take `max`.
    ///
    /// # Errors
    /// `overloaded`, and nothing more is taken.
    pub(super) fn grow(&mut self, bytes: usize, max: usize) -> Result<(), Rejection> {
        let before = self.room.0.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > max {
            self.room.0.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full(
                "the gateway holds as many bytes of bodies as it may (limits.bodies_bytes)",
            ));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// `overloaded`, for want of room for a body.
pub(super) fn full(message: &'static str) -> Rejection {
    Rejection::new(Reason::Overloaded, message).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_or_refused_takes_no_room() {
        let room = Arc::new(Room::default());
        let (mut one, mut other) = (Share::of(&room), Share::of(&room));
        one.grow(60, 100).unwrap();
        let refused = other.grow(41, 100).unwrap_err();
        assert_eq!(refused.reason, Reason::Overloaded);
        other.grow(40, 100).unwrap();
        assert!(one.grow(1, 100).is_err());
        drop(other);
        one.grow(40, 100).unwrap();
        drop(one);
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
    }
}
