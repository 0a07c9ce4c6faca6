//! Counts of an exchange for caps.

use super::Exchange;
use crate::metrics::{Outcome, Shape};

impl Exchange {
    /// Notes that the call is sent, or kept for its target: it counts for caps from here on.
    pub(in crate::proxy) fn sent(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.sent();
        }
    }

    /// Counts bytes of an answer that were passed on.
    pub(in crate::proxy) fn passed(&mut self, bytes: usize) {
        self.answer.bytes += bytes as u64;
        if let Some(charge) = &mut self.charge {
            charge.passed(self.request_bytes + self.answer.bytes);
        }
    }

    /// Counts an answer that is complete, before its caller gets the last `rest` bytes: the caller's next call finds the
    /// counts.
    pub(in crate::proxy) fn completed(&mut self, rest: usize) {
        let Some(charge) = &mut self.charge else {
            return;
        };
        charge.passed(self.request_bytes + self.answer.bytes + rest as u64);
        if self.task.is_none() {
            charge.began_no_task();
        }
    }

    /// Ends the counts of the call for caps.
    pub(super) fn settle(&mut self, outcome: Outcome) {
        if let Some(mut charge) = self.charge.take() {
            charge.passed(self.request_bytes + self.answer.bytes);
            let answered = outcome == Outcome::Answered && self.answer.shape == Shape::Unary;
            if answered && self.task.is_none() {
                charge.began_no_task();
            }
        }
    }
}
