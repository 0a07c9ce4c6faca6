//! `[[access.require]]`: targets that are called only on behalf of certain roots.

use serde::Deserialize;

use super::Scope;
use super::guard::{GuardMode, enforce_by_default};
use super::tables::entries;

/// Maximum rules: each is compared with each call.
const RULES_MAX: usize = 64;

/// Characters of the longest name of a group or an org.
const NAME_CHARS_MAX: usize = 256;

/// The root that a rule requires: `"person"`, `"group:NAME"` or `"org:NAME"`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub enum RequiredRoot {
    /// Any person.
    Person,
    /// A person of a group.
    Group(String),
    /// A person or a workspace of an org.
    Org(String),
}

impl TryFrom<String> for RequiredRoot {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let name = |name: &str| {
            let fits = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
            fits.then(|| name.to_owned())
                .ok_or("needs a name of 1 to 256 characters")
        };
        match text.split_once(':') {
            None if text == "person" => Ok(Self::Person),
            Some(("group", group)) => name(group).map(Self::Group),
            Some(("org", org)) => name(org).map(Self::Org),
            _ => Err("is not \"person\", \"group:NAME\" or \"org:NAME\""),
        }
    }
}

entries! {
    /// One entry of `[[access.require]]`.
    RootRule {
        /// The targets.
        targets: Scope => "a list such as [\"my-agent\", \"org:acme\"] or [\"*\"]",
        /// The root that calls to them need.
        root: RequiredRoot => "\"person\", \"group:NAME\" or \"org:NAME\"",
        /// The effect on calls without such a root.
        #[serde(default = "enforce_by_default")]
        mode: GuardMode => "\"enforce\" or \"observe\"",
    }
}

/// Returns the problems of the list.
pub(super) fn find_problems(rules: &[RootRule]) -> Vec<String> {
    let mut problems = Vec::new();
    list! { problems; rules.len() > RULES_MAX => "may have at most {RULES_MAX} rules"; }
    problems
}
