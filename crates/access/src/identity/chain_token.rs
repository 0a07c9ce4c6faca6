//! The claims of chain tokens: the root, and the actors since (`docs/reference/credentials.md`, "Chains"). Claims that
//! are not changed are passed on from hop to hop as they are.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::identity::revocations::{Revocable, Subject};
use kernel::ids::WorkspaceId;
use kernel::time::Timestamp;
use trust::TokenError;

/// The only scope.
const CHAIN_SCOPE: &str = "a2a:chain";

/// The uses: handed to an agent, and a credential for one target.
pub(super) const CONTEXT_USE: &str = "context";
pub(super) const CALL_USE: &str = "call";

/// Bytes of the longest chain token.
pub(super) const TOKEN_MAX: usize = 4096;

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

    pub(super) fn is_within(&self, wider: &Self) -> bool {
        fn within<T: PartialEq>(narrow: Option<&Vec<T>>, wide: Option<&Vec<T>>) -> bool {
            let Some(wide) = wide else { return true };
            narrow.is_some_and(|narrow| narrow.iter().all(|one| wide.contains(one)))
        }
        self.kind == wider.kind
            && within(self.locations.as_ref(), wider.locations.as_ref())
            && within(self.actions.as_ref(), wider.actions.as_ref())
    }

    /// True if it lets `methods` be called at a target: of one call, its names. `None`: all of them.
    fn covers(&self, target: &WorkspaceId, methods: Option<&[&str]>) -> bool {
        let has_target = self
            .locations
            .as_ref()
            .is_none_or(|all| all.contains(target));
        let has_method = self.actions.as_ref().is_none_or(|all| {
            methods.is_some_and(|names| all.iter().any(|one| names.contains(&&**one)))
        });
        self.kind == KIND && has_target && has_method
    }
}

/// A chain: the root for which a caller acts, and the actors between. As JSON it is stored with a deferred call.
///
/// The claims are those of its token, without what each token has anew. `act` names the caller itself first; without it
/// the caller is the root.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(Map<String, Value>);

/// The claims that each token has anew.
const PER_TOKEN: [&str; 7] = ["iss", "aud", "iat", "nbf", "jti", "scope", "token_use"];

/// The claim that is ours alone: SHA-256 of the token that was handed in, for records. No token has it.
const LINK: &str = "link";

/// The claim that is ours alone: what a token showed of what was hidden in it. No token has it.
const SHOWN: &str = "shown";

/// The claim with what is hidden, sealed.
pub(super) const SEALED: &str = "sealed";

/// What is hidden from other orgs.
const HIDDEN: [&str; 7] = [
    "sub",
    "sub_id",
    "act",
    "workspaces",
    "within",
    "confined",
    "rk",
];

/// The root of a chain that begins.
pub(super) struct NewRoot<'a> {
    /// As records name a caller.
    pub(super) name: &'a str,
    /// Its issuer and its name there.
    pub(super) subject: (&'a str, &'a str),
    /// True if it is a person.
    pub(super) is_person: bool,
    /// The org.
    pub(super) org: Option<&'a str>,
    /// The keys by which it is revoked, apart from its own.
    pub(super) keys: &'a [String],
    /// The name of the run.
    pub(super) run: Option<&'a str>,
    /// Seconds since 1970.
    pub(super) ends_at: i64,
}

impl Chain {
    /// Begins a chain now.
    pub(super) fn begin(root: &NewRoot<'_>) -> Self {
        let now = Timestamp::now().0 / 1000;
        let (iss, sub) = root.subject;
        let own_key = Subject::root(iss, sub).key();
        let run = root.run.map_or_else(
            || hash_half(uuid::Uuid::new_v4().as_bytes()),
            |run| hash_half(json!([own_key, root.org, run]).to_string().as_bytes()),
        );
        let others = root.keys.iter().filter(|key| **key != own_key).cloned();
        let keys: Vec<_> = std::iter::once(own_key.clone()).chain(others).collect();
        let mut claims =
            json!({"sub": root.name, "txn": run, "began": now, "exp": root.ends_at, "rk": keys});
        if root.is_person {
            claims["sub_id"] = json!({"format": "iss_sub", "iss": iss, "sub": sub});
        }
        if let Some(org) = root.org {
            claims["org"] = org.into();
        }
        match claims {
            Value::Object(claims) => Self(claims),
            _ => Self(Map::new()),
        }
    }

    /// Reads the claims of a token for `usage`.
    pub(super) fn read(mut claims: Map<String, Value>, usage: &str) -> Result<Self, TokenError> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let good = text("scope") == Some(CHAIN_SCOPE)
            && text("token_use") == Some(usage)
            && ["sub", "txn", "jti"]
                .iter()
                .all(|name| text(name).is_some())
            && ["began", "iat", "exp"]
                .iter()
                .all(|name| claims.get(*name).is_some_and(Value::is_i64));
        if !good {
            return Err(TokenError::Claims);
        }
        for name in PER_TOKEN {
            claims.remove(name);
        }
        Ok(Self(claims))
    }

    /// Adds the outermost actor.
    pub(super) fn push(&mut self, name: &WorkspaceId) {
        let older = self.0.remove("act");
        self.set("act", actor(name.as_str(), older));
    }

    /// Returns what its token showed of root and actors, if it hid something.
    pub(super) fn shown(&self) -> Option<(Value, Option<Value>)> {
        let shown = self.0.get(SHOWN)?;
        Some((shown.get("sub")?.clone(), shown.get("act").cloned()))
    }

    /// Replaces what a token shows by what is hidden in it.
    pub(super) fn reveal(&mut self, hidden: Map<String, Value>) {
        let mut shown = Map::new();
        for name in HIDDEN {
            shown.extend(self.0.remove(name).map(|value| (name.to_owned(), value)));
        }
        self.0.extend(hidden);
        self.set(SHOWN, shown.into());
    }

    /// Removes what is hidden from other orgs, and shows `sub` and `act` instead. Returns what was removed.
    pub(super) fn conceal(&mut self, (sub, act): (Value, Option<Value>)) -> Map<String, Value> {
        let mut hidden = Map::new();
        for name in HIDDEN {
            hidden.extend(self.0.remove(name).map(|value| (name.to_owned(), value)));
        }
        self.set("sub", sub);
        if let Some(act) = act {
            self.set("act", act);
        }
        hidden
    }

    /// Returns the claims of a token of it for `aud`, which ends at `exp`, in seconds since 1970.
    pub(super) fn to_claims(
        &self,
        issuer: &str,
        aud: &str,
        usage: &str,
        exp: i64,
    ) -> Map<String, Value> {
        let now = Timestamp::now().0 / 1000;
        let mut claims = self.0.clone();
        claims.remove(LINK);
        claims.remove(SHOWN);
        for (name, value) in [
            ("iss", json!(issuer)),
            ("aud", json!(aud)),
            ("iat", json!(now)),
            ("nbf", json!(now)),
            ("exp", json!(exp.min(self.ends_at()))),
            ("jti", json!(uuid::Uuid::now_v7().to_string())),
            ("scope", json!(CHAIN_SCOPE)),
            ("token_use", json!(usage)),
        ] {
            claims.insert(name.to_owned(), value);
        }
        claims
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    fn seconds(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).unwrap_or(0)
    }

    /// Returns a claim.
    pub(super) fn claim(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Sets a claim.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Removes a claim.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Returns the root, as records name a caller.
    pub fn root(&self) -> &str {
        self.text("sub").unwrap_or_default()
    }

    /// Returns the org of the root.
    pub fn org(&self) -> Option<&str> {
        self.text("org")
    }

    /// Returns the issuer of a person, and its name there.
    pub fn person(&self) -> Option<(&str, &str)> {
        let id = self.0.get("sub_id")?;
        Some((id.get("iss")?.as_str()?, id.get("sub")?.as_str()?))
    }

    /// Returns the groups of the root that rules name.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        let groups = self.0.get("groups").and_then(Value::as_array);
        groups.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the id of the root's run.
    pub fn txn(&self) -> &str {
        self.text("txn").unwrap_or_default()
    }

    /// Returns the hash of the token that was handed in.
    pub fn link(&self) -> Option<&str> {
        self.text(LINK)
    }

    pub(super) fn set_link(&mut self, token: &str) {
        self.set(LINK, json!(trust::body_hash(token.as_bytes())));
    }

    /// Returns its end: seconds since 1970.
    pub fn ends_at(&self) -> i64 {
        self.seconds("exp")
    }

    /// Returns the time by which its root began it: milliseconds since 1970.
    pub fn began_at(&self) -> i64 {
        self.seconds("began")
            .saturating_mul(1000)
            .saturating_add(999)
    }

    /// Returns the actors, the caller first.
    pub fn actors(&self) -> impl Iterator<Item = &str> {
        let acts = std::iter::successors(self.0.get("act"), |act| act.get("act"));
        acts.filter_map(|act| act.get("sub")?.as_str())
    }

    /// Returns the actors since the root, as signed.
    pub fn depth(&self) -> usize {
        self.actors().count()
    }

    /// Returns a name of the root that no other root has: a hash.
    pub(super) fn root_key(&self) -> String {
        let names = (self.person(), self.root(), self.org(), self.0.get("within"));
        hash_half(json!(names).to_string().as_bytes())
    }

    /// Adds a key by which it is revoked.
    pub(super) fn add_key(&mut self, key: &str) {
        let keys = self.0.entry("rk").or_insert_with(|| json!([]));
        if let Some(keys) = keys
            .as_array_mut()
            .filter(|keys| !keys.iter().any(|one| one == key))
        {
            keys.push(key.into());
        }
    }

    /// Returns the keys by which it is revoked.
    pub(super) fn revocable(&self) -> Revocable {
        let keys = self.0.get("rk").and_then(Value::as_array);
        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
        let run = Subject::Run(self.txn().to_owned()).key();
        Revocable {
            keys: keys.map(str::to_owned).chain([run]).collect(),
            issued_at: self.seconds("began").saturating_mul(1000),
            org: self.org().map(str::to_owned),
        }
    }

    /// Returns the narrower rights of the caller; `None`: it was not narrowed.
    pub(super) fn details(&self) -> Result<Option<Vec<Detail>>, serde_json::Error> {
        let said = self.0.get("authorization_details");
        said.map(|said| serde_json::from_value(said.clone()))
            .transpose()
    }

    /// True if it was not narrowed to other targets or methods. `methods`: the names of the method of one call. `None`:
    /// all methods are needed. Details of a form that is not known here, of a later release, permit nothing.
    pub fn may_reach(&self, target: &WorkspaceId, methods: Option<&[&str]>) -> bool {
        match self.details() {
            Ok(None) => true,
            Ok(Some(details)) => details.iter().any(|one| one.covers(target, methods)),
            Err(_) => false,
        }
    }
}

/// Returns the claim `act` of an actor, with the older ones in it.
pub(super) fn actor(name: &str, older: Option<Value>) -> Value {
    match older {
        Some(older) => json!({"sub": name, "act": older}),
        None => json!({"sub": name}),
    }
}

/// Returns 128 bits of SHA-256, in base64url.
fn hash_half(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(bytes)[..16])
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
            let chain = Chain(claims.as_object().unwrap().clone());
            assert_eq!(chain.may_reach(&target, None), may, "{claims}");
        }
        assert!(Chain(Map::new()).may_reach(&target, None));
        let acts = json!({"authorization_details": [{"type": "a2a", "actions": ["message/send"]}]});
        let acts = Chain(acts.as_object().unwrap().clone());
        assert!(acts.may_reach(&target, Some(&["message/send", "SendMessage"])));
        assert!(!acts.may_reach(&target, Some(&["tasks/get", "GetTask"])));
    }

    #[test]
    fn depth_is_that_of_the_signed_actors() {
        let chain = |act: Value| Chain(json!({"act": act}).as_object().unwrap().clone());
        assert_eq!(Chain(Map::new()).depth(), 0);
        assert_eq!(chain(json!({"sub": "a"})).depth(), 1);
        let three = chain(json!({"sub": "c", "act": {"sub": "b", "act": {"sub": "a"}}}));
        assert_eq!((three.depth(), three.actors().next()), (3, Some("c")));
    }
}
