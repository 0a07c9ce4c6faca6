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

/// The list is not a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// One entry is none of the three forms.
    #[error(
        "`{0}` is not a workspace id, `org:NAME` or `*`: write [\"my-agent\", \"org:acme\"] or [\"*\"]"
    )]
    Entry(String),
    /// It has too many entries.
    #[error("has more than {ENTRIES_MAX} entries: name an org instead, `org:NAME`")]
    Long,
    /// It has none, so the rule would never apply.
    #[error("is empty, so the rule applies to no workspace: write [\"*\"] for all")]
    Empty,
}

impl Scope {
    /// The scope of all workspaces.
    pub fn all() -> Self {
        Self(vec![Entry::All])
    }

    /// True if a workspace, whose org is `org`, is in the scope.
    pub fn covers(&self, id: &WorkspaceId, org: Option<&str>) -> bool {
        self.0.iter().any(|entry| match entry {
            Entry::All => true,
            Entry::Org(name) => org == Some(name),
            Entry::Workspace(workspace) => workspace == id,
        })
    }
}

impl TryFrom<Vec<String>> for Scope {
    type Error = InvalidScope;

    fn try_from(entries: Vec<String>) -> Result<Self, InvalidScope> {
        match entries.len() {
            0 => return Err(InvalidScope::Empty),
            count if count > ENTRIES_MAX => return Err(InvalidScope::Long),
            _ => {}
        }
        let entries = entries.into_iter().map(|text| {
            if text == "*" {
                return Ok(Entry::All);
            }
            match text.strip_prefix(ORG) {
                Some("") => Err(InvalidScope::Entry(text)),
                Some(org) => Ok(Entry::Org(org.to_owned())),
                None => match WorkspaceId::parse(&text) {
                    Ok(id) => Ok(Entry::Workspace(id)),
                    Err(_) => Err(InvalidScope::Entry(text)),
                },
            }
        });
        entries.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(entries: &[&str]) -> Result<Scope, InvalidScope> {
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
            assert_eq!(scope(&[bad]), Err(InvalidScope::Entry(bad.to_owned())));
        }
        assert_eq!(scope(&[]), Err(InvalidScope::Empty));
        assert_eq!(scope(&vec!["a"; ENTRIES_MAX + 1]), Err(InvalidScope::Long));
    }
}
