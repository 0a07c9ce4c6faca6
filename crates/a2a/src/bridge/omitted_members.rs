//! The members that a translation left out, by name ([`OmittedMembers`]).

/// Counts of members that have no place in the other generation. Names come from the tables alone, so
/// that they can be labels of a metric: one that no table has is counted as `other` of its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmittedMembers(Vec<(&'static str, &'static str, u32)>);

impl OmittedMembers {
    pub(super) fn add(&mut self, node: &'static str, member: &'static str) {
        let mut counted = self.0.iter_mut();
        match counted.find(|(of, name, _)| *of == node && *name == member) {
            Some((_, _, count)) => *count = count.saturating_add(1),
            None => self.0.push((node, member, 1)),
        }
    }

    /// Returns each object, its member and the number of times that it was left out.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns true if nothing was left out.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of members.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, _, count)| u64::from(*count)).sum()
    }
}
