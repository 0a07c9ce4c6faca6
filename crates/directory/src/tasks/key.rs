//! Keys in the shared state. Task ids come from agents and user names from issuers, so both are escaped:
//! neither can reach another key.

use kernel::ids::WorkspaceIncarnation;

/// Returns the key of a task's owner. Agents may treat ids that differ in case or in surrounding spaces as
/// equal, so the id is folded.
pub(super) fn task_owner(target: &WorkspaceIncarnation, task: &str) -> String {
    push_escaped(&fold_id(task), format!("gw:task:{target}:"))
}

/// Returns the key of the instance that has a task.
pub(super) fn bound_task(target: &WorkspaceIncarnation, task: &str) -> String {
    push_escaped(&fold_id(task), format!("gw:bound:{target}:t:"))
}

/// Returns the key of the list of a caller's bindings.
pub(super) fn bindings_of(owner: &str) -> String {
    push_escaped(owner, "gw:bindings-of:".to_owned())
}

/// Returns the key of the instance that has a context.
pub(super) fn bound_context(target: &WorkspaceIncarnation, context: &str) -> String {
    push_escaped(context, format!("gw:bound:{target}:c:"))
}

fn fold_id(task: &str) -> String {
    task.trim_matches(is_space).to_ascii_lowercase()
}

/// True for characters that a parser may strip from the ends of a text: Unicode white space and zero-width
/// characters.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}')
}

/// Returns the key of the target at which `owner` started `task`.
pub(super) fn task_target(owner: &str, task: &str) -> String {
    let owner = push_escaped(owner, "gw:task-at:".to_owned());
    push_escaped(&fold_id(task), owner + ":")
}

/// Returns the key of the list of an owner's tasks.
pub(super) fn of_owner(owner: &str) -> String {
    push_escaped(owner, "gw:tasks-of:".to_owned())
}

/// Percent-encodes `text` behind `key`. The characters of workspace ids, and of the ids that agents usually generate,
/// stay as they are.
fn push_escaped(text: &str, mut key: String) -> String {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            key.push(char::from(byte));
        } else {
            key.push_str(&format!("%{byte:02X}"));
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_reaches_another_key() {
        let target = WorkspaceIncarnation::parse("dev").unwrap();
        for (id, escaped) in [
            (" 0199c-AZ_.1 ", "0199c-az_.1"),
            ("\u{a0}t\u{3000}", "t"),
            ("\u{200b}t\u{feff}", "t"),
            ("a:b", "a%3Ab"),
            ("a%3Ab", "a%253ab"),
            ("x\r\nset y", "x%0D%0Aset%20y"),
            ("ä", "%C3%A4"),
            ("../*", "..%2F%2A"),
        ] {
            assert_eq!(task_owner(&target, id), format!("gw:task:dev:{escaped}"));
            assert_eq!(task_target("pm", id), format!("gw:task-at:pm:{escaped}"));
        }
        assert_ne!(task_target("a:b", "c"), task_target("a", "b:c"));
    }
}
