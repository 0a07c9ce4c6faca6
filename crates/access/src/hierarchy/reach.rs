//! Pages of the workspaces that a caller may reach. The table supplies candidates; the rule decides on each.
//!
//! Realms: the workspaces that a principal other than a workspace may reach. Calls, lists, events, stops and caps all
//! ask here.

use std::sync::Arc;

use super::{Hierarchy, Lineage, Rule};
use crate::identity::{CredentialKind, Principal, Proof};
use crate::workspace::{CandidateQuery, CandidateScope, LINE_MAX, NearScope, Realm, Step};
use kernel::config::LineageReach;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::store::Unavailable;

/// Bytes of agent cards in one page: the page ends before the card that would exceed it, but has at least one
/// workspace. Cards are a few KiB, and at most 256.
const PAGE_CARD_BYTES_MAX: u64 = 512 << 10;

/// A page of workspaces, in order of id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReachablePage {
    /// The workspaces, with the rule that allows each.
    pub found: Vec<(WorkspaceId, Rule)>,
    /// True if there are more beyond the last.
    pub more: bool,
}

impl Hierarchy {
    /// Returns the workspaces that the caller may reach: for a workspace, itself included.
    ///
    /// # Errors
    /// `not_permitted` where removed ones are requested, which only operators see; `store_unavailable`.
    pub async fn list_visible(
        &self,
        proof: &Proof,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        let rule = match &proof.principal {
            Principal::Workspace { id } => return self.list_near(id, true, wish).await,
            Principal::Canvas { .. } => Rule::Canvas,
            Principal::Org { .. } => Rule::Org,
            Principal::Operator => Rule::Operator,
        };
        let Some(mut realm) = Realm::from_principal(&proof.principal) else {
            return Ok(ReachablePage::default());
        };
        if proof.kind == CredentialKind::Open {
            // Development on loopback: any client is the canvas of every org.
            realm = Realm::default();
        }
        let among = CandidateScope::Realm(realm);
        let mut page = PageBuilder {
            room: wish.limit,
            ..PageBuilder::default()
        };
        let look_ahead = CandidateQuery {
            limit: wish.limit + 1,
            ..*wish
        };
        for candidate in self.workspaces.find_candidates(among, &look_ahead).await? {
            if !page.push(candidate.step.id, rule, candidate.card_bytes) {
                break;
            }
        }
        Ok(page.page)
    }

    /// Returns a page of the ids of workspaces with a card that anyone may read, and whether there are more.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn list_public(
        &self,
        wish: &CandidateQuery<'_>,
    ) -> Result<(Vec<WorkspaceId>, bool), Rejection> {
        let among = CandidateScope::Public(self.config.get().card.access);
        let look_ahead = CandidateQuery {
            limit: wish.limit + 1,
            ..*wish
        };
        let mut builder = PageBuilder {
            room: wish.limit,
            ..PageBuilder::default()
        };
        for candidate in self.workspaces.find_candidates(among, &look_ahead).await? {
            if !builder.push(candidate.step.id, Rule::Canvas, candidate.card_bytes) {
                break;
            }
        }
        let ids = builder.page.found.into_iter().map(|(id, _)| id).collect();
        Ok((ids, builder.page.more))
    }

    /// Returns the first id of each `step` workspaces of [`Hierarchy::list_visible`] or, without a proof, of
    /// [`Hierarchy::list_public`].
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`; `store_unavailable`.
    pub async fn find_boundaries(
        &self,
        proof: Option<&Proof>,
        (step, max): (u32, u32),
    ) -> Result<Vec<WorkspaceId>, Rejection> {
        let wish = CandidateQuery {
            search: None,
            status: None,
            after: "",
            limit: max,
        };
        let id = proof.and_then(|proof| proof.principal.workspace());
        let own = match id {
            Some(id) => Some(self.find_present(id).await?),
            None => None,
        };
        let among = match (proof, id, &own) {
            (None, ..) => CandidateScope::Public(self.config.get().card.access),
            (Some(_), Some(id), Some(own)) if !own.cyclic => CandidateScope::Near(NearScope {
                id,
                parent_id: own.parent(),
                org: own.org.as_deref(),
                lines: self.lineage_reach() == LineageReach::Any,
                itself: true,
                now: Timestamp::now(),
            }),
            (Some(proof), None, _) if proof.kind == CredentialKind::Open => {
                CandidateScope::Realm(Realm::default())
            }
            (Some(proof), None, _) => match Realm::from_principal(&proof.principal) {
                Some(realm) => CandidateScope::Realm(realm),
                None => return Ok(Vec::new()),
            },
            _ => return Ok(Vec::new()),
        };
        let found = self.workspaces.find_boundaries(among, &wish, step).await?;
        Ok(found)
    }

    /// Returns the workspaces that `id` may message, without itself and removed ones.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`; `store_unavailable`.
    pub async fn list_peers(
        &self,
        id: &WorkspaceId,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        self.list_near(id, false, wish).await
    }

    async fn find_present(&self, id: &WorkspaceId) -> Result<Arc<Lineage>, Rejection> {
        let place = self.load_lineage(id).await?.ok_or_else(not_found)?;
        if place.removed {
            return Err(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace was removed, and reaches no other",
            ));
        }
        Ok(place)
    }

    async fn list_near(
        &self,
        id: &WorkspaceId,
        itself: bool,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        let own = self.find_present(id).await?;
        let mut builder = PageBuilder {
            room: wish.limit,
            ..PageBuilder::default()
        };
        if own.cyclic {
            return Ok(builder.page);
        }
        let near = NearScope {
            id,
            parent_id: own.parent(),
            org: own.org.as_deref(),
            lines: self.lineage_reach() == LineageReach::Any,
            itself,
            now: Timestamp::now(),
        };
        let mut after = wish.after.to_owned();
        // The rule denies only candidates that moved just now, so one round is usually enough.
        loop {
            let look_ahead = CandidateQuery {
                after: &after,
                limit: wish.limit + 1,
                ..*wish
            };
            let among = CandidateScope::Near(near);
            let candidates = self.workspaces.find_candidates(among, &look_ahead).await?;
            let all = u32::try_from(candidates.len()).unwrap_or(u32::MAX) < look_ahead.limit;
            let last = candidates.last().map(|one| one.step.id.to_string());
            for candidate in candidates {
                let Some(rule) = self.find_rule_near(&own, &candidate.step).await? else {
                    continue;
                };
                if !builder.push(candidate.step.id, rule, candidate.card_bytes) {
                    return Ok(builder.page);
                }
            }
            match last {
                Some(last) if !all => after = last,
                _ => return Ok(builder.page),
            }
        }
    }

    async fn find_rule_near(&self, own: &Lineage, step: &Step) -> Result<Option<Rule>, Rejection> {
        let place = match derive_lineage(own, step) {
            Some(place) => Some(Arc::new(place)),
            None => self.load_lineage(&step.id).await?,
        };
        match place {
            Some(place) => Ok(self.find_rule(own, &place).await?.ok()),
            None => Ok(None),
        }
    }

    /// Returns the reason why a workspace at `place` is outside of a realm; `None`: it is inside. From memory in steady
    /// state. A workspace is in a subtree as the hierarchy is now.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub(super) async fn find_realm_denial(
        &self,
        realm: &Realm<'_>,
        place: &Lineage,
    ) -> Result<Option<RealmDenial>, Unavailable> {
        // Looked up in each case, so that an answer takes as long inside as outside.
        let stands = self.has_valid_root(realm).await?;
        let denial = realm.denial_for(place);
        Ok(denial.or_else(|| (!stands).then_some(RealmDenial::Root)))
    }

    async fn has_valid_root(&self, realm: &Realm<'_>) -> Result<bool, Unavailable> {
        let root = match realm.within {
            Some(root) => self.load_lineage(&root.id).await?,
            None => None,
        };
        Ok(realm.has_valid_root(root.as_deref()))
    }

    /// True if `principal` may reach a workspace at `place`, removed or not: by its realm, or, of a workspace, by the
    /// rule for messages.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn may_reach(
        &self,
        principal: &Principal,
        place: &Lineage,
    ) -> Result<bool, Unavailable> {
        match (principal.workspace(), Realm::from_principal(principal)) {
            (Some(id), _) => match self.load_lineage(id).await? {
                Some(caller) => Ok(self.find_rule(&caller, place).await?.is_ok()),
                None => Ok(false),
            },
            (None, Some(realm)) => Ok(self.find_realm_denial(&realm, place).await?.is_none()),
            (None, None) => Ok(false),
        }
    }

    /// As [`Hierarchy::may_reach`], of a workspace by its id. `false` also if there never was one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn may_reach_id(
        &self,
        principal: &Principal,
        id: &WorkspaceId,
    ) -> Result<bool, Unavailable> {
        match self.load_lineage(id).await? {
            Some(place) => self.may_reach(principal, &place).await,
            None => Ok(false),
        }
    }

    /// True if `principal` is no workspace, and its realm has all of `org`. Asks no store.
    pub fn may_reach_org(&self, principal: &Principal, org: &str) -> bool {
        Realm::from_principal(principal).is_some_and(|realm| realm.covers_org(org))
    }

    /// Checks that the root of the subtree of `principal` stands: without it the subtree has nothing. Passes principals
    /// that are confined to no subtree.
    ///
    /// # Errors
    /// `not_permitted`; `store_unavailable`.
    pub async fn require_root(&self, principal: &Principal) -> Result<(), Rejection> {
        let Some(realm) = Realm::from_principal(principal) else {
            return Ok(());
        };
        if self.has_valid_root(&realm).await? {
            return Ok(());
        }
        let message = "the root of the subtree of this token is in another org, or was removed: the token reaches nothing \
            until an operator moves the root back (PATCH /workspaces/{id})";
        Err(Rejection::new(Reason::NotPermitted, message).with_cause(RealmDenial::Root))
    }
}

/// Builder of a page, up to its limits.
#[derive(Default)]
struct PageBuilder {
    page: ReachablePage,
    room: u32,
    card_bytes: u64,
}

impl PageBuilder {
    /// Adds a workspace. False when it does not fit: then there are more.
    fn push(&mut self, id: WorkspaceId, rule: Rule, card_bytes: u64) -> bool {
        let card_bytes = self.card_bytes.saturating_add(card_bytes);
        let heavy = card_bytes > PAGE_CARD_BYTES_MAX && !self.page.found.is_empty();
        if self.room == 0 || heavy {
            self.page.more = true;
            return false;
        }
        self.room -= 1;
        self.card_bytes = card_bytes;
        self.page.found.push((id, rule));
        true
    }
}

/// Derives the lineage of a root, or of a child of `own` or of one of its ancestors, without reading it: most
/// candidates are of these.
fn derive_lineage(own: &Lineage, step: &Step) -> Option<Lineage> {
    let ancestors: Vec<_> = match &step.parent_id {
        None => Vec::new(),
        Some(parent) if *parent == own.id => {
            let own_id = std::iter::once(&own.id);
            own_id.chain(&own.ancestors).cloned().collect()
        }
        Some(parent) => {
            let at = own.ancestors.iter().position(|above| above == parent)?;
            own.ancestors.get(at..)?.to_vec()
        }
    };
    Some(Lineage {
        cyclic: ancestors.contains(&step.id) || ancestors.len() >= LINE_MAX,
        id: step.id.clone(),
        org: step.org.clone(),
        ancestors,
        removed: step.removed,
        paused: step.paused,
        generation: 0,
        born_at: 0,
    })
}

/// Returns the reason for a denial, in terms that an operator can act on.
pub(super) fn explain_denial(caller: &Lineage, target: &Lineage, denied: super::Denial) -> String {
    use super::Denial::{Cyclic, FurtherUp, OtherOrg, Removed, Unrelated};
    let (one, other) = (&caller.id, &target.id);
    let culprit = |is: fn(&Lineage) -> bool| if is(caller) { one } else { other };
    match denied {
        Removed => format!(
            "`{}` was removed, and is in no relation",
            culprit(|place| place.removed)
        ),
        Cyclic => format!(
            "the line above `{}` leads back into itself, or is longer than {LINE_MAX}: move it to a parent that is not below it",
            culprit(|place| place.cyclic)
        ),
        OtherOrg => format!(
            "`{one}` and `{other}` belong to different orgs, and `{one}` has no grant for `{other}` that holds: POST /grants makes one"
        ),
        FurtherUp => format!(
            "`{one}` and `{other}` are in one line, more than one step apart, which counts only with access.lineage = \"any\" (it is \"direct\"), and `{one}` has no grant for `{other}` that holds: set access.lineage, move one of them, or make a grant with POST /grants"
        ),
        Unrelated => format!(
            "`{one}` is not parent, child or sibling of `{other}`, nor in its line, and has no grant for it that holds: move one of them, or make a grant with POST /grants"
        ),
    }
}

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

impl<'p> Realm<'p> {
    /// Returns the realm of a principal; `None`: it is a workspace, and its relations decide.
    pub(super) fn from_principal(principal: &'p Principal) -> Option<Self> {
        Some(match principal {
            Principal::Workspace { .. } => return None,
            Principal::Operator => Self::default(),
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

    /// Returns the reason why a workspace at `place` is outside; `None`: it is inside, if the root of the subtree
    /// stands.
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

    /// True if the root of the subtree stands at `place`: it is the life that the realm is of, was not removed, and is
    /// in its org.
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

/// Rejection of an id that no workspace has.
pub fn not_found() -> Rejection {
    Rejection::new(
        Reason::WorkspaceNotFound,
        "there is no workspace of this id: create it with POST /workspaces",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hierarchy::lineage_of;

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    #[test]
    fn the_place_of_those_near_follows_from_ones_own() {
        let own = lineage_of("own", None, &["lead", "root"]);
        for (name, parent, above) in [
            ("child", Some("own"), Some(&["own", "lead", "root"][..])),
            ("sibling", Some("lead"), Some(&["lead", "root"])),
            ("lead", Some("root"), Some(&["root"])),
            ("root", None, Some(&[])),
            ("nephew", Some("sibling"), None),
        ] {
            let step = Step {
                id: id(name),
                parent_id: parent.map(id),
                org: None,
                removed: false,
                paused: false,
                generation: 0,
                born_at: 0,
            };
            let expected = above.map(|above| lineage_of(name, None, above));
            assert_eq!(derive_lineage(&own, &step), expected, "{name}");
        }
    }

    #[test]
    fn a_page_ends_with_its_limit_or_with_cards_that_are_too_long() {
        let mut builder = PageBuilder {
            room: 2,
            ..PageBuilder::default()
        };
        assert!(builder.push(id("a"), Rule::Parent, PAGE_CARD_BYTES_MAX + 1));
        assert!(!builder.page.more);
        assert!(!builder.push(id("b"), Rule::Parent, 1));
        assert!(builder.page.more);
        let mut builder = PageBuilder {
            room: 2,
            ..PageBuilder::default()
        };
        assert!(builder.push(id("a"), Rule::Parent, 1) && builder.push(id("b"), Rule::Parent, 1));
        assert!(!builder.push(id("c"), Rule::Parent, 1));
        assert_eq!((builder.page.found.len(), builder.page.more), (2, true));
    }
}

#[cfg(test)]
mod realm_tests {
    use super::*;
    use crate::hierarchy::lineage_of;
    use kernel::ids::WorkspaceIncarnation;

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
