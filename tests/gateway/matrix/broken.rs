//! Credentials that are none.

pub(super) fn bearer(token: &str) -> Vec<String> {
    vec![format!("Bearer {token}")]
}

/// The same form, and never made.
fn forged(token: &str) -> String {
    let at = token.len() - 20;
    let other = if &token[at..=at] == "A" { "B" } else { "A" };
    format!("{}{other}{}", &token[..at], &token[at + 1..])
}

/// Credentials that prove nothing, made of one that does.
pub(super) fn broken(token: &str) -> Vec<Vec<String>> {
    let mut all = vec![
        bearer(&forged(token)),
        bearer(&token[..token.len() - 1]),
        bearer(&format!("{token}A")),
        bearer(&format!("{token} {token}")),
        bearer(&format!("{token},")),
        bearer(&format!("\"{token}\"")),
        bearer(""),
        vec!["Bearer".into()],
        vec![String::new()],
        vec![token.into()],
        vec![format!("Basic {token}")],
        vec![format!("Token {token}")],
        vec![format!("Bearer:{token}")],
        vec![format!("Bearer {token}"), format!("Bearer {token}")],
        vec![format!("Bearer {token}"), "Basic YTpi".into()],
    ];
    if let [head, claims, signature] = token.split('.').collect::<Vec<_>>()[..] {
        // {"alg":"none","typ":"a2a-canvas+jwt"}, unsigned; and claims of another's choice.
        let none = "eyJhbGciOiJub25lIiwidHlwIjoiYTJhLWNhbnZhcytqd3QifQ";
        all.push(bearer(&format!("{none}.{claims}.")));
        all.push(bearer(&format!("{none}.{claims}.{signature}")));
        all.push(bearer(&format!("{head}.{}.{signature}", forged(claims))));
        all.push(bearer(&format!("{head}.{claims}.")));
        all.push(bearer(&format!("{head}..{signature}")));
    } else {
        // A kind does not pass for another, nor for a platform's bare token.
        let random = &token[token.len() - 43..];
        let others = ["a2aw_", "a2ao_", "a2aa_", "a2ae_", "a2ax_", ""];
        let others = others.iter().map(|label| format!("{label}{random}"));
        all.extend(others.filter(|other| other != token).map(|o| bearer(&o)));
    }
    all
}
