//! Members that a replacement of a payload must keep ([`keeps_names`]).

use crate::json::{Kind, Value};
use crate::names::scan_names;
use crate::walker::{Visit, WalkError, Walker};

/// Deepest nesting of a payload that components are asked about: their parsers have limits of their own.
pub const NESTING_MAX: usize = 100;

struct DepthVisitor(usize);

impl Visit<'_> for DepthVisitor {
    fn open(&mut self, level: usize) {
        self.0 = self.0.max(level + 1);
    }
}

/// True if a value nests deeper than [`NESTING_MAX`], or is not JSON.
pub fn nests_too_deep(text: &[u8]) -> bool {
    let mut deepest = DepthVisitor(0);
    let walked = Walker::new(text).visit_value(&mut deepest);
    walked.is_err() || deepest.0 > NESTING_MAX
}

/// True if `after`, put in place of `before`, keeps what names it: each `messageId`, `taskId`, `contextId` and `role`,
/// and the `id` of tasks, where it was. It has no name twice.
pub fn keeps_names(before: &[u8], after: &[u8]) -> bool {
    let has_each_once = |text: &str| {
        scan_names(text, &[])
            .is_ok_and(|scan| scan.duplicate.is_none() && scan.depth <= NESTING_MAX)
    };
    if !std::str::from_utf8(after).is_ok_and(has_each_once) {
        return false;
    }
    let (Some(before), Some(after)) = (names_in(before), names_in(after)) else {
        return false;
    };
    before == after
}

/// A name with its path and its value.
type NameEntry = (Vec<u8>, Vec<u8>);

/// Returns the kind of a value, and the names in it. `None`: it is not JSON, or nests too deeply.
fn names_in(text: &[u8]) -> Option<(Kind, Vec<NameEntry>)> {
    if nests_too_deep(text) {
        return None;
    }
    let mut names = Vec::new();
    let value = collect_names(&mut Walker::new(text), text, &mut Vec::new(), &mut names).ok()?;
    names.sort();
    Some((value.kind, names))
}

/// Collects the names in a typed value. The depth of the recursion is bounded by [`NESTING_MAX`].
fn collect_names(
    walker: &mut Walker<'_>,
    text: &[u8],
    path: &mut Vec<u8>,
    names: &mut Vec<NameEntry>,
) -> Result<Value, WalkError> {
    let at = path.len();
    match walker.peek() {
        Some(b'{') => {
            let object = walker.walk_object(|walker, name| {
                path.push(b'/');
                path.extend_from_slice(&name.unescaped);
                let value = match &*name.unescaped {
                    b"messageId" | b"message_id" | b"taskId" | b"task_id" | b"contextId"
                    | b"context_id" | b"role" | b"id" => {
                        let value = walker.read_value()?;
                        let said = match value.kind {
                            Kind::String => [b"\"", &*value.unescaped(text)].concat(),
                            _ => value.raw(text).to_vec(),
                        };
                        names.push((path.clone(), said));
                        value
                    }
                    b"metadata" | b"data" => walker.read_value()?,
                    _ => collect_names(walker, text, path, names)?,
                };
                path.truncate(at);
                Ok(value)
            })?;
            Ok(object.to_value())
        }
        Some(b'[') => {
            let mut n = 0_usize;
            walker.walk_array(|walker| {
                path.extend_from_slice(format!("/{n}").as_bytes());
                n += 1;
                collect_names(walker, text, path, names)?;
                path.truncate(at);
                Ok(())
            })
        }
        _ => walker.read_value(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_keeps_the_names() {
        let before =
            br#"{"messageId":"m","role":"user","contextId":"c","parts":[{"text":"\ud800"}]}"#;
        for (after, keeps) in [
            (
                r#"{"role":"user","message\u0049d":"\u006d","contextId":"c","parts":[{"text":"\ud800"},{"data":{"id":1}}]}"#,
                true,
            ),
            (
                r#"{"role":"user","messageId":"n","contextId":"c","parts":[]}"#,
                false,
            ),
            (
                r#"{"role":"agent","messageId":"m","contextId":"c","parts":[]}"#,
                false,
            ),
            (r#"{"role":"user","messageId":"m","parts":[]}"#, false),
            (
                r#"{"role":"user","messageId":"m","contextId":"c","taskId":"t","parts":[]}"#,
                false,
            ),
            (
                r#"{"role":"user","messageId":"m","contextId":"c","task_id":"t","parts":[]}"#,
                false,
            ),
            (
                r#"{"role":"user","messageId":"m","contextId":"d","contextId":"c","parts":[]}"#,
                false,
            ),
            (
                r#"{"role":"user","messageId":"m","contextId":"c","context\u0049d":"c"}"#,
                false,
            ),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(keeps_names(before, after.as_bytes()), keeps, "{after}");
        }
        let task = br#"{"id":"t","history":[{"messageId":"m"}]}"#;
        for other in [
            r#"{"id":"u","history":[{"messageId":"m"}]}"#,
            r#"{"id":"t","history":[{"messageId":"n"}]}"#,
        ] {
            assert!(!keeps_names(task, other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!nests_too_deep(nested(NESTING_MAX).as_bytes()));
        for deep in [nested(NESTING_MAX + 1), nested(600), "{".to_owned()] {
            assert!(nests_too_deep(deep.as_bytes()));
            assert!(!keeps_names(b"[]", deep.as_bytes()));
        }
    }
}
