//! `[admin.sign_in]`: people sign in at the console with an OpenID provider.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::value::duration;

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
