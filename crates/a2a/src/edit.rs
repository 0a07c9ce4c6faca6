//! Edits by byte range ([`Edits`]): the text between them is copied unchanged.

use std::borrow::Cow;
use std::ops::Range;

use super::completion_steps::CompletionSteps;
use super::json::{Member, Object};
use super::walker::Walker;

/// The edits of one text and their meaning.
#[derive(Debug, Default)]
pub(super) struct EditPlan {
    /// The byte edits.
    pub(super) edits: Edits,
    /// The kinds of changes that they make.
    pub(super) done: CompletionSteps,
}

/// One edit: `text` replaces `removed` bytes at `at`.
#[derive(Debug)]
struct Edit {
    at: usize,
    removed: usize,
    text: Cow<'static, str>,
}

/// Edits of one text. They must not overlap. Two at the same offset apply in the order they were
/// made, so an insertion comes before a removal that starts there.
#[derive(Debug, Default)]
pub(super) struct Edits(Vec<Edit>);

impl Edits {
    /// Inserts `text` in front of the byte at `at`.
    pub(super) fn insert(&mut self, at: usize, text: impl Into<Cow<'static, str>>) {
        self.replace(at..at, text);
    }

    /// Replaces `range` by `text`.
    pub(super) fn replace(&mut self, range: Range<usize>, text: impl Into<Cow<'static, str>>) {
        self.0.push(Edit {
            at: range.start,
            removed: range.len(),
            text: text.into(),
        });
    }

    /// Renames `member` to `quoted`, which includes the quotes.
    pub(super) fn rename(&mut self, member: &Member, quoted: &'static str) {
        self.replace(member.start..member.name_end, quoted);
    }

    /// Replaces the value of `member` by `token`.
    pub(super) fn replace_value(&mut self, member: &Member, token: impl Into<Cow<'static, str>>) {
        self.replace(member.value.start..member.value.end, token);
    }

    /// Removes the only leaving member of `object`.
    pub(super) fn remove_member(&mut self, member: &Member, object: &Object, text: &str) {
        let mut changes = MemberChanges::default();
        changes.remove(member);
        changes.add_edits(object, text, self);
    }

    /// Returns the text with all edits applied; `None`: there are none.
    pub(super) fn apply(mut self, source: &str) -> Option<Vec<u8>> {
        if self.0.is_empty() {
            return None;
        }
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
        Some(out)
    }
}

/// Members that are removed from one object and members that are appended to it, with correct
/// commas.
#[derive(Debug, Default)]
pub(super) struct MemberChanges {
    /// Removed members, by the offset of their name.
    leaving: Vec<usize>,
    /// Appended members, each `"name":value`.
    joining: Vec<String>,
}

impl MemberChanges {
    /// Removes `member`.
    pub(super) fn remove(&mut self, member: &Member) {
        self.leaving.push(member.start);
    }

    /// Appends `"name":value`.
    pub(super) fn append(&mut self, member: String) {
        self.joining.push(member);
    }

    /// Adds the edits for `object`.
    pub(super) fn add_edits(self, object: &Object, text: &str, edits: &mut Edits) {
        let mut last_kept = object.last_end;
        let mut gone = None;
        if !self.leaving.is_empty() {
            (last_kept, gone) = self.remove_leaving(object, text, edits);
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

    /// Removes the leaving members that precede a kept one. Returns the end of the last kept
    /// member, and the range of the leaving members after it.
    fn remove_leaving(
        &self,
        object: &Object,
        text: &str,
        edits: &mut Edits,
    ) -> (Option<usize>, Option<Range<usize>>) {
        let mut last_kept = None;
        let mut gone: Option<Range<usize>> = None;
        // The text was read before, so this walk cannot fail.
        let _ = Walker::from(text.as_bytes(), object.open).walk_object(|walker, name| {
            let value = walker.read_value()?;
            let member = name.with_value(value);
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
            // Includes the comma after the last kept member.
            gone.start = end;
        }
        (last_kept, gone)
    }
}
