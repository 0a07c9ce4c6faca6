//! Work in small pieces. Where a core is shared, the kernel takes it from a thread only at its tick, some milliseconds
//! later, and so long the threads that serve callers would wait for a batch of records.

use std::time::{Duration, Instant};

/// Length of a piece while few records wait.
const PIECE: Duration = Duration::from_micros(50);

/// Waiting records up to which pieces have their smallest length: those of a batch, and of the next.
const FEW_WAITING: u64 = 4096;

/// Gives the core away after each piece.
#[derive(Debug)]
pub(super) struct Pace {
    piece: Duration,
    begun: Instant,
}

impl Pace {
    /// Returns the pace while so many records wait. A busy core goes round in a few milliseconds, so the share of the
    /// audit grows with its pieces: by the square, until it keeps up. At the bound of the queue they are 3 ms.
    pub(super) fn new(waiting: u64) -> Self {
        let times = u32::try_from(waiting / FEW_WAITING).unwrap_or(u32::MAX);
        let times = times.max(1);
        Self {
            piece: PIECE.saturating_mul(times.saturating_mul(times)),
            begun: Instant::now(),
        }
    }

    /// Gives the core away if the piece is done. Call it after each record.
    pub(super) fn step(&mut self) {
        if self.begun.elapsed() >= self.piece {
            self.rest();
        }
    }

    /// Gives the core away to threads that wait for it.
    pub(super) fn rest(&mut self) {
        std::thread::yield_now();
        self.begun = Instant::now();
    }

    /// Returns the items of `all`, piece by piece.
    pub(super) fn pieces<T>(
        &mut self,
        all: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = T> {
        all.into_iter().inspect(|_| self.step())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_with_what_waits_until_the_writer_keeps_up() {
        assert_eq!(Pace::new(0).piece, PIECE);
        assert_eq!(Pace::new(2 * FEW_WAITING - 1).piece, PIECE);
        assert_eq!(Pace::new(2 * FEW_WAITING).piece, 4 * PIECE);
        let full = Pace::new(crate::DRAFTS_MAX as u64).piece;
        assert!(full > Duration::from_millis(2), "{full:?}");
        // A spool of any length.
        assert!(Pace::new(u64::MAX).piece > Duration::from_secs(1));
    }

    #[test]
    fn all_items_come_in_their_order() {
        let all: Vec<u32> = Pace::new(0).pieces(0..1000).collect();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
