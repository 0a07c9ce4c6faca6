//! Realms: the workspaces that a principal looks after which is no workspace itself. Calls, lists, events, stops and caps all
//! ask here.

use super::Lineage;
use crate::identity::Principal;
use crate::ids::{Life, WorkspaceId};

/// Reason why no rule was evaluated. For the log and for operators. Without a name, since the requested id need
/// not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nowhere {
    #[error("there is no workspace of the caller's id")]
    Caller,
    #[error("there is no workspace of the target's id")]
    Target,
    #[error("the credential is for the workspaces of another org")]
    Org,
    #[error("the credential lists workspaces, and the target is not among them")]
    List,
    #[error("the credential is for a subtree, and the target is not in it")]
    Subtree,
    #[error("the credential is for a subtree, and its root was removed or is in another org")]
    Root,
}

/// The bounds of a realm. Without any of them it has every workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Realm<'p> {
    /// Only these.
    listed: Option<&'p [WorkspaceId]>,
    /// Only those of this org; no org counts as one org.
    org: Option<Option<&'p str>>,
    /// Only this one, in its present life, and those below it.
    pub(super) within: Option<&'p Life>,
}

impl<'p> Realm<'p> {
    /// Returns the realm of a principal; `None`: it is a workspace, and its relations decide.
    pub(super) fn of(principal: &'p Principal) -> Option<Self> {
        Some(match principal {
            Principal::Workspace { .. } => return None,
            Principal::Operator => Self {
                listed: None,
                org: None,
                within: None,
            },
            Principal::Org { org, within } => Self {
                listed: None,
                org: Some(Some(org)),
                within: within.as_ref(),
            },
            Principal::Canvas {
                org,
                workspaces,
                confined,
                within,
                ..
            } => {
                let listed = workspaces.as_deref();
                Self {
                    listed,
                    org: (listed.is_none() || *confined).then_some(org.as_deref()),
                    within: within.as_ref(),
                }
            }
        })
    }

    /// True if a list leaves the workspace out.
    pub(super) fn leaves_out(&self, id: &WorkspaceId) -> bool {
        self.listed.is_some_and(|list| !list.contains(id))
    }

    /// True if it has each workspace of `org`, whatever its place.
    pub(super) fn has_org(&self, org: &str) -> bool {
        let of_org = self.org.is_none_or(|own| own == Some(org));
        of_org && self.listed.is_none() && self.within.is_none()
    }

    /// True if a list decides alone.
    pub(super) fn is_list_only(&self) -> bool {
        self.listed.is_some() && self.org.is_none() && self.within.is_none()
    }

    /// Returns the reason why a workspace at `place` is outside; `None`: it is inside, if the root of the subtree stands.
    pub(super) fn outside(&self, place: &Lineage) -> Option<Nowhere> {
        if self.leaves_out(&place.id) {
            return Some(Nowhere::List);
        }
        if self.org.is_some_and(|org| place.org.as_deref() != org) {
            return Some(Nowhere::Org);
        }
        let root = self.within?;
        let below = place.id == root.id || place.ancestors.contains(&root.id);
        (!below || place.cyclic).then_some(Nowhere::Subtree)
    }

    /// True if the root of the subtree stands at `place`: it is the life that the realm is of, was not removed, and is in
    /// its org.
    pub(super) fn stands(&self, place: Option<&Lineage>) -> bool {
        let Some(root) = self.within else {
            return true;
        };
        place.is_some_and(|place| {
            !place.removed
                && place.born_at == root.born_at
                && self.org.is_none_or(|org| place.org.as_deref() == org)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn place(name: &str, org: Option<&str>, above: &[&str]) -> Lineage {
        Lineage {
            id: id(name),
            org: org.map(str::to_owned),
            ancestors: above.iter().map(|name| id(name)).collect(),
            removed: false,
            paused: false,
            cyclic: false,
            generation: 0,
            born_at: 0,
        }
    }

    fn team(born_at: i64) -> Principal {
        Principal::Org {
            org: "acme".to_owned(),
            within: Some(Life {
                id: id("team"),
                born_at,
            }),
        }
    }

    #[test]
    fn a_subtree_has_its_root_and_those_below_it() {
        let (acme, other) = (Some("acme"), Some("other"));
        let team = team(0);
        let realm = Realm::of(&team).unwrap();
        for (name, org, above, expected) in [
            ("team", acme, &["boss"][..], None),
            ("dev", acme, &["team", "boss"], None),
            ("tool", acme, &["dev", "team", "boss"], None),
            ("boss", acme, &[], Some(Nowhere::Subtree)),
            ("peer", acme, &["boss"], Some(Nowhere::Subtree)),
            ("dev", other, &["team"], Some(Nowhere::Org)),
            ("team", None, &[], Some(Nowhere::Org)),
        ] {
            let place = place(name, org, above);
            assert_eq!(realm.outside(&place), expected, "{name} of {org:?}");
        }
        let looped = Lineage {
            cyclic: true,
            ..place("dev", acme, &["team"])
        };
        assert_eq!(realm.outside(&looped), Some(Nowhere::Subtree));
    }

    #[test]
    fn a_root_stands_in_its_life_and_its_org() {
        let team = team(5);
        let realm = Realm::of(&team).unwrap();
        let root = |org, born_at, removed| Lineage {
            born_at,
            removed,
            ..place("team", org, &[])
        };
        let acme = Some("acme");
        assert!(realm.stands(Some(&root(acme, 5, false))));
        for gone in [
            root(acme, 5, true),
            root(acme, 0, false),
            root(acme, 9, false),
            root(Some("other"), 5, false),
            root(None, 5, false),
        ] {
            assert!(!realm.stands(Some(&gone)), "{gone:?}");
        }
        assert!(!realm.stands(None));
        let org = Principal::Org {
            org: "acme".to_owned(),
            within: None,
        };
        let realm = Realm::of(&org).unwrap();
        assert!(realm.stands(None));
        assert!(realm.has_org("acme") && !realm.has_org("other"));
        assert!(!Realm::of(&team).unwrap().has_org("acme"));
    }
}
