//! Authentication: from the field `Authorization` to a proof, and checks whether a credential that was proven earlier
//! is still valid: of a long-lived stream, or of an org token. In steady state no store is read: a valid credential is
//! cached until it is revoked, ages or expires.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use secrecy::{ExposeSecret, SecretString};

use super::chain_cache::Chains;
use super::credential::{Credential, CredentialHash, Form};
use super::issuers::Issuers;
use super::issuers::logout::Logout;
use super::proof::{CredentialKind, Principal, Proof, ResolvedCredential, open_proof};
use super::refusal::{AuthError, Refusal, unauthenticated};
use super::role::{Operator, Person};
use super::signed_tokens::SignedTokens;
use super::tokens::{Tokens, UseQueue};
use super::workspace_states::{WorkspaceRefusal, WorkspaceStates};
use crate::identity::revocations::Revocations;
use kernel::config::{self, AuthMode, Config, Derived, Live};
use kernel::metrics::{self, CredentialFlaw, Metrics};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::coherence::{Coherence, CoherentCache, Invalidation};
use stores::db::Db;
use stores::store::Unavailable;
use trust::{Keys, Seal, TokenError};

/// Entries of the cache of rejected credentials. It is a cache of its own, so that guesses evict no valid
/// credential.
const REFUSALS_MAX: u64 = 10_000;

/// Lifetime of a rejected credential: it damps retry loops, and a token that another program writes into the
/// table works within a second.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// The time of a body after which its caller is checked again: half of that within which a revocation counts.
pub const SLOW_BODY: Duration = Duration::from_millis(500);

/// Authenticates credentials.
pub struct Identity {
    /// Opaque tokens: issued, listed, revoked.
    pub tokens: Tokens,
    /// Signed tokens.
    pub signed: SignedTokens,
    /// The revocations of persons, sessions, runs and credentials.
    pub revocations: Arc<Revocations>,
    pub(super) config: Live,
    pub(super) issuers: Issuers,
    metrics: Arc<Metrics>,
    /// Hashes from the configuration and the environment.
    pub(super) admins: Derived<Vec<CredentialHash>>,
    pub(super) proofs: CoherentCache<CredentialHash, Arc<Proof>>,
    /// The workspaces that tokens of platforms name.
    pub(super) workspaces: WorkspaceStates,
    refusals: Cache<CredentialHash, Refusal>,
    /// The proof of requests without a credential, in open mode.
    open: Arc<Proof>,
    uses: UseQueue,
    pub(super) chains: Chains,
}

impl Identity {
    /// Creates it; does not touch the stores.
    pub fn new(
        config: Live,
        db: Db,
        (keys, seal): (Arc<Keys>, Arc<Seal>),
        coherence: Arc<Coherence>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let proofs = CoherentCache::new(
            Arc::clone(&coherence),
            Arc::clone(&metrics),
            metrics::Cache::Credentials,
            (config.get().directory.cache_entries, None),
            |proof: &Arc<Proof>| proof.is_current(),
        );
        let entries_max = config.get().directory.cache_entries;
        let workspaces = WorkspaceStates::new(&coherence, &metrics, entries_max, db.clone());
        drop_on_invalidation(&coherence, &proofs, &workspaces);
        Self {
            issuers: Issuers::new(&config.get().auth, Arc::clone(&metrics)),
            metrics,
            revocations: Revocations::new(db.clone(), &coherence),
            tokens: Tokens::new(db, coherence),
            signed: SignedTokens::new(config.clone(), keys, seal),
            admins: Derived::new(&config, |config, _| admin_hashes(config)),
            config,
            proofs,
            workspaces,
            refusals: Cache::builder()
                .max_capacity(REFUSALS_MAX)
                .time_to_live(REFUSAL_TTL)
                .build(),
            open: Arc::new(open_proof()),
            uses: UseQueue::default(),
            chains: Chains::default(),
        }
    }

    /// Returns the proof of a request without a credential: none, except in open mode.
    pub(super) fn open_mode_proof(&self) -> Option<Arc<Proof>> {
        let open = self.config.get().auth.mode == AuthMode::Open;
        open.then(|| Arc::clone(&self.open))
    }

    /// Records uses of tokens, and keeps the keys of foreign issuers fresh, outside of requests. A background
    /// task; runs until it is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.uses.run(&self.tokens),
            self.issuers.run(),
            self.revocations.run()
        );
    }

    /// Replaces `auth.issuers` and `auth.workspace_issuers`. Tokens of an issuer that is removed are invalid at once.
    pub fn set_issuers(&self, auth: &config::Auth) {
        self.issuers.set(auth);
    }

    /// Verifies the logout token of the issuer that `auth.issuers` calls `name`.
    ///
    /// # Errors
    /// `not_found`, `invalid_params`; `store_unavailable` without its keys.
    pub async fn verify_logout(&self, name: &str, token: &str) -> Result<Logout, Rejection> {
        let leeway = self.config.get().auth.leeway.as_secs();
        self.issuers.verify_logout(name, token, leeway).await
    }

    /// Creates an admin token if there is none, neither configured nor stored. The caller prints it once. Of
    /// several replicas that start at the same time, all but one get `None`. A retry must pass the same
    /// `candidate`: if the store timed out, it may be stored already.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn ensure_admin_token(
        &self,
        candidate: &SecretString,
    ) -> Result<Option<SecretString>, Unavailable> {
        if !self.admins.get().is_empty() {
            return Ok(None);
        }
        let hash = CredentialHash::digest(candidate.expose_secret());
        let made = self.tokens.insert_first_admin(hash, Timestamp::now().0);
        Ok(made.await?.then(|| candidate.clone()))
    }

    /// Returns the principal that the value of an `Authorization` field proves. `None`: the request has no
    /// such field.
    ///
    /// # Errors
    /// `unauthenticated`, also for an enrolment token, which only [`Identity::authenticate_enrolment`] accepts;
    /// `not_permitted` for a pair token, which only [`Identity::authenticate_message`] accepts;
    /// `store_unavailable` when the credential cannot be read.
    pub async fn authenticate(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let proof = self.authenticate_message(authorization).await?;
        refuse_pair(&proof)?;
        Ok(proof)
    }

    /// As [`Identity::authenticate`], for a message, where a pair token for the target is valid as well. The
    /// target is compared with the permit.
    ///
    /// # Errors
    /// As [`Identity::authenticate`], except for pair tokens.
    pub async fn authenticate_message(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let proof = self.verify(authorization).await?;
        if self.revocations.covers_proof(&proof) {
            return Err(self.count_refusal(Refusal::Revoked));
        }
        // The workspace of a platform's token must stand.
        if let Some(why) = self.workspaces.find_refusal(&proof).await? {
            return Err(self.reject_workspace(&proof, why));
        }
        self.with_present_life(proof).await
    }

    /// Sets the life of the workspace that a signed credential names. A pair token of an earlier life proves nothing.
    pub(super) async fn with_present_life(
        &self,
        proof: Arc<Proof>,
    ) -> Result<Arc<Proof>, Rejection> {
        let Some(born_at) = self.workspaces.find_born_at(&proof).await? else {
            return Ok(proof);
        };
        if proof.pair_generation.is_some_and(|issued| issued < born_at) {
            return Err(self.count_refusal(Refusal::Unknown));
        }
        if proof.born_at == born_at {
            return Ok(proof);
        }
        let proof = Proof {
            born_at,
            ..Proof::clone(&proof)
        };
        Ok(Arc::new(proof.with_account()))
    }

    fn reject_workspace(&self, proof: &Proof, why: WorkspaceRefusal) -> Rejection {
        let (flaw, rejection) = why.to_rejection(proof);
        self.metrics.refusals.credentials[flaw].inc();
        rejection
    }

    /// Returns the principal that a credential proves, apart from the workspace behind the token of a platform.
    async fn verify(&self, authorization: Option<&[u8]>) -> Result<Arc<Proof>, Rejection> {
        let Some(field) = authorization else {
            return self.open_mode_proof().ok_or_else(|| {
                self.count_flaw(
                    CredentialFlaw::Missing,
                    "send `Authorization: Bearer <token>` with a workspace, canvas, org or admin token",
                )
            });
        };
        let credential = Credential::parse(field).ok_or_else(|| {
            self.count_flaw(
                CredentialFlaw::Form,
                "the credential has no known form: send `Authorization: Bearer <token>` with exactly one a2aw_, a2ao_ or a2aa_ token, or a canvas JWT",
            )
        })?;
        let misplaced = match credential.form {
            Form::Enrolment => {
                "an enrolment token is only good for one POST /registry/register; send the workspace token that it answers with"
            }
            Form::Ticket => {
                "a ticket is sent as `?ticket=` to GET /ws or GET /events, and nowhere else"
            }
            Form::Admin | Form::Jwt | Form::Org | Form::Workspace => "",
        };
        if !misplaced.is_empty() {
            return Err(self.count_flaw(CredentialFlaw::Misplaced, misplaced));
        }
        let hash = credential.hash();
        // Most credentials are valid, so the cache of rejected ones is read second.
        if let Some(proof) = self.proofs.get(&hash) {
            return self.require_maker(hash, proof).await;
        }
        if let Some(refusal) = self.refusals.get(&hash).await {
            return Err(self.count_refusal(refusal));
        }
        let load = || self.load(credential, hash);
        // Boxed: a miss is rare, and its future would otherwise widen every exchange's.
        let loaded = Box::pin(self.proofs.get_or_load(&hash, load)).await;
        match loaded {
            Ok(proof) => self.require_maker(hash, proof).await,
            Err(error) => match &*error {
                AuthError::Refused(refusal) => {
                    // The key may become known at any moment.
                    if *refusal != Refusal::Signed(TokenError::UnknownKey) {
                        Box::pin(self.refusals.insert(hash, *refusal)).await;
                    }
                    Err(self.count_refusal(*refusal))
                }
                AuthError::Unavailable(rejection) => Err(rejection.clone()),
            },
        }
    }

    /// Rejects a canvas token if its maker's org token has ended. Does nothing for any other credential.
    async fn require_maker(
        &self,
        hash: CredentialHash,
        proof: Arc<Proof>,
    ) -> Result<Arc<Proof>, Rejection> {
        if proof.maker.is_none() || self.is_maker_unrevoked(&proof).await? {
            return Ok(proof);
        }
        // Cached as rejected, so that its next use reads no store.
        self.proofs.forget(&hash);
        Box::pin(self.refusals.insert(hash, Refusal::Unknown)).await;
        Err(self.count_refusal(Refusal::Unknown))
    }

    /// As [`Identity::authenticate`], for the one route that accepts an enrolment token, and the token of a platform
    /// for a workspace that does not exist. The token stays unused; [`Tokens::redeem_enrolment`] uses it up.
    ///
    /// # Errors
    /// As [`Identity::authenticate`].
    pub async fn authenticate_enrolment(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Arc<Proof>, Rejection> {
        let credential = match authorization.map(Credential::parse) {
            Some(Some(credential)) if credential.form == Form::Enrolment => credential,
            _ => {
                let proof = self.verify(authorization).await?;
                refuse_pair(&proof)?;
                // The registration itself refuses a workspace that does not exist.
                return match self.workspaces.find_refusal(&proof).await? {
                    Some(WorkspaceRefusal::Elsewhere) => {
                        Err(self.reject_workspace(&proof, WorkspaceRefusal::Elsewhere))
                    }
                    _ => self.with_present_life(proof).await,
                };
            }
        };
        let hash = credential.hash();
        // Never cached: it is presented once.
        let found = self.tokens.find_enrolment(hash, Timestamp::now().0).await?;
        let id = found.ok_or_else(|| {
            self.count_flaw(
                CredentialFlaw::Unknown,
                "the enrolment token is unknown, used or older than 24 h; ask an operator for a token of the workspace",
            )
        })?;
        let principal = Principal::Workspace { id };
        let proof = Proof {
            prefix: credential.prefix().to_owned(),
            ..Proof::by_credential(principal, CredentialKind::Enrolment, hash)
        };
        Ok(Arc::new(proof.with_account()))
    }

    fn count_refusal(&self, refusal: Refusal) -> Rejection {
        self.metrics.refusals.credentials[refusal.flaw()].inc();
        refusal.to_rejection()
    }

    /// Counts a credential that proves nothing, and returns its rejection.
    fn count_flaw(&self, flaw: CredentialFlaw, message: &'static str) -> Rejection {
        self.metrics.refusals.credentials[flaw].inc();
        unauthenticated(message)
    }

    async fn load(
        &self,
        credential: Credential<'_>,
        hash: CredentialHash,
    ) -> Result<Arc<Proof>, AuthError> {
        let unknown = AuthError::Refused(Refusal::Unknown);
        let kind = match credential.form {
            Form::Workspace => CredentialKind::Workspace,
            Form::Org => CredentialKind::Org,
            Form::Admin => CredentialKind::Admin,
            Form::Jwt => return self.load_signed(credential, hash).await,
            // `authenticate` has rejected them.
            Form::Enrolment | Form::Ticket => return Err(unknown),
        };
        let found = self.find_credential(kind, hash).await?.ok_or(unknown)?;
        if !found.proof.is_current() {
            return Err(AuthError::Refused(Refusal::Over));
        }
        if let Some((token_id, last_used_at)) = found.last_use {
            self.uses.record(token_id, last_used_at);
        }
        Ok(Arc::new(Proof {
            prefix: credential.prefix().to_owned(),
            ..found.proof
        }))
    }

    /// Verifies a token of the foreign issuer that it names, or else a canvas or pair token of this
    /// gateway.
    async fn load_signed(
        &self,
        credential: Credential<'_>,
        hash: CredentialHash,
    ) -> Result<Arc<Proof>, AuthError> {
        let text = credential.text;
        let signed = match self.issuers.verify(text).await? {
            Some(signed) => signed,
            None => {
                self.signed
                    .verify_with_reload(|| self.signed.verify(text))
                    .await?
            }
        };
        let proof = Proof {
            prefix: credential.prefix().to_owned(),
            credential: Some(hash),
            ..signed
        };
        // The issuer is part of a canvas user's name.
        Ok(Arc::new(proof.with_account()))
    }

    /// True if the credential behind `proof` is still valid. From memory in steady state, so that it can be
    /// called every second; while the store is unavailable, a valid credential stays valid.
    pub async fn is_still_valid(&self, proof: &Proof) -> bool {
        proof.is_current() && self.is_unrevoked(proof).await
    }

    /// Checks the caller of a request again after a body that took [`SLOW_BODY`], or after look-ups of names. An
    /// enrolment token is checked when it is redeemed.
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

    /// As [`Identity::is_still_valid`], except that a stream that began in time continues when a signed token expires.
    /// A token of a table that has reached its end counts as revoked, and so does one with another role now.
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
        if self.revocations.covers_proof(proof) {
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

    /// Returns the proof of an opaque credential, from memory in steady state. `prefix`: its first characters, where
    /// its table does not have them.
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

    /// Restores the principal from the output of [`Proof::to_stored`]. No request can create such a proof, and
    /// permits are checked again with it. `None`: the text is invalid, or it is from open mode, which is off
    /// now.
    pub fn restore_proof(&self, stored: &str) -> Option<Proof> {
        Proof::from_stored(stored, self.open_mode_proof().is_some())
    }
}

/// Returns the hashes of the admin tokens in the configuration and the environment.
fn admin_hashes(config: &Config) -> Vec<CredentialHash> {
    let listed = config.auth.admin_token_sha256.iter().copied();
    let token = config.auth.admin_token.as_ref();
    listed
        .map(CredentialHash::from)
        .chain(token.map(|token| CredentialHash::digest(token.expose_secret())))
        .collect()
}

/// Rejects a pair token, which is for messages only.
fn refuse_pair(proof: &Proof) -> Result<(), Rejection> {
    if proof.only_to.is_none() {
        return Ok(());
    }
    Err(Rejection::new(
        Reason::NotPermitted,
        "a pair token is good for calls to its own target, POST /workspaces/{id}/a2a, and for nothing else; send the workspace's own token",
    ))
}

fn drop_on_invalidation(
    coherence: &Coherence,
    proofs: &CoherentCache<CredentialHash, Arc<Proof>>,
    workspaces: &WorkspaceStates,
) {
    let (proofs, workspaces) = (proofs.clone(), workspaces.clone());
    coherence.on_invalidation(move |what| {
        match what {
            Invalidation::Credential(hex) => match CredentialHash::from_hex(&hex) {
                Some(hash) => proofs.forget(&hash),
                None => proofs.forget_all(),
            },
            Invalidation::Everything => {
                proofs.forget_all();
                workspaces.forget_all();
            }
            Invalidation::Lineage(_) => workspaces.forget_all(),
            // A proof contains only the workspace's id; other modules cache its other facts.
            Invalidation::Address(_)
            | Invalidation::Grant(..)
            | Invalidation::Revocations
            | Invalidation::Stops
            | Invalidation::Workspace(_) => {}
        }
        ready(())
    });
}
