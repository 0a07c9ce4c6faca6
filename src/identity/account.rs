//! The account of a principal: the number under which its rate and its shares of memory, places and connections
//! are counted, whichever of its credentials it presents. Otherwise a workspace with 50 tokens, or an org that
//! signs canvas tokens, would have many times the share of one that has one token.

use super::credential::CredentialHash;
use super::{CredentialKind, Principal, Proof};

/// The account of all who show nothing, in open mode: they cannot be told apart.
pub(super) const OPEN: u64 = 0;

impl Proof {
    /// The same, with the account that follows from principal, issuer and credential. To be called once, when all of
    /// these are known: a request then only reads [`Proof::account`].
    ///
    /// Replicas agree on the number. Operators alone have one account a token: their tokens are configured, so
    /// nobody multiplies a share by them, and a script of one operator must not slow down another's console.
    pub(super) fn with_account(mut self) -> Self {
        self.account = match (&self.principal, self.credential) {
            _ if self.kind == CredentialKind::Open => OPEN,
            (Principal::Operator, Some(credential)) => credential.number(),
            _ => of_name(&self.owner()),
        };
        self
    }
}

/// The account of a principal that is named by `owner`, as [`Proof::owner`] writes it.
fn of_name(owner: &str) -> u64 {
    CredentialHash::of(&format!("account:{owner}")).number()
}

#[cfg(test)]
mod tests {
    use super::super::open_proof;
    use super::*;
    use crate::ids::WorkspaceId;

    fn account(principal: Principal, kind: CredentialKind, credential: &str) -> u64 {
        let proof = Proof {
            principal,
            kind,
            credential: Some(CredentialHash::of(credential)),
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
        }
    }

    #[test]
    fn a_principal_has_one_account_whatever_it_presents() {
        let id = WorkspaceId::parse("a").unwrap();
        let workspace = Principal::Workspace { id };
        let org = Principal::Org { org: "acme".into() };
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
            Principal::Org { org: "acme".into() },
            user("acme", None),
            user("acme", Some("acme")),
            user("ada", Some("acme")),
            Principal::Operator,
        ];
        let kind = CredentialKind::Canvas;
        let accounts = principals.map(|principal| account(principal, kind, "1"));
        let distinct: std::collections::HashSet<_> = accounts.iter().collect();
        assert_eq!(distinct.len(), accounts.len());
        assert!(!accounts.contains(&OPEN));
    }
}
