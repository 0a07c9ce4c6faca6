//! One walk over JSON text before it is parsed: checks the syntax, measures the nesting and finds duplicate names,
//! which parsers resolve differently (RFC 8259, 4).

use std::borrow::Cow;
use std::collections::HashSet;

use super::walker::{Visit, Walker};

pub use super::walker::{DEPTH_MAX, WalkError};

/// The result of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameScan {
    /// The deepest nesting of objects and arrays; 0: a scalar.
    pub depth: usize,
    /// The first name that an object has twice, unescaped.
    pub duplicate: Option<String>,
}

/// Walks over one JSON value. Names inside the members `opaque` of the outermost object are not compared.
///
/// # Errors
/// [`WalkError`]: it is not JSON, or nests deeper than [`DEPTH_MAX`].
pub fn scan_names(text: &str, opaque: &[&str]) -> Result<NameScan, WalkError> {
    let mut walker = Walker::new(text.as_bytes());
    let mut names = NameVisitor {
        opaque,
        is_inside: false,
        seen: Vec::new(),
        scan: NameScan::default(),
    };
    walker.visit_value(&mut names)?;
    walker.expect_end()?;
    Ok(names.scan)
}

struct NameVisitor<'a, 'o> {
    opaque: &'o [&'o str],
    /// True inside an opaque member.
    is_inside: bool,
    /// The names of the open containers, by level.
    seen: Vec<HashSet<Cow<'a, [u8]>>>,
    scan: NameScan,
}

impl<'a> Visit<'a> for NameVisitor<'a, '_> {
    fn open(&mut self, level: usize) {
        self.scan.depth = self.scan.depth.max(level + 1);
        match self.seen.get_mut(level) {
            Some(seen) => seen.clear(),
            None => self.seen.push(HashSet::new()),
        }
    }

    fn walk_name(&mut self, walker: &mut Walker<'a>, level: usize) -> Result<(), WalkError> {
        let name = walker.read_name()?.unescaped;
        if level > 0 && self.is_inside || self.scan.duplicate.is_some() {
            return Ok(());
        }
        if level == 0 {
            self.is_inside = self.opaque.iter().any(|one| one.as_bytes() == &*name);
        }
        if let Some(seen) = self.seen.get_mut(level)
            && let Some(first) = seen.replace(name)
        {
            self.scan.duplicate = Some(String::from_utf8_lossy(&first).into_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_names_are_found_at_any_depth() {
        let duplicate = |text: &str| scan_names(text, &["card"]).unwrap().duplicate;
        for text in [
            r#"{"a":1,"b":{"a":[{"a":null},{"a":-1.5}]}}"#,
            r#"{"card":{"a":1,"a":[{"c":1,"c":2}]},"b":1}"#,
            "[]",
            "3",
            r#""a""#,
            "null",
            "true",
        ] {
            assert_eq!(duplicate(text), None, "{text}");
        }
        for (text, name) in [
            (r#"{"a":1,"a":1}"#, "a"),
            (r#"{"b":[{"a":1,"\u0061":2}]}"#, "a"),
            (r#"[{"a":{"c":1,"c":2}}]"#, "c"),
            (r#"{"card":1,"card":{"x":1}}"#, "card"),
            (r#"{"card":{"a":1,"a":2},"b":{"d":1,"d":2}}"#, "d"),
        ] {
            assert_eq!(duplicate(text).as_deref(), Some(name), "{text}");
        }
    }

    #[test]
    fn depth_is_measured_and_bounded_and_brackets_in_strings_do_not_count() {
        let nested = |depth: usize| format!("{}\"[[{{\"{}", "[".repeat(depth), "]".repeat(depth));
        for depth in [0, 1, 127, DEPTH_MAX] {
            assert_eq!(scan_names(&nested(depth), &[]).unwrap().depth, depth);
        }
        assert_eq!(
            scan_names(&nested(DEPTH_MAX + 1), &[]),
            Err(WalkError::TooDeep)
        );
        assert_eq!(scan_names("{} x", &[]), Err(WalkError::Syntax(3)));
    }
}
