//! Chain tokens that a workspace exchanges (RFC 8693): a context token that was handed to it, for a call token to one
//! target, or for a narrower context token. Both are of the root, run and end of the first. Claims that are not changed
//! are passed on as they are.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::authenticate::Identity;
use super::proof::{CredentialKind, Principal, Proof, Signer, open_proof};
use super::refusal::{AuthError, Refusal};
use super::signed_tokens::SignedTokens;
use crate::identity::revocations::Revocable;
use kernel::ids::WorkspaceId;
use kernel::rejection::{Reason, Rejection};
use kernel::time::Timestamp;
use trust::{TokenError, claimed_audience};

/// The `typ` of the header of a chain token.
pub const CHAIN_TYP: &str = "a2a-chain+jwt";

/// The only scope.
const CHAIN_SCOPE: &str = "a2a:chain";

/// The uses: handed to an agent, and a credential for one target.
const CONTEXT_USE: &str = "context";
const CALL_USE: &str = "call";

/// Bytes of the longest chain token.
const TOKEN_MAX: usize = 4096;

/// Maximum entries of `authorization_details`, and names in each list of one.
const DETAILS_MAX: usize = 16;
const NAMES_MAX: usize = 32;

/// The type of entries of `authorization_details`.
const KIND: &str = "a2a";

/// One entry of `authorization_details` (RFC 9396): what a narrowed token is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detail {
    /// `a2a`.
    #[serde(rename = "type")]
    kind: String,
    /// The targets, by their ids; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    locations: Option<Vec<WorkspaceId>>,
    /// The methods of JSON-RPC; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actions: Option<Vec<String>>,
}

impl Detail {
    /// Reads a list of them.
    pub fn parse_all(json: &str) -> Option<Vec<Self>> {
        let all: Vec<Self> = serde_json::from_str(json).ok()?;
        let fits = |count: usize| (1..=NAMES_MAX).contains(&count);
        let good = |one: &Self| {
            one.kind == KIND
                && one.locations.as_ref().is_none_or(|all| fits(all.len()))
                && one.actions.as_ref().is_none_or(|all| fits(all.len()))
        };
        ((1..=DETAILS_MAX).contains(&all.len()) && all.iter().all(good)).then_some(all)
    }

    fn is_within(&self, wider: &Self) -> bool {
        fn within<T: PartialEq>(narrow: Option<&Vec<T>>, wide: Option<&Vec<T>>) -> bool {
            let Some(wide) = wide else { return true };
            narrow.is_some_and(|narrow| narrow.iter().all(|one| wide.contains(one)))
        }
        self.kind == wider.kind
            && within(self.locations.as_ref(), wider.locations.as_ref())
            && within(self.actions.as_ref(), wider.actions.as_ref())
    }

    /// True if it lets all be sent to a target. A call token does not say by which methods.
    fn has_target(&self, target: &WorkspaceId) -> bool {
        let named = self.locations.as_ref();
        let has_all = self.kind == KIND && self.actions.is_none();
        has_all && named.is_none_or(|all| all.contains(target))
    }
}

/// The verified claims of a chain token. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainToken(Map<String, Value>);

/// A token that was made by an exchange.
pub struct Exchanged {
    /// The token.
    pub token: SecretString,
    /// Its lifetime.
    pub ttl: Duration,
}

impl ChainToken {
    fn read(claims: Map<String, Value>, usage: &str) -> Result<Self, TokenError> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let good = text("scope") == Some(CHAIN_SCOPE)
            && text("token_use") == Some(usage)
            && ["sub", "txn", "jti"]
                .iter()
                .all(|name| text(name).is_some())
            && ["began", "iat", "exp"]
                .iter()
                .all(|name| claims.get(*name).is_some_and(Value::is_i64));
        good.then_some(Self(claims)).ok_or(TokenError::Claims)
    }

    fn seconds(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Returns the callers since the root, as signed.
    fn depth(&self) -> usize {
        let acts = std::iter::successors(self.0.get("act"), |act| act.get("act"));
        acts.count()
    }

    fn actor(&self) -> Option<&str> {
        self.0.get("act")?.get("sub")?.as_str()
    }

    /// Returns what revokes it.
    fn revocable(&self) -> Revocable {
        let keys = self.0.get("rk").and_then(Value::as_array);
        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
        let org = self.0.get("org").and_then(Value::as_str);
        Revocable {
            keys: keys.map(str::to_owned).collect(),
            issued_at: self.seconds("began").saturating_mul(1000),
            org: org.map(str::to_owned),
        }
    }

    /// Returns what it was narrowed to; `None`: nothing.
    fn details(&self) -> Result<Option<Vec<Detail>>, Rejection> {
        let Some(said) = self.0.get("authorization_details") else {
            return Ok(None);
        };
        let read = serde_json::from_value(said.clone());
        // The gateway signed it, so a form that is not known is of a later release: it permits nothing here.
        read.map(Some).map_err(|_| refuse_token())
    }

    /// True if it was not narrowed to other targets, or to methods.
    ///
    /// # Errors
    /// `invalid_params`: what it was narrowed to is not known here.
    pub fn may_reach(&self, target: &WorkspaceId) -> Result<bool, Rejection> {
        let details = self.details()?;
        Ok(details.is_none_or(|all| all.iter().any(|one| one.has_target(target))))
    }

    /// Returns the token for the next use: it begins now, and ends no later than this one.
    fn next(&self, usage: &str, ttl: Duration) -> (Map<String, Value>, Duration) {
        let now = Timestamp::now().0 / 1000;
        let left = self
            .seconds("exp")
            .saturating_sub(now)
            .max(0)
            .unsigned_abs();
        let ttl = ttl.min(Duration::from_secs(left));
        let mut claims = self.0.clone();
        let exp = now.saturating_add_unsigned(ttl.as_secs());
        for (name, value) in [
            ("iat", json!(now)),
            ("nbf", json!(now)),
            ("exp", json!(exp)),
            ("jti", json!(uuid::Uuid::now_v7().to_string())),
            ("token_use", json!(usage)),
        ] {
            claims.insert(name.to_owned(), value);
        }
        (claims, ttl)
    }
}

impl Identity {
    /// Verifies a context token that was handed to `holder`.
    ///
    /// # Errors
    /// `invalid_params` if it is none, has ended or was revoked; `store_unavailable`.
    pub async fn verify_context(
        &self,
        token: &str,
        holder: &WorkspaceId,
    ) -> Result<ChainToken, Rejection> {
        let issuer = self.config.get().issuer();
        let keys = &self.signed.keys;
        let read = || -> Result<ChainToken, Refusal> {
            let verified = keys.verify(token, CHAIN_TYP, &issuer, holder.as_str());
            let read = verified.and_then(|found| ChainToken::read(found.claims, CONTEXT_USE));
            read.map_err(Refusal::Signed)
        };
        if token.len() > TOKEN_MAX {
            return Err(refuse_token());
        }
        let chain = self.signed.verify_with_reload(read).await;
        let chain = chain.map_err(|error| match error {
            AuthError::Refused(_) => refuse_token(),
            AuthError::Unavailable(rejection) => rejection,
        })?;
        self.revocations.require_known()?;
        let revocable = chain.revocable();
        let org = revocable.org.as_deref();
        if self
            .revocations
            .covers(&revocable.keys, revocable.issued_at, org)
        {
            let message = "what this token stands for was revoked: the person, the session, the run or a link";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        Ok(chain)
    }

    /// Exchanges a context token for one with which `caller`, to which it was handed, calls `target`.
    ///
    /// # Errors
    /// `invalid_params` if the chain is too long; `internal` when it cannot be signed.
    pub fn issue_call(
        &self,
        chain: &ChainToken,
        caller: (&WorkspaceId, &Proof),
        target: &WorkspaceId,
    ) -> Result<Exchanged, Rejection> {
        let config = self.config.get();
        if chain.depth() >= usize::try_from(config.forward.max_hops).unwrap_or(usize::MAX) {
            let message = "the chain has as many hops as may be (forward.max_hops)";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        let left = caller
            .1
            .ends_at()
            .map(|end| Timestamp(end).since(Timestamp::now()));
        let ttl = config.tokens.pair_ttl.min(left.unwrap_or(Duration::MAX));
        let (mut claims, ttl) = chain.next(CALL_USE, ttl);
        let mut act = json!({"sub": caller.0.as_str()});
        if let Some(older) = claims.remove("act") {
            act["act"] = older;
        }
        claims.insert("act".to_owned(), act);
        claims.insert("aud".to_owned(), target.as_str().into());
        self.sign_chain(&claims, ttl)
    }

    /// Exchanges a context token for a narrower one of the same holder.
    ///
    /// # Errors
    /// `invalid_params` if it would be wider; `internal` when it cannot be signed.
    pub fn narrow_context(
        &self,
        chain: &ChainToken,
        details: &[Detail],
    ) -> Result<Exchanged, Rejection> {
        if let Some(wide) = chain.details()? {
            let within = |one: &Detail| wide.iter().any(|wider| one.is_within(wider));
            if !details.iter().all(within) {
                let message = "`authorization_details` asks for more than the token has";
                return Err(Rejection::new(Reason::InvalidParams, message));
            }
        }
        let (mut claims, ttl) = chain.next(CONTEXT_USE, Duration::MAX);
        claims.insert("authorization_details".to_owned(), json!(details));
        self.sign_chain(&claims, ttl)
    }

    fn sign_chain(
        &self,
        claims: &Map<String, Value>,
        ttl: Duration,
    ) -> Result<Exchanged, Rejection> {
        let signed = self.signed.keys.sign(CHAIN_TYP, claims).map_err(|error| {
            Rejection::new(Reason::Internal, "the token could not be signed").with_cause(error)
        })?;
        if signed.len() > TOKEN_MAX {
            let message = format!("the token would have more than {TOKEN_MAX} bytes");
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        let token = signed.into();
        Ok(Exchanged { token, ttl })
    }
}

impl SignedTokens {
    /// Verifies a call token of this gateway: it proves its outermost actor to one target.
    pub(super) fn verify_call(&self, token: &str) -> Result<Proof, Refusal> {
        let signed = Refusal::Signed;
        let issuer = self.config.get().issuer();
        // The audience is compared with the target later, when the target is known.
        let audience = claimed_audience(token).ok_or(signed(TokenError::Claims))?;
        let verified = self.keys.verify(token, CHAIN_TYP, &issuer, &audience);
        let verified = verified.map_err(signed)?;
        let chain = ChainToken::read(verified.claims, CALL_USE).map_err(|_| Refusal::Context)?;
        let id = |text: &str| WorkspaceId::parse(text).map_err(|_| signed(TokenError::Claims));
        let actor = chain.actor().ok_or(signed(TokenError::Claims))?;
        let issued_at = chain.seconds("iat").saturating_mul(1000);
        Ok(Proof {
            principal: Principal::Workspace { id: id(actor)? },
            kind: CredentialKind::Pair,
            expires_at: Some(chain.seconds("exp").saturating_mul(1000)),
            signer: Some(Signer::from_own_key(verified.head, verified.key)),
            only_to: Some(id(&audience)?),
            // Of no earlier life of either end; a claim has whole seconds.
            pair_generation: Some(issued_at.saturating_add(999)),
            revocable: Some(Arc::new(chain.revocable())),
            ..open_proof()
        })
    }
}

fn refuse_token() -> Rejection {
    Rejection::new(
        Reason::InvalidParams,
        "the `subject_token` is not a chain token that this gateway handed to this client (X-A2A-On-Behalf-Of), or has \
         expired",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_narrower_only() {
        let read = |json: Value| Detail::parse_all(&json.to_string());
        let one = |json: Value| read(json!([json])).unwrap().remove(0);
        let wide = one(json!({"type": "a2a", "locations": ["a", "b"]}));
        for (narrow, within) in [
            (json!({"type": "a2a", "locations": ["a"]}), true),
            (
                json!({"type": "a2a", "locations": ["a", "b"], "actions": ["message/send"]}),
                true,
            ),
            (json!({"type": "a2a", "locations": ["a", "c"]}), false),
            (json!({"type": "a2a"}), false),
        ] {
            assert_eq!(one(narrow.clone()).is_within(&wide), within, "{narrow}");
        }
        let act = one(json!({"type": "a2a", "actions": ["message/send"]}));
        assert!(!wide.is_within(&act) && act.is_within(&one(json!({"type": "a2a"}))));
        for wrong in [
            json!([]),
            json!({}),
            json!([{"type": "payment"}]),
            json!([{"type": "a2a", "locations": []}]),
            json!([{"type": "a2a", "locations": ["a:b"]}]),
            json!([{"type": "a2a", "more": 1}]),
            json!(vec![json!({"type": "a2a"}); 17]),
        ] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn a_call_token_comes_only_of_what_lets_all_be_sent_to_its_target() {
        let target = WorkspaceId::parse("b").unwrap();
        for (details, may) in [
            (json!(null), false),
            (json!([{"type": "a2a"}]), true),
            (
                json!([{"type": "a2a", "locations": ["a"]}, {"type": "a2a", "locations": ["b"]}]),
                true,
            ),
            (json!([{"type": "a2a", "locations": ["a"]}]), false),
            (json!([{"type": "a2a", "actions": ["message/send"]}]), false),
            (json!([{"type": "pay"}]), false),
            (json!([]), false),
            (json!([{"type": "a2a", "later": 1}]), false),
        ] {
            let claims = json!({"authorization_details": details});
            let chain = ChainToken(claims.as_object().unwrap().clone());
            assert_eq!(chain.may_reach(&target).unwrap_or(false), may, "{claims}");
        }
        assert!(ChainToken(Map::new()).may_reach(&target).unwrap());
    }

    #[test]
    fn depth_is_that_of_the_signed_actors() {
        let chain = |act: Value| ChainToken(json!({"act": act}).as_object().unwrap().clone());
        assert_eq!(ChainToken(Map::new()).depth(), 0);
        assert_eq!(chain(json!({"sub": "a"})).depth(), 1);
        let three = chain(json!({"sub": "c", "act": {"sub": "b", "act": {"sub": "a"}}}));
        assert_eq!((three.depth(), three.actor()), (3, Some("c")));
    }
}
