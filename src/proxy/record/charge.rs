//! Counts of an exchange for caps.

use super::Exchange;
use crate::metrics::{Outcome, Shape};

impl Exchange {
    /// Records that the call is sent, or kept for its target: it counts for caps from here on.
    pub(in crate::proxy) fn record_sent(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.mark_sent();
        }
    }

    /// Counts bytes of an answer that were passed on.
    pub(in crate::proxy) fn record_passed(&mut self, bytes: usize) {
        self.answer.bytes += bytes as u64;
        if let Some(charge) = &mut self.charge {
            charge.record_bytes(self.request_bytes + self.answer.bytes);
        }
    }

    /// Counts an answer that is complete, before its caller gets the last `rest` bytes: the caller's next call finds
    /// the counts.
    pub(in crate::proxy) fn record_completed(&mut self, rest: usize) {
        let Some(charge) = &mut self.charge else {
            return;
        };
        charge.record_bytes(self.request_bytes + self.answer.bytes + rest as u64);
        if self.task.is_none() {
            charge.began_no_task();
        }
    }

    /// Ends the counts of the call for caps.
    pub(super) fn settle_charge(&mut self, outcome: Outcome) {
        if let Some(mut charge) = self.charge.take() {
            charge.record_bytes(self.request_bytes + self.answer.bytes);
            let answered = outcome == Outcome::Answered && self.answer.shape == Shape::Unary;
            if answered && self.task.is_none() {
                charge.began_no_task();
            }
        }
    }
}
