//! Principals in tables: a deferred call is made in the name of its caller, without the caller's credential.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::chain_token::Chain;
use super::proof::{CredentialKind, Principal, Proof, open_proof};
use super::role::Operator;
use kernel::shares::Account;

/// A proof in a table.
#[derive(Serialize, Deserialize)]
struct StoredProof {
    /// `None`: no credential, in open mode.
    principal: Option<Principal>,
    #[serde(default, skip_serializing_if = "is_first")]
    born_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operator: Option<Operator>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chain: Option<Chain>,
}

/// True for the first life of a workspace, of which nothing is written.
fn is_first(born_at: &i64) -> bool {
    *born_at == 0
}

impl Proof {
    /// Serializes the principal for a table, to be read by [`Identity::restore_proof`](super::Identity::restore_proof).
    /// Contains nothing of the credential.
    pub(super) fn to_stored(&self) -> String {
        let is_open = self.kind == CredentialKind::Open;
        let stored = StoredProof {
            principal: (!is_open).then(|| self.principal.clone()),
            born_at: self.born_at,
            operator: self.operator.as_deref().cloned(),
            chain: self.chain.as_deref().cloned(),
        };
        // Strings and lists of strings: serialization cannot fail.
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Restores the principal from the output of [`Proof::to_stored`]. No request can create such a proof, and
    /// permits are checked again with it. The owner is not stored: see [`Proof::owner`]. `None`: the text is
    /// invalid, or it is from open mode, which is off now.
    pub(super) fn from_stored(stored: &str, is_open: bool) -> Option<Self> {
        let stored: StoredProof = serde_json::from_str(stored).ok()?;
        let Some(principal) = stored.principal else {
            return is_open.then(open_proof);
        };
        let operator = stored.operator.unwrap_or(Operator::CONFIGURED);
        let proof = Self::of_principal(principal, stored.born_at, operator);
        Some(proof.on_chain(stored.chain.map(Arc::new)))
    }

    /// Returns the proof of what the gateway does by itself, as an operator.
    pub fn of_operator() -> Self {
        Self::of_principal(Principal::Operator, 0, Operator::CONFIGURED)
    }

    fn of_principal(principal: Principal, born_at: i64, operator: Operator) -> Self {
        let is_operator = principal == Principal::Operator;
        let proof = Self {
            principal,
            kind: CredentialKind::Stored,
            born_at,
            operator: is_operator.then(|| Arc::new(operator)),
            ..open_proof()
        };
        proof.with_account()
    }
}

/// Returns the chain of a caller as `Proof::to_stored` wrote it, as JSON.
pub fn stored_chain(stored: &str) -> Option<String> {
    let stored: StoredProof = serde_json::from_str(stored).ok()?;
    stored
        .chain
        .and_then(|chain| serde_json::to_string(&chain).ok())
}

/// Returns the account of a caller as [`Proof::to_stored`] wrote it.
pub fn stored_account(stored: &str) -> Account {
    Proof::from_stored(stored, true).map_or_else(Account::default, |proof| proof.account)
}

#[cfg(test)]
mod tests {
    use super::super::role::Role;
    use super::*;
    use kernel::ids::{WorkspaceId, WorkspaceIncarnation};

    #[test]
    fn the_holder_of_a_subtree_is_recalled_with_it() {
        let root = WorkspaceIncarnation::parse("team~7").unwrap();
        let org = Principal::Org {
            org: "acme".to_owned(),
            within: Some(root.clone()),
        };
        let user = Principal::Canvas {
            user: "ada".to_owned(),
            org: Some("acme".to_owned()),
            workspaces: Some(vec![WorkspaceId::parse("dev").unwrap()]),
            confined: true,
            within: Some(root),
        };
        for principal in [org, user] {
            let proof = Proof::for_test(principal.clone());
            let stored = proof.to_stored();
            let recalled = Proof::from_stored(&stored, false).unwrap();
            assert_eq!(recalled.principal, principal);
            assert_eq!(recalled.owner(), proof.owner());
        }
    }

    #[test]
    fn an_operator_is_recalled_with_role_and_name() {
        let operator = Operator {
            role: Role::Operate,
            token_id: Some("1".to_owned()),
            ..Operator::CONFIGURED
        };
        let proof = Proof {
            principal: Principal::Operator,
            operator: Some(Arc::new(operator)),
            ..open_proof()
        };
        let proof = Proof {
            kind: CredentialKind::Admin,
            ..proof
        };
        let recalled = Proof::from_stored(&proof.to_stored(), false).unwrap();
        assert_eq!(recalled.operator, proof.operator);
    }
}
