//! The HTTP+JSON binding (A2A 0.3 below `v1/`, A2A 1.0, 11): its routes below the base, each with
//! its verbs and query parameters. Other paths are rejected, since they would reach other services
//! at an agent's address.

use percent_encoding::percent_decode_str;

use super::Generation;
use super::method::Method;

/// A parsed request below the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The method of the request.
    pub method: Method,
    /// The task ids that the path may contain: an agent may read a suffix like `:cancel` as a verb
    /// or as a part of the id.
    pub tasks: Vec<String>,
    /// The generation of the path: those of 0.3 begin with `v1`.
    pub generation: Generation,
    /// True for a route of the gateway's own, which is not forwarded to an agent.
    pub is_own: bool,
}

/// The reason that a request below the base is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// No such path, or one that two routers could read differently.
    Path,
    /// Another verb; contains the accepted ones.
    Verb(&'static str),
    /// An unknown or duplicate query parameter; contains the accepted ones.
    Query(&'static [&'static str]),
}

/// A route: its verbs with their methods, and its query parameters.
struct Route {
    verbs: &'static [(&'static str, Method)],
    /// The value of the `Allow` field.
    allow: &'static str,
    query: &'static [&'static str],
    is_own: bool,
}

impl Route {
    const fn get(
        method: &'static [(&'static str, Method)],
        query: &'static [&'static str],
    ) -> Self {
        Self {
            verbs: method,
            allow: "GET, HEAD, OPTIONS",
            query,
            is_own: false,
        }
    }

    const fn post(method: &'static [(&'static str, Method)], is_own: bool) -> Self {
        Self {
            verbs: method,
            allow: "POST, OPTIONS",
            query: &[],
            is_own,
        }
    }
}

const SEND: Route = Route::post(&[("POST", Method::SendMessage)], false);
const STREAM: Route = Route::post(&[("POST", Method::SendStreamingMessage)], false);
const LIST: Route = Route::get(
    &[("GET", Method::ListTasks)],
    &[
        "contextId",
        "status",
        "pageSize",
        "pageToken",
        "historyLength",
        "statusTimestampAfter",
        "lastUpdatedAfter",
        "includeArtifacts",
    ],
);
const GET: Route = Route::get(
    &[("GET", Method::GetTask)],
    &["historyLength", "history_length"],
);
const CANCEL: Route = Route::post(&[("POST", Method::CancelTask)], false);
// The text of 1.0 has POST, its proto annotation GET.
const SUBSCRIBE: Route = Route {
    allow: "GET, HEAD, POST, OPTIONS",
    ..Route::get(
        &[
            ("GET", Method::SubscribeToTask),
            ("POST", Method::SubscribeToTask),
        ],
        &[],
    )
};
const CARD: Route = Route::get(&[("GET", Method::GetExtendedCard)], &[]);
const CONFIGS: Route = Route {
    allow: "GET, HEAD, POST, OPTIONS",
    ..Route::get(
        &[
            ("GET", Method::ListPushConfigs),
            ("POST", Method::CreatePushConfig),
        ],
        // `configId`: 0.3, for creating one.
        &["pageSize", "pageToken", "configId"],
    )
};
const CONFIG: Route = Route {
    allow: "GET, HEAD, DELETE, OPTIONS",
    ..Route::get(
        &[
            ("GET", Method::GetPushConfig),
            ("DELETE", Method::DeletePushConfig),
        ],
        &[],
    )
};
const OWN_SEND: Route = Route::post(&[("POST", Method::SendMessage)], true);
const OWN_STREAM: Route = Route::post(&[("POST", Method::SendStreamingMessage)], true);
const OWN_CANCEL: Route = Route::post(&[("POST", Method::CancelTask)], true);

/// Accepted on each route: A2A 1.0, 3.6.1.
const VERSION: &str = "A2A-Version";

/// Words of these paths, in lower case: some routers ignore case.
const WORDS: [&str; 7] = [
    "v1",
    "tasks",
    "card",
    "extendedagentcard",
    "pushnotificationconfigs",
    "message:send",
    "message:stream",
];

/// Reads the path `tail` below the base, without the slash before it. Its segments are spelled in one way only:
/// The data plane rejects others before.
///
/// # Errors
/// [`NoRoute`].
pub fn read(verb: &str, tail: &str, query: Option<&str>) -> Result<Rest, NoRoute> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    // Agents decode a path before they look up its route.
    let segments: Option<Vec<String>> = tail.split('/').map(decoded).collect();
    let segments = segments.ok_or(NoRoute::Path)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (generation, segments) = match segments.as_slice() {
        ["v1", rest @ ..] => (Generation::V0, rest),
        rest => (Generation::V1, rest),
    };
    let (route, task) = route(segments, generation).ok_or(NoRoute::Path)?;
    let tasks = match task {
        Some(task) => named(task).ok_or(NoRoute::Path)?,
        None => Vec::new(),
    };
    let plain = if verb == "HEAD" { "GET" } else { verb };
    let found = route.verbs.iter().find(|(known, _)| *known == plain);
    let (_, method) = found.ok_or(NoRoute::Verb(route.allow))?;
    if !knows(route.query, query.unwrap_or_default()) {
        return Err(NoRoute::Query(route.query));
    }
    Ok(Rest {
        method: *method,
        tasks,
        generation,
        is_own: route.is_own,
    })
}

/// Returns the route of a path, and the segment in it that names a task.
fn route<'s>(segments: &[&'s str], generation: Generation) -> Option<(Route, Option<&'s str>)> {
    let old = generation == Generation::V0;
    let route = match *segments {
        ["message:send"] => (SEND, None),
        ["message:stream"] => (STREAM, None),
        ["card"] if old => (CARD, None),
        ["extendedAgentCard"] if !old => (CARD, None),
        ["tasks"] => (LIST, None),
        ["tasks", "send"] if !old => (OWN_SEND, None),
        ["tasks", "send", "stream"] if !old => (OWN_STREAM, None),
        ["tasks", task, "cancel"] if !old => (OWN_CANCEL, Some(task)),
        ["tasks", task] => match task.rsplit_once(':') {
            Some((_, "cancel")) => (CANCEL, Some(task)),
            Some((_, "subscribe")) => (SUBSCRIBE, Some(task)),
            _ => (GET, Some(task)),
        },
        ["tasks", task, "pushNotificationConfigs"] => (CONFIGS, Some(task)),
        ["tasks", task, "pushNotificationConfigs", config] if !is_word(config) => {
            (CONFIG, Some(task))
        }
        _ => return None,
    };
    Some(route)
}

/// Returns true if a query has only parameters with these names, each once. Rejects `;`, which
/// separates parameters for some parsers.
fn knows(names: &[&str], query: &str) -> bool {
    let mut seen = Vec::new();
    !query.contains(';')
        && url::form_urlencoded::parse(query.as_bytes()).all(|(name, _)| {
            let known = *name == *VERSION || names.contains(&&*name);
            let first = !seen.contains(&name);
            seen.push(name);
            known && first
        })
}

/// Returns true if a segment is one of the words, alone or with an action after it (`tasks:x`), in
/// any case.
pub(crate) fn is_word(segment: &str) -> bool {
    let folded = segment.to_ascii_lowercase();
    let before = folded.split(':').next().unwrap_or_default();
    WORDS.contains(&folded.as_str()) || WORDS.contains(&before)
}

/// Returns the ids that a segment may mean: all of it, or the text before a colon.
fn named(segment: &str) -> Option<Vec<String>> {
    if is_word(segment) {
        return None;
    }
    let colons = segment.match_indices(':').map(|(at, _)| &segment[..at]);
    let ids = std::iter::once(segment).chain(colons);
    Some(ids.map(str::to_owned).collect())
}

/// Decodes the percent-encoding of a segment. `None`: the result is not UTF-8, which agents read
/// differently.
fn decoded(segment: &str) -> Option<String> {
    let said = percent_decode_str(segment).decode_utf8().ok()?;
    Some(said.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(method: Method, generation: Generation, tasks: &[&str]) -> Result<Rest, NoRoute> {
        Ok(Rest {
            method,
            tasks: tasks.iter().map(|&task| task.to_owned()).collect(),
            generation,
            is_own: false,
        })
    }

    #[test]
    fn the_routes_of_both_generations_are_read() {
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
            ("GET", "tasks", rest(ListTasks, V1, &[])),
            ("HEAD", "tasks", rest(ListTasks, V1, &[])),
            ("GET", "v1/tasks", rest(ListTasks, V0, &[])),
            ("GET", "tasks/t-1", rest(GetTask, V1, &["t-1"])),
            ("GET", "tasks/t%3A1", rest(GetTask, V1, &["t:1", "t"])),
            ("GET", "tasks/t%20%C3%A4", rest(GetTask, V1, &["t ä"])),
            (
                "GET",
                "tasks/a:b:c",
                rest(GetTask, V1, &["a:b:c", "a", "a:b"]),
            ),
            (
                "POST",
                "tasks/t:cancel",
                rest(CancelTask, V1, &["t:cancel", "t"]),
            ),
            (
                "POST",
                "tasks/t%3Acancel",
                rest(CancelTask, V1, &["t:cancel", "t"]),
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
        ];
        for (verb, tail, expected) in cases {
            assert_eq!(read(verb, tail, None), expected, "{verb} {tail}");
        }
        for tail in ["tasks/send", "tasks/send/stream", "tasks/t/cancel"] {
            assert!(
                read("POST", tail, None).is_ok_and(|rest| rest.is_own),
                "{tail}"
            );
        }
    }

    #[test]
    fn the_routes_of_push_configurations_and_cards_are_read() {
        use Generation::{V0, V1};
        use Method::*;
        let cases = [
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
            ("GET", "v1/card", rest(GetExtendedCard, V0, &[])),
            ("GET", "extendedAgentCard", rest(GetExtendedCard, V1, &[])),
        ];
        for (verb, tail, expected) in cases {
            assert_eq!(read(verb, tail, None), expected, "{verb} {tail}");
        }
    }

    #[test]
    fn nothing_else_is_a_route() {
        for tail in [
            "",
            "card",
            "else",
            "acme/else",
            "acme/message:send",
            "acme/tasks/t-1",
            "a/b/tasks",
            "v1/else",
            "v1/kv/secret",
            "v1/custom/t-1",
            "v1/tasks/t/cancel",
            "v1/Tasks/t",
            "v1/TASKS",
            "v1/Card",
            "v1/v1/card",
            "Tasks/t",
            "tasks/tasks/t",
            "tasks/tasks/t:cancel",
            "tasks/extendedAgentCard",
            "tasks/t/else",
            "tasks/t/pushnotificationconfigs",
            "tasks/t/pushNotificationConfigs/c/d",
            "tasks/t/x/tasks",
            "v1/extendedAgentCard",
            "v1/acme/tasks",
            "v1/tasks:x",
            "acme/v1/tasks",
            "tasks/%E4",
        ] {
            for verb in ["GET", "POST", "PUT", "DELETE"] {
                assert_eq!(read(verb, tail, None), Err(NoRoute::Path), "{verb} {tail}");
            }
        }
        for (verb, tail, allow) in [
            ("GET", "message:send", "POST, OPTIONS"),
            ("PUT", "tasks/t", "GET, HEAD, OPTIONS"),
            ("POST", "tasks", "GET, HEAD, OPTIONS"),
            ("GET", "tasks/t:cancel", "POST, OPTIONS"),
            (
                "DELETE",
                "tasks/t/pushNotificationConfigs",
                "GET, HEAD, POST, OPTIONS",
            ),
            (
                "PUT",
                "tasks/t/pushNotificationConfigs/c",
                "GET, HEAD, DELETE, OPTIONS",
            ),
            ("OPTIONS", "tasks", "GET, HEAD, OPTIONS"),
        ] {
            assert_eq!(
                read(verb, tail, None),
                Err(NoRoute::Verb(allow)),
                "{verb} {tail}"
            );
        }
    }

    #[test]
    fn a_route_has_its_own_query_parameters_only() {
        for (tail, query, known) in [
            ("tasks", "contextId=c&pageSize=2&A2A-Version=1.0", true),
            ("tasks", "", true),
            ("tasks/t", "historyLength=3", true),
            ("tasks/t", "history%4Cength=3", true),
            ("tasks/t", "history_length=3", true),
            ("tasks/t/pushNotificationConfigs", "pageToken=x", true),
            ("tasks", "id=t", false),
            ("tasks", "contextid=c", false),
            ("tasks", "pageSize=1&pageSize=2", false),
            ("tasks/mine", "id=t", false),
            ("tasks/mine", "name=tasks/t", false),
            ("tasks/mine", "historyLength=1;id=t", false),
            ("tasks/mine", "historyLength=1&%69d=t", false),
            ("tasks/mine:subscribe", "id=t", false),
        ] {
            let read = read("GET", tail, Some(query));
            assert_eq!(read.is_ok(), known, "{tail}?{query}: {read:?}");
        }
        let send = read("POST", "message:send", Some("message.taskId=t"));
        assert_eq!(send, Err(NoRoute::Query(&[])));
    }
}
