//! Errors of serde about the members of a body, as rejections.

use crate::rejection::{Reason, Rejection};

/// Builds the rejection for serde's error. Serde's text may repeat input, so only the member's name is taken from it,
/// for the message.
pub fn wrong_member(error: &serde_path_to_error::Error<serde_json::Error>) -> Rejection {
    let text = error.inner().to_string();
    let quoted = |start: &str| text.strip_prefix(start)?.split('`').nth(1);
    let path = error.path().to_string();
    let message = if let Some(name) = quoted("unknown field") {
        // Bodies allow known members only where a typo could change the meaning.
        let known = known_members(&text).unwrap_or("others");
        format!(
            "{} is not known here; known are {known}",
            quoted_member(name)
        )
    } else {
        match quoted("missing field") {
            Some(name) if path == "." => format!("`{name}` is missing"),
            Some(name) => format!("`{path}.{name}` is missing"),
            None => match (text.starts_with("unknown variant"), known_members(&text)) {
                (true, Some(known)) => {
                    format!("`{path}` is no value that is known; known are {known}")
                }
                (_, Some(wanted)) if path == "." && wanted.starts_with("struct ") => {
                    "it has the wrong type: an object is expected".to_owned()
                }
                (_, Some(wanted)) => match name_of_type(wanted) {
                    Some(words) => format!("`{path}` has the wrong type: {words} is expected"),
                    None => format!("`{path}` has the wrong type"),
                },
                _ => format!("`{path}` has the wrong type"),
            },
        }
    };
    Rejection::new(Reason::InvalidParams, message)
}

/// Maximum bytes of a member's name that is repeated in an error.
const NAME_BYTES_MAX: usize = 64;

/// True if an error may repeat a member's name. A name from a body may contain anything, even a secret.
pub fn is_showable(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    name.bytes().all(fits) && name.len() <= NAME_BYTES_MAX
}

/// Returns a member's name as an error repeats it.
pub fn quoted_member(name: &str) -> String {
    if is_showable(name) {
        format!("`{name}`")
    } else {
        "a member".to_owned()
    }
}

/// Returns JSON's words for the type that serde expects.
fn name_of_type(wanted: &str) -> Option<&'static str> {
    Some(match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "a whole number",
        "a string" | "a borrowed string" => "a string",
        "a boolean" => "`true` or `false`",
        "a sequence" => "a list",
        "a map" => "an object",
        _ => return None,
    })
}

/// Returns the known members in serde's error.
fn known_members(text: &str) -> Option<&str> {
    let (_, known) = text.rsplit_once(", expected ")?;
    // serde_json appends the position.
    known.trim_start_matches("one of ").split(" at line").next()
}
