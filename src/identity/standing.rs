//! Checks whether a credential that was proven earlier is still valid: of a long-lived stream, of the maker of a
//! token. From memory in steady state.

use std::sync::Arc;

use super::authenticate::Identity;
use super::credential::CredentialHash;
use super::proof::{CredentialKind, Principal, Proof, open_proof};
use crate::store::Unavailable;

/// The credential behind a proof is no longer valid.
struct Gone;

impl Identity {
    /// True if the credential behind `proof` is still valid. From memory in steady state, so that it can be
    /// called every second; while the store is unavailable, a valid credential stays valid.
    pub async fn still_good(&self, proof: &Proof) -> bool {
        proof.is_current() && self.stands(proof).await
    }

    /// As [`Identity::still_good`], except that a stream that began in time continues when a signed token expires. A
    /// workspace token that has reached its end counts as revoked.
    pub async fn stands(&self, proof: &Proof) -> bool {
        if proof
            .signer
            .as_ref()
            .is_some_and(|by| by.key.is_withdrawn())
        {
            return false;
        }
        let Some(hash) = proof.credential else {
            // No credential: valid as long as open mode is on.
            return proof.kind != CredentialKind::Open || self.open().is_some();
        };
        if proof.kind == CredentialKind::Workload {
            let life = self.places.born_at(proof).await;
            return !matches!(self.places.unplaced(proof).await, Ok(Some(_)))
                && !matches!(life, Ok(Some(born_at)) if born_at != proof.born_at);
        }
        if proof.kind == CredentialKind::Workspace && !proof.is_current() {
            return false;
        }
        if matches!(proof.kind, CredentialKind::Canvas | CredentialKind::Pair) {
            // Signed, so only the token with which it was made is looked up.
            return self.maker_stands(proof).await.unwrap_or(true);
        }
        let load = || async {
            match self.principal_of(proof.kind, hash).await {
                Ok(Some((principal, expires_at, born_at))) => Ok(Arc::new(Proof {
                    principal,
                    expires_at,
                    born_at,
                    ..proof.clone()
                })),
                Ok(None) => Err(Ok(Gone)),
                Err(error) => Err(Err(error)),
            }
        };
        match self.proofs.get_or_load(&hash, load).await {
            Ok(now) => now.principal == proof.principal && now.born_at == proof.born_at,
            Err(why) => match &*why {
                Ok(Gone) => false,
                Err(Unavailable { .. }) => true,
            },
        }
    }

    /// Returns the principal that an opaque credential proves now, the time at which it ends, and the time at which the
    /// life of its workspace began.
    pub(super) async fn principal_of(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
    ) -> Result<Option<(Principal, Option<i64>, i64)>, Unavailable> {
        Ok(match kind {
            CredentialKind::Workspace => {
                let found = self.table.find_workspace(hash).await?;
                let found = found.filter(|found| !found.is_over());
                found.map(|found| {
                    let id = found.workspace;
                    (Principal::Workspace { id }, found.expires_at, found.born_at)
                })
            }
            CredentialKind::Org => {
                let found = self.table.find_org(hash).await?;
                found.map(|(org, _)| (Principal::Org { org }, None, 0))
            }
            CredentialKind::Admin => {
                let known = hash.is_one_of(&self.admins.get()) || self.table.is_admin(hash).await?;
                known.then_some((Principal::Operator, None, 0))
            }
            CredentialKind::Canvas
            | CredentialKind::Enrolment
            | CredentialKind::Open
            | CredentialKind::Pair
            | CredentialKind::Stored
            | CredentialKind::Workload => None,
        })
    }

    /// True if the org token with which a credential was made, if there was one, is still valid. Cached as if
    /// the org token itself had been presented.
    pub(super) async fn maker_stands(&self, proof: &Proof) -> Result<bool, Unavailable> {
        let Some(maker) = proof.maker else {
            return Ok(true);
        };
        let load = || async {
            match self.table.find_org(maker).await {
                Ok(Some((org, prefix))) => {
                    let proof = Proof {
                        principal: Principal::Org { org },
                        kind: CredentialKind::Org,
                        prefix,
                        credential: Some(maker),
                        ..open_proof()
                    };
                    Ok(Arc::new(proof.with_account()))
                }
                Ok(None) => Err(None),
                Err(away) => Err(Some(away)),
            }
        };
        match Box::pin(self.proofs.get_or_load(&maker, load)).await {
            Ok(_) => Ok(true),
            Err(why) => match &*why {
                None => Ok(false),
                Some(away) => Err(Unavailable::clone(away)),
            },
        }
    }
}
