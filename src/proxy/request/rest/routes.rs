//! Maps HTTP+JSON routes that are not forwarded unchanged to JSON-RPC calls.

use pingora::http::RequestHeader;
use serde_json::{Value, json};

use crate::a2a::Generation;
use crate::a2a::method::Method;
use crate::a2a::rest::{ID_RULE, Rest, RouteError};
use crate::hops::whole_number;
use crate::proxy::request::method_not_allowed;
use crate::rejection::{Reason, Rejection};

/// How a request gets to the agent.
pub(super) enum RestPlan {
    /// As it is, or translated: [`translate_for_agent`](crate::proxy::bridge::translate_for_agent) decides.
    Forward,
    /// As the send call of `tasks/send` or `tasks/send/stream`: the body is its `params`.
    Send {
        stream: bool,
        /// The generation of the call; `None` for the agent's.
        generation: Option<Generation>,
    },
    /// As a call about one task.
    Task {
        method: Method,
        params: Value,
        /// The generation of the call; `None` for the agent's.
        generation: Option<Generation>,
    },
}

/// Returns the call of a route of an agent that polls. The gateway implements HTTP+JSON of 1.0 for it.
///
/// # Errors
/// As [`plan_translation`]; `push_not_supported`.
pub(super) fn plan_for_inbox(head: &RequestHeader, rest: &Rest) -> Result<RestPlan, Rejection> {
    let generation = Some(Generation::V1);
    match rest.method {
        _ if rest.generation == Generation::V0 => plan_translation(head, rest),
        method @ (Method::SendMessage | Method::SendStreamingMessage) if !rest.is_own => {
            Ok(RestPlan::Send {
                stream: method == Method::SendStreamingMessage,
                generation,
            })
        }
        // The id is the part before the last colon.
        method @ (Method::CancelTask | Method::SubscribeToTask) if !rest.is_own => {
            Ok(RestPlan::Task {
                method,
                params: json!({"id": rest.tasks.last().ok_or_else(no_such_route)?}),
                generation,
            })
        }
        Method::ListTasks => Ok(RestPlan::Task {
            method: Method::ListTasks,
            params: parse_list_params(head.uri.query())?,
            generation,
        }),
        method if method.is_of_push() => Err(Rejection::new(
            Reason::PushNotSupported,
            "an agent that polls sends no push notifications: stream, or ask for the task",
        )),
        Method::GetExtendedCard => {
            let message =
                "an agent that polls has no extended card; its card is at the base, by GET";
            Err(Rejection::new(Reason::InvalidRequest, message).with_rpc_code(NO_EXTENDED_CARD))
        }
        _ => {
            let mut plan = plan_translation(head, rest)?;
            // 1.0 has the same route, and its clients declare their version.
            if let RestPlan::Task {
                generation: planned,
                ..
            } = &mut plan
                && declares_1_0(head)
            {
                *planned = generation;
            }
            Ok(plan)
        }
    }
}

/// The error code of ExtendedAgentCardNotConfiguredError.
const NO_EXTENDED_CARD: i32 = -32_007;

/// True if the caller declares 1.x, by the header field or the query parameter (A2A 1.0, 3.6.1).
pub(super) fn declares_1_0(head: &RequestHeader) -> bool {
    if let Some(version) = head.headers.get("a2a-version") {
        return version.as_bytes().starts_with(b"1.");
    }
    let query = head.uri.query().unwrap_or_default();
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.any(|(name, version)| name == "A2A-Version" && version.starts_with("1."))
}

/// Reads the params of a task list from its query (A2A 1.0, 11.3).
///
/// # Errors
/// `invalid_params`.
fn parse_list_params(query: Option<&str>) -> Result<Value, Rejection> {
    let mut params = json!({});
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    for (name, value) in pairs.filter(|(name, _)| name != "A2A-Version") {
        params[&*name] = match &*name {
            "pageSize" | "historyLength" => {
                let number = whole_number(value.as_bytes());
                number.ok_or_else(not_whole_numbers)?.into()
            }
            "includeArtifacts" => (value == "true").into(),
            _ => value.as_ref().into(),
        };
    }
    Ok(params)
}

fn not_whole_numbers() -> Rejection {
    let message = "pageSize and historyLength are whole numbers";
    Rejection::new(Reason::InvalidParams, message)
}

/// True for a route that is also one of the gateway's own, whose query has more spellings.
pub(super) fn is_also_own(rest: &Rest) -> bool {
    rest.method == Method::GetTask && rest.generation == Generation::V1
}

/// Returns the call of a route, for an agent without HTTP+JSON.
///
/// # Errors
/// `not_found`, `invalid_params` for an invalid query.
pub(super) fn plan_translation(head: &RequestHeader, rest: &Rest) -> Result<RestPlan, Rejection> {
    let id = || rest.tasks.first().ok_or_else(no_such_route);
    let generation = None;
    match rest.method {
        method @ (Method::SendMessage | Method::SendStreamingMessage) if rest.is_own => {
            Ok(RestPlan::Send {
                stream: method == Method::SendStreamingMessage,
                generation,
            })
        }
        method @ Method::CancelTask if rest.is_own => Ok(RestPlan::Task {
            method,
            params: json!({"id": id()?}),
            generation,
        }),
        method @ Method::GetTask if rest.generation == Generation::V1 => {
            let mut params = json!({"id": id()?});
            if let Some(length) = parse_history_length(head.uri.query())? {
                params["historyLength"] = length.into();
            }
            Ok(RestPlan::Task {
                method,
                params,
                generation,
            })
        }
        _ => Err(Rejection::new(
            Reason::NotFound,
            "the agent's card names no HTTP+JSON interface: POST JSON-RPC to /workspaces/{id}/a2a, or use \
             tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel below it",
        )),
    }
}

/// Builds the rejection of a request that matches no route.
pub(super) fn route_rejection(why: &RouteError) -> Rejection {
    match *why {
        RouteError::Path => no_such_route(),
        RouteError::Id => Rejection::new(
            Reason::InvalidParams,
            format!(
                "the path has an id that {ID_RULE}; ask for other ids by JSON-RPC, at the base"
            ),
        ),
        RouteError::Verb(allow) => {
            let message = match allow {
                "POST, OPTIONS" => "this route is called with POST",
                "GET, HEAD, OPTIONS" => "this route is read with GET",
                _ => "this route has the methods that the field Allow names",
            };
            method_not_allowed(message, allow)
        }
        RouteError::Query([]) => Rejection::new(
            Reason::InvalidParams,
            "this route has no query parameters but A2A-Version",
        ),
        RouteError::Query(known) => Rejection::new(
            Reason::InvalidParams,
            format!(
                "this route has the query parameters {} and A2A-Version, each once",
                known.join(", ")
            ),
        ),
    }
}

/// Reads `history_length`, or `historyLength` as A2A spells it.
///
/// # Errors
/// `invalid_params`.
fn parse_history_length(query: Option<&str>) -> Result<Option<u32>, Rejection> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut lengths =
        pairs.filter(|(name, _)| matches!(&**name, "history_length" | "historyLength"));
    let Some((_, length)) = lengths.next() else {
        return Ok(None);
    };
    let number = whole_number(length.as_bytes()).and_then(|number| u32::try_from(number).ok());
    match number {
        Some(length) if lengths.next().is_none() => Ok(Some(length)),
        _ => Err(Rejection::new(
            Reason::InvalidParams,
            "history_length is one whole number: how many messages of the task's history to answer with",
        )),
    }
}

pub(super) fn no_such_route() -> Rejection {
    Rejection::new(
        Reason::NotFound,
        "no such A2A route: POST JSON-RPC to /workspaces/{id}/a2a; below it are the paths of HTTP+JSON (A2A 1.0; 0.3's \
         begin with v1/) and tasks/send, tasks/send/stream, tasks/{task_id} and tasks/{task_id}/cancel",
    )
}
