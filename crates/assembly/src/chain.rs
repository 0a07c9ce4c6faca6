//! Chains of delegation over the hierarchy (`docs/reference/credentials.md`, "Chains"): checks each link, and the root
//! that a target requires, and signs what a target may see.

use std::sync::Arc;

use crate::gateway::Gateway;
use access::hierarchy::{Permit, Rule};
use access::identity::{Chain, ChainCall, Proof, SentChain, chain_revoked};
use kernel::config::{ChainReach, GuardMode, RequiredRoot, RootRule};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};

impl Gateway {
    /// True if [`Gateway::check_chain`] may refuse a call of `proof`.
    pub fn has_chain_rules(&self, proof: &Proof) -> bool {
        proof.chain().is_some() || !self.config().access.require.is_empty()
    }

    /// True if a rule of `access.require` that is only observed would refuse a permitted call.
    pub fn observes_missing_root(&self, proof: &Proof, permit: &Permit) -> bool {
        self.check_root(proof, permit, GuardMode::Observe).is_err()
    }

    /// Checks the chain on which a permitted call is made, and that its root is one that the target requires. Decides
    /// from memory in steady state.
    ///
    /// # Errors
    /// `chain_expired`, `chain_revoked`, `chain_invalid`, `loop_detected`, `root_required`; `not_permitted` where the
    /// root must be permitted, too; `store_unavailable`.
    pub async fn check_chain(&self, proof: &Proof, permit: &Permit) -> Result<(), Rejection> {
        if let Some(chain) = proof.chain() {
            self.identity.check_chain(chain)?;
            self.check_links(chain).await?;
            if self.config().access.chain == ChainReach::Ends && chain.depth() > 0 {
                self.check_ends(chain, permit.target()).await?;
            }
        }
        self.check_root(proof, permit, GuardMode::Enforce)
    }

    /// Checks that each actor may call the next one now.
    async fn check_links(&self, chain: &Chain) -> Result<(), Rejection> {
        let links = chain.links().ok_or_else(|| {
            let message = "the chain names an actor in a form that is not known here";
            Rejection::new(Reason::ChainInvalid, message).with_fact("why", "actor")
        })?;
        for (from, to) in links {
            let permit = self.hierarchy.permit_link(&from, &to).await;
            let stopped = match &permit {
                Ok(permit) => self.stops.check(permit),
                Err(why) => Err(why.clone()),
            };
            match (stopped, permit) {
                (Err(why), _) if why.reason == Reason::StoreUnavailable => return Err(why),
                (Ok(()), Ok(permit)) if permit.life().born_at <= chain.began_at() => {}
                _ => {
                    return Err(chain_revoked(
                        "a link of the chain may not call the next one any more: it was moved, paused, stopped or removed",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that the root may reach the target itself.
    async fn check_ends(&self, chain: &Chain, target: &WorkspaceId) -> Result<(), Rejection> {
        let refuse = || {
            let message = "the root of the chain may not reach the target itself, which access.chain = \"ends\" requires";
            Rejection::new(Reason::NotPermitted, message)
        };
        let root = chain.root_principal().ok_or_else(refuse)?;
        match self.hierarchy.permit_link(&root, target).await {
            Ok(_) => Ok(()),
            Err(why) if why.reason == Reason::StoreUnavailable => Err(why),
            Err(_) => Err(refuse()),
        }
    }

    /// Checks that the root is one that the target requires by rules of this mode.
    fn check_root(&self, proof: &Proof, permit: &Permit, mode: GuardMode) -> Result<(), Rejection> {
        let config = self.config();
        let target_org = permit
            .target_lineage()
            .and_then(|place| place.org.as_deref());
        let covers = |rule: &&RootRule| {
            rule.mode == mode && rule.targets.covers(permit.target(), target_org)
        };
        for rule in config.access.require.iter().filter(covers) {
            let chain = proof.chain();
            let is_person =
                chain.map_or_else(|| proof.is_person(), |chain| chain.person().is_some());
            let (met, needed) = match &rule.root {
                RequiredRoot::Person => (is_person, "a person".to_owned()),
                RequiredRoot::Group(name) => {
                    let has = chain.map_or_else(
                        || proof.groups().iter().any(|one| one == name),
                        |chain| chain.groups().any(|one| one == name),
                    );
                    (is_person && has, format!("a person of the group `{name}`"))
                }
                RequiredRoot::Org(name) => {
                    let org = chain.map_or_else(|| permit.org(), |chain| chain.org());
                    (org == Some(name), format!("the org `{name}`"))
                }
            };
            if !met {
                let message = format!(
                    "the target is called on behalf of {needed} only (access.require): hand in the X-A2A-On-Behalf-Of that came \
                     with the call which this one serves"
                );
                return Err(Rejection::new(Reason::RootRequired, message));
            }
        }
        Ok(())
    }

    /// Signs the chain token for the target of a permitted call, or takes one that was signed before. What another org
    /// may not see is sealed in it.
    ///
    /// # Errors
    /// `chain_invalid`; `internal` when it cannot be signed; `store_unavailable`.
    pub async fn sign_chain(
        &self,
        (proof, permit, methods, run): (&Proof, &Permit, &[&str], Option<&str>),
    ) -> Result<Arc<SentChain>, Rejection> {
        let target_org = permit
            .target_lineage()
            .and_then(|place| place.org.as_deref());
        let hidden = match proof.chain() {
            Some(chain) if crosses_orgs(chain, permit, target_org) => {
                Some((self.find_orgs(chain).await?, target_org.unwrap_or_default()))
            }
            _ => None,
        };
        self.identity.chain_for(&ChainCall {
            proof,
            org: permit.org(),
            target: permit.target(),
            methods,
            run,
            hidden,
        })
    }

    /// Signs the chain token of a call that waits in the inbox of `target`, for `target` itself.
    ///
    /// # Errors
    /// `chain_expired`, `chain_revoked`, `chain_invalid`; `store_unavailable`; `internal` when it cannot be signed.
    pub async fn sign_stored_chain(
        &self,
        stored: &str,
        target: &WorkspaceId,
    ) -> Result<Arc<SentChain>, Rejection> {
        let chain: Chain = serde_json::from_str(stored).map_err(|error| {
            Rejection::new(Reason::Internal, "a stored chain cannot be read").with_cause(error)
        })?;
        self.identity.check_chain(&chain)?;
        self.check_links(&chain).await?;
        let target_org = self
            .hierarchy
            .load_lineage(target)
            .await?
            .and_then(|place| place.org.clone());
        let leaves = chain.depth() > 0 && chain.org() != target_org.as_deref();
        let hidden = match leaves {
            true => Some((
                self.find_orgs(&chain).await?,
                target_org.as_deref().unwrap_or_default(),
            )),
            false => None,
        };
        let proof = Proof::of_operator().on_chain(Some(Arc::new(chain)));
        self.identity.chain_for(&ChainCall {
            proof: &proof,
            org: None,
            target,
            methods: &["message/send", "SendMessage"],
            run: None,
            hidden,
        })
    }

    /// Returns the org of each actor but the outermost, which the target knows.
    async fn find_orgs(&self, chain: &Chain) -> Result<Vec<String>, Rejection> {
        let mut orgs = Vec::new();
        for actor in chain.actors().skip(1) {
            let place = match WorkspaceId::parse(actor) {
                Ok(id) => self.hierarchy.load_lineage(&id).await?,
                Err(_) => None,
            };
            orgs.push(
                place
                    .and_then(|place| place.org.clone())
                    .unwrap_or_default(),
            );
        }
        Ok(orgs)
    }
}

/// True if a chain leaves the org of its root, or is outside of it.
fn crosses_orgs(chain: &Chain, permit: &Permit, target_org: Option<&str>) -> bool {
    let home = chain.org().or(permit.org());
    chain.depth() > 0 && (home != target_org || permit.rule() == Rule::Grant && home.is_none())
}
