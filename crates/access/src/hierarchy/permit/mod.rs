//! Decides from a proof and a target: a [`Permit`], or the rejection that the caller may see.
//!
//! A workspace or an org token learns nothing of a target that it may not reach: unknown, removed, foreign and
//! unrelated targets get the same answer, so that ids cannot be probed (`docs/reference/credentials.md`,
//! "CanCommunicate").

use std::sync::Arc;

use super::grant::Grants;
use super::lineage::{LineageLookup, Lineages};
use super::reach::{RealmDenial, explain_denial, not_found};
use super::{Denial, Lineage, Rule, decide};
use crate::explain::{Source, Witness};
use crate::identity::{CredentialKind, Principal, Proof};
use crate::workspace::{Realm, Workspaces};
use kernel::config::{LineageReach, Live};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::metrics::Metrics;
use kernel::rejection::{Reason, Rejection};
use kernel::stage::Stage;
use stores::coherence::Coherence;
use stores::db::Db;
use stores::store::Unavailable;
use trust::Pair;

/// Proof that the caller may reach the target. Issued by [`Hierarchy`] only.
#[derive(Clone, Debug)]
pub struct Permit {
    target: WorkspaceId,
    caller: Option<WorkspaceId>,
    rule: Rule,
    /// Org of the caller.
    org: Option<String>,
    /// Generation of the target, and of the caller if it is another workspace.
    generation: i64,
    /// Place of the caller, if it is a workspace, and of the target.
    places: [Option<Arc<Lineage>>; 2],
}

impl Permit {
    /// Returns the target.
    pub fn target(&self) -> &WorkspaceId {
        &self.target
    }

    /// Returns the life of the target that it is for.
    pub fn life(&self) -> WorkspaceIncarnation {
        WorkspaceIncarnation {
            id: self.target.clone(),
            born_at: self.target_lineage().map_or(0, |place| place.born_at),
        }
    }

    /// Returns the calling workspace; `None` for another principal (canvas, integration, operator).
    pub fn caller(&self) -> Option<&WorkspaceId> {
        self.caller.as_ref()
    }

    /// Returns the rule that permitted it.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns the caller's org.
    pub fn org(&self) -> Option<&str> {
        self.org.as_deref()
    }

    /// Returns the place of the calling workspace.
    pub fn caller_lineage(&self) -> Option<&Lineage> {
        self.places[0].as_deref()
    }

    /// Returns the place of the target.
    pub fn target_lineage(&self) -> Option<&Lineage> {
        self.places[1].as_deref()
    }

    /// Returns the pair for a token. `caller` is the caller of the record.
    pub fn pair<'a>(&'a self, caller: &'a str) -> Pair<'a> {
        Pair {
            caller,
            target: self.target.as_str(),
            rule: self.rule.as_str(),
            org: self.org.as_deref(),
            generation: self.generation,
            chain_hash: None,
        }
    }

    /// For tests of modules that require one.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_test(caller: Option<WorkspaceId>, target: WorkspaceId) -> Self {
        Self {
            target,
            caller,
            rule: Rule::Operator,
            org: None,
            generation: 0,
            places: [None, None],
        }
    }
}

/// Hierarchy of workspaces: lineages and grants, and the rule over them.
pub struct Hierarchy {
    lineages: Lineages,
    pub(super) grants: Grants,
    pub(super) config: Live,
    pub(super) workspaces: Workspaces,
}

impl Hierarchy {
    /// Creates it; does not touch the stores. Caches at most `directory.cache_entries` pairs, and twice as many
    /// lineages: a call depends on two, of its caller and of its target.
    pub fn new(
        workspaces: Workspaces,
        db: Db,
        coherence: &Arc<Coherence>,
        metrics: Arc<Metrics>,
        config: Live,
    ) -> Self {
        let entries_max = config.get().directory.cache_entries;
        let lineages_max = entries_max.saturating_mul(2);
        Self {
            grants: Grants::new(db, coherence, Arc::clone(&metrics), entries_max),
            lineages: Lineages::new(workspaces.clone(), coherence, metrics, lineages_max),
            workspaces,
            config,
        }
    }

    /// Returns a permit if the principal of `proof` may reach `target`.
    ///
    /// # Errors
    /// `not_permitted`; `workspace_not_found` and `workspace_removed` for callers that may know;
    /// `store_unavailable`.
    pub async fn permit(&self, proof: &Proof, target: &WorkspaceId) -> Result<Permit, Rejection> {
        self.permit_with_witness(proof, target, &mut ()).await
    }

    /// As [`Hierarchy::permit`], and reports the facts to `witness`.
    ///
    /// # Errors
    /// As [`Hierarchy::permit`].
    pub async fn permit_with_witness(
        &self,
        proof: &Proof,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<Permit, Rejection> {
        if proof.kind == CredentialKind::Enrolment {
            return Err(Rejection::new(
                Reason::NotPermitted,
                "an enrolment token is good for one POST /registry/register, which returns the \
                 workspace's own token",
            ));
        }
        if proof.only_to.as_ref().is_some_and(|only| only != target) {
            return Err(Rejection::new(
                Reason::NotPermitted,
                "the pair token is for another target; GET /registry/discover/{id} gives one for this",
            ));
        }
        if proof.kind == CredentialKind::Open {
            // Development on loopback: each caller is the canvas of every org.
            return self
                .permit_principal(&Principal::Operator, target, witness)
                .await
                .map(|permit| Permit {
                    rule: Rule::Canvas,
                    ..permit
                });
        }
        let permit = self.permit_principal(&proof.principal, target, witness);
        let permit = permit.await?;
        require_life(proof, &permit)?;
        Ok(permit)
    }

    /// Returns a permit if `principal` may reach `target`, for a link of a chain. No credential proves it.
    ///
    /// # Errors
    /// As [`Hierarchy::permit`].
    pub async fn permit_link(
        &self,
        principal: &Principal,
        target: &WorkspaceId,
    ) -> Result<Permit, Rejection> {
        self.permit_principal(principal, target, &mut ()).await
    }

    async fn permit_principal(
        &self,
        principal: &Principal,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<Permit, Rejection> {
        let (rule, org, places) = match principal {
            Principal::Workspace { id } => {
                let (rule, from, to) = self.find_rule_and_places(id, target, witness).await?;
                (rule, from.org.clone(), [Some(from), Some(to)])
            }
            Principal::Canvas { org, .. } => {
                let found = self.find_in_realm(principal, target, witness).await?;
                (Rule::Canvas, org.clone(), [None, Some(found)])
            }
            Principal::Org { org, .. } => {
                let found = self.find_in_realm(principal, target, witness).await?;
                (Rule::Org, Some(org.clone()), [None, Some(found)])
            }
            Principal::Operator => {
                let found = self.find_target(target, witness).await?;
                let found = found.lineage.ok_or_else(not_found)?;
                require_present(&found)?;
                (Rule::Operator, None, [None, Some(found)])
            }
        };
        let generations = places.iter().flatten().map(|place| place.generation);
        let generation = generations.max().unwrap_or_default();
        Ok(Permit {
            target: target.clone(),
            caller: principal.workspace().cloned(),
            rule,
            org,
            generation,
            places,
        })
    }

    async fn find_target(
        &self,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<LineageLookup, Rejection> {
        let found = self.lineages.find(target).await?;
        witness.record(|| found.to_fact(Stage::TargetPlace, target));
        Ok(found)
    }

    /// Takes the time of one look-up in the store before the rejection of a target that was found in memory by earlier
    /// calls or its creation, for callers that may not learn if it exists: otherwise the latency would distinguish it
    /// from an unknown one.
    async fn spend_equal_time(&self, target: &WorkspaceId, source: Source) {
        if source == Source::Memory {
            // The result, or an outage of the store, does not change the decision.
            let _ = Box::pin(self.reload_lineage(target)).await;
        }
    }

    /// CanCommunicate (`docs/reference/credentials.md`): returns the relation of `caller` to `target`, by their
    /// places, else by a grant.
    ///
    /// # Errors
    /// When the store cannot be asked. The inner result is the decision of the rule.
    pub async fn find_rule(
        &self,
        caller: &Lineage,
        target: &Lineage,
    ) -> Result<Result<Rule, Denial>, Unavailable> {
        self.find_rule_with_witness(caller, target, &mut ()).await
    }

    async fn find_rule_with_witness(
        &self,
        caller: &Lineage,
        target: &Lineage,
        witness: &mut impl Witness,
    ) -> Result<Result<Rule, Denial>, Unavailable> {
        match decide(caller, target, self.lineage_reach()) {
            Err(why) if why.may_be_granted() => {
                let granted = self
                    .grants
                    .has_grant(&caller.id, &target.id, witness)
                    .await?;
                Ok(granted.then_some(Rule::Grant).ok_or(why))
            }
            decided => Ok(decided),
        }
    }

    /// Returns the relation of `caller` to `target`, for `POST /registry/check-access`.
    ///
    /// # Errors
    /// `store_unavailable`. The inner result is the decision of the rule, with a reason for operators; no other
    /// caller may see it.
    pub async fn check_access(
        &self,
        caller: &WorkspaceId,
        target: &WorkspaceId,
    ) -> Result<Result<Rule, String>, Rejection> {
        let (one, other) =
            tokio::try_join!(self.lineages.find(caller), self.lineages.find(target))?;
        let said = match (&one.lineage, &other.lineage) {
            (Some(from), Some(to)) => {
                let said = self.find_rule(from, to).await?;
                said.map_err(|why| explain_denial(from, to, why))
            }
            (from, _) => {
                // The same look-up as for two that exist.
                self.grants.has_grant(caller, target, &mut ()).await?;
                let unknown = if from.is_none() { caller } else { target };
                Err(format!(
                    "there is no workspace `{unknown}`: create it with POST /workspaces"
                ))
            }
        };
        if said.is_err() {
            // One of the two may belong to another org.
            for (id, found) in [(caller, one), (target, other)] {
                self.spend_equal_time(id, found.source).await;
            }
        }
        Ok(said)
    }

    /// True if `upper` is the parent of `lower` or, with `access.lineage = "any"`, one of its ancestors. An earlier
    /// life of an id is below no workspace.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub async fn is_above(
        &self,
        upper: &WorkspaceId,
        lower: &WorkspaceIncarnation,
    ) -> Result<bool, Rejection> {
        let born_at = lower.born_at;
        let (upper, lower) =
            tokio::try_join!(self.load_lineage(upper), self.load_lineage(&lower.id))?;
        let (Some(upper), Some(lower)) = (upper, lower) else {
            return Ok(false);
        };
        if lower.born_at != born_at {
            return Ok(false);
        }
        let rule = decide(&upper, &lower, self.lineage_reach());
        Ok(matches!(rule, Ok(Rule::Parent | Rule::Ancestor)))
    }

    /// Returns the rule, and the places of both.
    async fn find_rule_and_places(
        &self,
        caller: &WorkspaceId,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<(Rule, Arc<Lineage>, Arc<Lineage>), Rejection> {
        if caller == target {
            let own = self.find_target(caller, witness).await?;
            let own = own.lineage.ok_or_else(not_found)?;
            require_present(&own)?;
            refuse_paused_caller(&own)?;
            let rule = decide(&own, &own, self.lineage_reach()).map_err(deny)?;
            return Ok((rule, Arc::clone(&own), own));
        }
        // Both are always looked up, so that an unknown target takes the same path as a denied one.
        let (one, other) =
            tokio::try_join!(self.lineages.find(caller), self.lineages.find(target))?;
        witness.record(|| one.to_fact(Stage::CallerPlace, caller));
        witness.record(|| other.to_fact(Stage::TargetPlace, target));
        let Some(from) = one.lineage else {
            return Err(deny(RealmDenial::Caller));
        };
        refuse_paused_caller(&from)?;
        let why = match &other.lineage {
            Some(to) => match self.find_rule_with_witness(&from, to, witness).await? {
                Ok(rule) => return Ok((rule, from, Arc::clone(to))),
                Err(why) => deny(why),
            },
            None => {
                // The same look-up as for one in another place.
                self.grants.has_grant(caller, target, &mut ()).await?;
                deny(RealmDenial::Target)
            }
        };
        self.spend_equal_time(target, other.source).await;
        Err(why)
    }

    /// Returns the place of a target in the realm of `principal`.
    async fn find_in_realm(
        &self,
        principal: &Principal,
        target: &WorkspaceId,
        witness: &mut impl Witness,
    ) -> Result<Arc<Lineage>, Rejection> {
        let realm = Realm::from_principal(principal).ok_or_else(|| deny(RealmDenial::Caller))?;
        if realm.excludes(target) {
            return Err(deny(RealmDenial::List));
        }
        let found = self.find_target(target, witness).await?;
        let why = match found.lineage {
            Some(place) => match self.find_realm_denial(&realm, &place).await? {
                None => {
                    require_present(&place)?;
                    return Ok(place);
                }
                Some(why) => why,
            },
            None => RealmDenial::Target,
        };
        self.spend_equal_time(target, found.source).await;
        Err(deny(why))
    }

    /// Rejects a paused workspace.
    ///
    /// # Errors
    /// `not_permitted`; `store_unavailable`.
    pub async fn require_running(&self, id: &WorkspaceId) -> Result<(), Rejection> {
        match self.load_lineage(id).await? {
            Some(place) => refuse_paused_caller(&place),
            None => Ok(()),
        }
    }

    /// Judges a call of a workspace by `[access.observe]`. Returns whether that would allow it, if it would do
    /// otherwise than `permit` did. The places of both are in memory by then; what cannot be read is not judged.
    pub async fn observe_rule(
        &self,
        proof: &Proof,
        target: &WorkspaceId,
        permit: Result<&Permit, &Rejection>,
    ) -> Option<bool> {
        let reach = self.config.get().access.observe.lineage?;
        let Principal::Workspace { id } = &proof.principal else {
            return None;
        };
        let was_refused = match permit {
            Ok(permit) => {
                let is_by_line = matches!(permit.rule, Rule::Ancestor | Rule::Descendant);
                if reach == LineageReach::Any || !is_by_line {
                    return None;
                }
                false
            }
            Err(refusal) => {
                let is_bound = proof.kind == CredentialKind::Enrolment
                    || proof.only_to.as_ref().is_some_and(|only| only != target);
                if reach == LineageReach::Direct
                    || refusal.reason != Reason::NotPermitted
                    || is_bound
                {
                    return None;
                }
                true
            }
        };
        let from = self.load_lineage(id).await.ok()??;
        let to = self.load_lineage(target).await.ok()??;
        let is_granted = !was_refused && self.grants.has_grant(id, target, &mut ()).await.ok()?;
        let allows = is_granted || (decide(&from, &to, reach).is_ok() && !from.paused);
        (allows == was_refused).then_some(allows)
    }

    /// Returns `access.lineage` in force.
    pub(super) fn lineage_reach(&self) -> LineageReach {
        self.config.get().access.lineage
    }

    /// Returns the place of `id`; `None` if it never existed.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn load_lineage(
        &self,
        id: &WorkspaceId,
    ) -> Result<Option<Arc<Lineage>>, Unavailable> {
        Ok(self.lineages.find(id).await?.lineage)
    }

    /// Reports the place of the workspace `caller` to `witness`, or that there is none; nothing if the store is
    /// away.
    pub async fn report_caller(&self, caller: &WorkspaceId, witness: &mut impl Witness) {
        if let Ok(found) = self.lineages.find(caller).await {
            witness.record(|| found.to_fact(Stage::CallerPlace, caller));
        }
    }

    /// Returns the place of `id` from the store, without the cache.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn reload_lineage(&self, id: &WorkspaceId) -> Result<Option<Lineage>, Unavailable> {
        Ok(Lineage::from_line(self.workspaces.load_line(id).await?))
    }
}

fn require_present(target: &Lineage) -> Result<(), Rejection> {
    match target.removed {
        true => Err(workspace_removed()),
        false => Ok(()),
    }
}

/// Rejects a paused caller: it calls no workspace, itself included. That a paused target is not called is no matter of
/// permission: it is 503 `workspace_offline` for each caller that may reach it (`resolution/destination.rs`).
fn refuse_paused_caller(caller: &Lineage) -> Result<(), Rejection> {
    if caller.paused {
        return Err(Rejection::new(
            Reason::NotPermitted,
            "this workspace is paused: until POST /workspaces/{id}/resume it makes no calls and gets no tokens; \
             heartbeats, its inbox and its registration go on",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

/// Returns the one rejection for all callers that may not know more. The cause is for the log.
fn deny(why: impl std::error::Error + Send + Sync + 'static) -> Rejection {
    Rejection::new(
        Reason::NotPermitted,
        "this credential may not reach that workspace: workspaces reach themselves, their parent, \
         children and siblings, and whom they were granted; POST /registry/check-access tells an \
         operator why not",
    )
    .with_cause(why)
}

/// Rejection of a workspace that was removed.
pub fn workspace_removed() -> Rejection {
    Rejection::new(
        Reason::WorkspaceRemoved,
        "the workspace was removed; an operator gives its id away again with \"recreate\": true (POST /workspaces)",
    )
}

/// Rejects a proof of an earlier life of its workspace, and a pair token for an earlier life of its target.
fn require_life(proof: &Proof, permit: &Permit) -> Result<(), Rejection> {
    if let Some(from) = permit.caller_lineage()
        && from.born_at != proof.born_at
    {
        return Err(deny(RealmDenial::Caller));
    }
    match (proof.pair_generation, permit.target_lineage()) {
        (Some(generation), Some(to)) if generation < to.born_at => Err(Rejection::new(
            Reason::NotPermitted,
            "the pair token is for a workspace of this id that was removed; GET /registry/discover/{id} gives one for \
             the present one",
        )),
        _ => Ok(()),
    }
}
