//! The response to a call that lists tasks, from which the tasks of other callers are removed
//! ([`TaskList`]).

use super::fields::{Fields, array_elements, join_array};

/// A parsed list.
pub struct TaskList<'a> {
    /// The object around the list; `None`: the response is the list itself.
    around: Option<Fields<'a>>,
    tasks: Vec<&'a str>,
}

impl<'a> TaskList<'a> {
    /// Parses the result of a list call: `{"tasks":[…]}`, or the list itself. `None`: it is
    /// neither, or has a duplicate member, which is ambiguous.
    pub fn parse(result: &'a str) -> Option<Self> {
        if let Some(tasks) = array_elements(result) {
            return Some(Self {
                around: None,
                tasks,
            });
        }
        let around = Fields::parse(result)?;
        // A page without tasks may lack the member (ProtoJSON omits empty ones).
        let tasks = match around.get_borrowed("tasks") {
            Some(tasks) => array_elements(tasks)?,
            None if around.is_flat() => Vec::new(),
            None => return None,
        };
        Some(Self {
            around: Some(around),
            tasks,
        })
    }

    /// Returns the ids of the tasks. `None`: a task without one.
    pub fn ids(&self) -> Vec<Option<String>> {
        let id = |task: &&str| Fields::parse(task).and_then(|task| task.get_text("id"));
        self.tasks.iter().map(id).collect()
    }

    /// Returns the result with only the tasks that `keep` marks; `None`: it keeps all. The total
    /// then becomes the number of kept tasks, since the agent's total counts the tasks of other
    /// callers.
    pub fn retain(self, keep: &[bool]) -> Option<String> {
        let kept = self.tasks.iter().zip(keep).filter(|(_, keep)| **keep);
        let kept: Vec<&str> = kept.map(|(task, _)| *task).collect();
        if kept.len() == self.tasks.len() {
            return None;
        }
        let Some(mut around) = self.around else {
            return Some(join_array(&kept));
        };
        around.set("tasks", join_array(&kept));
        for total in ["totalSize", "total_size"] {
            if around.contains(total) {
                around.set(total, kept.len().to_string());
            }
        }
        Some(around.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_tasks_are_left_out_and_nothing_else_is_touched() {
        let cases = [
            (
                r#"{"tasks":[{"id":"a","n":1.0},{"id":"b"},{"id":"c"}],"totalSize":30,"nextPageToken":"x"}"#,
                r#"{"tasks":[{"id":"a","n":1.0},{"id":"c"}],"totalSize":2,"nextPageToken":"x"}"#,
            ),
            (
                r#"[{"id":"a"},{"id":"b"}, {"x":[],"id":"c"}]"#,
                r#"[{"id":"a"},{"x":[],"id":"c"}]"#,
            ),
            (
                r#"{"tasks":["b",{"id":"b","id":"a"},7]}"#,
                r#"{"tasks":[]}"#,
            ),
        ];
        for (sent, expected) in cases {
            let list = TaskList::parse(sent).unwrap();
            let keep: Vec<bool> = list
                .ids()
                .iter()
                .map(|id| id.as_deref().is_some_and(|id| id != "b"))
                .collect();
            assert_eq!(list.retain(&keep).as_deref(), Some(expected), "{sent}");
        }
        for all in [
            r#"{"tasks":[{"id":"a"}],"totalSize":30}"#,
            r#"{"pageSize":3}"#,
            "[]",
        ] {
            assert_eq!(TaskList::parse(all).unwrap().retain(&[true]), None, "{all}");
        }
        for none in [
            "",
            "7",
            r#"{"tasks":{}}"#,
            r#"{"tasks":[],"tasks":[]}"#,
            r#"{"tasks":null}"#,
        ] {
            assert!(TaskList::parse(none).is_none(), "{none}");
        }
    }
}
