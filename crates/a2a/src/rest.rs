//! The HTTP+JSON binding (A2A 0.3 below `v1/`, A2A 1.0, 11): its routes below the base, each with
//! its verbs and query parameters. Other paths are rejected, since they would reach other services
//! at an agent's address.

use percent_encoding::percent_decode_str;

use super::Generation;
use super::method::Method;

/// Says of an id why it is none by [`is_segment`].
pub const ID_RULE: &str = "some servers read as another path: use letters, digits and -._~: only, and no word or verb of a route";

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
pub enum RouteError {
    /// No such path, or one that two routers could read differently.
    Path,
    /// Another verb; contains the accepted ones.
    Verb(&'static str),
    /// An id that servers read differently ([`is_segment`]).
    Id,
    /// An unknown or duplicate query parameter; contains the accepted ones.
    Query(&'static [&'static str]),
}

/// The verbs of a route, with their methods.
type Verbs = &'static [(&'static str, Method)];

const SEND: Verbs = &[("POST", Method::SendMessage)];
const STREAM: Verbs = &[("POST", Method::SendStreamingMessage)];
const LIST: Verbs = &[("GET", Method::ListTasks)];
const GET: Verbs = &[("GET", Method::GetTask)];
const CANCEL: Verbs = &[("POST", Method::CancelTask)];
// The text of 1.0 has POST, its proto annotation GET.
const SUBSCRIBE: Verbs = &[
    ("GET", Method::SubscribeToTask),
    ("POST", Method::SubscribeToTask),
];
const CARD: Verbs = &[("GET", Method::GetExtendedCard)];
const CONFIGS: Verbs = &[
    ("GET", Method::ListPushConfigs),
    ("POST", Method::CreatePushConfig),
];
const CONFIG: Verbs = &[
    ("GET", Method::GetPushConfig),
    ("DELETE", Method::DeletePushConfig),
];

/// Returns the value of the `Allow` field.
fn allow(verbs: Verbs) -> &'static str {
    let has = |verb| verbs.iter().any(|(known, _)| *known == verb);
    match (has("GET"), has("POST"), has("DELETE")) {
        (true, true, _) => "GET, HEAD, POST, OPTIONS",
        (true, false, true) => "GET, HEAD, DELETE, OPTIONS",
        (true, false, false) => "GET, HEAD, OPTIONS",
        (false, ..) => "POST, OPTIONS",
    }
}

/// Returns the query parameters of a route.
const fn query_of(method: Method) -> &'static [&'static str] {
    match method {
        Method::ListTasks => &[
            "contextId",
            "status",
            "pageSize",
            "pageToken",
            "historyLength",
            "statusTimestampAfter",
            "lastUpdatedAfter",
            "includeArtifacts",
        ],
        Method::GetTask => &["historyLength", "history_length"],
        // `configId`: 0.3, for creating one.
        Method::ListPushConfigs | Method::CreatePushConfig => {
            &["pageSize", "pageToken", "configId"]
        }
        _ => &[],
    }
}

/// Accepted on each route: A2A 1.0, 3.6.1.
const VERSION: &str = "A2A-Version";

/// Words of these paths, without their verbs, in lower case: some routers ignore case.
const WORDS: [&str; 6] = [
    "v1",
    "tasks",
    "card",
    "extendedagentcard",
    "pushnotificationconfigs",
    "message",
];

/// Verbs at the end of a segment, in lower case. Alone they are words of the gateway's own paths.
const VERBS: [&str; 4] = ["send", "stream", "cancel", "subscribe"];

/// Reads the path `tail` below the base, without the slash before it. Its segments are spelled in one way only:
/// The data plane rejects others before.
///
/// # Errors
/// [`RouteError`].
pub fn parse_request(verb: &str, tail: &str, query: Option<&str>) -> Result<Rest, RouteError> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    // Agents decode a path before they look up its route.
    let segments: Option<Vec<String>> = tail.split('/').map(decode_segment).collect();
    let segments = segments.ok_or(RouteError::Path)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (generation, segments) = match segments.as_slice() {
        ["v1", rest @ ..] => (Generation::V0, rest),
        rest => (Generation::V1, rest),
    };
    let (verbs, task) = find_route(segments, generation).ok_or(RouteError::Path)?;
    // The segments of a path with a task are words and ids in turn.
    let mut ids = segments.iter().skip(1).step_by(2).map(|id| match segments {
        [_, _] => without_verb(id),
        _ => *id,
    });
    if task.is_some() && !ids.all(is_segment) {
        return Err(RouteError::Id);
    }
    let tasks = task.map(possible_ids).unwrap_or_default();
    let plain = if verb == "HEAD" { "GET" } else { verb };
    let found = verbs.iter().find(|(known, _)| *known == plain);
    let (_, method) = *found.ok_or(RouteError::Verb(allow(verbs)))?;
    if !has_only_known(query_of(method), query.unwrap_or_default()) {
        return Err(RouteError::Query(query_of(method)));
    }
    Ok(Rest {
        method,
        tasks,
        generation,
        is_own: matches!(
            segments,
            ["tasks", "send"] | ["tasks", "send", "stream"] | ["tasks", _, "cancel"]
        ),
    })
}

/// Splits the path of a route of 1.0 with a tenant in front into the tenant and the rest. `None`: it is no such path.
pub fn split_tenant(tail: &str) -> Option<(String, &str)> {
    let (tenant, rest) = tail.split_once('/')?;
    let tenant = decode_segment(tenant).filter(|tenant| is_segment(tenant))?;
    is_route_of_1_0(rest).then_some((tenant, rest))
}

/// Returns true if `tail` is the path of a route of 1.0, whatever its method.
pub fn is_route_of_1_0(tail: &str) -> bool {
    let read = parse_request("GET", tail, None);
    !matches!(read, Err(RouteError::Path)) && !tail.starts_with("v1/")
}

/// Returns the route of a path, and the segment in it that names a task.
fn find_route<'s>(
    segments: &[&'s str],
    generation: Generation,
) -> Option<(Verbs, Option<&'s str>)> {
    let old = generation == Generation::V0;
    let route = match *segments {
        ["message:send"] => (SEND, None),
        ["message:stream"] => (STREAM, None),
        ["card"] if old => (CARD, None),
        ["extendedAgentCard"] if !old => (CARD, None),
        ["tasks"] => (LIST, None),
        ["tasks", "send"] if !old => (SEND, None),
        ["tasks", "send", "stream"] if !old => (STREAM, None),
        ["tasks", task, "cancel"] if !old => (CANCEL, Some(task)),
        ["tasks", task] => match &task[without_verb(task).len()..] {
            ":cancel" => (CANCEL, Some(task)),
            ":subscribe" => (SUBSCRIBE, Some(task)),
            _ => (GET, Some(task)),
        },
        ["tasks", task, "pushNotificationConfigs"] => (CONFIGS, Some(task)),
        ["tasks", task, "pushNotificationConfigs", _] => (CONFIG, Some(task)),
        _ => return None,
    };
    Some(route)
}

/// Returns true if a query has only parameters with these names, each once. Rejects `;`, which
/// separates parameters for some parsers.
fn has_only_known(names: &[&str], query: &str) -> bool {
    let mut seen = Vec::new();
    !query.contains(';')
        && url::form_urlencoded::parse(query.as_bytes()).all(|(name, value)| {
            // Google's clients ask for a stream so, on routes that are streams anyway.
            let known =
                *name == *VERSION || names.contains(&&*name) || (&*name, &*value) == ("alt", "sse");
            let first = !seen.contains(&name);
            seen.push(name);
            known && first
        })
}

/// Returns true if every server reads an id as one segment of a path, also one that decodes a path before it looks up
/// its route, ignores case, or takes the end of a segment for a verb: `tasks/T`, `..` and `T:subscribe` name another
/// task, or another route, than the one that was checked. A segment also begins with no word (`tasks:x`).
pub fn is_segment(id: &str) -> bool {
    let folded = id.to_ascii_lowercase();
    let first = folded.split(':').next().unwrap_or_default();
    let last = folded.rsplit(':').next().unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    let is_word = WORDS.contains(&first) || VERBS.contains(&last);
    id.bytes().all(plain) && !is_word && !matches!(last, "" | "." | "..")
}

/// Returns the id in a segment that may end with a verb of a task.
fn without_verb(segment: &str) -> &str {
    let mut ids = [":cancel", ":subscribe"].into_iter();
    let id = ids.find_map(|verb| segment.strip_suffix(verb));
    id.unwrap_or(segment)
}

/// Returns the ids that a segment may mean: all of it, or the text before a colon.
fn possible_ids(segment: &str) -> Vec<String> {
    let colons = segment.match_indices(':').map(|(at, _)| &segment[..at]);
    let ids = std::iter::once(segment).chain(colons);
    ids.map(str::to_owned).collect()
}

/// Decodes the percent-encoding of a segment. `None`: the result is not UTF-8, which agents read
/// differently.
fn decode_segment(segment: &str) -> Option<String> {
    let said = percent_decode_str(segment).decode_utf8().ok()?;
    Some(said.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routes_of_both_generations_are_read() {
        for row in [
            "POST message:send SendMessage V1",
            "POST v1/message:send SendMessage V0",
            "POST message:send/ SendMessage V1",
            "POST message%3Asend SendMessage V1",
            "POST message:stream SendStreamingMessage V1",
            "GET tasks ListTasks V1",
            "HEAD tasks ListTasks V1",
            "GET v1/tasks ListTasks V0",
            "GET tasks/t-1 GetTask V1 t-1",
            "GET tasks/t%3A1 GetTask V1 t:1 t",
            "GET tasks/a:b:c GetTask V1 a:b:c a a:b",
            "POST tasks/t:cancel CancelTask V1 t:cancel t",
            "POST tasks/t%3Acancel CancelTask V1 t:cancel t",
            "GET tasks/t:subscribe SubscribeToTask V1 t:subscribe t",
            "POST v1/tasks/t:subscribe SubscribeToTask V0 t:subscribe t",
            "POST tasks/t/pushNotificationConfigs CreatePushConfig V1 t",
            "GET tasks/t/pushNotificationConfigs ListPushConfigs V1 t",
            "GET tasks/t/pushNotificationConfigs/c GetPushConfig V1 t",
            "DELETE tasks/t/pushNotificationConfigs/c DeletePushConfig V1 t",
            "GET v1/card GetExtendedCard V0",
            "GET extendedAgentCard GetExtendedCard V1",
        ] {
            let words: Vec<&str> = row.split(' ').collect();
            let rest = parse_request(words[0], words[1], None).unwrap();
            let (method, generation) = (rest.method, rest.generation);
            assert_eq!(
                format!("{method:?} {generation:?}"),
                words[2..4].join(" "),
                "{row}"
            );
            assert_eq!(rest.tasks, words[4..], "{row}");
            assert!(!rest.is_own, "{row}");
        }
        for tail in ["tasks/send", "tasks/send/stream", "tasks/t/cancel"] {
            let rest = parse_request("POST", tail, None);
            assert!(rest.is_ok_and(|rest| rest.is_own), "{tail}");
        }
    }

    #[test]
    fn nothing_else_is_a_route() {
        let others = "card else acme/else acme/message:send acme/tasks/t-1 a/b/tasks v1/else v1/kv/secret \
            v1/custom/t-1 v1/tasks/t/cancel v1/Tasks/t v1/TASKS v1/Card v1/v1/card Tasks/t tasks/tasks/t \
            tasks/tasks/t:cancel tasks/t/else tasks/t/pushnotificationconfigs \
            tasks/t/pushNotificationConfigs/c/d tasks/t/x/tasks v1/extendedAgentCard v1/acme/tasks \
            v1/tasks:x acme/v1/tasks tasks/%E4";
        for tail in others.split(' ').chain([""]) {
            for verb in ["GET", "POST", "PUT", "DELETE"] {
                assert_eq!(
                    parse_request(verb, tail, None),
                    Err(RouteError::Path),
                    "{verb} {tail}"
                );
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
                parse_request(verb, tail, None),
                Err(RouteError::Verb(allow)),
                "{verb} {tail}"
            );
        }
    }

    #[test]
    fn an_id_is_one_segment_to_every_server() {
        for id in "t T-1 a:b:c ~x_.y ... 2 subscribe:t Tasks1".split(' ') {
            assert!(is_segment(id), "{id}");
            let configs = format!("tasks/{id}/pushNotificationConfigs/{id}");
            assert!(parse_request("GET", &configs, None).is_ok(), "{id}");
        }
        let bad = "|.|..|tasks/T|T/pushNotificationConfigs|T?x|T#x|T;x|T%2Fx|T\\x|a b|tä|T\r\nx|T:cancel|T:Subscribe|T:|\
            tasks|TASKS:x|card|pushNotificationConfigs|v1|message:send|extendedAgentCard|cancel";
        for id in bad.split('|') {
            assert!(!is_segment(id), "{id}");
        }
        let bad = "tasks/a%20b tasks/T%3Fx tasks/T%23x:cancel tasks/extendedAgentCard tasks/t:cancel:cancel \
            tasks/:cancel tasks/T%C3%A4/cancel v1/tasks/t:Cancel tasks/t:cancel/pushNotificationConfigs \
            tasks/t/pushNotificationConfigs/tasks tasks/t/pushNotificationConfigs/a%2Bb";
        for tail in bad.split(' ') {
            assert_eq!(
                parse_request("POST", tail, None),
                Err(RouteError::Id),
                "{tail}"
            );
        }
    }

    #[test]
    fn a_route_has_its_own_query_parameters_only() {
        for (tail, query, known) in [
            ("tasks", "contextId=c&pageSize=2&A2A-Version=1.0", true),
            ("tasks", "", true),
            ("tasks/t", "historyLength=3&alt=sse", true),
            ("tasks/t", "alt=json", false),
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
            let read = parse_request("GET", tail, Some(query));
            assert_eq!(read.is_ok(), known, "{tail}?{query}: {read:?}");
        }
        let send = parse_request("POST", "message:send", Some("message.taskId=t"));
        assert_eq!(send, Err(RouteError::Query(&[])));
    }
}
