//! Edits by byte range: the text between them is copied, never written anew.

use std::borrow::Cow;
use std::ops::Range;

use super::done::Done;
use super::json::{Member, Object};
use super::walker::Walker;

/// What is being done to one text.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// How its bytes change.
    pub(super) edits: Edits,
    /// What that amounts to.
    pub(super) done: Done,
}

/// One edit: `removed` bytes at `at` give way to `text`.
#[derive(Debug)]
struct Edit {
    at: usize,
    removed: usize,
    text: Cow<'static, str>,
}

/// Edits of one text. They must not overlap; two at the same offset apply in the order they were
/// made, so an insertion comes before a removal that starts there.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<Edit>);

impl Edits {
    /// Whether the text stays as it is.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts `text` in front of the byte at `at`.
    pub(super) fn insert(&mut self, at: usize, text: impl Into<Cow<'static, str>>) {
        self.replace(at..at, text);
    }

    /// Puts `text` in the place of `range`.
    pub(super) fn replace(&mut self, range: Range<usize>, text: impl Into<Cow<'static, str>>) {
        self.0.push(Edit {
            at: range.start,
            removed: range.len(),
            text: text.into(),
        });
    }

    /// Gives `member` the name `quoted`, which has its quotes.
    pub(super) fn rename(&mut self, member: &Member, quoted: &'static str) {
        self.replace(member.start..member.name_end, quoted);
    }

    /// Gives `member` the value `token`.
    pub(super) fn revalue(&mut self, member: &Member, token: impl Into<Cow<'static, str>>) {
        self.replace(member.value.start..member.value.end, token);
    }

    /// The text with all edits.
    pub(super) fn apply(mut self, source: &str) -> Vec<u8> {
        self.0.sort_by_key(|edit| edit.at);
        let grown: usize = self.0.iter().map(|edit| edit.text.len()).sum();
        let shrunk: usize = self.0.iter().map(|edit| edit.removed).sum();
        let mut out = Vec::with_capacity((source.len() + grown).saturating_sub(shrunk));
        let mut from = 0;
        for edit in &self.0 {
            out.extend_from_slice(&source.as_bytes()[from..edit.at]);
            out.extend_from_slice(edit.text.as_bytes());
            from = edit.at + edit.removed;
        }
        out.extend_from_slice(&source.as_bytes()[from..]);
        out
    }
}

/// Members that leave one object and members that join it at its end, with the commas right.
#[derive(Debug, Default)]
pub(super) struct Membership {
    /// By the offset of their name.
    leaving: Vec<usize>,
    /// `"name":value` each.
    joining: Vec<String>,
}

impl Membership {
    /// Removes `member`.
    pub(super) fn leave(&mut self, member: &Member) {
        self.leaving.push(member.start);
    }

    /// Appends `"name":value`.
    pub(super) fn join(&mut self, member: String) {
        self.joining.push(member);
    }

    /// Writes down what that means for the bytes of `object`.
    pub(super) fn settle(self, object: &Object, text: &str, edits: &mut Edits) {
        let mut last_kept = object.last_end;
        let mut gone = None;
        if !self.leaving.is_empty() {
            (last_kept, gone) = self.part(object, text, edits);
        }
        if !self.joining.is_empty() {
            let joined = self.joining.join(",");
            match last_kept {
                Some(end) => edits.insert(end, format!(",{joined}")),
                None => edits.insert(object.open + 1, joined),
            }
        }
        if let Some(gone) = gone {
            edits.replace(gone, "");
        }
    }

    /// Removes those who leave in front of one who stays. Returns where the last one who stays
    /// ends, and the range of those who leave behind it.
    fn part(
        &self,
        object: &Object,
        text: &str,
        edits: &mut Edits,
    ) -> (Option<usize>, Option<Range<usize>>) {
        let mut last_kept = None;
        let mut gone: Option<Range<usize>> = None;
        // The text was read before, so this walk can't fail.
        let _ = Walker::from(text.as_bytes(), object.open).object(|walker, name| {
            let value = walker.value()?;
            let member = name.with(value);
            if self.leaving.contains(&member.start) {
                let start = gone.as_ref().map_or(member.start, |g| g.start);
                gone = Some(start..value.end);
            } else {
                if let Some(gone) = gone.take() {
                    edits.replace(gone.start..member.start, "");
                }
                last_kept = Some(value.end);
            }
            Ok(value)
        });
        if let (Some(end), Some(gone)) = (last_kept, &mut gone) {
            // The comma between the last who stays and the first who leaves goes too.
            gone.start = end;
        }
        (last_kept, gone)
    }
}
