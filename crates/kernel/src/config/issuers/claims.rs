//! Patterns of claims, and templates that are filled with their parts: how a token of a platform names a workspace.

use serde::Deserialize;

/// Longest pattern or template, in bytes.
const TEXT_MAX: usize = 512;

/// Longest name of a part, in bytes.
const PART_MAX: usize = 32;

/// Maximum parts of a pattern or a template.
const PARTS_MAX: usize = 8;

/// One piece of a pattern or a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// Text that stands for itself.
    Text(String),
    /// `{name}`.
    Part(String),
}

/// A text with `{parts}` that the whole value of a claim must match. A part stands for one or more characters of
/// workspace ids, and ends where the next text begins with another character: there is one way to match, at most.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct ClaimPattern(Vec<Piece>);

/// A text with `{parts}` in characters of workspace ids, to be filled with the parts of patterns. Different parts give
/// different texts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct ClaimTemplate(Vec<Piece>);

/// A part of a claim: its name and its value.
pub type Part<'a> = (&'a str, &'a str);

/// The text is neither a pattern nor a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a text with `{{parts}}`")]
pub struct NoPattern;

impl TryFrom<String> for ClaimPattern {
    type Error = NoPattern;

    fn try_from(text: String) -> Result<Self, NoPattern> {
        let pieces = parse_pieces(&text)?;
        let ends = pieces.windows(2).all(|pair| match pair {
            [Piece::Part(_), Piece::Text(text)] => !text.starts_with(is_of_id),
            [Piece::Part(_), Piece::Part(_)] => false,
            _ => true,
        });
        ends.then_some(Self(pieces)).ok_or(NoPattern)
    }
}

impl TryFrom<String> for ClaimTemplate {
    type Error = NoPattern;

    fn try_from(text: String) -> Result<Self, NoPattern> {
        let pieces = parse_pieces(&text)?;
        let apart = pieces.windows(2).all(|pair| {
            let [one, other] = pair else { return true };
            matches!(one, Piece::Text(_)) || matches!(other, Piece::Text(_))
        });
        let of_id = |piece: &Piece| match piece {
            Piece::Text(text) => text.chars().all(is_of_id),
            Piece::Part(_) => true,
        };
        let template = Self(pieces);
        let good = apart && template.0.iter().all(of_id) && template.parts().next().is_some();
        good.then_some(template).ok_or(NoPattern)
    }
}

impl ClaimPattern {
    /// Returns the names of the parts.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        parts(&self.0)
    }

    /// Returns the parts of `value`; `None`: it does not match.
    pub fn read<'a>(&'a self, value: &'a str) -> Option<Vec<Part<'a>>> {
        let mut found = Vec::new();
        let mut rest = value;
        for piece in &self.0 {
            rest = match piece {
                Piece::Text(text) => rest.strip_prefix(text.as_str())?,
                Piece::Part(name) => {
                    let end = rest.find(|c| !is_of_id(c)).unwrap_or(rest.len());
                    let (part, after) = rest.split_at(end);
                    if part.is_empty() {
                        return None;
                    }
                    found.push((name.as_str(), part));
                    after
                }
            };
        }
        rest.is_empty().then_some(found)
    }
}

impl ClaimTemplate {
    /// Returns the names of the parts.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        parts(&self.0)
    }

    /// Fills in the parts. `None`: one is missing, or contains the character that separates it from the next one: the
    /// text could also be that of other parts.
    pub fn fill(&self, with: &[Part<'_>]) -> Option<String> {
        let mut text = String::new();
        for (i, piece) in self.0.iter().enumerate() {
            let name = match piece {
                Piece::Text(piece) => {
                    text.push_str(piece);
                    continue;
                }
                Piece::Part(name) => name,
            };
            let (_, value) = with.iter().find(|(known, _)| known == name)?;
            if let [Piece::Text(between), Piece::Part(_), ..] = &self.0[i + 1..]
                && between.chars().next().is_some_and(|c| value.contains(c))
            {
                return None;
            }
            text.push_str(value);
        }
        Some(text)
    }
}

fn parts(pieces: &[Piece]) -> impl Iterator<Item = &str> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Part(name) => Some(name.as_str()),
        Piece::Text(_) => None,
    })
}

/// Splits a text at its parts.
fn parse_pieces(text: &str) -> Result<Vec<Piece>, NoPattern> {
    if text.is_empty() || text.len() > TEXT_MAX || text.chars().any(char::is_control) {
        return Err(NoPattern);
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let begin = rest.find(['{', '}']).unwrap_or(rest.len());
        let (text, after) = rest.split_at(begin);
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
        let inside = rest.strip_prefix('{').ok_or(NoPattern)?;
        let (name, after) = inside.split_once('}').ok_or(NoPattern)?;
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if !(1..=PART_MAX).contains(&name.len()) || !name.bytes().all(known) {
            return Err(NoPattern);
        }
        pieces.push(Piece::Part(name.to_owned()));
        rest = after;
    }
    let few = parts(&pieces).count() <= PARTS_MAX;
    few.then_some(pieces).ok_or(NoPattern)
}

/// True for the characters of workspace ids.
fn is_of_id(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Result<ClaimPattern, NoPattern> {
        text.to_owned().try_into()
    }

    fn template(text: &str) -> Result<ClaimTemplate, NoPattern> {
        text.to_owned().try_into()
    }

    #[test]
    fn a_pattern_matches_the_whole_value_in_one_way() {
        for (text, value, expected) in [
            (
                "system:serviceaccount:agents:{name}",
                "system:serviceaccount:agents:dev",
                Some(vec![("name", "dev")]),
            ),
            (
                "spiffe://a.test/ns/{org}/sa/{id}",
                "spiffe://a.test/ns/acme/sa/dev-1.x",
                Some(vec![("org", "acme"), ("id", "dev-1.x")]),
            ),
            ("{id}@a.test", "dev@a.test", Some(vec![("id", "dev")])),
            ("fixed", "fixed", Some(vec![])),
            ("spiffe://a.test/{id}", "spiffe://a.test/x/y", None),
            ("spiffe://a.test/{id}", "spiffe://a.test/", None),
            ("spiffe://a.test/{id}", "spiffe://b.test/dev", None),
            ("spiffe://a.test/{id}", "xspiffe://a.test/dev", None),
            ("spiffe://a.test/{id}", "spiffe://a.test/dev?x", None),
            ("spiffe://a.test/{id}", "spiffe://a.test/d\u{e9}v", None),
            ("a:{id}", "a:dev\n", None),
            ("fixed", "fixed2", None),
        ] {
            assert_eq!(
                pattern(text).unwrap().read(value),
                expected,
                "{text} {value}"
            );
        }
    }

    #[test]
    fn what_is_ambiguous_is_no_pattern() {
        for text in [
            "", "{a}{b}", "{a}-{b}", "{a}x", "{", "}", "{}", "{A}", "a{b", "{a b}", "{{a}}",
            "{sub.x}", "a\nb",
        ] {
            assert_eq!(pattern(text), Err(NoPattern), "{text}");
        }
        assert_eq!(pattern(&"x".repeat(513)), Err(NoPattern));
        for text in ["", "fixed", "{a}{b}", "{a}/{b}", "{a}:", "x y{a}", "{a"] {
            assert_eq!(template(text), Err(NoPattern), "{text}");
        }
    }

    #[test]
    fn two_sets_of_parts_never_fill_a_template_alike() {
        let fill = |text: &str, with: &[Part<'_>]| template(text).unwrap().fill(with);
        let parts = [("ns", "acme"), ("name", "dev.1-x")];
        assert_eq!(fill("{name}", &parts).as_deref(), Some("dev.1-x"));
        assert_eq!(fill("{ns}.{name}", &parts).as_deref(), Some("acme.dev.1-x"));
        assert_eq!(
            fill("k8s-{name}-a", &parts).as_deref(),
            Some("k8s-dev.1-x-a")
        );
        assert_eq!(fill("{other}", &parts), None);
        // `a-b` and `c`, or `a` and `b-c`.
        assert_eq!(fill("{ns}-{name}", &[("ns", "a-b"), ("name", "c")]), None);
        let second = [("ns", "a"), ("name", "b-c")];
        assert_eq!(fill("{ns}-{name}", &second).as_deref(), Some("a-b-c"));
        // `a-` and `b`, or `a` and `-b`.
        assert_eq!(fill("{ns}--{name}", &[("ns", "a-"), ("name", "b")]), None);
    }
}
