//! `auth.issuers`: foreign issuers of canvas tokens, and their validation; `auth.workspace_issuers` ([`workspaces`]).

pub(super) mod claims;
pub(super) mod workspaces;

use serde::Deserialize;
use url::Url;

pub use self::workspaces::WorkspaceIssuer;
use super::tables;
use super::value::{TEXT_MAX, has_user, is_loopback, is_text};

/// Maximum foreign issuers: the keys of each are fetched continuously.
const ISSUERS_MAX: usize = 16;

sections! {
    /// One entry of `auth.issuers`.
    #[derive(PartialEq, Eq)]
    Issuer {
        /// `iss` of its tokens, compared exactly.
        issuer: String,
        /// URL of its published keys.
        jwks_url: Url,
        /// The value that `aud` of its tokens must contain.
        audience: String,
        /// Its name in paths, such as `/oauth/logout/{name}`; `None`: it has no such path.
        name: Option<String>,
        /// The id of the gateway as its client, the `aud` of its logout tokens; `None`: `audience`.
        client_id: Option<String>,
        /// The claim with the groups of its persons; `None`: they have none.
        groups: Option<String>,
    }
}

/// Returns the problems of the list. `own` is the issuer of the gateway's own tokens.
pub(super) fn find_problems(issuers: &[Issuer], own: &str) -> Vec<String> {
    tables::find_problems(
        ("issuers", ISSUERS_MAX),
        issuers,
        |issuer| &issuer.issuer,
        |number, issuer| {
            let (mut problems, name) = (Vec::new(), &issuer.issuer);
            for (member, text) in [("issuer", name), ("audience", &issuer.audience)] {
                list! { problems;
                    !is_text(text) => "`{member}` of issuer {number} must be text of 1 to {TEXT_MAX} bytes";
                }
            }
            list! { problems;
                name == own => "`{name}` is this gateway's own issuer, whose tokens are accepted anyway";
            }
            let (path_name, client) = (issuer.name.as_deref(), issuer.client_id.as_deref());
            let same = issuers
                .iter()
                .filter(|one| one.name.is_some() && one.name == issuer.name);
            list! { problems;
                path_name.is_some_and(|name| !is_path_name(name)) =>
                    "`name` of issuer {number} must be 1 to 64 of a to z, 0 to 9 and `-`";
                same.count() > 1 => "`name` of issuer {number} is that of another one, too";
                client.is_some_and(|id| !is_text(id)) =>
                    "`client_id` of issuer {number} must be text of 1 to {TEXT_MAX} bytes";
                issuer.groups.as_deref().is_some_and(|claim| !is_text(claim)) =>
                    "`groups` of issuer {number} must be text of 1 to {TEXT_MAX} bytes";
            }
            let wrong = check_url(&issuer.jwks_url).err();
            problems.extend(wrong.map(|reason| format!("`jwks_url` of issuer {number} {reason}")));
            problems
        },
    )
}

/// True if `name` can be a segment of a path.
fn is_path_name(name: &str) -> bool {
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

/// Refuses plain HTTP except on loopback: an attacker on the network path could replace the keys.
///
/// # Errors
/// Returns what the URL must be.
pub fn check_url(url: &Url) -> Result<(), &'static str> {
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(url) => {}
        _ => return Err("must begin with https:// (http:// only on loopback)"),
    }
    if has_user(url) || url.fragment().is_some() {
        return Err("must hold no user, password or fragment");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;
    use crate::config::load::{ConfigError, Layers, LoadedConfig, load};

    const GOOD: &str =
        r#"{"issuer":"https://a.test","jwks_url":"https://a.test/keys","audience":"gw"}"#;

    fn set(value: &str) -> Result<LoadedConfig, ConfigError> {
        let overrides = vec![
            format!("auth.issuers={value}"),
            "tokens.issuer=https://own.test".to_owned(),
        ];
        load(&Layers {
            overrides,
            ..Layers::default()
        })
    }

    #[test]
    fn issuers_are_read_from_every_layer_and_shown() {
        let expected = Issuer {
            issuer: "https://a.test".to_owned(),
            jwks_url: "https://a.test/keys".parse().unwrap(),
            audience: "gw".to_owned(),
            name: None,
            client_id: None,
            groups: None,
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let table = "[[auth.issuers]]\nissuer = \"https://a.test\"\njwks_url = \"https://a.test/keys\"\naudience = \"gw\"\n";
        file.write_all(table.as_bytes()).unwrap();
        let in_file = Layers {
            file: Some(file.path().to_owned()),
            ..Layers::default()
        };
        let name = "A2A_GATEWAY__AUTH__ISSUERS".to_owned();
        let in_environment = Layers {
            environment: vec![(name, format!("[{GOOD}]").into())],
            ..Layers::default()
        };
        let inline = "[{issuer = \"https://a.test\", jwks_url = \"https://a.test/keys\", audience = \"gw\"}]";
        for loaded in [load(&in_file), load(&in_environment), set(inline)] {
            let loaded = loaded.unwrap();
            assert_eq!(loaded.config.auth.issuers, std::slice::from_ref(&expected));
            let shown = loaded.settings.iter().find(|s| s.key == "auth.issuers");
            assert!(shown.unwrap().value.contains("https://a.test/keys"));
        }
        assert!(set("[]").unwrap().config.auth.issuers.is_empty());
    }

    #[test]
    fn what_could_let_anybody_in_is_refused() {
        let with = |member: &str, value: &str| {
            let mut issuer: serde_json::Value = serde_json::from_str(GOOD).unwrap();
            issuer[member] = value.into();
            format!("[{issuer}]")
        };
        let many: Vec<_> = (0..17)
            .map(|n| json!({"issuer": n.to_string(), "jwks_url": "https://a.test", "audience": "gw"}))
            .collect();
        for (value, part) in [
            (
                with("jwks_url", "http://a.test/keys"),
                "must begin with https://",
            ),
            (
                with("jwks_url", "file:///etc/keys"),
                "must begin with https://",
            ),
            (
                with("jwks_url", "http://10.0.0.1/keys"),
                "must begin with https://",
            ),
            (
                with("jwks_url", "https://u:geheim@a.test/keys"),
                "no user, password",
            ),
            (
                with("jwks_url", "keys.json?geheim"),
                "write [[auth.issuers]]",
            ),
            (with("issuer", ""), "must be text"),
            (with("issuer", "https://own.test"), "own issuer"),
            (with("audience", " "), "must be text"),
            (with("claim", "x"), "write [[auth.issuers]]"),
            (format!("[{GOOD},{GOOD}]"), "stands twice"),
            (json!(many).to_string(), "at most 16"),
            ("https://a.test".to_owned(), "write [[auth.issuers]]"),
            (
                r#"[{"issuer":"https://a.test"}]"#.to_owned(),
                "write [[auth.issuers]]",
            ),
        ] {
            let text = set(&value).unwrap_err().to_string();
            assert!(
                text.contains("auth.issuers") && text.contains(part),
                "{value}: {text}"
            );
            assert!(!text.contains("geheim"), "{text}");
        }
        for url in [
            "http://127.0.0.1:1/k",
            "http://[::1]:1/k",
            "http://localhost:1/k",
        ] {
            assert!(set(&with("jwks_url", url)).is_ok(), "{url}");
        }
    }
}
