//! Pages of the workspaces that a caller may reach. The table supplies candidates; the rule decides on each.

use super::realm::{Realm, RealmDenial};
use super::{Hierarchy, Lineage, Rule};
use crate::config::LineageReach;
use crate::identity::{CredentialKind, Principal, Proof};
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{CandidateQuery, CandidateScope, LINE_MAX, NearScope, Step, Subtree};

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
        // Development on loopback: any client is the canvas of every org.
        let open = proof.kind == CredentialKind::Open;
        match &proof.principal {
            Principal::Canvas { .. } if open => {
                self.list_all(CandidateScope::Everyone, Rule::Canvas, wish)
                    .await
            }
            Principal::Operator => {
                self.list_all(CandidateScope::Everyone, Rule::Operator, wish)
                    .await
            }
            Principal::Org { org, within } => {
                let among = candidates_of(Some(org), within.as_ref());
                self.list_all(among, Rule::Org, wish).await
            }
            Principal::Canvas {
                workspaces: Some(list),
                ..
            } => self.list_named(list, &proof.principal, wish).await,
            Principal::Canvas { org, within, .. } => {
                let among = candidates_of(org.as_deref(), within.as_ref());
                self.list_all(among, Rule::Canvas, wish).await
            }
            Principal::Workspace { id } => self.list_near(id, true, wish).await,
        }
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

    async fn list_all(
        &self,
        among: CandidateScope<'_>,
        rule: Rule,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        let mut builder = PageBuilder::new(wish.limit);
        let look_ahead = CandidateQuery {
            limit: wish.limit + 1,
            ..*wish
        };
        for candidate in self.workspaces.find_candidates(among, &look_ahead).await? {
            if !builder.push(candidate.step.id, rule, candidate.card_bytes) {
                break;
            }
        }
        Ok(builder.page)
    }

    /// Returns the workspaces of a list that are in the realm of `principal`.
    async fn list_named(
        &self,
        list: &[WorkspaceId],
        principal: &Principal,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        if Realm::from_principal(principal).is_some_and(|realm| realm.is_list_only()) {
            return self
                .list_all(CandidateScope::Listed(list), Rule::Canvas, wish)
                .await;
        }
        let mut within = Vec::with_capacity(list.len());
        for id in list {
            if self.may_reach_id(principal, id).await? {
                within.push(id.clone());
            }
        }
        if within.is_empty() {
            return Ok(ReachablePage::default());
        }
        self.list_all(CandidateScope::Listed(&within), Rule::Canvas, wish)
            .await
    }

    async fn list_near(
        &self,
        id: &WorkspaceId,
        itself: bool,
        wish: &CandidateQuery<'_>,
    ) -> Result<ReachablePage, Rejection> {
        let own = self.find_present(id).await?;
        let mut builder = PageBuilder::new(wish.limit);
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
        if let Some(place) = derive_lineage(own, step) {
            return Ok(self.find_rule(own, &place).await?.ok());
        }
        match self.find(&step.id).await? {
            Some(place) => Ok(self.find_rule(own, &place).await?.ok()),
            None => Ok(None),
        }
    }
}

impl Hierarchy {
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
        let root = match realm.within {
            Some(root) => self.load_lineage(&root.id).await?,
            None => None,
        };
        Ok(realm.denial_for(place).or_else(|| {
            let stands = realm.has_valid_root(root.as_deref());
            (!stands).then_some(RealmDenial::Root)
        }))
    }

    /// True if `principal` may reach a workspace at `place`, removed or not: by its realm, or, of a workspace, by the rule
    /// for messages.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn may_reach(
        &self,
        principal: &Principal,
        place: &Lineage,
    ) -> Result<bool, Unavailable> {
        match (principal.workspace(), Realm::from_principal(principal)) {
            (Some(id), _) => self.may_message(id, place).await,
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
}

impl Hierarchy {
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
        let root = match realm.within {
            Some(root) => self.load_lineage(&root.id).await?,
            None => None,
        };
        if realm.has_valid_root(root.as_deref()) {
            return Ok(());
        }
        let message = "the root of the subtree of this token is in another org, or was removed: the token reaches nothing \
            until an operator moves the root back (PATCH /workspaces/{id})";
        Err(Rejection::new(Reason::NotPermitted, message).with_cause(RealmDenial::Root))
    }
}

/// Returns the workspaces of an org, or of the subtree of `root` in it.
fn candidates_of<'a>(
    org: Option<&'a str>,
    root: Option<&'a WorkspaceIncarnation>,
) -> CandidateScope<'a> {
    match root {
        None => CandidateScope::Org(org),
        Some(root) => CandidateScope::Subtree(Subtree { org, root }),
    }
}

/// Builder of a page, up to its limits.
struct PageBuilder {
    page: ReachablePage,
    room: u32,
    card_bytes: u64,
}

impl PageBuilder {
    fn new(limit: u32) -> Self {
        Self {
            page: ReachablePage::default(),
            room: limit,
            card_bytes: 0,
        }
    }

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

/// Returns the message for a workspace that does not exist.
pub(super) fn unknown_workspace(id: &WorkspaceId) -> String {
    format!("there is no workspace `{id}`: create it with POST /workspaces")
}

impl Hierarchy {
    async fn find_present(&self, id: &WorkspaceId) -> Result<std::sync::Arc<Lineage>, Rejection> {
        let place = self.find(id).await?.ok_or_else(super::permit::not_found)?;
        if place.removed {
            return Err(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace was removed, and reaches no other",
            ));
        }
        Ok(place)
    }
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
        let mut builder = PageBuilder::new(2);
        assert!(builder.push(id("a"), Rule::Parent, PAGE_CARD_BYTES_MAX + 1));
        assert!(!builder.page.more);
        assert!(!builder.push(id("b"), Rule::Parent, 1));
        assert!(builder.page.more);
        let mut builder = PageBuilder::new(2);
        assert!(builder.push(id("a"), Rule::Parent, 1) && builder.push(id("b"), Rule::Parent, 1));
        assert!(!builder.push(id("c"), Rule::Parent, 1));
        assert_eq!((builder.page.found.len(), builder.page.more), (2, true));
    }
}
