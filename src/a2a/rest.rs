//! The HTTP+JSON binding (A2A 0.3 below `v1/`, A2A 1.0, 11): what a path below the base asks for.

use percent_encoding::percent_decode_str;

use super::Generation;
use super::method::Method;

/// A request below the base, as far as the gateway reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// What is asked for; [`Method::Other`] where no version has such a path, or not with this verb.
    pub method: Method,
    /// The ids that the path may mean by a task: an agent may take a suffix like `:cancel` for a
    /// verb or for a part of the id.
    pub tasks: Vec<String>,
    /// Whose paths these are: those of 0.3 begin with `v1`.
    pub generation: Generation,
}

/// Words of these paths, in lower case. Agents' routers differ in which of them they take for a tenant,
/// and some compare without case.
const WORDS: [&str; 7] = [
    "v1",
    "tasks",
    "card",
    "extendedagentcard",
    "pushnotificationconfigs",
    "message:send",
    "message:stream",
];

/// Reads the path `tail` below the base, without the slash before it and without its query. Its
/// segments are spelled in one way only: [`crate::proxy`] refuses others before.
///
/// A tenant may stand in front of a path of 1.0 (A2A 1.0, 11.1). `None`: there is no such route, or two
/// routers could read it differently: a word of these paths in another case, or where a tenant or an id
/// would be.
pub fn read(verb: &str, tail: &str) -> Option<Rest> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    // Agents decode a path before they look for its route.
    let segments: Option<Vec<String>> = tail.split('/').map(decoded).collect();
    let segments = segments?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["v1", rest @ ..] if rest.iter().any(|segment| is_word(segment)) => {
            operation(verb, rest, Generation::V0)
        }
        // In no version, and nothing that an agent could take for what is.
        ["v1", ..] => Some(Rest {
            method: Method::Other,
            tasks: Vec::new(),
            generation: Generation::V0,
        }),
        [first, rest @ ..] if !is_word(first) => operation(verb, rest, Generation::V1),
        rest => operation(verb, rest, Generation::V1),
    }
}

/// Whether a segment is one of the words, or is it with an action behind (`tasks:x`), in any case.
fn is_word(segment: &str) -> bool {
    let folded = segment.to_ascii_lowercase();
    let before = folded.split(':').next().unwrap_or_default();
    WORDS.contains(&folded.as_str()) || WORDS.contains(&before)
}

fn operation(verb: &str, segments: &[&str], generation: Generation) -> Option<Rest> {
    let old = generation == Generation::V0;
    let (method, tasks) = match *segments {
        ["message:send"] => (with(verb, &["POST"], Method::SendMessage), Vec::new()),
        ["message:stream"] => (
            with(verb, &["POST"], Method::SendStreamingMessage),
            Vec::new(),
        ),
        // Whatever the verb: what comes back may be the same.
        ["card"] if old => (Method::GetExtendedCard, Vec::new()),
        ["extendedAgentCard"] if !old => (Method::GetExtendedCard, Vec::new()),
        ["tasks"] => (Method::ListTasks, Vec::new()),
        ["tasks", task] => one_task(verb, task)?,
        ["tasks", task, "pushNotificationConfigs"] => (push_configs(verb, false), named(task)?),
        ["tasks", task, "pushNotificationConfigs", config] if !is_word(config) => {
            (push_configs(verb, true), named(task)?)
        }
        ["tasks", task, ref rest @ ..] if !rest.iter().any(|segment| is_word(segment)) => {
            (Method::Other, named(task)?)
        }
        _ => return None,
    };
    Some(Rest {
        method,
        tasks,
        generation,
    })
}

/// `tasks/{id}`, `tasks/{id}:cancel`, `tasks/{id}:subscribe`.
fn one_task(verb: &str, segment: &str) -> Option<(Method, Vec<String>)> {
    let method = match segment.rsplit_once(':').map(|(_, action)| action) {
        Some("cancel") => with(verb, &["POST"], Method::CancelTask),
        // The text of 1.0 says POST, its proto annotation GET.
        Some("subscribe") => with(verb, &["GET", "POST"], Method::SubscribeToTask),
        _ => with(verb, &["GET"], Method::GetTask),
    };
    Some((method, named(segment)?))
}

/// The ids that a segment may mean: all of it, or what is before a colon.
fn named(segment: &str) -> Option<Vec<String>> {
    if is_word(segment) {
        return None;
    }
    let colons = segment.match_indices(':').map(|(at, _)| &segment[..at]);
    let ids = std::iter::once(segment).chain(colons);
    Some(ids.map(str::to_owned).collect())
}

fn push_configs(verb: &str, one: bool) -> Method {
    match (verb, one) {
        ("GET" | "HEAD", false) => Method::ListPushConfigs,
        ("GET" | "HEAD", true) => Method::GetPushConfig,
        ("DELETE", _) => Method::DeletePushConfig,
        // In no version but for `POST` on all. Where an agent has it, it sets one.
        _ => Method::CreatePushConfig,
    }
}

fn with(verb: &str, verbs: &[&str], method: Method) -> Method {
    let verb = if verb == "HEAD" { "GET" } else { verb };
    if verbs.contains(&verb) {
        method
    } else {
        Method::Other
    }
}

/// A segment without its percent-encoding. `None`: that is no UTF-8, which agents read differently.
fn decoded(segment: &str) -> Option<String> {
    let said = percent_decode_str(segment).decode_utf8().ok()?;
    Some(said.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(method: Method, generation: Generation, tasks: &[&str]) -> Option<Rest> {
        Some(Rest {
            method,
            tasks: tasks.iter().map(|&task| task.to_owned()).collect(),
            generation,
        })
    }

    #[expect(clippy::too_many_lines, reason = "one table")]
    #[test]
    fn the_paths_of_both_bindings_are_read() {
        use Generation::{V0, V1};
        use Method::*;
        let cases = [
            ("POST", "message:send", rest(SendMessage, V1, &[])),
            ("POST", "v1/message:send", rest(SendMessage, V0, &[])),
            ("POST", "message:send/", rest(SendMessage, V1, &[])),
            ("POST", "message%3Asend", rest(SendMessage, V1, &[])),
            (
                "POST",
                "message:stream",
                rest(SendStreamingMessage, V1, &[]),
            ),
            ("GET", "message:send", rest(Other, V1, &[])),
            ("GET", "tasks", rest(ListTasks, V1, &[])),
            ("HEAD", "tasks", rest(ListTasks, V1, &[])),
            ("GET", "v1/tasks", rest(ListTasks, V0, &[])),
            ("GET", "tasks/t-1", rest(GetTask, V1, &["t-1"])),
            ("GET", "tasks/t%3A1", rest(GetTask, V1, &["t:1", "t"])),
            ("GET", "tasks/t%20%C3%A4", rest(GetTask, V1, &["t ä"])),
            ("PUT", "tasks/t-1", rest(Other, V1, &["t-1"])),
            (
                "POST",
                "tasks/t-1:cancel",
                rest(CancelTask, V1, &["t-1:cancel", "t-1"]),
            ),
            (
                "POST",
                "tasks/t-1%3Acancel",
                rest(CancelTask, V1, &["t-1:cancel", "t-1"]),
            ),
            (
                "GET",
                "tasks/t-1:cancel",
                rest(Other, V1, &["t-1:cancel", "t-1"]),
            ),
            (
                "GET",
                "tasks/t:subscribe",
                rest(SubscribeToTask, V1, &["t:subscribe", "t"]),
            ),
            (
                "POST",
                "v1/tasks/t:subscribe",
                rest(SubscribeToTask, V0, &["t:subscribe", "t"]),
            ),
            (
                "POST",
                "tasks/t/pushNotificationConfigs",
                rest(CreatePushConfig, V1, &["t"]),
            ),
            (
                "GET",
                "tasks/t/pushNotificationConfigs",
                rest(ListPushConfigs, V1, &["t"]),
            ),
            (
                "GET",
                "tasks/t/pushNotificationConfigs/c",
                rest(GetPushConfig, V1, &["t"]),
            ),
            (
                "DELETE",
                "tasks/t/pushNotificationConfigs/c",
                rest(DeletePushConfig, V1, &["t"]),
            ),
            (
                "PUT",
                "tasks/t/pushNotificationConfigs/c",
                rest(CreatePushConfig, V1, &["t"]),
            ),
            ("POST", "tasks/t/anything/else", rest(Other, V1, &["t"])),
            ("POST", "tasks/send", rest(Other, V1, &["send"])),
            ("POST", "tasks", rest(ListTasks, V1, &[])),
            (
                "GET",
                "tasks/a:b:c",
                rest(GetTask, V1, &["a:b:c", "a", "a:b"]),
            ),
            ("GET", "v1/card", rest(GetExtendedCard, V0, &[])),
            ("GET", "extendedAgentCard", rest(GetExtendedCard, V1, &[])),
            ("GET", "v1/else", rest(Other, V0, &[])),
            ("POST", "acme/message:send", rest(SendMessage, V1, &[])),
            ("GET", "acme/tasks/t-1", rest(GetTask, V1, &["t-1"])),
            ("GET", "card", None),
            ("GET", "else", None),
            ("GET", "acme/else", None),
            ("GET", "a/b/tasks", None),
            // What another router could read as something else.
            ("GET", "v1/Tasks/t", None),
            ("GET", "v1/TASKS", None),
            ("GET", "v1/Card", None),
            ("GET", "Tasks/t", None),
            ("GET", "tasks/tasks/t", None),
            ("POST", "tasks/tasks/t:cancel", None),
            ("GET", "tasks/extendedAgentCard", None),
            ("GET", "v1/extendedAgentCard", None),
            ("GET", "v1/acme/tasks", None),
            ("GET", "v1/tasks:x", None),
            ("POST", "tasks/t/pushnotificationconfigs", None),
            ("GET", "tasks/t/x/tasks", None),
            ("GET", "acme/v1/tasks", None),
            ("GET", "tasks/%E4", None),
            ("GET", "", None),
        ];
        for (verb, tail, expected) in cases {
            assert_eq!(read(verb, tail), expected, "{verb} {tail}");
        }
    }
}
