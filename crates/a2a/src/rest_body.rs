//! The body of an HTTP+JSON request for an agent with that binding ([`RestBody`]): forwarded
//! unchanged, except for the claimed caller.

use bytes::Bytes;

use super::completion_steps::CompletionSteps;
use super::edit::EditPlan;
use super::envelope::{Fault, decode_text};
use super::json::without_mark;
use super::message::set_source;
use super::method::Method;
use super::refs::Refs;

/// A body that may be forwarded.
#[derive(Clone, Debug, PartialEq)]
pub struct RestBody {
    /// The body for the agent; the same `Bytes` as received if nothing was changed.
    pub body: Bytes,
    /// The changes made, for `X-A2A-Completed`.
    pub done: CompletionSteps,
    /// The tasks and URLs that it refers to.
    pub refs: Refs,
}

impl RestBody {
    /// Ensures that `metadata.source_workspace_id` is the proven `caller`, or absent if the caller
    /// is not a workspace.
    ///
    /// # Errors
    /// [`Fault`] if it is not JSON, ambiguous, or refers to more than can be checked.
    pub fn complete(body: Bytes, method: Method, caller: Option<&str>) -> Result<Self, Fault> {
        let mut work = EditPlan::default();
        let read = without_mark(&body);
        let (mut edited, mut refs) = (None, Refs::default());
        if !read.iter().all(u8::is_ascii_whitespace) {
            let text = decode_text(read)?;
            let (found, params) = Refs::from_rest_text(text, method)?;
            set_source(&params, text, caller, &mut work);
            edited = work.edits.apply(text).map(Bytes::from);
            refs = found;
        }
        Ok(Self {
            body: edited.unwrap_or(body),
            done: work.done,
            refs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proven_caller_takes_the_place_of_the_one_that_is_said() {
        let rows = [
            (
                r#"{"metadata":{"source_workspace_id":"boss"},"n":1.0}"#,
                r#"{"metadata":{"source_workspace_id":"pm"},"n":1.0}"#,
            ),
            (
                r#"{"metadata":{"source_workspace_id":"pm"}}"#,
                r#"{"metadata":{"source_workspace_id":"pm"}}"#,
            ),
            (
                r#"{"metadata":{"other": 1}}"#,
                r#"{"metadata":{"other": 1}}"#,
            ),
            ("", ""),
        ];
        for (sent, expected) in rows {
            let body = RestBody::complete(sent.into(), Method::SendMessage, Some("pm")).unwrap();
            assert_eq!(body.body, expected);
            assert_eq!(body.done.is_empty(), sent == expected);
        }
        let sent = r#"{"metadata":{"source_workspace_id":"boss"}}"#;
        let body = RestBody::complete(sent.into(), Method::SendMessage, None).unwrap();
        assert_eq!(body.body, r#"{"metadata":{}}"#);
        for forged in [
            r#"{"Metadata":{"source_workspace_id":"boss"}}"#,
            r#"{"metadata":{"Source_Workspace_Id":"boss"}}"#,
            r#"{"metadata":{},"metadata":{"source_workspace_id":"boss"}}"#,
            r#"{"metadata":{},"METADATA":{"source_workspace_id":"boss"}}"#,
        ] {
            let body = RestBody::complete(forged.into(), Method::SendMessage, Some("pm"));
            assert!(body.is_err(), "{forged}");
        }
    }
}
