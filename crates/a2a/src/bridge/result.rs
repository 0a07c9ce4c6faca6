//! Results of sends and events of streams: 1.0 has the kind around them, 0.3 has it among their members.

use serde_json::Value;

use super::failure::Failure;
use super::nodes::{ARTIFACT_UPDATE, MESSAGE, RESULT, STATUS_UPDATE, TASK, result};
use super::part::find_member;
use super::pass::{Pass, Settings};
use super::rules::{WrittenMembers, put_final, remove_written, write_members, write_node};
use super::table::{Form, Node};
use crate::generation::Generation;
use crate::json::Kind as JsonKind;
use crate::state::TaskState;
use crate::walker::Walker;

/// The kind of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A task.
    Task,
    /// A message.
    Message,
    /// A change of a task's status.
    StatusUpdate,
    /// A piece of a task's result.
    ArtifactUpdate,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self::Task,
        Self::Message,
        Self::StatusUpdate,
        Self::ArtifactUpdate,
    ];

    /// Its table, its name around it in 1.0 and in HTTP+JSON of 0.3, and the rows of [`RESULT`] that it has.
    const fn facts(self) -> (&'static Node, &'static str, u32) {
        match self {
            Self::Task => (&TASK, "task", 0b1_1100_0001_1011),
            Self::Message => (&MESSAGE, "message", 0b111_0011_1000_1101),
            Self::StatusUpdate => (&STATUS_UPDATE, "statusUpdate", 0b1_0000_0011_1101),
            Self::ArtifactUpdate => (&ARTIFACT_UPDATE, "artifactUpdate", 0b1_1001_0000_0100_1101),
        }
    }

    const fn node(self) -> &'static Node {
        self.facts().0
    }

    const fn wrapper(self) -> &'static str {
        self.facts().1
    }

    fn from_wrapper(name: &[u8], form: Form) -> Option<Self> {
        if form == Form::V0Rest && name == b"msg" {
            return Some(Self::Message);
        }
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.wrapper().as_bytes() == name)
            .or(match name {
                b"status_update" => Some(Self::StatusUpdate),
                b"artifact_update" => Some(Self::ArtifactUpdate),
                _ => None,
            })
    }

    const fn is_update(self) -> bool {
        matches!(self, Self::StatusUpdate | Self::ArtifactUpdate)
    }
}

/// A result that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenResult {
    /// Its kind; `None`: it was not read.
    pub(super) kind: Option<Kind>,
    /// True if it has no kind that both generations know; nothing was written.
    pub(super) is_unknown: bool,
    /// The state of its task.
    pub(super) state: Option<TaskState>,
    /// `"id":…,"contextId":…,` of the task of an update.
    pub(super) ids: Vec<u8>,
}

/// Returns the form of the result that follows: agents do not always speak as their card says. 1.0 has the kind around
/// a result, or at least its own words for states; 0.3 has it among the members.
pub(super) fn detect_form(pass: &mut Pass<'_>) -> Form {
    let of_card = pass.settings.from;
    if of_card == Form::V0Rest || pass.walker.peek() != Some(b'{') {
        return of_card;
    }
    let (mut has_kind, mut has_wrapper, mut has_v1_state) = (false, false, false);
    // What cannot be read is found again by the pass.
    let _ = Walker::from(pass.text, pass.walker.position()).walk_object(|walker, name| {
        let value = walker.read_value()?;
        match &*name.unescaped {
            b"kind" => has_kind |= value.kind == JsonKind::String,
            b"status" => {
                let state = find_member(pass.text, value, b"state");
                has_v1_state |= state
                    .is_some_and(|state| state.unescaped(pass.text).starts_with(b"TASK_STATE_"));
            }
            name if Kind::from_wrapper(name, Form::V1).is_some() => {
                has_wrapper |= value.kind == JsonKind::Object;
            }
            _ => {}
        }
        Ok(value)
    });
    match (has_wrapper, has_kind, has_v1_state) {
        (true, ..) | (false, false, true) => Form::V1,
        (false, true, _) => Form::V0,
        (false, false, false) => of_card,
    }
}

/// Writes the result that follows: a task or a message, and with `updates` also an update.
pub(super) fn write_outcome(pass: &mut Pass<'_>, updates: bool) -> Result<WrittenResult, Failure> {
    if pass.walker.peek() != Some(b'{') {
        pass.walker.read_value()?;
        return Err(Failure::NO_RESULT);
    }
    let told = match pass.settings.from {
        Form::V0 => write_flat(pass)?,
        Form::V1 | Form::V0Rest => write_wrapped(pass)?,
    };
    if told.kind.is_some_and(|kind| kind.is_update() && !updates) {
        return Err(Failure::NO_RESULT);
    }
    Ok(told)
}

/// Writes a result with `kind` among its members.
fn write_flat(pass: &mut Pass<'_>) -> Result<WrittenResult, Failure> {
    let start = pass.out.len();
    let mut written = write_members(pass, &RESULT)?;
    let Some(kind) = detect_kind(pass, &written) else {
        pass.out.truncate(start);
        return Ok(WrittenResult {
            is_unknown: true,
            ..WrittenResult::default()
        });
    };
    let foreign = written.kept & !kind.facts().2;
    for at in (0..RESULT.rows.len()).filter(|at| foreign & 1 << at != 0) {
        remove_written(pass, at, &mut written);
        pass.left.add(kind.node().label, "other");
    }
    let mut ids = Vec::new();
    if kind.is_update() {
        for (at, name) in [
            (result::TASK_ID, "\"id\""),
            (result::CONTEXT_ID, "\"contextId\""),
        ] {
            if written.kept & 1 << at != 0 {
                let (from, to) = written.ranges[at];
                let member = &pass.out[from..to];
                let colon = member.iter().position(|byte| *byte == b':');
                ids.extend_from_slice(name.as_bytes());
                ids.extend_from_slice(&member[colon.unwrap_or_default()..]);
            }
        }
    }
    if kind == Kind::StatusUpdate && pass.settings.to == Form::V0Rest {
        put_final(pass);
    }
    pass.close();
    let end = pass.out.len();
    pass.put("{\"");
    pass.put(kind.wrapper());
    pass.put("\":");
    let head = pass.out.len() - end;
    pass.out[start..].rotate_right(head);
    pass.out.push(b'}');
    Ok(WrittenResult {
        kind: Some(kind),
        is_unknown: false,
        state: pass.state,
        ids,
    })
}

fn detect_kind(pass: &Pass<'_>, written: &WrittenMembers) -> Option<Kind> {
    if let Some(said) = written.kind.filter(|kind| kind.kind == JsonKind::String) {
        let mut all = Kind::ALL.into_iter();
        return all.find(|kind| said.equals(pass.text, kind.node().kind));
    }
    let has = |at: usize| written.seen & 1 << at != 0;
    // The order of the SDK for Python, and its additions for agents written by hand.
    if has(result::MESSAGE_ID) {
        Some(Kind::Message)
    } else if has(result::TASK_ID) && has(result::FINAL) {
        Some(Kind::StatusUpdate)
    } else if has(result::ID) {
        Some(Kind::Task)
    } else if has(result::ARTIFACT) {
        Some(Kind::ArtifactUpdate)
    } else if has(result::TASK_ID) && has(result::STATUS) {
        Some(Kind::StatusUpdate)
    } else {
        (has(result::ROLE) && has(result::PARTS)).then_some(Kind::Message)
    }
}

/// Writes a result with its kind around it. A task without that is taken for one, too.
fn write_wrapped(pass: &mut Pass<'_>) -> Result<WrittenResult, Failure> {
    let (start, open) = (pass.out.len(), pass.walker.position());
    let (mut found, mut others) = (None, 0);
    let (mut has_id, mut has_status) = (false, false);
    pass.walk_members(|pass, name| {
        has_id |= name == b"id";
        has_status |= name == b"status";
        match Kind::from_wrapper(name, pass.settings.from) {
            Some(kind) if pass.walker.peek() == Some(b'{') => {
                // Of two the last one counts, as for a member that stands twice.
                pass.out.truncate(start);
                pass.state = None;
                put_result(pass, kind)?;
                others += u32::from(found.replace(kind).is_some());
            }
            _ => {
                let value = pass.walker.read_value()?;
                others += u32::from(value.kind != JsonKind::Null);
            }
        }
        Ok(())
    })?;
    if found.is_none() && has_id && has_status {
        let after = std::mem::replace(&mut pass.walker, Walker::from(pass.text, open));
        put_result(pass, Kind::Task)?;
        pass.walker = after;
        (found, others) = (Some(Kind::Task), 0);
    }
    for _ in 0..others {
        pass.left.add(RESULT.label, "other");
    }
    Ok(WrittenResult {
        kind: found,
        is_unknown: found.is_none(),
        state: pass.state,
        ids: Vec::new(),
    })
}

fn put_result(pass: &mut Pass<'_>, kind: Kind) -> Result<(), Failure> {
    if pass.settings.to == Form::V0 {
        return write_node(pass, kind.node());
    }
    pass.put("{\"");
    pass.put(kind.wrapper());
    pass.put("\":");
    write_node(pass, kind.node())?;
    pass.out.push(b'}');
    Ok(())
}

/// Returns a task, a message or an update of 0.3 as the result of a send call or as that of an event: 1.0 has its kind
/// around it.
///
/// # Errors
/// [`Failure::Answer`].
pub fn write_result(generation: Generation, said: &Value) -> Result<String, Failure> {
    write_as(generation, said, |pass| {
        let told = write_outcome(pass, true)?;
        told.kind.map(drop).ok_or(Failure::NO_RESULT)
    })
}

/// Returns a task of 0.3 as the result of a call that has no other, such as `GetTask`.
///
/// # Errors
/// [`Failure::Answer`].
pub fn write_task(generation: Generation, task: &Value) -> Result<String, Failure> {
    write_as(generation, task, |pass| write_node(pass, &TASK))
}

fn write_as(
    generation: Generation,
    said: &Value,
    write: impl FnOnce(&mut Pass<'_>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let text = said.to_string();
    if generation == Generation::V0 {
        return Ok(text);
    }
    let settings = Settings {
        to: Form::V1,
        ..Settings::default()
    };
    let mut pass = Pass::new(text.as_bytes(), settings);
    write(&mut pass).map_err(Failure::of_answer)?;
    Ok(String::from_utf8_lossy(&pass.out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_kind_are_those_of_its_table() {
        for kind in Kind::ALL {
            let mut rows = 0;
            for (at, row) in RESULT.rows.iter().enumerate() {
                let mut own = kind.node().rows.iter();
                rows |= u32::from(own.any(|one| one.names == row.names)) << at;
            }
            assert_eq!(kind.facts().2, rows, "{kind:?}");
        }
        for (at, name) in [
            (result::ID, "id"),
            (result::TASK_ID, "taskId"),
            (result::CONTEXT_ID, "contextId"),
            (result::STATUS, "status"),
            (result::FINAL, "final"),
            (result::ARTIFACT, "artifact"),
            (result::MESSAGE_ID, "messageId"),
            (result::ROLE, "role"),
            (result::PARTS, "parts"),
        ] {
            assert_eq!(RESULT.rows[at].names[0], name);
        }
    }
}

#[cfg(test)]
mod stored_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_caller_reads_its_own_generation() {
        let task = json!({"kind": "task", "id": "t", "contextId": "c", "x": 1,
            "status": {"state": "input-required", "timestamp": "2026-11-26T10:00:00Z", "message": {"kind": "message",
                "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": "which?", "metadata": {}}]}},
            "history": [{"kind": "message", "role": "user", "messageId": "q",
                "parts": [{"kind": "file", "file": {"bytes": "AA==", "mimeType": "a/b", "name": "n"}}]}]});
        let expected = json!({"id": "t", "contextId": "c",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-11-26T10:00:00Z", "message": {
                "role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "which?", "metadata": {}}]}},
            "history": [{"role": "ROLE_USER", "messageId": "q",
                "parts": [{"raw": "AA==", "mediaType": "a/b", "filename": "n"}]}]});
        let read = |text: Result<String, Failure>| -> Value {
            serde_json::from_str(&text.unwrap()).unwrap()
        };
        assert_eq!(read(write_task(Generation::V1, &task)), expected);
        assert_eq!(
            read(write_result(Generation::V1, &task)),
            json!({"task": expected})
        );
        assert_eq!(read(write_result(Generation::V0, &task)), task);
        let update = json!({"kind": "status-update", "final": true, "taskId": "t", "contextId": "c",
            "status": {"state": "failed"}});
        let expected = json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_FAILED"}}});
        assert_eq!(read(write_result(Generation::V1, &update)), expected);
    }

    #[test]
    fn what_is_no_result_is_none_in_the_other_generation() {
        for odd in [
            json!({"kind": "answer"}),
            json!({"kind": "task", "status": 5}),
            json!(1),
        ] {
            assert!(write_result(Generation::V1, &odd).is_err(), "{odd}");
        }
    }
}
