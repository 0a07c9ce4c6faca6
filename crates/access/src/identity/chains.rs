//! Chains of delegation (`docs/reference/credentials.md`, "Chains"): verifies those that callers hand in, signs those
//! that agents get, and exchanges them (RFC 8693).
//!
//! Invariants: a chain proves nothing without the credential of the workspace to which it was handed; its end is never
//! raised; a token is signed once for a chain and a target in five minutes.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::authenticate::Identity;
use super::chain_cache::{Seen, SentChain};
use super::chain_token::{CALL_USE, CONTEXT_USE, Chain, Detail, NewRoot, TOKEN_MAX, actor};
use super::credential::CredentialHash;
use super::proof::{Principal, Proof, Signer};
use super::refusal::{AuthError, Refusal};
use super::signed_tokens::SignedTokens;
use kernel::config::{Config, RequiredRoot};
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{CHAIN_TYP, TokenError, body_hash, claimed_audience, own_type};

/// The field of a chain token, to agents and from them.
pub const ON_BEHALF_OF: HeaderName = HeaderName::from_static("x-a2a-on-behalf-of");

/// Time for which a signed token is used again.
const USED_FOR: Duration = Duration::from_secs(300);

/// Most workspaces that a chain lists.
const WORKSPACES_MAX: usize = 32;

/// Most groups that a chain lists.
const GROUPS_MAX: usize = 32;

/// A call that is sent with a chain.
pub struct ChainCall<'a> {
    /// The caller.
    pub proof: &'a Proof,
    /// The caller's org.
    pub org: Option<&'a str>,
    /// The target.
    pub target: &'a WorkspaceId,
    /// The names of its method.
    pub methods: &'a [&'a str],
    /// The name of the run, where the chain begins.
    pub run: Option<&'a str>,
    /// For a target of another org, the org of each actor but the outermost, and that of the target.
    pub hidden: Option<(Vec<String>, &'a str)>,
}

/// A token that was made by an exchange.
pub struct Exchanged {
    /// The token.
    pub token: SecretString,
    /// Its lifetime.
    pub ttl: Duration,
}

impl Chain {
    /// Returns the principal at the root; `None`: it has no known form.
    pub fn root_principal(&self) -> Option<Principal> {
        let claim = |name: &str| self.claim(name).cloned().unwrap_or_default();
        let within = self.claim("within").and_then(Value::as_str);
        let within = within.and_then(WorkspaceIncarnation::parse);
        let org = self.org().map(str::to_owned);
        let root = self.root();
        Some(match root.split_once(':') {
            None => Principal::Workspace {
                id: WorkspaceId::parse(root).ok()?,
            },
            Some(("canvas", user)) => Principal::Canvas {
                user: user.to_owned(),
                org,
                workspaces: serde_json::from_value(claim("workspaces")).ok()?,
                confined: claim("confined") == json!(true),
                within,
            },
            Some(("org" | "subtree", _)) => Principal::Org { org: org?, within },
            Some(("operator", _)) => Principal::Operator,
            Some(_) => return None,
        })
    }

    /// Returns each pair of neighbours from the root to the caller.
    pub fn links(&self) -> Option<Vec<(Principal, WorkspaceId)>> {
        let mut from = self.root_principal()?;
        let mut links = Vec::new();
        let actors: Vec<_> = self.actors().collect();
        for actor in actors.into_iter().rev() {
            let to = WorkspaceId::parse(actor).ok()?;
            links.push((from, to.clone()));
            from = Principal::Workspace { id: to };
        }
        Some(links)
    }
}

/// True if a request is made on a chain, by its field or its credential.
pub fn names_chain(proof: &Proof, headers: &HeaderMap) -> bool {
    proof.chain.is_some() || headers.contains_key(ON_BEHALF_OF)
}

impl Identity {
    /// Adds the chain that a request hands in to the proof of its caller.
    ///
    /// # Errors
    /// `chain_invalid`, `chain_expired`, `chain_revoked`, `loop_detected`; `store_unavailable`.
    pub async fn with_chain(
        &self,
        proof: Arc<Proof>,
        headers: &HeaderMap,
    ) -> Result<Arc<Proof>, Rejection> {
        let mut fields = headers.get_all(ON_BEHALF_OF).iter();
        let field = match (fields.next(), fields.next()) {
            (None, _) => return self.check_own_chain(proof),
            (Some(field), None) => field.to_str().unwrap_or_default(),
            (Some(_), Some(_)) => {
                return Err(refuse_chain(
                    "form",
                    "the request has several X-A2A-On-Behalf-Of fields; send one",
                ));
            }
        };
        if proof.chain.is_some() {
            let message = "the credential is of a chain itself: leave X-A2A-On-Behalf-Of out";
            return Err(refuse_chain("credential", message));
        }
        let chain = self.read_chain(field, &proof).await?;
        self.check_chain(&chain)?;
        Ok(Arc::new(Proof::clone(&proof).on_chain(Some(chain))))
    }

    fn check_own_chain(&self, proof: Arc<Proof>) -> Result<Arc<Proof>, Rejection> {
        if let Some(chain) = &proof.chain {
            self.check_chain(chain)?;
        }
        Ok(proof)
    }

    /// Checks that a chain has not ended, was not revoked, and may have one more hop.
    ///
    /// # Errors
    /// `chain_expired`, `chain_revoked`, `loop_detected`; `store_unavailable`.
    pub fn check_chain(&self, chain: &Chain) -> Result<(), Rejection> {
        if Timestamp::now().0 / 1000 >= chain.ends_at() {
            let message = "the chain has ended (chain.ttl): the person, or whoever is at its root, must call again";
            return Err(Rejection::new(Reason::ChainExpired, message));
        }
        let max = self.config.get().forward.max_hops;
        if chain.depth() > usize::try_from(max).unwrap_or(usize::MAX) {
            let message = format!(
                "the chain has forward.max_hops ({max}) hops: agents seem to call each other in a circle"
            );
            return Err(Rejection::new(Reason::LoopDetected, message).with_fact("limit", max));
        }
        self.revocations.require_known()?;
        let revocable = chain.revocable();
        if self
            .revocations
            .covers(&revocable.keys, revocable.issued_at, chain.org())
        {
            return Err(chain_revoked(
                "the person, the session, the run or the credential of a link was revoked",
            ));
        }
        Ok(())
    }

    /// Verifies a chain token that was handed to the caller.
    async fn read_chain(&self, token: &str, proof: &Proof) -> Result<Arc<Chain>, Rejection> {
        if token.len() > TOKEN_MAX {
            return Err(refuse_chain("form", "a chain token has at most 4096 bytes"));
        }
        let Some(holder) = proof.principal.workspace() else {
            let message = "X-A2A-On-Behalf-Of is for workspaces: the credential proves none";
            return Err(refuse_chain("audience", message));
        };
        let name = (CredentialHash::digest(token), proof.credential);
        if let Some(seen) = self.chains.seen.get(&name)
            && seen.chain.actors().next() == Some(holder.as_str())
            && !seen.signer.key.is_withdrawn()
        {
            return Ok(Arc::clone(&seen.chain));
        }
        if own_type(token).as_deref() != Some(CHAIN_TYP) {
            let message = "X-A2A-On-Behalf-Of is not a chain token of this gateway; hand in the one that came with the call";
            return Err(refuse_chain("type", message));
        }
        if claimed_audience(token).as_deref() != Some(holder.as_str()) {
            let message = "the chain token was handed to another workspace than the one that the credential proves";
            return Err(refuse_chain("audience", message));
        }
        let issuer = self.config.get().issuer();
        let keys = &self.signed.keys;
        let read = || -> Result<_, Refusal> {
            let verified =
                keys.verify::<Map<String, Value>>(token, CHAIN_TYP, &issuer, holder.as_str());
            verified.map_err(Refusal::Signed)
        };
        let verified = self.signed.verify_with_reload(read).await;
        let verified = verified.map_err(|error| match error {
            AuthError::Refused(Refusal::Signed(TokenError::Expired)) => Rejection::new(
                Reason::ChainExpired,
                "the chain token has ended (chain.ttl): who is at its root must call again",
            ),
            AuthError::Refused(_) => {
                refuse_chain("signature", "the chain token is not signed by this gateway")
            }
            AuthError::Unavailable(rejection) => rejection,
        })?;
        let chain = self.signed.read_claims(verified.claims, CONTEXT_USE);
        let mut chain = chain.map_err(|_| {
            refuse_chain("use", "the token is for another use (`token_use`): hand in the chain token that came with the call")
        })?;
        chain.push(holder);
        chain.set_link(token);
        for key in own_keys(proof) {
            chain.add_key(key);
        }
        let signer = Signer::from_own_key(verified.head, verified.key);
        let chain = Arc::new(chain);
        let seen = Seen {
            chain: Arc::clone(&chain),
            signer,
        };
        self.chains.seen.insert(name, Arc::new(seen));
        Ok(chain)
    }

    /// Returns the chain token for the target of a call: of the caller's chain, or of one that begins with it.
    ///
    /// # Errors
    /// `chain_invalid`; `internal` when it cannot be signed.
    pub fn chain_for(&self, call: &ChainCall<'_>) -> Result<Arc<SentChain>, Rejection> {
        let proof = call.proof;
        let from = match (&proof.chain, call.run) {
            (Some(chain), _) => chain.link().map(str::to_owned),
            (None, Some(run)) => proof
                .credential
                .map(|own| format!("{}:{run}", own.to_hex())),
            (None, None) => None,
        };
        let now = Timestamp::now();
        // Another org is shown another token.
        let seen_by = call.hidden.as_ref().map_or("", |(_, org)| org);
        let name = from.map(|from| {
            let from = format!("{from} {seen_by}");
            (Box::from(call.target.as_str()), from.into_boxed_str())
        });
        if let Some(cached) = name.as_ref().and_then(|name| self.chains.sent.get(name))
            && now < cached.until
        {
            return Ok(cached);
        }
        let chain = match &proof.chain {
            Some(chain) => Arc::clone(chain),
            None => Arc::new(self.signed.begin_chain(proof, call.org, call.run)?),
        };
        if !chain.may_reach(call.target, Some(call.methods)) {
            let message = "the chain token was narrowed to other targets or methods (`authorization_details`)";
            return Err(refuse_chain("authorization_details", message));
        }
        let is_narrowed = chain.claim("authorization_details").is_some();
        let shown = match &call.hidden {
            Some((orgs, to)) => Arc::new(self.signed.hide(&chain, orgs, to)?),
            None => Arc::clone(&chain),
        };
        let issuer = self.config.get().issuer();
        let claims = shown.to_claims(&issuer, call.target.as_str(), CONTEXT_USE, chain.ends_at());
        let token = self.signed.sign_chain(&claims)?;
        let end = Timestamp(chain.ends_at().saturating_mul(1000));
        let sent = Arc::new(SentChain {
            hash: body_hash(token.expose_secret().as_bytes()),
            token,
            txn: chain.txn().to_owned(),
            until: now.after(USED_FOR).min(end),
        });
        // One that was narrowed is checked for each method.
        if let Some(name) = name.filter(|_| !is_narrowed) {
            self.chains.sent.insert(name, Arc::clone(&sent));
        }
        Ok(sent)
    }

    /// Verifies a chain token that was handed to `holder`.
    ///
    /// # Errors
    /// As [`Identity::with_chain`].
    pub async fn verify_context(
        &self,
        token: &str,
        holder: &Proof,
    ) -> Result<Arc<Chain>, Rejection> {
        let chain = self.read_chain(token, holder).await?;
        self.check_chain(&chain)?;
        Ok(chain)
    }
}

impl SignedTokens {
    /// Serializes the principal for a table, with its chain: a person's begins now.
    pub fn to_stored(&self, proof: &Proof, run: Option<&str>) -> String {
        let begins = proof.chain.is_none() && proof.is_person();
        let chain = begins.then(|| self.begin_chain(proof, proof.principal.org(), run));
        // What is too long for a chain is sent without one.
        match chain.and_then(Result::ok) {
            Some(chain) => proof.clone().on_chain(Some(Arc::new(chain))).to_stored(),
            None => proof.to_stored(),
        }
    }

    /// Begins a chain with the caller at its root. `org`: the caller's.
    ///
    /// # Errors
    /// `chain_invalid`.
    pub fn begin_chain(
        &self,
        proof: &Proof,
        org: Option<&str>,
        run: Option<&str>,
    ) -> Result<Chain, Rejection> {
        let config = self.config.get();
        let now = Timestamp::now();
        let mut ends_at = now.after(config.chain.ttl);
        if config.chain.follow_exp {
            ends_at = proof
                .ends_at()
                .map_or(ends_at, |end| ends_at.min(Timestamp(end)));
        }
        let (name, issuer) = (proof.principal.name(), config.issuer());
        let named = proof
            .signer
            .as_ref()
            .and_then(|by| by.named.issuer.as_deref());
        let sub = match &proof.principal {
            Principal::Canvas { user, .. } => user,
            _ => &*name,
        };
        let keys: Vec<_> = own_keys(proof).map(str::to_owned).collect();
        let mut chain = Chain::begin(&NewRoot {
            name: &name,
            subject: (named.unwrap_or(&issuer), sub),
            is_person: proof.is_person(),
            org,
            keys: &keys,
            run,
            ends_at: ends_at.0 / 1000,
        });
        if let Principal::Canvas {
            workspaces: Some(list),
            ..
        } = &proof.principal
        {
            if list.len() > WORKSPACES_MAX {
                let message = "the canvas token lists more than 32 workspaces, so its calls cannot be made on its person's behalf: \
                               name an org instead, or set `chain` of the target to \"never\"";
                return Err(refuse_chain("workspaces", message));
            }
            chain.set("workspaces", json!(list));
        }
        if matches!(proof.principal, Principal::Canvas { confined: true, .. }) {
            chain.set("confined", json!(true));
        }
        if let Some(within) = proof.principal.within() {
            chain.set("within", json!(within.to_string()));
        }
        let named: Vec<_> = proof
            .groups
            .iter()
            .filter(|group| is_named(&config, group))
            .collect();
        if named.len() > GROUPS_MAX {
            return Err(refuse_chain(
                "groups",
                "rules name more than 32 groups of the person (access.require)",
            ));
        }
        if !named.is_empty() {
            chain.set("groups", json!(named));
        }
        Ok(chain)
    }

    /// Returns a chain as another org sees it: `orgs` in place of the actors but the outermost, the root by a name that
    /// is for the org `to` alone.
    fn hide(&self, chain: &Chain, orgs: &[String], to: &str) -> Result<Chain, Rejection> {
        let issuer = self.config.get().issuer();
        let pairwise = body_hash(json!([issuer, to, chain.root_key()]).to_string().as_bytes());
        let sub = format!("pairwise:{}", &pairwise[..22]);
        let mut act = orgs
            .iter()
            .rev()
            .fold(None, |older, org| Some(actor(&format!("org:{org}"), older)));
        if let Some(outermost) = chain.actors().next() {
            act = Some(actor(outermost, act));
        }
        self.seal_chain(chain, (sub.into(), act))
    }

    /// Exchanges a chain for a token with which `caller`, who acts on it, calls `target`.
    ///
    /// # Errors
    /// `internal` when it cannot be signed.
    pub fn issue_call(
        &self,
        chain: &Chain,
        caller: &Proof,
        target: &WorkspaceId,
    ) -> Result<Exchanged, Rejection> {
        let config = self.config.get();
        let left = caller
            .ends_at()
            .map(|end| Timestamp(end).since(Timestamp::now()));
        let ttl = config.tokens.pair_ttl.min(left.unwrap_or(Duration::MAX));
        let hidden = chain.shown().map(|(sub, older)| {
            let holder = caller.principal.name();
            (sub, Some(actor(&holder, older)))
        });
        self.exchange(chain, hidden, (target.as_str(), CALL_USE), ttl)
    }

    /// Exchanges a chain for a narrower one of the same holder.
    ///
    /// # Errors
    /// `invalid_params` if it would be wider; `internal` when it cannot be signed.
    pub fn narrow_context(
        &self,
        chain: &Chain,
        holder: &WorkspaceId,
        details: &[Detail],
    ) -> Result<Exchanged, Rejection> {
        let refuse = |_| {
            Rejection::new(
                Reason::InvalidParams,
                "what the token was narrowed to is not known here",
            )
        };
        if let Some(wide) = chain.details().map_err(refuse)? {
            let within = |one: &Detail| wide.iter().any(|wider| one.is_within(wider));
            if !details.iter().all(within) {
                let message = "`authorization_details` asks for more than the token has";
                return Err(Rejection::new(Reason::InvalidParams, message));
            }
        }
        let mut narrow = chain.clone();
        // The holder itself is not an actor of what it holds.
        let own = narrow.take("act");
        if let Some(older) = own.and_then(|act| act.get("act").cloned()) {
            narrow.set("act", older);
        }
        narrow.set("authorization_details", json!(details));
        self.exchange(
            &narrow,
            chain.shown(),
            (holder.as_str(), CONTEXT_USE),
            Duration::MAX,
        )
    }

    fn exchange(
        &self,
        chain: &Chain,
        hidden: Option<(Value, Option<Value>)>,
        (audience, usage): (&str, &str),
        ttl: Duration,
    ) -> Result<Exchanged, Rejection> {
        let now = Timestamp::now().0 / 1000;
        let left = chain.ends_at().saturating_sub(now).max(0).unsigned_abs();
        let ttl = Duration::from_secs(ttl.as_secs().min(left));
        let exp = now.saturating_add_unsigned(ttl.as_secs());
        let shown = match hidden {
            Some(shown) => self.seal_chain(chain, shown)?,
            None => chain.clone(),
        };
        let claims = shown.to_claims(&self.config.get().issuer(), audience, usage, exp);
        let token = self.sign_chain(&claims)?;
        Ok(Exchanged { token, ttl })
    }

    fn sign_chain(&self, claims: &Map<String, Value>) -> Result<SecretString, Rejection> {
        let signed = self.keys.sign(CHAIN_TYP, claims).map_err(|error| {
            Rejection::new(Reason::Internal, "the token could not be signed").with_cause(error)
        })?;
        if signed.len() > TOKEN_MAX {
            let message = format!("the chain token would have more than {TOKEN_MAX} bytes");
            return Err(refuse_chain("size", message));
        }
        Ok(signed.into())
    }
}

/// Returns the keys by which a credential and its principal are revoked.
fn own_keys(proof: &Proof) -> impl Iterator<Item = &str> {
    let signed = proof.revocable().into_iter().flat_map(|own| &own.keys);
    signed.map(|key| &**key).chain(proof.link_key.as_deref())
}

/// True if a rule names a group.
fn is_named(config: &Config, group: &str) -> bool {
    let mut rules = config.access.require.iter();
    rules.any(|rule| matches!(&rule.root, RequiredRoot::Group(name) if name == group))
}

/// Builds `chain_invalid`.
fn refuse_chain(
    why: &'static str,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> Rejection {
    Rejection::new(Reason::ChainInvalid, message).with_fact("why", why)
}

/// Builds `chain_revoked`.
pub fn chain_revoked(message: &'static str) -> Rejection {
    Rejection::new(Reason::ChainRevoked, message)
}
