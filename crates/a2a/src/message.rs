//! The message rules: completes the message of a call that has its envelope ([`complete_message`]).

use super::bare::{new_id, read_members};
use super::call::{Call, Message, Params};
use super::completion_steps::CompletionStep;
use super::edit::{EditPlan, MemberChanges};
use super::envelope::{Completion, Refusal};
use super::generation::Generation;
use super::json::{Kind, Member};
use super::part;

/// Returns the idempotency key: the client's own task id (`params.message.task_id`, not `taskId`),
/// which agents do not use. Calls with the same key are the same call. `None` also if it is empty.
pub(super) fn idempotency_key(call: &Call, text: &str) -> Option<String> {
    let value = call.inner.body.task_id.filter(is_task_key)?.value;
    let key = match value.kind {
        Kind::String => String::from_utf8_lossy(&value.unescaped(text.as_bytes())).into_owned(),
        _ => value.raw_str(text).to_owned(),
    };
    Some(key).filter(|key| !key.is_empty())
}

/// Returns the message id that the client sent, if it is a valid one.
pub(super) fn given_id(call: &Call, text: &str) -> Option<String> {
    let message = &call.inner.body;
    let id = message.message_id.filter(|id| !id.value.is_void());
    let id = id.or(message.snake_id)?.value;
    let said = (id.kind == Kind::String).then(|| id.unescaped(text.as_bytes()))?;
    Some(String::from_utf8_lossy(&said).into_owned()).filter(|id| !id.is_empty())
}

fn is_task_key(task_id: &Member) -> bool {
    matches!(task_id.value.kind, Kind::Number | Kind::String)
}

/// Applies the message rules to a send or stream call. Does nothing if `params.message` is not an
/// object: the agent decides on that.
///
/// # Errors
/// If the call contradicts itself or the path.
pub(super) fn complete_message(
    call: &Call,
    text: &str,
    completion: &Completion<'_>,
    bare: bool,
    work: &mut EditPlan,
) -> Result<(), Refusal> {
    let params = &call.inner;
    if params.message.is_none_or(|m| m.value.kind != Kind::Object) {
        return Ok(());
    }
    let message = &params.body;
    let mut changes = MemberChanges::default();
    // Parts first: their edits may have the same offset as the insertion of new members.
    let reshaped = convert_content(message, text, completion.generation, work)?;
    ensure_message_id(message, text, &mut changes, work)?;
    move_task_id(message, text, &mut changes, work)?;
    set_role(
        message,
        text,
        completion.generation,
        (bare, reshaped),
        &mut changes,
        work,
    );
    changes.add_edits(&message.object, text, &mut work.edits);
    remove_target(params, text, completion.target, work)?;
    set_source(params, text, completion.caller, work);
    Ok(())
}

/// Converts the content to `parts` in the target's shape. Returns true if that changed something.
fn convert_content(
    message: &Message,
    text: &str,
    generation: Generation,
    work: &mut EditPlan,
) -> Result<bool, Refusal> {
    let edits = &mut work.edits;
    let (member, renamed) = match (message.parts, message.content, message.text) {
        (Some(parts), _, _) => (parts, false),
        (None, Some(content), _) => (content, true),
        (None, None, Some(said)) if said.value.kind == Kind::String => (said, true),
        _ => return Ok(false),
    };
    let mut reshaped = renamed;
    match member.value.kind {
        Kind::String if renamed => {
            edits.rename(&member, r#""parts""#);
            edits.insert(member.value.start, generation.text_parts_open());
            edits.insert(member.value.end, "}]");
        }
        Kind::Object if renamed => {
            edits.rename(&member, r#""parts""#);
            edits.insert(member.value.start, "[");
            part::complete_parts(member.value, text, generation, edits)?;
            edits.insert(member.value.end, "]");
        }
        Kind::Array => {
            if renamed {
                edits.rename(&member, r#""parts""#);
            }
            if message.typed_parts {
                reshaped |= part::complete_parts(member.value, text, generation, edits)?;
            }
        }
        // Neither text nor parts: a wrong value does not count as missing.
        _ => reshaped = false,
    }
    if reshaped {
        work.done.add(CompletionStep::Parts);
    }
    Ok(reshaped)
}

/// Ensures a `messageId`, under that name only: agents that read `ProtoJSON` reject both names
/// together, and others know only this one.
fn ensure_message_id(
    message: &Message,
    text: &str,
    changes: &mut MemberChanges,
    work: &mut EditPlan,
) -> Result<(), Refusal> {
    let edits = &mut work.edits;
    let id = message.message_id.filter(|id| !id.value.is_void());
    match (id, message.message_id, message.snake_id) {
        (Some(_), _, None) => return Ok(()),
        (Some(id), _, Some(snake)) => {
            if !snake.value.is_void() && !have_same_value(&id, &snake, text) {
                return Err(Refusal::invalid_params(
                    "\"messageId\" and \"message_id\" differ; send one of them",
                ));
            }
            changes.remove(&snake);
        }
        (None, None, None) => changes.append(format!(r#""messageId":"{}""#, new_id())),
        (None, Some(void), None) => edits.replace_value(&void, format!("\"{}\"", new_id())),
        (None, void, Some(snake)) => {
            if snake.value.is_void() {
                edits.replace_value(&snake, format!("\"{}\"", new_id()));
            } else if snake.value.kind != Kind::String {
                // A wrong value does not count as missing: the agent decides on it.
                return Ok(());
            }
            edits.rename(&snake, r#""messageId""#);
            if let Some(void) = void {
                changes.remove(&void);
            }
        }
    }
    work.done.add(CompletionStep::MessageId);
    Ok(())
}

/// Moves the client's own task id to `metadata`, where agents do not take it for one of their
/// tasks.
fn move_task_id(
    message: &Message,
    text: &str,
    changes: &mut MemberChanges,
    work: &mut EditPlan,
) -> Result<(), Refusal> {
    let Some(task_id) = message.task_id.filter(is_task_key) else {
        return Ok(());
    };
    let member = format!(r#""task_id":{}"#, task_id.value.raw_str(text));
    match message.metadata {
        None => changes.append(format!(r#""metadata":{{{member}}}"#)),
        Some(metadata) => match metadata.value.kind {
            Kind::Null => work.edits.replace_value(&metadata, format!("{{{member}}}")),
            Kind::Object => move_into_metadata(&metadata, &task_id, member, text, work)?,
            // It cannot be moved there, and the agent rejects such metadata anyway.
            _ => return Ok(()),
        },
    }
    changes.remove(&task_id);
    work.done.add(CompletionStep::TaskId);
    Ok(())
}

fn move_into_metadata(
    metadata: &Member,
    task_id: &Member,
    member: String,
    text: &str,
    work: &mut EditPlan,
) -> Result<(), Refusal> {
    let (object, members) = read_members(text, metadata.value.start);
    let mut there = members.iter().filter(|(name, _)| **name == *b"task_id");
    match (there.next(), there.next()) {
        (_, Some(_)) => Err(Refusal::duplicate_member("task_id")),
        (Some((_, old)), None) if !have_same_value(old, task_id, text) => {
            Err(Refusal::invalid_params(
                "\"task_id\" and \"metadata.task_id\" differ; send one of them",
            ))
        }
        (Some(_), None) => Ok(()),
        (None, None) => {
            let mut changes = MemberChanges::default();
            changes.append(member);
            changes.add_edits(&object, text, &mut work.edits);
            Ok(())
        }
    }
}

/// Sets the author's role. `(bare, reshaped)`: only for messages in the form of neither generation;
/// the agent decides on others.
fn set_role(
    message: &Message,
    text: &str,
    generation: Generation,
    (bare, reshaped): (bool, bool),
    changes: &mut MemberChanges,
    work: &mut EditPlan,
) {
    match message.role {
        None if bare || reshaped => {
            changes.append(format!(r#""role":{}"#, generation.user_role()));
        }
        // A bare call becomes one of 1.0, which rejects the role of 0.x.
        Some(role) if bare && generation == Generation::V1 => {
            if role.value.equals(text.as_bytes(), "user") {
                work.edits.replace_value(&role, generation.user_role());
            } else if role.value.equals(text.as_bytes(), "agent") {
                work.edits.replace_value(&role, r#""ROLE_AGENT""#);
            } else {
                return;
            }
        }
        _ => return,
    }
    work.done.add(CompletionStep::Role);
}

/// Removes `params.target_agent_id`: the path is authorized, not this member.
fn remove_target(
    params: &Params,
    text: &str,
    target: &str,
    work: &mut EditPlan,
) -> Result<(), Refusal> {
    let Some(named) = params.target else {
        return Ok(());
    };
    if named.value.kind != Kind::Null && !named.value.equals(text.as_bytes(), target) {
        return Err(Refusal::invalid_params(
            "\"target_agent_id\" is not the workspace in the path; the path decides",
        ));
    }
    let mut changes = MemberChanges::default();
    changes.remove(&named);
    changes.add_edits(&params.object, text, &mut work.edits);
    work.done.add(CompletionStep::Target);
    Ok(())
}

/// Ensures that `params.metadata.source_workspace_id` is the proven caller, or absent.
pub(super) fn set_source(params: &Params, text: &str, caller: Option<&str>, work: &mut EditPlan) {
    let Some(source) = params.source else { return };
    match caller {
        Some(caller) if source.value.equals(text.as_bytes(), caller) => return,
        Some(caller) => {
            let token = serde_json::Value::from(caller).to_string();
            work.edits.replace_value(&source, token);
        }
        None if source.value.kind == Kind::Null => return,
        None => {
            let mut changes = MemberChanges::default();
            changes.remove(&source);
            changes.add_edits(&params.metadata_object, text, &mut work.edits);
        }
    }
    work.done.add(CompletionStep::Source);
}

/// Returns true if two members have the same value: strings are compared unescaped, others by their
/// token.
pub(super) fn have_same_value(a: &Member, b: &Member, text: &str) -> bool {
    let text = text.as_bytes();
    if (a.value.kind, b.value.kind) == (Kind::String, Kind::String) {
        a.value.unescaped(text) == b.value.unescaped(text)
    } else {
        a.value.raw(text) == b.value.raw(text)
    }
}
