//! Principals without a credential, for `GET /explain`: the caller that a question names, and the known state
//! of its credentials.
//!
//! No request can be made with such a proof. It serves only to ask other modules for their decisions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::authenticate::Identity;
use super::proof::{CredentialKind, Principal, Proof, open_proof};
use super::rate::Rates;
use super::refusal::Refusal;
use super::role::{Operator, Role};
use super::tokens::{LiveToken, Owner};
use super::workspace_states::WorkspaceState;
use crate::explain::{ExplainQuery, Fact, Source, Witness};
use kernel::config::AuthMode;
use kernel::ids::{WorkspaceId, WorkspaceIncarnation};
use kernel::rejection::{Reason, Rejection};
use kernel::shares::Account;
use kernel::stage::Stage;
use stores::store::Unavailable;

/// Tokens that an explanation lists at most; further ones are counted.
const SHOWN_MAX: usize = 10;

/// The caller that a question names.
pub struct NamedCaller {
    principal: Principal,
    /// The role of an operator.
    role: Role,
    /// True if the question gives the org and the workspaces of a canvas user.
    claimed: bool,
}

/// A credential of the named caller: its visible prefix, and its rate account.
type KnownCredential = (Option<String>, Account);

/// The known credentials of the named caller.
pub struct Credentials {
    known: Vec<KnownCredential>,
    /// True if there are no further ones.
    complete: bool,
    /// The platforms whose tokens prove workspaces, if the caller is one.
    platforms: Vec<String>,
    source: Source,
    age: Duration,
}

impl NamedCaller {
    /// Parses a caller in the form in which [`Principal`] is displayed: a workspace id, `canvas:<user>`, `org:<org>`,
    /// `subtree:<root>:<org>`, or `operator:`, here also without the colon, or with the role of the operator behind it:
    /// without one it is `admin`.
    ///
    /// # Errors
    /// `invalid_params`.
    pub fn parse(question: &ExplainQuery) -> Result<Self, Rejection> {
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let id = |text: &str| WorkspaceId::parse(text).map_err(|_| wrong(FORMS));
        let claimed = question.org.is_some() || question.workspaces.is_some();
        let mut role = Role::Admin;
        let principal = match question.caller.split_once(':') {
            None if question.caller != "operator" => Principal::Workspace {
                id: id(&question.caller)?,
            },
            None | Some(("operator", "")) => Principal::Operator,
            Some(("operator", word)) => {
                role = Role::parse(word).ok_or_else(|| wrong(FORMS))?;
                Principal::Operator
            }
            Some(("org", org)) if !org.is_empty() => Principal::Org {
                org: org.to_owned(),
                within: None,
            },
            Some(("subtree", named)) => {
                let named = named.split_once(':').filter(|(_, org)| !org.is_empty());
                let (root, org) = named.ok_or_else(|| wrong(FORMS))?;
                let (id, born_at) = (id(root)?, 0);
                Principal::Org {
                    org: org.to_owned(),
                    within: Some(WorkspaceIncarnation { id, born_at }),
                }
            }
            Some(("canvas", user)) if !user.is_empty() => {
                let listed = question.workspaces.as_deref().map(|list| {
                    let ids = list.split(',').map(|text| WorkspaceId::parse(text.trim()));
                    ids.collect::<Result<_, _>>().map_err(|_| wrong(LIST))
                });
                Principal::Canvas {
                    user: user.to_owned(),
                    org: question.org.clone(),
                    workspaces: listed.transpose()?,
                    confined: false,
                    within: None,
                }
            }
            Some(_) => return Err(wrong(FORMS)),
        };
        if claimed && !matches!(principal, Principal::Canvas { .. }) {
            return Err(wrong(CLAIMS));
        }
        Ok(Self {
            principal,
            role,
            claimed,
        })
    }

    /// Returns the workspace, if the caller is one.
    pub fn workspace(&self) -> Option<&WorkspaceId> {
        self.principal.workspace()
    }
}

const CLAIMS: &str = "`org` and `workspaces` are what the token of a canvas user says: ask for a caller of the form \
                      `canvas:<user>`, or leave them out";

const LIST: &str = "`workspaces` is a list of workspace ids, with commas between them";

const FORMS: &str = "`caller` is what records name a caller by: a workspace id, `operator` (also `operator:read`, \
                     `operator:operate`), `canvas:<user>`, `org:<org>` or \
                     `subtree:<id>:<org>`";

impl Identity {
    /// Returns the present life of a workspace id, whose name owns what the workspace starts ([`Proof::owner`]). From
    /// memory in steady state; the first life if there is no such workspace.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn find_incarnation(
        &self,
        id: &WorkspaceId,
    ) -> Result<WorkspaceIncarnation, Unavailable> {
        Ok(WorkspaceIncarnation {
            id: id.clone(),
            born_at: self.workspaces.load_born_at(id).await?,
        })
    }

    /// Returns the proof that a credential of the named caller would give, and reports its credentials to
    /// `witness`.
    ///
    /// The claims of a canvas user are those of the question, else those of the user's newest token that was
    /// recently used on this replica, else none.
    ///
    /// # Errors
    /// `unauthenticated`, when no credential could prove it; `store_unavailable`.
    pub async fn prove_named_caller(
        &self,
        NamedCaller {
            mut principal,
            role,
            claimed,
        }: NamedCaller,
        witness: &mut impl Witness,
    ) -> Result<(Proof, Credentials), Rejection> {
        if let Principal::Org {
            within: Some(root), ..
        } = &mut principal
        {
            root.born_at = self.workspaces.load_born_at(&root.id).await.unwrap_or(0);
        }
        let open = self.config.get().auth.mode == AuthMode::Open;
        let (proof, credentials) = match &principal {
            Principal::Canvas { user, .. } if open && user == "open" => {
                (open_proof(), Credentials::empty())
            }
            Principal::Canvas { .. } => self.find_canvas_caller(principal, claimed),
            Principal::Org { .. } | Principal::Operator | Principal::Workspace { .. } => {
                let credentials = self.find_credentials(&principal).await?;
                let born_at = match principal.workspace() {
                    // What is not known is told of the place of the caller, later.
                    Some(id) => self.workspaces.load_born_at(id).await.unwrap_or(0),
                    None => 0,
                };
                let mut proof = Proof {
                    born_at,
                    ..proof_for(principal)
                };
                if let Some(operator) = &mut proof.operator {
                    Arc::make_mut(operator).role = role;
                }
                (proof, credentials)
            }
        };
        witness.record(|| {
            let value = json!({
                "principal": principal_json(&proof),
                "credentials": credentials.to_json(),
            });
            Fact::new(Stage::Caller, credentials.source, value).with_age(credentials.age)
        });
        if !credentials.platforms.is_empty()
            && credentials.source == Source::Sql
            && let Some(id) = proof.principal.workspace()
            && !matches!(
                self.workspaces.read_state(id).await?,
                WorkspaceState::Live(..)
            )
        {
            return Err(Refusal::Unknown.to_rejection());
        }
        if credentials.known.is_empty() && credentials.complete {
            let refusal = match proof.principal.workspace() {
                Some(id) if self.tokens.has_expired_token(id).await? => Refusal::Over,
                _ => Refusal::Unknown,
            };
            return Err(refusal.to_rejection());
        }
        Ok((proof, credentials))
    }

    /// Returns the credentials in the tables and in the configuration; while SQL is unavailable, those in the
    /// cache, which would still be accepted.
    async fn find_credentials(&self, principal: &Principal) -> Result<Credentials, Unavailable> {
        let owner = match principal {
            Principal::Workspace { id } => Owner::Workspace(id),
            Principal::Org { org, within } => Owner::Org(org, within.as_ref()),
            Principal::Operator | Principal::Canvas { .. } => Owner::Operators,
        };
        let mut known = Vec::new();
        if let Owner::Operators = owner {
            let configured = self.admins.get();
            let configured = configured.iter().map(|hash| (None, *hash));
            known.extend(configured.map(|live| known_by_token(principal, live)));
        }
        let platforms = match owner {
            Owner::Workspace(_) => self.issuers.list_platforms(),
            Owner::Org(..) | Owner::Operators => Vec::new(),
        };
        let (live, unavailable) = match self.tokens.list_live(owner).await {
            Ok(live) => (live, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let live = live.into_iter();
        known.extend(live.map(|live| known_by_token(principal, live)));
        // Those of platforms are in no table.
        let used = self.cached_proofs(|proof| {
            proof.principal == *principal
                && (unavailable.is_some() || proof.kind == CredentialKind::Workload)
        });
        known.extend(used.iter().map(known_by_proof));
        let Some(error) = unavailable else {
            return Ok(Credentials {
                known,
                // A platform may sign a token at any time.
                complete: platforms.is_empty(),
                platforms,
                source: Source::Sql,
                age: Duration::ZERO,
            });
        };
        if known.is_empty() {
            return Err(error);
        }
        let oldest = used.iter().map(|(_, read_at)| read_at.elapsed()).max();
        Ok(Credentials {
            known,
            platforms,
            age: oldest.unwrap_or_default(),
            ..Credentials::empty()
        })
    }

    fn find_canvas_caller(&self, principal: Principal, claimed: bool) -> (Proof, Credentials) {
        let name = principal.to_string();
        let used = self.cached_proofs(|proof| proof.principal.to_string() == name);
        let fits = |proof: &Proof| !claimed || proof.principal == principal;
        let newest = used.iter().filter(|(proof, _)| fits(proof));
        let newest = newest.max_by_key(|(proof, _)| proof.expires_at);
        let Some(newest) = newest else {
            let credentials = Credentials {
                source: Source::Question,
                ..Credentials::empty()
            };
            return (proof_for(principal), credentials);
        };
        let credentials = Credentials {
            known: vec![known_by_proof(newest)],
            age: newest.1.elapsed(),
            ..Credentials::empty()
        };
        (proof_for(newest.0.principal.clone()), credentials)
    }

    /// Returns cached proofs.
    fn cached_proofs(&self, of: impl Fn(&Proof) -> bool) -> Vec<(Arc<Proof>, Instant)> {
        self.proofs
            .iter_valid()
            .filter(|(proof, _)| of(proof))
            .collect()
    }
}

impl Credentials {
    /// Returns an empty, incomplete list.
    fn empty() -> Self {
        Self {
            known: Vec::new(),
            complete: false,
            platforms: Vec::new(),
            source: Source::Memory,
            age: Duration::ZERO,
        }
    }

    fn to_json(&self) -> Value {
        let shown = self.known.iter().take(SHOWN_MAX);
        let mut said = json!({
            "known": self.known.len(),
            "complete": self.complete,
            "prefixes": shown.map(|(prefix, _)| prefix).collect::<Vec<_>>(),
        });
        if !self.platforms.is_empty() {
            said["issuers"] = json!(self.platforms);
        }
        said
    }

    /// Checks if one of the credentials is within its rate now, and reports the rates to `witness`. Counts
    /// nothing.
    ///
    /// # Errors
    /// `rate_limited`, when none is: the rejection with the shortest wait.
    pub fn check_rates(&self, rates: &Rates, witness: &mut impl Witness) -> Result<(), Rejection> {
        let known = self.known.iter();
        let looked: Vec<_> = known.map(|(_, account)| rates.peek(*account)).collect();
        witness.record(|| {
            let each = self.known.iter().zip(&looked).take(SHOWN_MAX);
            let each = each.map(|((prefix, _), looked)| rate_json(prefix.as_deref(), looked));
            let value = json!({
                "limited": !matches!(looked.first(), Some(Ok(None))),
                "credentials": each.collect::<Vec<_>>(),
            });
            Fact::new(Stage::Rate, Source::Memory, value)
        });
        if looked.iter().any(Result::is_ok) {
            return Ok(());
        }
        let refusals = looked.into_iter().filter_map(Result::err);
        let soonest = refusals.min_by_key(|refusal| refusal.retry_after);
        soonest.map_or(Ok(()), Err)
    }
}

/// Returns the remaining allowance of a credential as JSON.
fn rate_json(prefix: Option<&str>, looked: &Result<Option<u64>, Rejection>) -> Value {
    match looked {
        Ok(remaining) => json!({"prefix": prefix, "may_ask": true, "remaining": remaining}),
        Err(refusal) => {
            json!({"prefix": prefix, "may_ask": false, "remaining": 0, "retry_after": refusal.retry_after})
        }
    }
}

fn known_by_token(principal: &Principal, (prefix, hash): LiveToken) -> KnownCredential {
    let proof = Proof {
        credential: Some(hash),
        ..proof_for(principal.clone())
    };
    (prefix, proof.with_account().account)
}

fn known_by_proof((proof, _): &(Arc<Proof>, Instant)) -> KnownCredential {
    (Some(proof.prefix.clone()), proof.account)
}

fn proof_for(principal: Principal) -> Proof {
    let is_operator = principal == Principal::Operator;
    Proof {
        principal,
        kind: CredentialKind::Stored,
        operator: is_operator.then(|| Arc::new(Operator::CONFIGURED)),
        ..open_proof()
    }
    .with_account()
}

fn principal_json(proof: &Proof) -> Value {
    let mut said = match &proof.principal {
        _ if proof.kind == CredentialKind::Open => json!({"kind": "open"}),
        Principal::Workspace { id } => json!({"kind": "workspace", "workspace": id.as_str()}),
        Principal::Canvas {
            user,
            org,
            workspaces,
            ..
        } => json!({"kind": "canvas", "user": user, "org": org, "workspaces": workspaces}),
        Principal::Org { org, .. } => json!({"kind": "org", "org": org}),
        Principal::Operator => {
            json!({"kind": "operator", "role": proof.role().map(Role::as_str)})
        }
    };
    if let Some(root) = proof.principal.within() {
        said["subtree"] = root.id.as_str().into();
    }
    said
}
