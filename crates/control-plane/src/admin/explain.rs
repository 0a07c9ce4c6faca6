//! `GET /explain?caller=&target=`: the checks that a message would pass or fail, without sending
//! one.

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use serde_json::Value;

use access::explain::{ExplainFn, ExplainQuery};
use kernel::rejection::{Reason, Rejection};

/// Longest parameter of the query, in bytes: room for a list of workspaces.
const MEMBER_BYTES_MAX: usize = 4096;

/// Serves the route. The status is 200 even if the message would be rejected.
pub(super) async fn serve_explain(
    explain: ExplainFn,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Json<Value>, Rejection> {
    let question = parse_question(query)?;
    let (caller, target) = (question.caller.clone(), question.target.clone());
    Ok(Json(explain(question).await?.to_json(&caller, &target)))
}

fn parse_question(
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<ExplainQuery, Rejection> {
    let wrong = |message: &'static str| Rejection::new(Reason::InvalidParams, message);
    let Ok(Query(members)) = query else {
        return Err(wrong(HOW));
    };
    let (mut caller, mut target, mut org, mut workspaces) = (None, None, None, None);
    for (name, value) in members {
        let place = match name.as_str() {
            "caller" => &mut caller,
            "target" => &mut target,
            "org" => &mut org,
            "workspaces" => &mut workspaces,
            _ => return Err(wrong(HOW)),
        };
        if value.len() > MEMBER_BYTES_MAX {
            return Err(wrong("a member of the query is longer than 4096 bytes"));
        }
        if place.replace(value).is_some() {
            return Err(wrong(HOW));
        }
    }
    let caller = caller.filter(|caller| !caller.is_empty());
    let (Some(caller), Some(target)) = (caller, target) else {
        return Err(wrong(HOW));
    };
    Ok(ExplainQuery {
        caller,
        target,
        org,
        workspaces,
    })
}

const HOW: &str = "ask with `?caller=` and `?target=`, each once: a caller as records name it (a workspace id, \
                   `operator`, `canvas:<user>`, `org:<org>`) and a workspace id; of a canvas token also `org` and \
                   `workspaces`";
