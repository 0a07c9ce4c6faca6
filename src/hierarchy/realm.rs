//! Realms: the workspaces that a principal other than a workspace may reach. Calls, lists, events, stops and caps all
//! ask here.

use super::Lineage;
use crate::identity::Principal;
use crate::ids::{WorkspaceId, WorkspaceIncarnation};

/// Reason why no rule was evaluated. For the log and for operators. Without a name, since the requested id need
/// not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RealmDenial {
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
    pub(super) within: Option<&'p WorkspaceIncarnation>,
}

impl<'p> Realm<'p> {
    /// Returns the realm of a principal; `None`: it is a workspace, and its relations decide.
    pub(super) fn from_principal(principal: &'p Principal) -> Option<Self> {
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
    pub(super) fn excludes(&self, id: &WorkspaceId) -> bool {
        self.listed.is_some_and(|list| !list.contains(id))
    }

    /// True if it has each workspace of `org`, whatever its place.
    pub(super) fn covers_org(&self, org: &str) -> bool {
        let of_org = self.org.is_none_or(|own| own == Some(org));
        of_org && self.listed.is_none() && self.within.is_none()
    }

    /// True if a list decides alone.
    pub(super) fn is_list_only(&self) -> bool {
        self.listed.is_some() && self.org.is_none() && self.within.is_none()
    }

    /// Returns the reason why a workspace at `place` is outside; `None`: it is inside, if the root of the subtree stands.
    pub(super) fn denial_for(&self, place: &Lineage) -> Option<RealmDenial> {
        if self.excludes(&place.id) {
            return Some(RealmDenial::List);
        }
        if self.org.is_some_and(|org| place.org.as_deref() != org) {
            return Some(RealmDenial::Org);
        }
        let root = self.within?;
        let below = place.id == root.id || place.ancestors.contains(&root.id);
        (!below || place.cyclic).then_some(RealmDenial::Subtree)
    }

    /// True if the root of the subtree stands at `place`: it is the life that the realm is of, was not removed, and is in
    /// its org.
    pub(super) fn has_valid_root(&self, place: Option<&Lineage>) -> bool {
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
    use crate::hierarchy::lineage_of;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn team(born_at: i64) -> Principal {
        Principal::Org {
            org: "acme".to_owned(),
            within: Some(WorkspaceIncarnation {
                id: id("team"),
                born_at,
            }),
        }
    }

    #[test]
    fn a_subtree_has_its_root_and_those_below_it() {
        let (acme, other) = (Some("acme"), Some("other"));
        let team = team(0);
        let realm = Realm::from_principal(&team).unwrap();
        for (name, org, above, expected) in [
            ("team", acme, &["boss"][..], None),
            ("dev", acme, &["team", "boss"], None),
            ("tool", acme, &["dev", "team", "boss"], None),
            ("boss", acme, &[], Some(RealmDenial::Subtree)),
            ("peer", acme, &["boss"], Some(RealmDenial::Subtree)),
            ("dev", other, &["team"], Some(RealmDenial::Org)),
            ("team", None, &[], Some(RealmDenial::Org)),
        ] {
            let place = lineage_of(name, org, above);
            assert_eq!(realm.denial_for(&place), expected, "{name} of {org:?}");
        }
        let looped = Lineage {
            cyclic: true,
            ..lineage_of("dev", acme, &["team"])
        };
        assert_eq!(realm.denial_for(&looped), Some(RealmDenial::Subtree));
    }

    #[test]
    fn a_root_stands_in_its_life_and_its_org() {
        let team = team(5);
        let realm = Realm::from_principal(&team).unwrap();
        let root = |org, born_at, removed| Lineage {
            born_at,
            removed,
            ..lineage_of("team", org, &[])
        };
        let acme = Some("acme");
        assert!(realm.has_valid_root(Some(&root(acme, 5, false))));
        for gone in [
            root(acme, 5, true),
            root(acme, 0, false),
            root(acme, 9, false),
            root(Some("other"), 5, false),
            root(None, 5, false),
        ] {
            assert!(!realm.has_valid_root(Some(&gone)), "{gone:?}");
        }
        assert!(!realm.has_valid_root(None));
        let org = Principal::Org {
            org: "acme".to_owned(),
            within: None,
        };
        let realm = Realm::from_principal(&org).unwrap();
        assert!(realm.has_valid_root(None));
        assert!(realm.covers_org("acme") && !realm.covers_org("other"));
        assert!(!Realm::from_principal(&team).unwrap().covers_org("acme"));
    }
}
