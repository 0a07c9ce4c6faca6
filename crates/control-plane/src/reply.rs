//! `POST /workspaces/{id}/activity/{activity_id}/reply`: an update of a task by an agent that polls
//! (`docs/reference/http-api.md`).

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::activity::note_life;
use super::body::Json;
use super::extract::{Caller, PathActivityId, PathId};
use a2a::agent_reply::Update;
use a2a::names;
use assembly::gateway::Gateway;
use kernel::rejection::{Reason, Rejection};
use mailbox::inbox::too_deep;

/// Maximum nesting of JSON that can be parsed to a tree.
const LEVELS_MAX: usize = 127;

#[derive(Serialize, ToSchema)]
pub(super) struct ReplyResponse {
    #[schema(pattern = "^ok$")]
    status: &'static str,
    task_id: String,
    /// The task's, afterwards, in the words of A2A 0.3.
    #[schema(
        pattern = "^(submitted|working|input-required|auth-required|completed|failed|canceled|rejected)$"
    )]
    state: &'static str,
}

/// Updates the task, and notifies the callers that wait for it.
pub(super) async fn reply_to_entry(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    PathActivityId(activity): PathActivityId,
    caller: Caller,
    Json(body): Json<Box<RawValue>>,
) -> Result<Answer<ReplyResponse>, Rejection> {
    caller.require_own(&id)?;
    let value = parse_reply(body.get())?;
    let fresh = || uuid::Uuid::new_v4().to_string();
    let update = Update::parse(&value, fresh)
        .map_err(|error| Rejection::new(Reason::InvalidParams, error.to_string()))?;
    note_life(&gateway, &caller.0, &id).await;
    let inbox = &gateway.delivery.inbox;
    let task = inbox
        .record_reply(&id, &activity, update, body.get())
        .await?;
    // The update is committed. If this call fails, a periodic scan finds the ended task.
    let _ = gateway.delivery.jobs.task_ended(&task).await;
    Ok(Answer(ReplyResponse {
        status: "ok",
        task_id: task.id,
        state: task.state.as_str(),
    }))
}

/// Parses a reply. It is valid JSON, and may be such as cannot be stored.
fn parse_reply(text: &str) -> Result<Value, Rejection> {
    if !names::scan_names(text, &[]).is_ok_and(|found| found.depth <= LEVELS_MAX) {
        return Err(too_deep());
    }
    // Serde's messages for the remaining errors repeat nothing of the reply.
    serde_json::from_str(text).map_err(|error| {
        let message = format!("the reply holds what cannot be kept: {error}");
        Rejection::new(Reason::InvalidParams, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_named() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for (text, named) in [
            (&*deep, "levels deep"),
            ("[1e999]", "number out of range"),
            ("[\"\\ud800\"]", "hex escape"),
        ] {
            let refused = parse_reply(text).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidParams);
            assert!(refused.message.contains(named), "{}", refused.message);
        }
    }
}
