//! `[admin.sign_in]`: people sign in at the console with an OpenID provider.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::value::duration;
use super::{exposure, issuers};

/// Bounds of `session`.
const SESSION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(8 * 3600);

/// Longest text of a key, in bytes.
const TEXT_MAX: usize = 512;

/// Maximum scopes, and maximum values of one role.
const LIST_MAX: usize = 64;

/// The scope that makes a request one of `OpenID Connect`.
const OPENID: &str = "openid";

sections! {
    /// `[admin.sign_in]`.
    SignIn {
        /// The provider, `iss` of its tokens. `None`: people do not sign in.
        issuer: Option<String>,
        /// The name of the gateway at the provider, `aud` of its tokens.
        client_id: Option<String>,
        /// The file with the secret of the client; `None`: it is a public client. Read at each sign-in.
        client_secret_file: Option<PathBuf>,
        /// The URL at which browsers reach the admin listener. `None`: `http://` and the `Host` of the request.
        url: Option<Url>,
        /// The scopes that are asked for.
        scopes: Vec<String>,
        /// The claim with the person's groups or roles; a path of members with dots, unless a claim has the whole name.
        role_claim: String,
        /// The claim with the person's name for records, likewise.
        name_claim: String,
        /// Lifetime of a session.
        session: Duration as "duration",
        /// `[admin.sign_in.roles]`
        roles: SignInRoles,
    }

    /// `[admin.sign_in.roles]`: the values of the claim that give a role.
    #[derive(Default, PartialEq, Eq)]
    SignInRoles {
        /// Those that give `read`.
        read: Vec<String>,
        /// Those that give `operate`.
        operate: Vec<String>,
        /// Those that give `admin`.
        admin: Vec<String>,
    }
}

impl SignIn {
    /// Returns the problems of the section with their keys. `beyond_loopback`: the admin listener is not on loopback.
    pub(super) fn find_problems(&self, beyond_loopback: bool) -> Vec<(&'static str, String)> {
        let Some(issuer) = &self.issuer else {
            return match self.client_id {
                Some(_) => vec![(
                    "admin.sign_in.issuer",
                    "is missing: name the provider".into(),
                )],
                None => Vec::new(),
            };
        };
        let mut problems = Vec::new();
        let mut refuse = |key, reason: &str| problems.push((key, reason.to_owned()));
        let url = Url::parse(issuer).map_err(|_| "is not a URL");
        if let Err(reason) = url.and_then(|url| issuers::check_url(&url)) {
            refuse("admin.sign_in.issuer", reason);
        } else if issuer.contains('?') {
            refuse("admin.sign_in.issuer", "must hold no query");
        }
        if !self.client_id.as_deref().is_some_and(is_text) {
            refuse(
                "admin.sign_in.client_id",
                "must be text of 1 to 512 bytes: the name of the gateway at the provider",
            );
        }
        if let Some(Err(reason)) = self
            .client_secret_file
            .as_deref()
            .map(exposure::refuse_unusable_at)
        {
            refuse("admin.sign_in.client_secret_file", &reason);
        }
        match &self.url {
            Some(url) if let Err(reason) = issuers::check_url(url) => {
                refuse("admin.sign_in.url", reason);
            }
            Some(url) if url.query().is_some() => {
                refuse(
                    "admin.sign_in.url",
                    "must end before `?`: paths are added to it",
                );
            }
            None if beyond_loopback => refuse(
                "admin.sign_in.url",
                "is missing, and admin.listen is not on loopback: write the URL at which browsers reach it, \
                 \"https://operators.example.com\"",
            ),
            _ => {}
        }
        if !self.has_good_scopes() {
            refuse(
                "admin.sign_in.scopes",
                "are at most 64 names without spaces, and `openid` is one of them",
            );
        }
        for (key, claim) in [
            ("admin.sign_in.role_claim", &self.role_claim),
            ("admin.sign_in.name_claim", &self.name_claim),
        ] {
            if !is_text(claim) {
                refuse(key, "must be the name of a claim, of 1 to 512 bytes");
            }
        }
        if !SESSION.contains(&self.session) {
            refuse(
                "admin.sign_in.session",
                "must be 1s to 8h: a working day, at the end of which one signs in again",
            );
        }
        problems.extend(self.roles.find_problems());
        problems
    }

    fn has_good_scopes(&self) -> bool {
        let scopes = &self.scopes;
        let is_scope = |scope: &String| {
            let mut bytes = scope.bytes();
            is_text(scope) && bytes.all(|b| matches!(b, 0x21 | 0x23..=0x5b | 0x5d..=0x7e))
        };
        scopes.len() <= LIST_MAX
            && scopes.iter().any(|scope| scope == OPENID)
            && scopes.iter().all(is_scope)
    }
}

impl SignInRoles {
    fn find_problems(&self) -> Vec<(&'static str, String)> {
        let lists = [
            ("admin.sign_in.roles.read", &self.read),
            ("admin.sign_in.roles.operate", &self.operate),
            ("admin.sign_in.roles.admin", &self.admin),
        ];
        let mut problems = Vec::new();
        for (key, values) in lists {
            if values.len() > LIST_MAX || !values.iter().all(|value| is_text(value)) {
                let reason = "are at most 64 values of the claim, each of 1 to 512 bytes";
                problems.push((key, reason.to_owned()));
            }
        }
        if lists.iter().all(|(_, values)| values.is_empty()) {
            let reason = "is empty like the other roles, so people could not sign in: list the values of admin.sign_in.role_claim \
                          that give the role";
            problems.push(("admin.sign_in.roles.admin", reason.to_owned()));
        }
        problems
    }
}

fn is_text(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= TEXT_MAX && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::super::load::{Layers, load};

    const GOOD: [&str; 3] = [
        "admin.sign_in.issuer=https://login.test/realms/acme",
        "admin.sign_in.client_id=gateway",
        "admin.sign_in.roles.admin=admins",
    ];

    fn problem(more: &[&str], without: &str) -> Option<String> {
        let good = GOOD
            .iter()
            .filter(|set| without.is_empty() || !set.contains(without));
        let overrides = good.chain(more).map(|set| (*set).to_owned()).collect();
        let loaded = load(&Layers {
            overrides,
            ..Layers::default()
        });
        loaded.err().map(|error| error.to_string())
    }

    #[test]
    fn a_section_that_lets_the_wrong_people_in_is_refused() {
        assert_eq!(problem(&[], ""), None);
        for (more, without, part) in [
            (
                &["admin.sign_in.issuer=http://login.test"][..],
                "issuer",
                "must begin with https://",
            ),
            (&["admin.sign_in.issuer=login"], "issuer", "not a URL"),
            (&[], "issuer", "admin.sign_in.issuer"),
            (&[], "client_id", "admin.sign_in.client_id"),
            (&[], "roles.admin", "people could not sign in"),
            (&["admin.sign_in.scopes=profile"], "", "`openid`"),
            (&["admin.sign_in.session=9h"], "", "1s to 8h"),
            (
                &["admin.sign_in.client_secret_file=/nowhere"],
                "",
                "cannot read",
            ),
            (
                &["admin.sign_in.url=http://operators.test"],
                "",
                "must begin with https://",
            ),
            (&["admin.listen=0.0.0.0:9090"], "", "admin.sign_in.url"),
            (&["admin.sign_in.roles.root=x"], "", "no such key"),
        ] {
            let text = problem(more, without).unwrap_or_default();
            assert!(text.contains(part), "{more:?} without {without:?}: {text}");
        }
    }
}
