//! The difference between a policy and a gateway, as text: `+` created, `~` changed, `-` removed.

use std::fmt::Write as _;

use serde_json::Value;

/// Names of objects that are not in the policy, and are shown one by one, at most.
const UNMANAGED_SHOWN_MAX: usize = 20;

/// Returns the members of an answer that are listed.
fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the number of changes of an answer.
pub(super) fn count_changes(answer: &Value) -> usize {
    list(answer, "changes").len()
}

/// Returns an answer as text. `prune`: removals were asked for.
pub(super) fn format_difference(answer: &Value, prune: bool) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for change in list(answer, "changes") {
        let sign = match change["action"].as_str() {
            Some("create") => "+",
            Some("recreate") => "+ (again)",
            Some("change") => "~",
            _ => "-",
        };
        let _ = writeln!(text, "{sign} {}", format_name(change));
        // Only a change of one object has both, in its fields.
        let members = ["before", "after"].map(|name| change[name].as_object());
        for (member, value) in members.into_iter().flatten().flatten() {
            let _ = writeln!(text, "    {member}: {value}");
        }
        for field in list(change, "fields") {
            let name = field["field"].as_str().unwrap_or_default();
            let (before, after) = (&field["before"], &field["after"]);
            let _ = writeln!(text, "    {name}: {before} -> {after}");
        }
    }
    for one in list(answer, "unmanaged").iter().take(UNMANAGED_SHOWN_MAX) {
        let _ = writeln!(text, "? {} is not in the policy", format_name(one));
    }
    for one in list(answer, "expired") {
        let name = format_name(one);
        let _ = writeln!(text, "! {name} has expired, and is passed over");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text + &format_summary(answer, prune)
}

fn format_summary(answer: &Value, prune: bool) -> String {
    let changes = list(answer, "changes");
    let of = |actions: &[&str]| {
        let is_one = |change: &&Value| actions.iter().any(|action| change["action"] == *action);
        changes.iter().filter(is_one).count()
    };
    let unchanged = answer["unchanged"].as_u64().unwrap_or_default();
    let mut text = match changes {
        [] => "No changes".to_owned(),
        _ => format!(
            "{} to create, {} to change, {} to remove",
            of(&["create", "recreate"]),
            of(&["change"]),
            of(&["remove"])
        ),
    };
    let _ = writeln!(text, "; {unchanged} as the policy says.");
    let unmanaged = list(answer, "unmanaged").len();
    if unmanaged > 0 && !prune {
        let _ = writeln!(
            text,
            "{unmanaged} not in the policy: with --prune they would be removed."
        );
    }
    text
}

/// Returns the kind and the name of an object.
pub(super) fn format_name(object: &Value) -> String {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    format!("{} {}", text("kind"), text("name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_shows_each_change_and_what_prune_would_remove() {
        let answer = json!({"changes": [
            {"action": "create", "kind": "workspace", "name": "dev", "after": {"org": "acme"}},
            {"action": "change", "kind": "workspace", "name": "pm",
                "fields": [{"field": "role", "before": null, "after": "plans"}]},
            {"action": "recreate", "kind": "workspace", "name": "qa", "after": {}},
            {"action": "remove", "kind": "stop", "name": "workspace dev (new)", "before": {"reason": "loop"}},
        ], "unmanaged": [{"kind": "grant", "name": "a -> b"}], "expired": [], "unchanged": 7});
        let text = format_difference(&answer, false);
        assert_eq!(
            text,
            "+ workspace dev\n    org: \"acme\"\n~ workspace pm\n    role: null -> \"plans\"\n+ (again) workspace qa\n\
             - stop workspace dev (new)\n    reason: \"loop\"\n\
             ? grant a -> b is not in the policy\n\n2 to create, 1 to change, 1 to remove; 7 as the policy says.\n\
             1 not in the policy: with --prune they would be removed.\n"
        );
        let none = json!({"changes": [], "unmanaged": [], "unchanged": 3});
        assert_eq!(count_changes(&none), 0);
        let none = format_difference(&none, true);
        assert_eq!(none, "No changes; 3 as the policy says.\n");
    }
}
