//! Issues, lists and revokes tokens.

use std::sync::Arc;

use secrecy::SecretString;

use super::credential::Form;
use super::proof::Proof;
use super::role::{Person, Role};
use super::token::{
    EnrolmentMaker, IssueOutcome, IssuedToken, LIVE_TOKENS_MAX, NewEnrolment, OrgIssueOutcome,
    Owner, TokenTerms, Tokens, new_token,
};
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use stores::coherence::{Coherence, Invalidation};
use stores::store::{Run, Unavailable};

/// Lifetime of an enrolment token.
const ENROLMENT_TTL_MS: i64 = 24 * 3600 * 1000;

/// Age up to which the end of a token is published again: longer than any replica trusts a cached proof.
const REPUBLISHED_MS: i64 = 1_000_000;

/// Attempts to revoke a token that was never returned to a caller.
const WITHDRAWALS_MAX: u32 = 5;

/// Issues, lists and revokes tokens of workspaces and orgs.
pub struct Issuance {
    pub(super) tokens: Tokens,
    pub(super) coherence: Arc<Coherence>,
}

impl Issuance {
    /// Issues a token for `workspace` on these terms.
    ///
    /// # Errors
    /// `conflict` when it has [`LIVE_TOKENS_MAX`] already; `workspace_not_found` when it does not exist or was
    /// removed.
    pub async fn issue_workspace(
        &self,
        workspace: &WorkspaceId,
        terms: &TokenTerms,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let issued = self.issue_below(workspace, terms, LIVE_TOKENS_MAX, run);
        let issued = issued.await?;
        issued.ok_or_else(|| too_many("workspace"))
    }

    /// Issues the first token of `workspace`; `None` if it has a live one. Of several concurrent requests one
    /// succeeds.
    ///
    /// # Errors
    /// `workspace_not_found` when it does not exist or was removed.
    pub async fn issue_first(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<Option<IssuedToken>, Rejection> {
        self.issue_below(workspace, &TokenTerms::default(), 1, Run::Real)
            .await
    }

    async fn issue_below(
        &self,
        workspace: &WorkspaceId,
        terms: &TokenTerms,
        live_max: i64,
        run: Run,
    ) -> Result<Option<IssuedToken>, Rejection> {
        let (token, hash) = new_token(Form::Workspace);
        let issue = self
            .tokens
            .issue_workspace(workspace, (&token, hash), terms, live_max, run);
        let issued = issue.await;
        let in_doubt = issued.as_ref().is_err_and(|error| !error.is_refusal());
        if in_doubt && !run.is_dry() {
            self.withdraw_later(workspace, &token.token_id);
        }
        match issued? {
            IssueOutcome::Done => Ok(Some(token)),
            IssueOutcome::Full => Ok(None),
            IssueOutcome::NoWorkspace => Err(Rejection::new(
                Reason::WorkspaceNotFound,
                "there is no such workspace, or it was removed; create it with POST /workspaces",
            )),
        }
    }

    /// Revokes a token that no caller got, in case the store committed it after its timeout: it would keep
    /// the workspace from a first token. Best effort, as long as the process lives.
    fn withdraw_later(&self, workspace: &WorkspaceId, token_id: &str) {
        let (tokens, doubt) = (self.tokens.clone(), self.coherence.write_uncertainty());
        let (workspace, token_id) = (workspace.clone(), token_id.to_owned());
        tokio::spawn(async move {
            for _ in 0..WITHDRAWALS_MAX {
                tokio::time::sleep(doubt).await;
                let owner = Owner::Workspace(&workspace);
                if tokens.revoke(owner, &token_id).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// Returns the number of live tokens of `workspace`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn count_live(&self, workspace: &WorkspaceId) -> Result<u64, Unavailable> {
        let live = self.tokens.count_workspace(workspace).await?;
        Ok(u64::try_from(live).unwrap_or(0))
    }

    /// Revokes a token of `workspace`, or one of its enrolment tokens: here at once, and on every replica
    /// within a second. Revoking the last token ends the enrolment tokens as well; returns their ids. Idempotent. `None`:
    /// the workspace never had such a token.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_workspace(
        &self,
        workspace: &WorkspaceId,
        token_id: &str,
        run: Run,
    ) -> Result<Option<Vec<String>>, Unavailable> {
        let (owner, now) = (Owner::Workspace(workspace), Timestamp::now().0);
        if self.revoke(owner, token_id, run).await? {
            let last = (workspace, token_id);
            let ended = self.tokens.end_enrolments_with_last(last, now, run);
            return ended.await.map(Some);
        }
        // Enrolment tokens are never cached, so there is nothing to invalidate.
        let revoked = self.tokens.revoke_enrolment(workspace, token_id, now, run);
        Ok(revoked.await?.map(|_| Vec::new()))
    }

    /// Revokes every token of `workspace`, its enrolment tokens and those of its subtree included: here at once, and on every replica
    /// within a second. Idempotent; a repetition invalidates the replicas' caches again.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_all(&self, workspace: &WorkspaceId) -> Result<(), Unavailable> {
        let since = Timestamp::now().0 - REPUBLISHED_MS;
        let known = self.tokens.list_hashes(workspace, since).await?;
        let revoked = self.tokens.revoke_all(workspace, since).await;
        self.invalidate_revoked(known, revoked).await
    }

    /// Drops what every replica knows of revoked tokens.
    pub async fn forget_revoked(&self, revoked: Vec<String>) {
        for hash in revoked {
            let what = Invalidation::Credential(hash);
            self.coherence.invalidate(what).await;
        }
    }

    /// Makes an enrolment token of a workspace to be created, which is stored with it
    /// ([`NewWorkspace`](crate::workspace::NewWorkspace)).
    pub fn make_enrolment(
        workspace: &WorkspaceId,
        maker: EnrolmentMaker,
    ) -> (SecretString, NewEnrolment) {
        let (token, _, new) = new_enrolment_token(workspace, maker);
        (token.token, new)
    }

    /// Issues a token for one registration of `workspace`, valid for 24 h, and returns its expiry in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// `conflict` when it has [`LIVE_TOKENS_MAX`] already; `store_unavailable`.
    pub async fn issue_enrolment(
        &self,
        workspace: &WorkspaceId,
        maker: EnrolmentMaker,
        run: Run,
    ) -> Result<(IssuedToken, i64), Rejection> {
        let (token, expires_at, new) = new_enrolment_token(workspace, maker);
        if !self.tokens.insert_enrolment(&new, run).await? {
            return Err(too_many("workspace"));
        }
        Ok((token, expires_at))
    }

    /// Uses up the enrolment token behind `proof`. Of several concurrent requests one gets `true`. If the
    /// workspace gets no token within two minutes, the registration was interrupted, and the enrolment token
    /// is valid again. A proof by another credential has nothing to use up and is `true`.
    ///
    /// # Errors
    /// `conflict` when its workspace has [`LIVE_TOKENS_MAX`], so that the registration could not answer with another;
    /// `store_unavailable`.
    pub async fn redeem_enrolment(&self, proof: &Proof) -> Result<bool, Rejection> {
        let (Some(hash), Some(workspace)) = (proof.hash, proof.principal.workspace()) else {
            return Ok(true);
        };
        if self.tokens.count_workspace(workspace).await? >= LIVE_TOKENS_MAX {
            return Err(too_many("workspace"));
        }
        Ok(self.tokens.redeem(hash, Timestamp::now().0).await?)
    }

    /// Issues a token for `org`, or for the subtree of `root` in it, with a note of its purpose.
    ///
    /// # Errors
    /// `conflict` when the org has [`LIVE_TOKENS_MAX`] already, or the root is in another org; `workspace_not_found` and
    /// `workspace_removed` of the root.
    pub async fn issue_org(
        &self,
        of: (&str, Option<&WorkspaceId>),
        note: Option<&str>,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let (token, hash) = new_token(Form::Org);
        let insert = self.tokens.orgs.insert_org(of, note, (&token, hash), run);
        match insert.await? {
            OrgIssueOutcome::Done => Ok(token),
            OrgIssueOutcome::Full => Err(too_many("org")),
            OrgIssueOutcome::NoRoot => Err(Rejection::new(
                Reason::WorkspaceNotFound,
                "there is no workspace of the id in `subtree`: create it first",
            )),
            OrgIssueOutcome::RootRemoved => Err(Rejection::new(
                Reason::WorkspaceRemoved,
                "the workspace in `subtree` was removed: name another",
            )),
            OrgIssueOutcome::RootElsewhere => Err(Rejection::new(
                Reason::Conflict,
                "the workspace in `subtree` is not in the org of the path: name one of that org",
            )),
        }
    }

    /// As [`Issuance::revoke_workspace`], for a token of `org`.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_org(
        &self,
        org: &str,
        token_id: &str,
        run: Run,
    ) -> Result<bool, Unavailable> {
        self.revoke(Owner::Org(org), token_id, run).await
    }

    /// Issues a token of an operator with this role.
    ///
    /// # Errors
    /// `conflict` when there are [`LIVE_TOKENS_MAX`] already, not counting sessions.
    pub async fn issue_operator(
        &self,
        role: Role,
        terms: &TokenTerms,
        run: Run,
    ) -> Result<IssuedToken, Rejection> {
        let (token, hash) = new_token(Form::Admin);
        let insert = self
            .tokens
            .operators
            .insert_operator(role, terms, (&token, hash), run);
        if !insert.await? {
            return Err(too_many_of("operators have"));
        }
        Ok(token)
    }

    /// Issues the token of the session of a person, who signed in at the console. `expires_at`: milliseconds since 1970.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn issue_session(
        &self,
        role: Role,
        person: &Person,
        expires_at: i64,
    ) -> Result<IssuedToken, Unavailable> {
        let (token, hash) = new_token(Form::Admin);
        let issued =
            self.tokens
                .operators
                .insert_session((role, person), expires_at, (&token, hash));
        issued.await.map(|()| token)
    }

    /// As [`Issuance::revoke_workspace`], for a token of an operator. Of a person it ends the session.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn revoke_operator(&self, token_id: &str, run: Run) -> Result<bool, Unavailable> {
        self.revoke(Owner::Operators, token_id, run).await
    }

    /// Revokes a token. True if there was one.
    async fn revoke(
        &self,
        owner: Owner<'_>,
        token_id: &str,
        run: Run,
    ) -> Result<bool, Unavailable> {
        // Read before the change: if the change is not confirmed, the hash must be known to invalidate
        // caches.
        let Some(hash) = self.tokens.find_hash(owner, token_id).await? else {
            return Ok(false);
        };
        if run.is_dry() {
            return Ok(true);
        }
        let revoked = self.tokens.revoke(owner, token_id).await;
        let known = vec![hash];
        self.invalidate_revoked(known, revoked.map(Vec::from_iter))
            .await?;
        Ok(true)
    }

    /// Invalidates caches after the commit, before the response. `known`: the hashes to invalidate if the
    /// store did not confirm the change in time.
    async fn invalidate_revoked(
        &self,
        known: Vec<String>,
        revoked: Result<Vec<String>, Unavailable>,
    ) -> Result<(), Unavailable> {
        let hashes = revoked.as_ref().unwrap_or(&known);
        for hash in hashes.iter().cloned() {
            let what = Invalidation::Credential(hash);
            self.coherence.invalidate_after(&revoked, what).await;
        }
        revoked.map(drop)
    }
}

/// Returns an enrolment token of `workspace`, its expiry in milliseconds since 1970, and what is stored of it.
fn new_enrolment_token(
    workspace: &WorkspaceId,
    maker: EnrolmentMaker,
) -> (IssuedToken, i64, NewEnrolment) {
    let (token, hash) = new_token(Form::Enrolment);
    let expires_at = token.created_at + ENROLMENT_TTL_MS;
    let new = NewEnrolment::new(workspace, (&token, hash), expires_at, maker);
    (token, expires_at, new)
}

fn too_many(owner: &str) -> Rejection {
    too_many_of(&format!("the {owner} has"))
}

fn too_many_of(owners: &str) -> Rejection {
    Rejection::new(
        Reason::Conflict,
        format!("{owners} {LIVE_TOKENS_MAX} live tokens; revoke one that is no longer used"),
    )
    .with_fact("limit", LIVE_TOKENS_MAX)
}
