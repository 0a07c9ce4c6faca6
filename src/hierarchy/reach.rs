//! Pages of the workspaces that a caller may reach. The table supplies candidates; the rule decides on each.

use super::realm::{Nowhere, Realm};
use super::{Hierarchy, Lineage, Rule};
use crate::config::LineageReach;
use crate::identity::{CredentialKind, Principal, Proof};
use crate::ids::{Life, WorkspaceId};
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;
use crate::time::Timestamp;
use crate::workspace::{Among, LINE_MAX, Near, Step, Subtree, Wish};

/// Bytes of agent cards in one page: the page ends before the card that would exceed it, but has at least one
/// workspace. Cards are a few KiB, and at most 256.
const PAGE_CARD_BYTES_MAX: u64 = 512 << 10;

/// A page of workspaces, in order of id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
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
    pub async fn visible(&self, proof: &Proof, wish: &Wish<'_>) -> Result<Reached, Rejection> {
        // Development on loopback: any client is the canvas of every org.
        let open = proof.kind == CredentialKind::Open;
        match &proof.principal {
            Principal::Canvas { .. } if open => self.all(Among::Everyone, Rule::Canvas, wish).await,
            Principal::Operator => self.all(Among::Everyone, Rule::Operator, wish).await,
            Principal::Org { org, within } => {
                let among = among(Some(org), within.as_ref());
                self.all(among, Rule::Org, wish).await
            }
            Principal::Canvas {
                workspaces: Some(list),
                ..
            } => self.listed(list, &proof.principal, wish).await,
            Principal::Canvas { org, within, .. } => {
                let among = among(org.as_deref(), within.as_ref());
                self.all(among, Rule::Canvas, wish).await
            }
            Principal::Workspace { id } => self.near(id, true, wish).await,
        }
    }

    /// Returns the workspaces that `id` may message, without itself and removed ones.
    ///
    /// # Errors
    /// `workspace_not_found`, `workspace_removed`; `store_unavailable`.
    pub async fn peers(&self, id: &WorkspaceId, wish: &Wish<'_>) -> Result<Reached, Rejection> {
        self.near(id, false, wish).await
    }

    async fn all(
        &self,
        among: Among<'_>,
        rule: Rule,
        wish: &Wish<'_>,
    ) -> Result<Reached, Rejection> {
        let mut page = Filling::new(wish.limit);
        let look_ahead = Wish {
            limit: wish.limit + 1,
            ..*wish
        };
        for candidate in self.workspaces.candidates(among, &look_ahead).await? {
            if !page.take(candidate.step.id, rule, candidate.card_bytes) {
                break;
            }
        }
        Ok(page.reached)
    }

    /// Returns the workspaces of a list that are in the realm of `principal`.
    async fn listed(
        &self,
        list: &[WorkspaceId],
        principal: &Principal,
        wish: &Wish<'_>,
    ) -> Result<Reached, Rejection> {
        if Realm::of(principal).is_some_and(|realm| realm.is_list_only()) {
            return self.all(Among::Listed(list), Rule::Canvas, wish).await;
        }
        let mut within = Vec::with_capacity(list.len());
        for id in list {
            if self.looks_after_id(principal, id).await? {
                within.push(id.clone());
            }
        }
        if within.is_empty() {
            return Ok(Reached::default());
        }
        self.all(Among::Listed(&within), Rule::Canvas, wish).await
    }

    async fn near(
        &self,
        id: &WorkspaceId,
        itself: bool,
        wish: &Wish<'_>,
    ) -> Result<Reached, Rejection> {
        let own = self.find_present(id).await?;
        let mut page = Filling::new(wish.limit);
        if own.cyclic {
            return Ok(page.reached);
        }
        let near = Near {
            id,
            parent_id: own.parent(),
            org: own.org.as_deref(),
            lines: self.reach() == LineageReach::Any,
            itself,
            now: Timestamp::now(),
        };
        let mut after = wish.after.to_owned();
        // The rule denies only candidates that moved just now, so one round is usually enough.
        loop {
            let look_ahead = Wish {
                after: &after,
                limit: wish.limit + 1,
                ..*wish
            };
            let among = Among::Near(near);
            let candidates = self.workspaces.candidates(among, &look_ahead).await?;
            let all = u32::try_from(candidates.len()).unwrap_or(u32::MAX) < look_ahead.limit;
            let last = candidates.last().map(|one| one.step.id.to_string());
            for candidate in candidates {
                let Some(rule) = self.rule_near(&own, &candidate.step).await? else {
                    continue;
                };
                if !page.take(candidate.step.id, rule, candidate.card_bytes) {
                    return Ok(page.reached);
                }
            }
            match last {
                Some(last) if !all => after = last,
                _ => return Ok(page.reached),
            }
        }
    }

    async fn rule_near(&self, own: &Lineage, step: &Step) -> Result<Option<Rule>, Rejection> {
        if let Some(place) = place_near(own, step) {
            return Ok(self.rule(own, &place).await?.ok());
        }
        match self.find(&step.id).await? {
            Some(place) => Ok(self.rule(own, &place).await?.ok()),
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
    pub(super) async fn outside(
        &self,
        realm: &Realm<'_>,
        place: &Lineage,
    ) -> Result<Option<Nowhere>, Unavailable> {
        // Looked up in each case, so that an answer takes as long inside as outside.
        let root = match realm.within {
            Some(root) => self.place(&root.id).await?,
            None => None,
        };
        Ok(realm.outside(place).or_else(|| {
            let stands = realm.stands(root.as_deref());
            (!stands).then_some(Nowhere::Root)
        }))
    }

    /// True if `principal` may reach a workspace at `place`, removed or not: by its realm, or, of a workspace, by the rule
    /// for messages.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn looks_after(
        &self,
        principal: &Principal,
        place: &Lineage,
    ) -> Result<bool, Unavailable> {
        match (principal.workspace(), Realm::of(principal)) {
            (Some(id), _) => self.reaches(id, place).await,
            (None, Some(realm)) => Ok(self.outside(&realm, place).await?.is_none()),
            (None, None) => Ok(false),
        }
    }

    /// As [`Hierarchy::looks_after`], of a workspace by its id. `false` also if there never was one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn looks_after_id(
        &self,
        principal: &Principal,
        id: &WorkspaceId,
    ) -> Result<bool, Unavailable> {
        match self.place(id).await? {
            Some(place) => self.looks_after(principal, &place).await,
            None => Ok(false),
        }
    }
}

impl Hierarchy {
    /// True if `principal` is no workspace, and its realm has all of `org`. Asks no store.
    pub fn looks_after_org(&self, principal: &Principal, org: &str) -> bool {
        Realm::of(principal).is_some_and(|realm| realm.has_org(org))
    }

    /// Checks that the root of the subtree of `principal` stands: without it the subtree has nothing. Passes principals
    /// that are confined to no subtree.
    ///
    /// # Errors
    /// `not_permitted`; `store_unavailable`.
    pub async fn require_root(&self, principal: &Principal) -> Result<(), Rejection> {
        let Some(realm) = Realm::of(principal) else {
            return Ok(());
        };
        let root = match realm.within {
            Some(root) => self.place(&root.id).await?,
            None => None,
        };
        if realm.stands(root.as_deref()) {
            return Ok(());
        }
        let message = "the root of the subtree of this token is in another org, or was removed: the token reaches nothing \
            until an operator moves the root back (PATCH /workspaces/{id})";
        Err(Rejection::new(Reason::NotPermitted, message).cause(Nowhere::Root))
    }
}

/// Returns the workspaces of an org, or of the subtree of `root` in it.
fn among<'a>(org: Option<&'a str>, root: Option<&'a Life>) -> Among<'a> {
    match root {
        None => Among::Org(org),
        Some(root) => Among::Subtree(Subtree { org, root }),
    }
}

/// A page that is being filled.
struct Filling {
    reached: Reached,
    room: u32,
    card_bytes: u64,
}

impl Filling {
    fn new(limit: u32) -> Self {
        Self {
            reached: Reached::default(),
            room: limit,
            card_bytes: 0,
        }
    }

    /// Adds a workspace. False when it does not fit: then there are more.
    fn take(&mut self, id: WorkspaceId, rule: Rule, card_bytes: u64) -> bool {
        let card_bytes = self.card_bytes.saturating_add(card_bytes);
        let heavy = card_bytes > PAGE_CARD_BYTES_MAX && !self.reached.found.is_empty();
        if self.room == 0 || heavy {
            self.reached.more = true;
            return false;
        }
        self.room -= 1;
        self.card_bytes = card_bytes;
        self.reached.found.push((id, rule));
        true
    }
}

/// Derives the lineage of a root, or of a child of `own` or of one of its ancestors, without reading it: most
/// candidates are of these.
fn place_near(own: &Lineage, step: &Step) -> Option<Lineage> {
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
pub(super) fn why_not(caller: &Lineage, target: &Lineage, denied: super::Denied) -> String {
    use super::Denied::{Cyclic, FurtherUp, OtherOrg, Removed, Unrelated};
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
pub(super) fn unknown(id: &WorkspaceId) -> String {
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

    fn id(text: &str) -> WorkspaceId {
        WorkspaceId::parse(text).unwrap()
    }

    fn place(name: &str, above: &[&str]) -> Lineage {
        Lineage {
            id: id(name),
            org: None,
            ancestors: above.iter().map(|name| id(name)).collect(),
            removed: false,
            paused: false,
            cyclic: false,
            generation: 0,
            born_at: 0,
        }
    }

    #[test]
    fn the_place_of_those_near_follows_from_ones_own() {
        let own = place("own", &["lead", "root"]);
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
            let expected = above.map(|above| place(name, above));
            assert_eq!(place_near(&own, &step), expected, "{name}");
        }
    }

    #[test]
    fn a_page_ends_with_its_limit_or_with_cards_that_are_too_long() {
        let mut page = Filling::new(2);
        assert!(page.take(id("a"), Rule::Parent, PAGE_CARD_BYTES_MAX + 1));
        assert!(!page.reached.more);
        assert!(!page.take(id("b"), Rule::Parent, 1));
        assert!(page.reached.more);
        let mut page = Filling::new(2);
        assert!(page.take(id("a"), Rule::Parent, 1) && page.take(id("b"), Rule::Parent, 1));
        assert!(!page.take(id("c"), Rule::Parent, 1));
        assert_eq!((page.reached.found.len(), page.reached.more), (2, true));
    }
}
