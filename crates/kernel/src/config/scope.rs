//! The workspaces to which a rule of the configuration applies: ids, `org:NAME`, `*`.

use serde::Deserialize;

use crate::ids::WorkspaceId;

/// Maximum entries of one scope.
const ENTRIES_MAX: usize = 1000;

/// Prefix of an entry that names an org.
const ORG: &str = "org:";

/// A list of workspace ids, `org:NAME` and `*`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "Vec<String>")]
pub struct Scope(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    All,
    Org(String),
    Workspace(WorkspaceId),
}

impl Scope {
    /// The scope of all workspaces.
    pub fn all() -> Self {
        Self(vec![Entry::All])
    }

    /// True if a workspace of `org` is in the scope.
    pub fn covers(&self, id: &WorkspaceId, org: Option<&str>) -> bool {
        self.0.iter().any(|entry| match entry {
            Entry::All => true,
            Entry::Org(name) => org == Some(name),
            Entry::Workspace(workspace) => workspace == id,
        })
    }
}

impl TryFrom<Vec<String>> for Scope {
    type Error = String;

    fn try_from(entries: Vec<String>) -> Result<Self, String> {
        if entries.is_empty() {
            return Err(
                "is empty, so the rule applies to no workspace: write [\"*\"] for all".into(),
            );
        }
        if entries.len() > ENTRIES_MAX {
            return Err(format!(
                "has more than {ENTRIES_MAX} entries: name an org instead, `org:NAME`"
            ));
        }
        let parse = |text: &String| match text.strip_prefix(ORG) {
            None if text == "*" => Some(Entry::All),
            None => WorkspaceId::parse(text).ok().map(Entry::Workspace),
            Some(org) => (!org.is_empty()).then(|| Entry::Org(org.to_owned())),
        };
        let parsed = entries.iter().map(|text| {
            parse(text).ok_or_else(|| {
                format!(
                    "`{text}` is not a workspace id, `org:NAME` or `*`: write [\"my-agent\", \"org:acme\"] or [\"*\"]"
                )
            })
        });
        parsed.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(entries: &[&str]) -> Result<Scope, String> {
        Scope::try_from(entries.iter().map(|&e| e.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_scope_covers_what_its_entries_name() {
        let (a, b) = (
            WorkspaceId::parse("a").unwrap(),
            WorkspaceId::parse("b").unwrap(),
        );
        let listed = scope(&["a", "org:acme"]).unwrap();
        assert!(listed.covers(&a, None));
        assert!(listed.covers(&b, Some("acme")));
        assert!(!listed.covers(&b, Some("a")));
        assert!(!listed.covers(&b, None));
        assert!(scope(&["*"]).unwrap().covers(&b, None));
    }

    #[test]
    fn an_entry_of_no_form_is_refused() {
        for bad in ["", "org:", "a b", "a/b"] {
            let error = scope(&[bad]).unwrap_err();
            assert!(error.starts_with(&format!("`{bad}` is not a workspace id")));
        }
        assert!(scope(&[]).unwrap_err().starts_with("is empty"));
        let long = scope(&vec!["a"; ENTRIES_MAX + 1]).unwrap_err();
        assert!(long.starts_with("has more than 1000 entries"));
    }
}
