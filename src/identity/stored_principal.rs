//! Principals in tables: a deferred call is made in the name of its caller, without the caller's credential.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::proof::{CredentialKind, Principal, Proof, open_proof};
use super::role::Operator;
use crate::ids::{WorkspaceId, WorkspaceIncarnation};
use crate::shares::Account;

/// A principal in a table.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum StoredPrincipal {
    Workspace {
        id: String,
        #[serde(default, skip_serializing_if = "is_first")]
        born_at: i64,
    },
    Canvas {
        user: String,
        org: Option<String>,
        workspaces: Option<Vec<String>>,
        #[serde(default)]
        confined: bool,
    },
    Org {
        org: String,
    },
    /// An org token of a subtree. A kind of its own, as that of its users: a release without subtrees takes it for no
    /// principal, rather than for one of the whole org.
    Subtree {
        org: String,
        root: String,
    },
    /// A browser user that an org token of a subtree named.
    SubtreeUser {
        user: String,
        org: Option<String>,
        workspaces: Option<Vec<String>>,
        root: String,
    },
    Operator {
        /// Absent in rows of earlier releases, where all operators were admins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Operator>,
    },
    /// No credential, in open mode.
    Open,
}

/// Parses the ids of a list, if there is one. `None`: one of them is no id.
fn parse_list(ids: Option<Vec<String>>) -> Option<Option<Vec<WorkspaceId>>> {
    let Some(ids) = ids else {
        return Some(None);
    };
    let ids = ids.iter().map(|id| WorkspaceId::parse(id).ok());
    ids.collect::<Option<Vec<_>>>().map(Some)
}

/// True for the first life of a workspace, of which nothing is written.
fn is_first(born_at: &i64) -> bool {
    *born_at == 0
}

impl Proof {
    /// Serializes the principal for a table, to be read by [`Identity::restore_proof`](super::Identity::restore_proof).
    /// Contains nothing of the credential.
    pub fn to_stored(&self) -> String {
        let stored = match &self.principal {
            _ if self.kind == CredentialKind::Open => StoredPrincipal::Open,
            Principal::Workspace { id } => StoredPrincipal::Workspace {
                id: id.to_string(),
                born_at: self.born_at,
            },
            Principal::Canvas {
                user,
                org,
                workspaces,
                confined,
                within,
            } => {
                let (user, org) = (user.clone(), org.clone());
                let workspaces = workspaces.as_ref();
                let workspaces =
                    workspaces.map(|ids| ids.iter().map(ToString::to_string).collect());
                match within {
                    None => StoredPrincipal::Canvas {
                        user,
                        org,
                        workspaces,
                        confined: *confined,
                    },
                    Some(root) => StoredPrincipal::SubtreeUser {
                        user,
                        org,
                        workspaces,
                        root: root.to_string(),
                    },
                }
            }
            Principal::Org { org, within } => match within {
                None => StoredPrincipal::Org { org: org.clone() },
                Some(root) => StoredPrincipal::Subtree {
                    org: org.clone(),
                    root: root.to_string(),
                },
            },
            Principal::Operator => StoredPrincipal::Operator {
                by: self.operator.as_deref().cloned(),
            },
        };
        // Strings and lists of strings: serialization cannot fail.
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Restores the principal from the output of [`Proof::to_stored`]. No request can create such a proof, and
    /// permits are checked again with it. The owner is not stored: see [`Proof::owner`]. `None`: the text is
    /// invalid, or it is from open mode, which is off now.
    pub(super) fn from_stored(stored: &str, is_open: bool) -> Option<Self> {
        let (mut life, mut operator) = (0, None);
        let principal = match serde_json::from_str(stored).ok()? {
            StoredPrincipal::Open => return is_open.then(open_proof),
            StoredPrincipal::Workspace { id, born_at } => {
                life = born_at;
                let id = WorkspaceId::parse(&id).ok()?;
                Principal::Workspace { id }
            }
            StoredPrincipal::Canvas {
                user,
                org,
                workspaces,
                confined,
            } => Principal::Canvas {
                user,
                org,
                workspaces: parse_list(workspaces)?,
                confined,
                within: None,
            },
            StoredPrincipal::SubtreeUser {
                user,
                org,
                workspaces,
                root,
            } => Principal::Canvas {
                user,
                org,
                workspaces: parse_list(workspaces)?,
                confined: true,
                within: Some(WorkspaceIncarnation::parse(&root)?),
            },
            StoredPrincipal::Org { org } => Principal::Org { org, within: None },
            StoredPrincipal::Subtree { org, root } => Principal::Org {
                org,
                within: Some(WorkspaceIncarnation::parse(&root)?),
            },
            StoredPrincipal::Operator { by } => {
                operator = Some(Arc::new(by.unwrap_or(Operator::CONFIGURED)));
                Principal::Operator
            }
        };
        Some(
            Self {
                principal,
                kind: CredentialKind::Stored,
                born_at: life,
                operator,
                ..open_proof()
            }
            .with_account(),
        )
    }
}

/// Returns the account of a caller as [`Proof::to_stored`] wrote it.
pub fn stored_account(stored: &str) -> Account {
    Proof::from_stored(stored, true).map_or_else(Account::default, |proof| proof.account)
}

#[cfg(test)]
mod tests {
    use super::super::role::Role;
    use super::*;

    #[test]
    fn the_holder_of_a_subtree_is_recalled_with_it_and_is_none_to_an_earlier_release() {
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
            // Kinds that a release without subtrees does not know.
            assert!(stored.contains(r#""kind":"subtree"#), "{stored}");
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
        // As releases without roles wrote it.
        let recalled = Proof::from_stored(r#"{"kind":"operator"}"#, false).unwrap();
        assert_eq!(recalled.role(), Some(Role::Admin));
    }
}
