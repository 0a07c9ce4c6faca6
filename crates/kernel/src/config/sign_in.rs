//! `[admin.sign_in]`: people sign in at the console with an OpenID provider.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use url::Url;

use super::check::Checks;
use super::exposure;
use super::issuers::check_url;
use super::value::{duration, is_text};

/// Bounds of `session`.
const SESSION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(8 * 3600);

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

impl Checks<'_> {
    pub(super) fn check_sign_in(&mut self) {
        let admin = &self.config.admin;
        let sign_in = &admin.sign_in;
        let Some(issuer) = &sign_in.issuer else {
            refuse! { self;
                admin.sign_in.issuer if sign_in.client_id.is_some() => "is missing: name the provider";
            }
            return;
        };
        let provider = Url::parse(issuer).map_err(|_| "is not a URL");
        let provider = provider.and_then(|url| check_url(&url));
        let has_query = provider.is_ok() && issuer.contains('?');
        self.accept("admin.sign_in.issuer", provider);
        if let Some(file) = &sign_in.client_secret_file {
            let refused = exposure::refuse_unusable_at(file);
            self.accept("admin.sign_in.client_secret_file", refused);
        }
        let url = sign_in.url.as_ref();
        let is_good = url.map(|url| self.accept("admin.sign_in.url", check_url(url)).is_some());
        let roles = &sign_in.roles;
        let lists = [&roles.read, &roles.operate, &roles.admin];
        refuse! { self;
            admin.sign_in.issuer if has_query => "must hold no query";
            admin.sign_in.client_id if !sign_in.client_id.as_deref().is_some_and(is_text)
                => "must be text of 1 to 512 bytes: the name of the gateway at the provider";
            admin.sign_in.url if is_good == Some(true) && url.is_some_and(|url| url.query().is_some())
                => "must end before `?`: paths are added to it";
            admin.sign_in.url if url.is_none() && !admin.listen.ip().is_loopback()
                => "is missing, and admin.listen is not on loopback: write the URL at which browsers reach it, \
                    \"https://operators.example.com\"";
            admin.sign_in.scopes if !are_good_scopes(&sign_in.scopes)
                => "are at most 64 names without spaces, and `openid` is one of them";
            admin.sign_in.role_claim if !is_text(&sign_in.role_claim)
                => "must be the name of a claim, of 1 to 512 bytes";
            admin.sign_in.name_claim if !is_text(&sign_in.name_claim)
                => "must be the name of a claim, of 1 to 512 bytes";
            admin.sign_in.session if !SESSION.contains(&sign_in.session)
                => "must be 1s to 8h: a working day, at the end of which one signs in again";
            admin.sign_in.roles.read if !are_texts(&roles.read) => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.operate if !are_texts(&roles.operate)
                => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.admin if !are_texts(&roles.admin) => "are at most 64 values of the claim, each of 1 to 512 bytes";
            admin.sign_in.roles.admin if lists.iter().all(|values| values.is_empty())
                => "is empty like the other roles, so people could not sign in: list the values of admin.sign_in.role_claim \
                    that give the role";
        }
    }
}

fn are_good_scopes(scopes: &[String]) -> bool {
    let is_of_scope = |b: u8| matches!(b, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    are_texts(scopes)
        && scopes.iter().any(|scope| scope == OPENID)
        && scopes.iter().all(|scope| scope.bytes().all(is_of_scope))
}

fn are_texts(list: &[String]) -> bool {
    list.len() <= LIST_MAX && list.iter().all(|text| is_text(text))
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
