//! From the claims of an ID token to a person and their role.

use serde_json::{Map, Value};

use access::identity::{Person, Role};
use kernel::config::SignIn;

/// Longest name that is kept, in characters.
const NAME_CHARS_MAX: usize = 128;

/// Longest `sub` (OpenID Connect Core 1.0, 2), in bytes.
const SUBJECT_MAX: usize = 255;

/// Returns the person that the claims name. `None`: `sub` is missing, or is none.
pub(super) fn person_from_claims(
    issuer: &str,
    claims: &Map<String, Value>,
    by: &SignIn,
) -> Option<Person> {
    let subject = claims.get("sub")?.as_str()?;
    let plain = |text: &str| !text.trim().is_empty() && !text.chars().any(char::is_control);
    if subject.len() > SUBJECT_MAX || !plain(subject) {
        return None;
    }
    let name = find_claim(claims, &by.name_claim).and_then(Value::as_str);
    let name = name.filter(|name| plain(name));
    Some(Person {
        issuer: issuer.to_owned(),
        subject: subject.to_owned(),
        name: name.map(|name| name.chars().take(NAME_CHARS_MAX).collect()),
    })
}

/// Returns the greatest role that the claims give; `None`: no access.
pub(super) fn role_from_claims(claims: &Map<String, Value>, by: &SignIn) -> Option<Role> {
    let said = find_claim(claims, &by.role_claim)?;
    let said: Vec<&str> = match said {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let roles = [
        (Role::Admin, &by.roles.admin),
        (Role::Operate, &by.roles.operate),
        (Role::Read, &by.roles.read),
    ];
    let has = |values: &[String]| values.iter().any(|value| said.contains(&value.as_str()));
    let found = roles.into_iter().find(|(_, values)| has(values));
    found.map(|(role, _)| role)
}

/// Returns a claim by its whole name, or else by its path: providers name claims by URLs, and put them into objects.
fn find_claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(found) = claims.get(name) {
        return Some(found);
    }
    let mut parts = name.split('.');
    let first = claims.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.as_object()?.get(part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kernel::config::load::{Layers, load};

    fn by(role_claim: &str) -> SignIn {
        let overrides = [
            "admin.sign_in.issuer=https://login.test",
            "admin.sign_in.client_id=gw",
            "admin.sign_in.roles.read=staff,guests",
            "admin.sign_in.roles.operate=night",
            "admin.sign_in.roles.admin=admins",
            &format!("admin.sign_in.role_claim={role_claim}"),
        ];
        let layers = Layers {
            overrides: overrides.map(str::to_owned).to_vec(),
            ..Layers::default()
        };
        load(&layers).unwrap().config.admin.sign_in
    }

    #[test]
    fn the_greatest_role_counts_and_what_is_not_listed_gives_none() {
        for (claims, expected) in [
            (json!({"groups": ["staff"]}), Some(Role::Read)),
            (json!({"groups": "guests"}), Some(Role::Read)),
            (
                json!({"groups": ["staff", "admins", "night"]}),
                Some(Role::Admin),
            ),
            (json!({"groups": ["other", "night"]}), Some(Role::Operate)),
            (json!({"groups": ["admin", "Admins", "admins "]}), None),
            (json!({"groups": {"admins": true}}), None),
            (json!({"groups": [["admins"]]}), None),
            (json!({"groups": null, "roles": ["admins"]}), None),
            (json!({}), None),
        ] {
            assert_eq!(
                role_from_claims(claims.as_object().unwrap(), &by("groups")),
                expected,
                "{claims}"
            );
        }
    }

    #[test]
    fn a_claim_is_found_by_its_name_or_its_path() {
        let claims =
            json!({"https://a.test/roles": ["night"], "realm_access": {"roles": ["admins"]}});
        let found = |name: &str| role_from_claims(claims.as_object().unwrap(), &by(name));
        assert_eq!(found("https://a.test/roles"), Some(Role::Operate));
        assert_eq!(found("realm_access.roles"), Some(Role::Admin));
        for name in ["realm_access", "realm_access.roles.0", "roles", "."] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn a_person_has_a_subject_and_may_have_a_name() {
        let read = |claims: Value| {
            person_from_claims("https://login.test", claims.as_object().unwrap(), &by("x"))
        };
        let ada = read(json!({"sub": "1", "email": "ada@a.test"})).unwrap();
        assert_eq!(
            (ada.subject.as_str(), ada.name.as_deref()),
            ("1", Some("ada@a.test"))
        );
        assert_eq!(
            read(json!({"sub": "1", "email": "a\nb"})).unwrap().name,
            None
        );
        for claims in [
            json!({}),
            json!({"sub": 1}),
            json!({"sub": " "}),
            json!({"sub": "x".repeat(256)}),
        ] {
            assert_eq!(read(claims.clone()), None, "{claims}");
        }
    }
}
