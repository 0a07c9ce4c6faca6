//! Checks whether a credential that was proven earlier is still valid: of a long-lived stream, of the maker of a
//! token. From memory in steady state.

use std::sync::Arc;
use std::time::Duration;

use super::authenticate::Identity;
use super::credential::CredentialHash;
use super::proof::{CredentialKind, Principal, Proof, ResolvedCredential};
use super::role::{Operator, Person};
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;

/// The time of a body after which its caller is checked again: half of that within which a revocation counts.
pub const SLOW_BODY: Duration = Duration::from_millis(500);

impl Identity {
    /// True if the credential behind `proof` is still valid. From memory in steady state, so that it can be
    /// called every second; while the store is unavailable, a valid credential stays valid.
    pub async fn is_still_valid(&self, proof: &Proof) -> bool {
        proof.is_current() && self.is_unrevoked(proof).await
    }

    /// Checks the caller of a request again after a body that took [`SLOW_BODY`], or after look-ups of names. An enrolment
    /// token is checked when it is redeemed.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub async fn recheck(&self, proof: &Proof) -> Result<(), Rejection> {
        if proof.kind != CredentialKind::Enrolment && !self.is_unrevoked(proof).await {
            return Err(Rejection::new(
                Reason::Unauthenticated,
                "the credential was revoked or is past its end, or its workspace was removed, before the request could \
                 be carried out; send a live one",
            ));
        }
        Ok(())
    }

    /// As [`Identity::is_still_valid`], except that a stream that began in time continues when a signed token expires. A
    /// token of a table that has reached its end counts as revoked, and so does one with another role now.
    pub async fn is_unrevoked(&self, proof: &Proof) -> bool {
        self.check_proof(proof).await.unwrap_or(true)
    }

    /// As [`Identity::is_unrevoked`], for a caller that asks again soon while the store is unavailable.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn check_proof(&self, proof: &Proof) -> Result<bool, Unavailable> {
        if matches!(&proof.signer, Some(by) if by.key.is_withdrawn()) {
            return Ok(false);
        }
        let Some(hash) = proof.credential else {
            // No credential: valid as long as open mode is on.
            return Ok(proof.kind != CredentialKind::Open || self.open_mode_proof().is_some());
        };
        if proof.kind == CredentialKind::Workload {
            let life = self.workspaces.find_born_at(proof).await;
            let refusal = self.workspaces.find_refusal(proof).await;
            // One that says no counts, whether the other could be asked or not.
            if matches!(refusal, Ok(Some(_)))
                || matches!(life, Ok(Some(born_at)) if born_at != proof.born_at)
            {
                return Ok(false);
            }
            return life.and(refusal).map(|_| true);
        }
        let is_of_table = matches!(
            proof.kind,
            CredentialKind::Workspace | CredentialKind::Admin
        );
        if is_of_table && !proof.is_current() {
            return Ok(false);
        }
        if matches!(proof.kind, CredentialKind::Canvas | CredentialKind::Pair) {
            // Signed, so only the token with which it was made is looked up.
            return self.is_maker_unrevoked(proof).await;
        }
        let now = self.load_proof(proof.kind, hash, &proof.prefix).await?;
        Ok(now.is_some_and(|now| {
            now.principal == proof.principal
                && now.born_at == proof.born_at
                && now.role() == proof.role()
        }))
    }

    /// Returns the proof of an opaque credential, from memory in steady state. `prefix`: its first characters, where its
    /// table does not have them.
    async fn load_proof(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
        prefix: &str,
    ) -> Result<Option<Arc<Proof>>, Unavailable> {
        let load = || async {
            let mut proof = match self.resolve_credential(kind, hash).await {
                Ok(Some(proof)) => proof,
                Ok(None) => return Err(None),
                Err(away) => return Err(Some(away)),
            };
            if proof.prefix.is_empty() {
                prefix.clone_into(&mut proof.prefix);
            }
            Ok(Arc::new(proof))
        };
        match self.proofs.get_or_load(&hash, load).await {
            Ok(proof) => Ok(Some(proof)),
            Err(why) => Option::clone(&why).map_or(Ok(None), Err),
        }
    }

    /// Returns what an opaque credential proves now; `None`: nothing.
    pub(super) async fn resolve_credential(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
    ) -> Result<Option<Proof>, Unavailable> {
        let found = self.find_credential(kind, hash).await?;
        Ok(found.map(|found| found.proof).filter(Proof::is_current))
    }

    /// As [`Identity::resolve_credential`], also after its end.
    pub(super) async fn find_credential(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        match kind {
            CredentialKind::Workspace => self.tokens.find_workspace(hash).await,
            CredentialKind::Org => self.tokens.find_org(hash).await,
            CredentialKind::Admin => self.find_operator(hash).await,
            CredentialKind::Canvas
            | CredentialKind::Enrolment
            | CredentialKind::Open
            | CredentialKind::Pair
            | CredentialKind::Stored
            | CredentialKind::Workload => Ok(None),
        }
    }

    /// True unless the person's provider is no longer the one of the configuration.
    fn may_sign_in(&self, person: Option<&Person>) -> bool {
        let config = self.config.get();
        let issuer = config.admin.sign_in.issuer.as_deref();
        person.is_none_or(|person| issuer == Some(&person.issuer))
    }

    /// Returns the operator of the token with this hash, also after its end.
    async fn find_operator(
        &self,
        hash: CredentialHash,
    ) -> Result<Option<ResolvedCredential>, Unavailable> {
        let found = if hash.is_one_of(&self.admins.get()) {
            Some((Operator::CONFIGURED, None))
        } else {
            let found = self.tokens.find_operator(hash).await?;
            found.filter(|(operator, _)| self.may_sign_in(operator.person.as_ref()))
        };
        let proof = Proof::by_credential(Principal::Operator, CredentialKind::Admin, hash);
        Ok(found.map(|(operator, expires_at)| {
            ResolvedCredential::from(Proof {
                expires_at,
                operator: Some(Arc::new(operator)),
                ..proof
            })
        }))
    }

    /// True if the org token with which a credential was made, if there was one, is still valid. Cached as if
    /// the org token itself had been presented.
    pub(super) async fn is_maker_unrevoked(&self, proof: &Proof) -> Result<bool, Unavailable> {
        let Some(maker) = proof.maker else {
            return Ok(true);
        };
        let found = Box::pin(self.load_proof(CredentialKind::Org, maker, "")).await?;
        Ok(found.is_some())
    }
}
