//! `auth.workspace_issuers`: platforms whose tokens are credentials of workspaces, and their validation.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Issuer;
use super::claims::{ClaimPattern, ClaimTemplate};
use crate::config::tables::entries;

/// Maximum claims of one issuer that are compared.
const CLAIMS_MAX: usize = 8;

/// Longest name of a claim, in bytes.
const CLAIM_MAX: usize = 256;

entries! {
    /// One entry of `auth.workspace_issuers`.
    WorkspaceIssuer {
        /// `iss` of its tokens, compared exactly.
        issuer: String => "text, the `iss` of its tokens",
        /// URL of its published keys.
        jwks_url: url::Url => "a URL with https://",
        /// The value that `aud` of its tokens must contain.
        audience: String => "text",
        /// The pattern that each of these claims must match. A name that begins with `/` is the path to a nested claim
        /// (RFC 6901).
        claims: BTreeMap<String, ClaimPattern>
            => "patterns of claims, such as { sub = \"system:serviceaccount:agents:{name}\" }, at most 512 bytes each. A \
                `{part}` has letters, digits, `.`, `_` and `-`: after it comes another character, such as `:` or `/`, or \
                nothing",
        /// The id of the workspace, from parts of the claims.
        workspace: ClaimTemplate => TEMPLATE,
        /// The org that the workspace must be in, from parts of the claims.
        org: Option<ClaimTemplate> => TEMPLATE,
    }
}

impl WorkspaceIssuer {
    /// Returns its name, keys and audience.
    pub fn to_issuer(&self) -> Issuer {
        Issuer {
            issuer: self.issuer.clone(),
            jwks_url: self.jwks_url.clone(),
            audience: self.audience.clone(),
            name: None,
            client_id: None,
            groups: None,
        }
    }
}

const TEMPLATE: &str = "text of letters, digits, `.`, `_` and `-`, with `{part}` for at least one part of `claims`, and \
                        text between two of them, such as \"{namespace}.{name}\"";

/// Returns the problems of the list. `users` are the issuers of browser users' tokens, `own` the issuer of the
/// gateway's own tokens.
pub(in crate::config) fn find_problems(
    issuers: &[WorkspaceIssuer],
    users: &[Issuer],
    own: &str,
) -> Vec<String> {
    let named: Vec<Issuer> = issuers.iter().map(WorkspaceIssuer::to_issuer).collect();
    let mut problems = super::find_problems(&named, own);
    for (number, issuer) in (1..).zip(issuers) {
        let name = &issuer.issuer;
        let is_named = |name: &String| (1..=CLAIM_MAX).contains(&name.len());
        let claims = &issuer.claims;
        let mut parts: Vec<&str> = claims.values().flat_map(ClaimPattern::parts).collect();
        parts.sort_unstable();
        let twice = parts.windows(2).find(|pair| pair[0] == pair[1]);
        list! { problems;
            users.iter().any(|other| other.issuer == *name)
                => "`{name}` is also in auth.issuers: a token proves either a user or a workspace, so let the platform sign \
                    as two issuers";
            !(1..=CLAIMS_MAX).contains(&claims.len()) || !claims.keys().all(is_named)
                => "`claims` of issuer {number} must have 1 to {CLAIMS_MAX} claims, with names of 1 to {CLAIM_MAX} bytes";
            twice.is_some()
                => "`claims` of issuer {number} has `{{{}}}` twice: each part needs its own name", twice.map_or("", |pair| pair[0]);
        }
        let org = issuer.org.iter().map(|org| ("org", org));
        for (key, template) in [("workspace", &issuer.workspace)].into_iter().chain(org) {
            let missing = template.parts().filter(|part| !parts.contains(part));
            problems.extend(missing.map(|part| {
                format!(
                    "`{key}` of issuer {number} has `{{{part}}}`, which is in none of its `claims`"
                )
            }));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::config::load::{ConfigError, Layers, LoadedConfig, load};

    fn set(issuers: &Value) -> Result<LoadedConfig, ConfigError> {
        let user =
            json!([{"issuer": "https://u.test", "jwks_url": "https://u.test", "audience": "gw"}]);
        let overrides = vec![
            format!("auth.workspace_issuers={issuers}"),
            format!("auth.issuers={user}"),
            "tokens.issuer=https://own.test".to_owned(),
        ];
        load(&Layers {
            overrides,
            ..Layers::default()
        })
    }

    fn good() -> Value {
        json!({"issuer": "https://a.test", "jwks_url": "https://a.test/keys", "audience": "gw",
            "claims": {"sub": "system:serviceaccount:{namespace}:{name}"},
            "workspace": "{name}", "org": "{namespace}"})
    }

    #[test]
    fn a_platform_is_read_and_shown() {
        let loaded = set(&json!([good()])).unwrap();
        let issuers = &loaded.config.auth.workspace_issuers;
        let parts = issuers[0].claims["sub"].read("system:serviceaccount:acme:dev");
        let id = issuers[0].workspace.fill(&parts.unwrap());
        assert_eq!(id.as_deref(), Some("dev"));
        let mut shown = loaded.settings.iter();
        let shown = shown.rfind(|setting| setting.key == "auth.workspace_issuers");
        assert!(shown.unwrap().value.contains("https://a.test/keys"));
    }

    fn with(member: &str, value: Value) -> Value {
        let mut issuer = good();
        issuer[member] = value;
        json!([issuer])
    }

    fn assert_refused(value: &Value, part: &str) {
        let text = set(value).unwrap_err().to_string();
        assert!(
            text.contains("auth.workspace_issuers") && text.contains(part),
            "{value}: {text}"
        );
        assert!(!text.contains("geheim"), "{text}");
    }

    #[test]
    fn what_could_prove_the_wrong_workspace_is_refused() {
        let many = (0..17).map(|n| with("issuer", n.to_string().into())[0].clone());
        for (value, part) in [
            (
                with("jwks_url", "http://a.test/keys".into()),
                "must begin with https://",
            ),
            (
                with("jwks_url", "https://u:geheim@a.test/".into()),
                "no user, password",
            ),
            (
                with("jwks_url", "geheim".into()),
                "`jwks_url` must be a URL",
            ),
            (with("issuer", "".into()), "must be text"),
            (with("issuer", "https://own.test".into()), "own issuer"),
            (
                with("issuer", "https://u.test".into()),
                "also in auth.issuers",
            ),
            (with("audience", " ".into()), "must be text"),
            (with("claims", json!({})), "1 to 8 claims"),
            (
                with("claims", json!({"": "{name}:{namespace}"})),
                "1 to 8 claims",
            ),
            (
                with("claims", json!({"sub": "{a}{b}"})),
                "`claims` must be patterns",
            ),
            (
                with("claims", json!({"sub": 7})),
                "`claims` must be patterns",
            ),
            (with("claims", "{sub}".into()), "`claims` must be patterns"),
            (
                with("claims", json!({"a": "{name}", "b": "{name}"})),
                "`{name}` twice",
            ),
            (
                with("claims", json!({"sub": "{name}"})),
                "`{namespace}`, which is in none",
            ),
            (with("workspace", "all".into()), "`workspace` must be text"),
            (
                with("workspace", "{name}{namespace}".into()),
                "`workspace` must be text",
            ),
            (
                with("workspace", "{other}".into()),
                "`{other}`, which is in none",
            ),
            (with("org", "{org}".into()), "`{org}`, which is in none"),
            (with("subject", "x".into()), "there is no `subject`"),
            (json!([good(), good()]), "stands twice"),
            (
                json!([{"issuer": "https://a.test"}]),
                "`workspace` is missing",
            ),
            (many.collect(), "at most 16"),
            (json!("https://a.test"), "write [[auth.workspace_issuers]]"),
        ] {
            assert_refused(&value, part);
        }
    }
}
