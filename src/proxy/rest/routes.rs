//! Which call a route stands for that is not forwarded as it came.

use http::Method as Verb;
use pingora::http::RequestHeader;
use serde_json::{Value, json};

use crate::a2a::Generation;
use crate::a2a::hops::whole_number;
use crate::a2a::method::Method;
use crate::a2a::rest::Rest;
use crate::proxy::wrong_method;
use crate::rejection::{Reason, Rejection};

/// How a request gets to the agent.
pub(super) enum Way {
    /// As it came, below the path of the agent's HTTP+JSON interface.
    Raw { interface: String },
    /// As the send call that `tasks/send` or `tasks/send/stream` stands for: the body is its `params`.
    Send {
        stream: bool,
        /// In whose words; `None`: in the agent's.
        words: Option<Generation>,
    },
    /// As a call about one task.
    Task {
        method: Method,
        params: Value,
        /// As above.
        words: Option<Generation>,
    },
}

/// The call that a route of an agent that polls stands for. The gateway speaks HTTP+JSON of 1.0 for it.
///
/// # Errors
/// As [`translated`].
pub(super) fn polled(head: &RequestHeader, tail: &str, rest: &Rest) -> Result<Way, Rejection> {
    let words = Some(Generation::V1);
    match rest.method {
        _ if rest.generation == Generation::V0 => translated(head, tail, None),
        method @ (Method::SendMessage | Method::SendStreamingMessage) => Ok(Way::Send {
            stream: method == Method::SendStreamingMessage,
            words,
        }),
        // The id is what stands before the last colon.
        method @ (Method::CancelTask | Method::SubscribeToTask) => Ok(Way::Task {
            method,
            params: json!({"id": rest.tasks.last().ok_or_else(no_such_route)?}),
            words,
        }),
        Method::ListTasks if head.method == Verb::GET => Ok(Way::Task {
            method: Method::ListTasks,
            params: list_params(head.uri.query())?,
            words,
        }),
        _ => {
            let mut way = translated(head, tail, rest.tasks.first())?;
            // The same route is in 1.0, whose clients say so.
            if let Way::Task { words: spoken, .. } = &mut way
                && speaks_1_0(head)
            {
                *spoken = words;
            }
            Ok(way)
        }
    }
}

/// Whether the caller says that it speaks 1.x (A2A 1.0, 3.6.1).
fn speaks_1_0(head: &RequestHeader) -> bool {
    let version = head.headers.get("a2a-version");
    version.is_some_and(|version| version.as_bytes().starts_with(b"1."))
}

/// What a list of tasks is to hold, from its query (A2A 1.0, 11.3).
///
/// # Errors
/// `invalid_params`.
fn list_params(query: Option<&str>) -> Result<Value, Rejection> {
    let mut params = json!({});
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        params[&*name] = match &*name {
            "pageSize" | "historyLength" => {
                let number = whole_number(value.as_bytes());
                number.ok_or_else(whole_numbers)?.into()
            }
            "includeArtifacts" => (value == "true").into(),
            _ => value.as_ref().into(),
        };
    }
    Ok(params)
}

fn whole_numbers() -> Rejection {
    let message = "pageSize and historyLength are whole numbers";
    Rejection::new(Reason::InvalidParams, message)
}

/// The call that a route of an agent without HTTP+JSON stands for; `task`: the id in its path.
///
/// # Errors
/// `not_found`, `method_not_allowed`, `invalid_params` for its query.
pub(super) fn translated(
    head: &RequestHeader,
    tail: &str,
    task: Option<&String>,
) -> Result<Way, Rejection> {
    let tail = tail.strip_suffix('/').unwrap_or(tail);
    let only = |allowed: &Verb, message, allow| {
        if head.method == *allowed {
            return Ok(());
        }
        Err(wrong_method(message, allow))
    };
    match tail.split('/').collect::<Vec<_>>().as_slice() {
        ["tasks", "send"] => {
            only(&Verb::POST, "a message is sent with POST", "POST, OPTIONS")?;
            Ok(Way::Send {
                stream: false,
                words: None,
            })
        }
        ["tasks", "send", "stream"] => {
            only(&Verb::POST, "a message is sent with POST", "POST, OPTIONS")?;
            Ok(Way::Send {
                stream: true,
                words: None,
            })
        }
        // `tasks/{task_id}:cancel` and the like are routes of HTTP+JSON.
        ["tasks", _]
            if head.method == Verb::GET || !task.is_some_and(|task| task.contains(':')) =>
        {
            only(&Verb::GET, READ_WITH_GET, "GET, OPTIONS")?;
            let mut params = json!({"id": task.ok_or_else(no_such_route)?});
            if let Some(length) = history_length(head.uri.query())? {
                params["historyLength"] = length.into();
            }
            Ok(Way::Task {
                method: Method::GetTask,
                params,
                words: None,
            })
        }
        ["tasks", _, "cancel"] => {
            only(&Verb::POST, "a task is canceled with POST", "POST, OPTIONS")?;
            Ok(Way::Task {
                method: Method::CancelTask,
                params: json!({"id": task.ok_or_else(no_such_route)?}),
                words: None,
            })
        }
        _ => Err(Rejection::new(
            Reason::NotFound,
            "the agent's card names no HTTP+JSON interface: POST JSON-RPC to /workspaces/{id}/a2a, or use \
             tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel below it",
        )),
    }
}

/// `history_length`, or `historyLength` as A2A spells it.
///
/// # Errors
/// `invalid_params`.
fn history_length(query: Option<&str>) -> Result<Option<u32>, Rejection> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut asked = pairs.filter(|(name, _)| matches!(&**name, "history_length" | "historyLength"));
    let Some((_, length)) = asked.next() else {
        return Ok(None);
    };
    let number = whole_number(length.as_bytes()).and_then(|number| u32::try_from(number).ok());
    match number {
        Some(length) if asked.next().is_none() => Ok(Some(length)),
        _ => Err(Rejection::new(
            Reason::InvalidParams,
            "history_length is one whole number: how many messages of the task's history to answer with",
        )),
    }
}

pub(super) const READ_WITH_GET: &str =
    "a task is read with GET, and canceled with POST to tasks/{task_id}/cancel at its agent";

pub(super) fn no_such_route() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "no such A2A route: POST JSON-RPC to /workspaces/{id}/a2a; below it are the paths of HTTP+JSON (A2A 1.0; 0.3's \
         begin with v1/) and tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel",
    )
}
