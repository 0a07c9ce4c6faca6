//! The difference between a policy and a gateway, as text: `+` created, `~` changed, `-` removed.

use std::fmt::Write as _;

use serde_json::Value;

/// Names of objects that are not in the policy, and are shown one by one, at most.
const UNMANAGED_SHOWN_MAX: usize = 20;

/// The answer of a gateway.
pub(super) struct Difference<'a> {
    changes: &'a [Value],
    unmanaged: &'a [Value],
    expired: &'a [Value],
    unchanged: u64,
    prune: bool,
}

impl<'a> Difference<'a> {
    /// Reads an answer. `prune`: removals were asked for.
    pub(super) fn from_answer(answer: &'a Value, prune: bool) -> Self {
        let list = |name: &str| answer[name].as_array().map_or(&[][..], Vec::as_slice);
        Self {
            changes: list("changes"),
            unmanaged: list("unmanaged"),
            expired: list("expired"),
            unchanged: answer["unchanged"].as_u64().unwrap_or_default(),
            prune,
        }
    }

    /// True if there are no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the number of changes.
    pub(super) fn count(&self) -> usize {
        self.changes.len()
    }

    /// Returns the text. Writing to a string cannot fail.
    pub(super) fn format_text(&self) -> String {
        let mut text = String::new();
        for change in self.changes {
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
            for field in change["fields"].as_array().into_iter().flatten() {
                let name = field["field"].as_str().unwrap_or_default();
                let _ = writeln!(
                    text,
                    "    {name}: {} -> {}",
                    field["before"], field["after"]
                );
            }
        }
        for one in self.unmanaged.iter().take(UNMANAGED_SHOWN_MAX) {
            let _ = writeln!(text, "? {} is not in the policy", format_name(one));
        }
        for one in self.expired {
            let _ = writeln!(
                text,
                "! {} has expired, and is passed over",
                format_name(one)
            );
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&self.format_summary());
        text
    }

    fn format_summary(&self) -> String {
        let of = |actions: &[&str]| {
            let is_one = |change: &&Value| actions.iter().any(|action| change["action"] == *action);
            self.changes.iter().filter(is_one).count()
        };
        let mut text = if self.is_empty() {
            format!("No changes; {} as the policy says.\n", self.unchanged)
        } else {
            format!(
                "{} to create, {} to change, {} to remove; {} as the policy says.\n",
                of(&["create", "recreate"]),
                of(&["change"]),
                of(&["remove"]),
                self.unchanged
            )
        };
        if !self.unmanaged.is_empty() && !self.prune {
            let _ = writeln!(
                text,
                "{} not in the policy: with --prune they would be removed.",
                self.unmanaged.len()
            );
        }
        text
    }
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
        let text = Difference::from_answer(&answer, false).format_text();
        assert_eq!(
            text,
            "+ workspace dev\n    org: \"acme\"\n~ workspace pm\n    role: null -> \"plans\"\n+ (again) workspace qa\n\
             - stop workspace dev (new)\n    reason: \"loop\"\n\
             ? grant a -> b is not in the policy\n\n2 to create, 1 to change, 1 to remove; 7 as the policy says.\n\
             1 not in the policy: with --prune they would be removed.\n"
        );
        let none = json!({"changes": [], "unmanaged": [], "unchanged": 3});
        let none = Difference::from_answer(&none, true);
        assert!(none.is_empty());
        assert_eq!(none.format_text(), "No changes; 3 as the policy says.\n");
    }
}
