//! Checks whether a credential that was proven earlier is still valid: of a long-lived stream, of the maker of a
//! token. From memory in steady state.

use std::sync::Arc;
use std::time::Duration;

use super::authenticate::Identity;
use super::credential::CredentialHash;
use super::proof::{CredentialKind, Principal, Proof, open_proof};
use crate::rejection::{Reason, Rejection};
use crate::store::Unavailable;

/// The credential behind a proof is no longer valid.
struct Gone;

/// The time of a body after which its caller is checked again: half of that within which a revocation counts.
pub const SLOW_BODY: Duration = Duration::from_millis(500);

impl Identity {
    /// True if the credential behind `proof` is still valid. From memory in steady state, so that it can be
    /// called every second; while the store is unavailable, a valid credential stays valid.
    pub async fn still_good(&self, proof: &Proof) -> bool {
        proof.is_current() && self.stands(proof).await
    }

    /// Checks the caller of a request again after a body that took [`SLOW_BODY`]. An enrolment token is checked when it is
    /// redeemed.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub async fn check_after_body(&self, proof: &Proof) -> Result<(), Rejection> {
        if proof.kind != CredentialKind::Enrolment && !self.stands(proof).await {
            return Err(Rejection::new(
                Reason::Unauthenticated,
                "the credential was revoked or is past its end, or its workspace was removed, before the request body \
                 was there; send a live one",
            ));
        }
        Ok(())
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
            return !matches!(self.places.unplaced(proof).await, Ok(Some(_)));
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
                Ok(Some((principal, expires_at))) => Ok(Arc::new(Proof {
                    principal,
                    expires_at,
                    ..proof.clone()
                })),
                Ok(None) => Err(Ok(Gone)),
                Err(error) => Err(Err(error)),
            }
        };
        match self.proofs.get_or_load(&hash, load).await {
            Ok(now) => now.principal == proof.principal,
            Err(why) => match &*why {
                Ok(Gone) => false,
                Err(Unavailable { .. }) => true,
            },
        }
    }

    /// Returns the principal that an opaque credential proves now, and the time at which it ends.
    pub(super) async fn principal_of(
        &self,
        kind: CredentialKind,
        hash: CredentialHash,
    ) -> Result<Option<(Principal, Option<i64>)>, Unavailable> {
        Ok(match kind {
            CredentialKind::Workspace => {
                let found = self.table.find_workspace(hash).await?;
                let found = found.filter(|found| !found.is_over());
                found.map(|found| {
                    let id = found.workspace;
                    (Principal::Workspace { id }, found.expires_at)
                })
            }
            CredentialKind::Org => {
                let found = self.table.find_org(hash).await?;
                found.map(|(org, _)| (Principal::Org { org }, None))
            }
            CredentialKind::Admin => {
                let known = hash.is_one_of(&self.admins.get()) || self.table.is_admin(hash).await?;
                known.then_some((Principal::Operator, None))
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
