//! Parts of 0.1 and of hand-written clients, which have `type` in place of the `kind` of 0.2 and
//! later.

use super::bare::{NamedMember, read_members};
use super::edit::{Edits, MemberChanges};
use super::envelope::Fault;
use super::generation::Generation;
use super::json::{Kind, Member, Object, Value};
use super::message::have_same_value;
use super::walker::Walker;

/// The names of a member in a flat file part, in a `file` of 0.x, and in a part of 1.0.
const FILE_MEMBERS: [(&str, &str, &str); 3] = [
    ("name", "name", "filename"),
    ("uri", "uri", "url"),
    ("bytes_data", "bytes", "raw"),
];

/// Converts parts that have a `type` and no `kind` to the target's shape. `value` is an array of
/// parts or a single part. For a 0.x target `type` is renamed to `kind`, and the `name`, `uri` and
/// `bytes_data` of a file move into its `file`, if that is an object or missing. For a 1.0 target
/// `type` is removed, and they are renamed to `filename`, `url` and `raw`. Returns whether there
/// were any such parts.
///
/// # Errors
/// If a member to move is a duplicate, or differs from the one in `file`.
pub(super) fn complete_parts(
    value: Value,
    text: &str,
    generation: Generation,
    edits: &mut Edits,
) -> Result<bool, Fault> {
    let mut parts = Vec::new();
    match value.kind {
        Kind::Object => parts.push(value.start),
        _ => {
            // The text was read before, so this walk cannot fail.
            let _ = Walker::from(text.as_bytes(), value.start).walk_array(|walker| {
                let part = walker.read_value()?;
                if part.kind == Kind::Object {
                    parts.push(part.start);
                }
                Ok(())
            });
        }
    }
    let mut any = false;
    for open in parts {
        if let Some(part) = Part::read(text, open) {
            any |= part.complete(text, generation, edits)?;
        }
    }
    Ok(any)
}

/// A part with a `type` that is a string, and no `kind`.
struct Part<'t> {
    object: Object,
    members: Vec<NamedMember<'t>>,
    kind: Member,
}

impl<'t> Part<'t> {
    fn read(text: &'t str, open: usize) -> Option<Self> {
        let (object, members) = read_members(text, open);
        let find = |word: &str| members.iter().find(|(name, _)| **name == *word.as_bytes());
        let kind = find("type")?.1;
        if find("kind").is_some() || kind.value.kind != Kind::String {
            return None;
        }
        Some(Self {
            object,
            members,
            kind,
        })
    }

    fn complete(
        &self,
        text: &str,
        generation: Generation,
        edits: &mut Edits,
    ) -> Result<bool, Fault> {
        let says = |word| self.kind.value.equals(text.as_bytes(), word);
        let is_file = says("file");
        let flat_file = is_file && !self.has_member("file");
        match generation {
            Generation::V0 => {
                edits.rename(&self.kind, r#""kind""#);
                if flat_file {
                    self.nest_file(text, edits)?;
                } else if is_file {
                    self.fill_file(text, edits)?;
                }
                Ok(true)
            }
            Generation::V1 if flat_file || says("text") || says("data") => {
                if flat_file {
                    self.rename_file(edits)?;
                }
                edits.remove_member(&self.kind, &self.object, text);
                Ok(true)
            }
            Generation::V1 => Ok(false),
        }
    }

    fn has_member(&self, word: &str) -> bool {
        let mut names = self.members.iter().map(|(name, _)| name);
        names.any(|name| **name == *word.as_bytes())
    }

    /// Returns the members of a flat file part with their new names, in order.
    fn file_members(&self) -> Result<Vec<(Member, &'static str, &'static str)>, Fault> {
        let mut found: Vec<(Member, &'static str, &'static str)> = Vec::new();
        for (name, member) in &self.members {
            let known = FILE_MEMBERS
                .iter()
                .find(|(flat, ..)| **name == *flat.as_bytes());
            let Some((flat, of_file, of_v1)) = known else {
                continue;
            };
            if found.iter().any(|(_, other, _)| other == of_file) {
                return Err(Fault::duplicate_member(flat));
            }
            found.push((*member, of_file, of_v1));
        }
        Ok(found)
    }

    /// 0.x: `"name":…,"uri":…` → `"file":{"name":…,"uri":…}`, at the position of the first of them.
    fn nest_file(&self, text: &str, edits: &mut Edits) -> Result<(), Fault> {
        let found = self.file_members()?;
        let Some((first, ..)) = found.first() else {
            return Ok(());
        };
        let inner: Vec<String> = found
            .iter()
            .map(|(member, name, _)| format!(r#""{name}":{}"#, member.value.raw_str(text)))
            .collect();
        edits.replace(
            first.start..first.value.end,
            format!(r#""file":{{{}}}"#, inner.join(",")),
        );
        let mut changes = MemberChanges::default();
        for (member, ..) in &found[1..] {
            changes.remove(member);
        }
        changes.add_edits(&self.object, text, edits);
        Ok(())
    }

    /// 0.x, with a `file` that is an object: `"file":{"uri":…},"name":…` →
    /// `"file":{"uri":…,"name":…}`. A member present in both stays in `file`. If `file` has another
    /// type, the agent decides on it and on the members beside it.
    fn fill_file(&self, text: &str, edits: &mut Edits) -> Result<(), Fault> {
        let found = self.file_members()?;
        if found.is_empty() {
            return Ok(());
        }
        let file = find_only(&self.members, "file")?;
        let Some(file) = file.filter(|file| file.value.kind == Kind::Object) else {
            return Ok(());
        };
        let (object, inside) = read_members(text, file.value.start);
        let (mut of_part, mut of_file) = (MemberChanges::default(), MemberChanges::default());
        for (flat, name, _) in found {
            let token = flat.value.raw_str(text);
            match find_only(&inside, name)? {
                None => of_file.append(format!(r#""{name}":{token}"#)),
                Some(there) if flat.value.is_void() || have_same_value(&there, &flat, text) => {}
                Some(void) if void.value.is_void() => edits.replace_value(&void, token.to_owned()),
                Some(_) => {
                    return Err(Fault::invalid_params(format!(
                        "\"{name}\" of a \"file\" differs in the part and in its \"file\"; send one of them"
                    )));
                }
            }
            of_part.remove(&flat);
        }
        of_file.add_edits(&object, text, edits);
        of_part.add_edits(&self.object, text, edits);
        Ok(())
    }

    /// 1.0: `"name":…,"uri":…` → `"filename":…,"url":…`. A member is not renamed if the new name
    /// exists.
    fn rename_file(&self, edits: &mut Edits) -> Result<(), Fault> {
        for (member, _, name) in self.file_members()? {
            if !self.has_member(name) {
                edits.replace(member.start..member.name_end, format!("\"{name}\""));
            }
        }
        Ok(())
    }
}

/// Returns the member with the name `word`.
///
/// # Errors
/// If it is a duplicate.
fn find_only(members: &[NamedMember<'_>], word: &str) -> Result<Option<Member>, Fault> {
    let mut named = members
        .iter()
        .filter(|(name, _)| **name == *word.as_bytes());
    match (named.next(), named.next()) {
        (_, Some(_)) => Err(Fault::duplicate_member(word)),
        (one, None) => Ok(one.map(|(_, member)| *member)),
    }
}
