//! The message rules: completes the message of a call that has its envelope ([`complete_message`]).

use super::bare::{new_id, read_members};
use super::call::{Call, Message, Params};
use super::completion_steps::CompletionStep;
use super::edit::{EditPlan, MemberChanges};
use super::envelope::{Completion, Fault};
use super::fields::quote_string;
use super::generation::Generation;
use super::json::{Kind, Member};
use super::part;

/// Returns the idempotency key: the client's own task id (`params.message.task_id`, not `taskId`),
/// which agents do not use. Calls with the same key are the same call. `None` also if it is empty.
pub(super) fn idempotency_key(call: &Call<'_>) -> Option<String> {
    let key = call.inner.body.task_id.filter(is_task_key)?.value;
    let key = key.token(call.text.as_bytes());
    (!key.is_empty()).then(|| String::from_utf8_lossy(&key).into_owned())
}

/// Returns the message id that the client sent, if it is a valid one.
pub(super) fn given_id(call: &Call<'_>) -> Option<String> {
    let message = &call.inner.body;
    let id = message.message_id.filter(|id| !id.value.is_void());
    let id = id.or(message.snake_id)?.value;
    // Empty for values that are no strings.
    let said = id.unescaped(call.text.as_bytes());
    (!said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned())
}

fn is_task_key(task_id: &Member) -> bool {
    task_id.value.is_rpc_id()
}

/// Applies the message rules to a send or stream call. Does nothing if `params.message` is not an
/// object: the agent decides on that.
///
/// # Errors
/// If the call contradicts itself or the path.
pub(super) fn complete_message(
    call: &Call<'_>,
    completion: &Completion<'_>,
    bare: bool,
    work: &mut EditPlan,
) -> Result<(), Fault> {
    let (params, text) = (&call.inner, call.text);
    if params.message.is_none_or(|m| m.value.kind != Kind::Object) {
        return Ok(());
    }
    let mut editor = Editor {
        message: &params.body,
        text,
        generation: completion.generation,
        changes: MemberChanges::default(),
        work,
    };
    // Parts first: their edits may have the same offset as the insertion of new members.
    let reshaped = editor.convert_content()?;
    editor.ensure_message_id()?;
    editor.move_task_id()?;
    editor.set_role(bare, reshaped);
    let Editor { changes, work, .. } = editor;
    changes.add_edits(&params.body.object, text, &mut work.edits);
    remove_target(params, text, completion.target, work)?;
    set_source(params, text, completion.caller, work);
    Ok(())
}

/// The edits of one message.
struct Editor<'a> {
    message: &'a Message,
    text: &'a str,
    generation: Generation,
    /// The members that it loses and gets.
    changes: MemberChanges,
    work: &'a mut EditPlan,
}

impl Editor<'_> {
    /// Converts the content to `parts` in the target's shape. Returns true if that changed something.
    fn convert_content(&mut self) -> Result<bool, Fault> {
        let (message, text, generation) = (self.message, self.text, self.generation);
        let edits = &mut self.work.edits;
        let (member, renamed) = match (message.parts, message.content, message.text) {
            (Some(parts), _, _) => (parts, false),
            (None, Some(content), _) => (content, true),
            (None, None, Some(said)) if said.value.kind == Kind::String => (said, true),
            _ => return Ok(false),
        };
        let mut reshaped = renamed;
        let value = member.value;
        if renamed && matches!(value.kind, Kind::String | Kind::Object | Kind::Array) {
            edits.rename(&member, r#""parts""#);
        }
        match value.kind {
            Kind::String if renamed => {
                edits.insert(value.start, generation.text_parts_open());
                edits.insert(value.end, "}]");
            }
            Kind::Object if renamed => {
                edits.insert(value.start, "[");
                part::complete_parts(value, text, generation, edits)?;
                edits.insert(value.end, "]");
            }
            Kind::Array if message.typed_parts => {
                reshaped |= part::complete_parts(value, text, generation, edits)?;
            }
            Kind::Array => {}
            // Neither text nor parts: a wrong value does not count as missing.
            _ => reshaped = false,
        }
        if reshaped {
            self.work.done.add(CompletionStep::Parts);
        }
        Ok(reshaped)
    }

    /// Ensures a `messageId`, under that name only: agents that read `ProtoJSON` reject both names
    /// together, and others know only this one.
    fn ensure_message_id(&mut self) -> Result<(), Fault> {
        let (message, text, changes) = (self.message, self.text, &mut self.changes);
        let edits = &mut self.work.edits;
        let id = message.message_id.filter(|id| !id.value.is_void());
        match (id, message.message_id, message.snake_id) {
            (Some(_), _, None) => return Ok(()),
            (Some(id), _, Some(snake)) => {
                if !snake.value.is_void() && !have_same_value(&id, &snake, text) {
                    return Err(Fault::invalid_params(
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
        self.work.done.add(CompletionStep::MessageId);
        Ok(())
    }

    /// Moves the client's own task id to `metadata`, where agents do not take it for one of their
    /// tasks.
    fn move_task_id(&mut self) -> Result<(), Fault> {
        let Some(task_id) = self.message.task_id.filter(is_task_key) else {
            return Ok(());
        };
        let member = format!(r#""task_id":{}"#, task_id.value.raw_str(self.text));
        match self.message.metadata {
            None => self.changes.append(format!(r#""metadata":{{{member}}}"#)),
            Some(metadata) => match metadata.value.kind {
                Kind::Null => {
                    let edits = &mut self.work.edits;
                    edits.replace_value(&metadata, format!("{{{member}}}"));
                }
                Kind::Object => self.move_into_metadata(&metadata, &task_id, member)?,
                // It cannot be moved there, and the agent rejects such metadata anyway.
                _ => return Ok(()),
            },
        }
        self.changes.remove(&task_id);
        self.work.done.add(CompletionStep::TaskId);
        Ok(())
    }

    fn move_into_metadata(
        &mut self,
        metadata: &Member,
        task_id: &Member,
        member: String,
    ) -> Result<(), Fault> {
        let (object, members) = read_members(self.text, metadata.value.start);
        let mut there = members.iter().filter(|(name, _)| **name == *b"task_id");
        match (there.next(), there.next()) {
            (_, Some(_)) => Err(Fault::duplicate_member("task_id")),
            (Some((_, old)), None) if !have_same_value(old, task_id, self.text) => {
                Err(Fault::invalid_params(
                    "\"task_id\" and \"metadata.task_id\" differ; send one of them",
                ))
            }
            (Some(_), None) => Ok(()),
            (None, None) => {
                let mut changes = MemberChanges::default();
                changes.append(member);
                changes.add_edits(&object, self.text, &mut self.work.edits);
                Ok(())
            }
        }
    }

    /// Sets the author's role, only for messages in the form of neither generation; the agent decides on others.
    fn set_role(&mut self, bare: bool, reshaped: bool) {
        let generation = self.generation;
        match self.message.role {
            None if bare || reshaped => {
                let role = format!(r#""role":{}"#, generation.user_role());
                self.changes.append(role);
            }
            // A bare call becomes one of 1.0, which rejects the role of 0.x.
            Some(role) if bare && generation == Generation::V1 => {
                let said = role.value.unescaped(self.text.as_bytes());
                let new = match &*said {
                    b"user" => generation.user_role(),
                    b"agent" => r#""ROLE_AGENT""#,
                    _ => return,
                };
                self.work.edits.replace_value(&role, new);
            }
            _ => return,
        }
        self.work.done.add(CompletionStep::Role);
    }
}

/// Removes `params.target_agent_id`: the path is authorized, not this member.
fn remove_target(
    params: &Params,
    text: &str,
    target: &str,
    work: &mut EditPlan,
) -> Result<(), Fault> {
    let Some(named) = params.target else {
        return Ok(());
    };
    if named.value.kind != Kind::Null && !named.value.equals(text.as_bytes(), target) {
        return Err(Fault::invalid_params(
            "\"target_agent_id\" is not the workspace in the path; the path decides",
        ));
    }
    work.edits.remove_member(&named, &params.object, text);
    work.done.add(CompletionStep::Target);
    Ok(())
}

/// Ensures that `params.metadata.source_workspace_id` is the proven caller, or absent.
pub(super) fn set_source(params: &Params, text: &str, caller: Option<&str>, work: &mut EditPlan) {
    let Some(source) = params.source else { return };
    match caller {
        Some(caller) if source.value.equals(text.as_bytes(), caller) => return,
        Some(caller) => {
            let token = quote_string(caller);
            work.edits.replace_value(&source, token);
        }
        None if source.value.kind == Kind::Null => return,
        None => work
            .edits
            .remove_member(&source, &params.metadata_object, text),
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
