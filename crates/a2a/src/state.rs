//! The states of a task, with their names in A2A 0.3 and 1.0.

use super::words::words;

words! {
    /// The state of a task (A2A 0.3, 6.3; 1.0, 4.1.3), with its name in 0.3.
    #[derive(Hash)]
    TaskState {
        /// Accepted, not started.
        Submitted => "submitted",
        /// In progress.
        Working => "working",
        /// The agent waits for another message.
        InputRequired => "input-required",
        /// The agent waits for credentials.
        AuthRequired => "auth-required",
        /// Done.
        Completed => "completed",
        /// Canceled.
        Canceled => "canceled",
        /// Ended by an error.
        Failed => "failed",
        /// Not accepted.
        Rejected => "rejected",
    }
}

impl TaskState {
    /// Returns the name in 1.0.
    pub const fn as_v1_str(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::InputRequired => "TASK_STATE_INPUT_REQUIRED",
            Self::AuthRequired => "TASK_STATE_AUTH_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Canceled => "TASK_STATE_CANCELED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Rejected => "TASK_STATE_REJECTED",
        }
    }

    /// Parses either name, also in another case, with `_` for `-`, or without the prefix of 1.0, as agents written by
    /// hand spell them. `CANCELLED` is the spelling of 0.3's HTTP+JSON binding.
    pub fn parse(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        let exact = all.find(|state| state.as_str() == word || state.as_v1_str() == word);
        exact.or_else(|| {
            let plain = word.to_ascii_lowercase().replace('_', "-");
            let plain = plain.strip_prefix("task-state-").unwrap_or(&plain);
            if plain == "cancelled" {
                return Some(Self::Canceled);
            }
            Self::ALL.into_iter().find(|state| state.as_str() == plain)
        })
    }

    /// Returns true if no other state can follow.
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Canceled | Self::Failed | Self::Rejected
        )
    }

    /// Returns true if the agent waits for its caller.
    pub const fn is_interrupted(self) -> bool {
        matches!(self, Self::InputRequired | Self::AuthRequired)
    }

    /// Returns true if the turn of the agent is over, which ends a wait for the task: it waits for
    /// the caller, or the task is terminal.
    pub const fn ends_turn(self) -> bool {
        self.is_terminal() || self.is_interrupted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_read_in_the_words_of_both() {
        for state in TaskState::ALL {
            assert_eq!(TaskState::parse(state.as_str()), Some(state));
            assert_eq!(TaskState::parse(state.as_v1_str()), Some(state));
            assert!(state.ends_turn() || !state.is_terminal());
        }
        assert_eq!(
            TaskState::parse("TASK_STATE_CANCELLED"),
            Some(TaskState::Canceled)
        );
        for (word, state) in [
            ("input_required", TaskState::InputRequired),
            ("Completed", TaskState::Completed),
            ("COMPLETED", TaskState::Completed),
            ("AUTH_REQUIRED", TaskState::AuthRequired),
            ("Cancelled", TaskState::Canceled),
        ] {
            assert_eq!(TaskState::parse(word), Some(state), "{word}");
        }
        for word in ["done", "", "unknown", "TASK_STATE_UNSPECIFIED"] {
            assert_eq!(TaskState::parse(word), None, "{word}");
        }
    }

    #[test]
    fn the_state_of_a_task_is_found_in_every_shape_of_an_answer() {
        for (answer, state) in [
            (
                r#"{"result":{"kind":"task","status":{"state":"input-required"}}}"#,
                Some(TaskState::InputRequired),
            ),
            (
                r#"{"result":{"task":{"status":{"state":"TASK_STATE_AUTH_REQUIRED"}}}}"#,
                Some(TaskState::AuthRequired),
            ),
            (
                r#"{"result":{"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"}}}}"#,
                Some(TaskState::Working),
            ),
            (
                r#"{"id":"t","status":{"state":"completed"}}"#,
                Some(TaskState::Completed),
            ),
            (
                r#"{"task":{"status":{"state":"failed"}}}"#,
                Some(TaskState::Failed),
            ),
            (r#"{"result":{"kind":"message","parts":[]}}"#, None),
            (r#"{"result":"done"}"#, None),
            (
                "\u{feff}{\"status\":{\"state\":\"failed\"}}",
                Some(TaskState::Failed),
            ),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(TaskState::from_answer(answer.as_bytes()), state, "{answer}");
        }
    }
}
