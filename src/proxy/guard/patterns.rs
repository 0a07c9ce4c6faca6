//! The built-in guard of regular expressions. It looks at all strings that a sender chooses, `metadata` and names of
//! members that the protocol does not have included; not at identifiers, words of the protocol and encoded bytes that
//! have the shape of such.

use std::borrow::Cow;

use regex::{NoExpand, Regex};

use crate::a2a::texts::{Root, walk_strings, with_strings};
use crate::config::{Guard, PatternAction};
use crate::metrics::GuardVerdict;
use crate::offload;
use crate::proxy::guard::Judgement;
use crate::proxy::guard::document::Document;

/// Why the patterns do not judge a document.
const UNREADABLE: &str = "cannot read it, or what it would be with masks";

/// The patterns of one guard.
pub(super) struct Patterns(Vec<Pattern>);

#[derive(Clone)]
struct Pattern {
    name: String,
    regex: Regex,
    action: PatternAction,
}

/// Result of the patterns for a text.
enum MatchResult {
    Nothing,
    Rejected(String),
    Masked(Vec<u8>),
    Broken,
}

impl Patterns {
    /// Compiles the patterns of a guard. They were checked with the configuration.
    pub(super) fn new(guard: &Guard) -> Self {
        let patterns = guard.patterns.iter().filter_map(|pattern| {
            Some(Pattern {
                name: pattern.name.clone(),
                regex: pattern.compile().ok()?,
                action: pattern.action,
            })
        });
        Self(patterns.collect())
    }

    /// Judges a document, and masks what is to be masked in it.
    pub(super) async fn judge_document(&self, document: &mut Document) -> Judgement {
        let root = document.root();
        let matched = if offload::is_long(document.as_json().len()) {
            let (patterns, json) = (self.0.clone(), document.as_json().clone());
            Box::pin(offload::run(move || match_all(&patterns, &json, root))).await
        } else {
            match_all(&self.0, document.as_json(), root)
        };
        match matched {
            MatchResult::Nothing => Judgement::Pass,
            MatchResult::Rejected(name) => Judgement::Reject(format!("pattern `{name}` matches")),
            MatchResult::Masked(json) => match document.replace_json(json) {
                true => Judgement::Replaced,
                false => Judgement::Unfit(GuardVerdict::Invalid, UNREADABLE),
            },
            MatchResult::Broken => Judgement::Unfit(GuardVerdict::Invalid, UNREADABLE),
        }
    }
}

fn match_all(patterns: &[Pattern], json: &[u8], root: Root) -> MatchResult {
    let mut rejected = None;
    let mut masked = Vec::new();
    let walked = walk_strings(json, root, |found| {
        let mut text = found.text;
        let mut changed = false;
        for pattern in patterns {
            if !pattern.regex.is_match(&text) {
                continue;
            }
            match pattern.action {
                PatternAction::Reject => {
                    rejected.get_or_insert(&pattern.name);
                    return;
                }
                PatternAction::Mask => {
                    let mask = format!("[{}]", pattern.name);
                    let said = pattern.regex.replace_all(&text, NoExpand(&mask));
                    text = Cow::Owned(said.into_owned());
                    changed = true;
                }
            }
        }
        if changed {
            masked.push((found.range, text.into_owned()));
        }
    });
    match (walked, std::str::from_utf8(json)) {
        _ if rejected.is_some() => MatchResult::Rejected(rejected.cloned().unwrap_or_default()),
        (Ok(()), _) if masked.is_empty() => MatchResult::Nothing,
        (Ok(()), Ok(text)) => MatchResult::Masked(with_strings(text, masked)),
        _ => MatchResult::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(each: &[(&str, &str, PatternAction)]) -> Vec<Pattern> {
        let each = each.iter().map(|(name, regex, action)| Pattern {
            name: (*name).to_owned(),
            regex: Regex::new(regex).unwrap(),
            action: *action,
        });
        each.collect()
    }

    #[test]
    fn texts_names_and_metadata_are_matched_and_identifiers_are_not() {
        let both = patterns(&[
            ("card", "[0-9]{4}-[0-9]{4}", PatternAction::Reject),
            ("email", "[a-z]+@[a-z]+", PatternAction::Mask),
        ]);
        let json = |json: &str| match match_all(&both, json.as_bytes(), Root::Typed) {
            MatchResult::Nothing => "nothing".to_owned(),
            MatchResult::Rejected(name) => format!("rejected {name}"),
            MatchResult::Masked(json) => String::from_utf8(json).unwrap(),
            MatchResult::Broken => "broken".to_owned(),
        };
        for rejected in [
            r#"{"parts":[{"text":"1234-5678"}]}"#,
            r#"{"parts":[{"text":"1234\u002d5678"}]}"#,
            r#"{"parts":[{"data":{"1234-5678":1}}]}"#,
            r#"{"params":{"metadata":{"x":["1234-5678"]}}}"#,
            r#"{"artifacts":[{"description":"1234-5678"}]}"#,
            r#"{"parts":[{"text":"a@b"},{"text":"1234-5678"}]}"#,
            r#"{"error":{"code":1,"data":{"id":"1234-5678"}}}"#,
            r#"{"kind":"1234-5678"}"#,
            r#"{"status":{"timestamp":"1234-5678"}}"#,
            r#"{"parts":[{"type":"1234-5678"}]}"#,
            r#"{"extensions":["1234-5678"]}"#,
            r#"{"tenant":"1234-5678"}"#,
            r#"{"1234-5678":1}"#,
        ] {
            assert_eq!(json(rejected), "rejected card", "{rejected}");
        }
        let masked = json(r#"{"a":1.0,"parts":[{"text":"to a@b, \"c@d\""},{"data":{"e@f":"g"}}]}"#);
        assert_eq!(
            masked,
            r#"{"a":1.0,"parts":[{"text":"to [email], \"[email]\""},{"data":{"[email]":"g"}}]}"#
        );
        for passed in [
            r#"{"messageId":"1234-5678","parts":[{"raw":"AAAA"}]}"#,
            r#"{"parts":[{"text":"hello"}]}"#,
        ] {
            assert_eq!(json(passed), "nothing", "{passed}");
        }
        assert_eq!(json("{"), "broken");
    }
}
