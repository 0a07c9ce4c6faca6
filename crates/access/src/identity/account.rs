//! The account of a principal: the number under which its rate and its shares of memory, places and connections
//! are counted, whichever of its credentials it presents. Otherwise a workspace with 50 tokens, or an org that
//! signs canvas tokens, would have many times the share of one that has one token. An org token can also name as many
//! canvas users as it likes: each has an account, and those of one org are a group, in which the org itself is counted.

use super::credential::CredentialHash;
use super::proof::{CredentialKind, OPEN, Principal, Proof};
use kernel::ids::WorkspaceIncarnation;
use kernel::shares::Account;

impl Proof {
    /// Sets the account that follows from principal, issuer and credential. Called once, when all of these are
    /// known: a request only reads [`Proof::account`].
    ///
    /// Replicas agree on the number. Operators alone have one account for each token: their tokens are
    /// configured, so a share cannot be multiplied by them, and a script of one operator must not slow down
    /// another's console.
    pub(super) fn with_account(mut self) -> Self {
        self.account = match (&self.principal, self.credential) {
            _ if self.kind == CredentialKind::Open => OPEN,
            (Principal::Operator, Some(credential)) => {
                Account::without_group(credential.to_number())
            }
            // An org token issued its token, with a user name of its choice.
            (
                Principal::Canvas {
                    org,
                    confined: true,
                    within,
                    ..
                },
                _,
            ) => Account {
                own: account_number(&self.own_name()),
                group: group_number(org.as_deref(), within.as_ref()),
            },
            (Principal::Org { org, within }, _) => {
                Account::without_group(group_number(Some(org), within.as_ref()))
            }
            // Of all lives of the id.
            (Principal::Workspace { id }, _) => Account::without_group(account_number(id.as_str())),
            _ => Account::without_group(account_number(&self.own_name())),
        };
        self
    }
}

/// Returns the number of what the holders of an org's tokens, or of those of a subtree, do together.
fn group_number(org: Option<&str>, within: Option<&WorkspaceIncarnation>) -> u64 {
    account_number(&match within {
        None => format!("users:{}", serde_json::json!(org)),
        Some(root) => format!("users:{}", serde_json::json!([org, root.to_string()])),
    })
}

/// Returns the number of a name: of a principal as [`Proof::own_name`] writes it, or `users:` and an org.
fn account_number(name: &str) -> u64 {
    CredentialHash::digest(&format!("account:{name}")).to_number()
}

#[cfg(test)]
mod tests {
    use super::super::proof::open_proof;
    use super::*;
    use kernel::ids::WorkspaceId;

    fn account(principal: Principal, kind: CredentialKind, credential: &str) -> Account {
        let proof = Proof {
            principal,
            kind,
            credential: Some(CredentialHash::digest(credential)),
            ..open_proof()
        };
        proof.with_account().account
    }

    fn user(user: &str, org: Option<&str>) -> Principal {
        Principal::Canvas {
            user: user.to_owned(),
            org: org.map(str::to_owned),
            workspaces: None,
            confined: false,
            within: None,
        }
    }

    #[test]
    fn a_principal_has_one_account_whatever_it_presents() {
        let id = WorkspaceId::parse("a").unwrap();
        let workspace = Principal::Workspace { id };
        let org = Principal::Org {
            org: "acme".into(),
            within: None,
        };
        for (principal, kinds) in [
            (workspace, [CredentialKind::Workspace, CredentialKind::Pair]),
            (org, [CredentialKind::Org, CredentialKind::Org]),
            (user("ada", Some("acme")), [CredentialKind::Canvas; 2]),
        ] {
            let [one, other] = [(kinds[0], "1"), (kinds[1], "2")]
                .map(|(kind, credential)| account(principal.clone(), kind, credential));
            assert_eq!(one, other, "{principal:?}");
        }
        let operator = |credential| account(Principal::Operator, CredentialKind::Admin, credential);
        assert_ne!(operator("1"), operator("2"));
    }

    #[test]
    fn no_two_principals_share_an_account() {
        let id = WorkspaceId::parse("acme").unwrap();
        let principals = [
            Principal::Workspace { id },
            Principal::Org {
                org: "acme".into(),
                within: None,
            },
            user("acme", None),
            user("acme", Some("acme")),
            user("ada", Some("acme")),
            Principal::Org {
                org: "acme".into(),
                within: WorkspaceIncarnation::parse("team"),
            },
            Principal::Org {
                org: "acme".into(),
                within: WorkspaceIncarnation::parse("team~7"),
            },
            Principal::Operator,
        ];
        let kind = CredentialKind::Canvas;
        let accounts = principals.map(|principal| account(principal, kind, "1"));
        let distinct: std::collections::HashSet<_> = accounts.iter().collect();
        assert_eq!(distinct.len(), accounts.len());
        assert!(!accounts.contains(&OPEN));
    }

    #[test]
    fn canvas_users_that_an_org_token_named_are_a_group() {
        let named = |name: &str, org: &str, confined: bool| {
            let Principal::Canvas { user, org, .. } = user(name, Some(org)) else {
                unreachable!()
            };
            let principal = Principal::Canvas {
                user,
                org,
                workspaces: None,
                confined,
                within: None,
            };
            account(principal, CredentialKind::Canvas, "1")
        };
        let (ada, bob) = (named("ada", "acme", true), named("bob", "acme", true));
        assert_ne!(ada.own, bob.own);
        let (org, within) = ("acme".to_owned(), None);
        let org = account(Principal::Org { org, within }, CredentialKind::Org, "1");
        assert_eq!(org, Account::without_group(ada.group), "one party");
        assert_eq!(ada.group, bob.group);
        assert_ne!(ada.group, named("ada", "globex", true).group);
        let of_subtree = Principal::Canvas {
            user: "ada".to_owned(),
            org: Some("acme".to_owned()),
            workspaces: None,
            confined: true,
            within: WorkspaceIncarnation::parse("team"),
        };
        let of_subtree = account(of_subtree, CredentialKind::Canvas, "1");
        assert!(of_subtree.own != ada.own && of_subtree.group != ada.group);
        // An operator or an issuer named it.
        assert_eq!(named("ada", "acme", false), Account::without_group(ada.own));
    }
}
