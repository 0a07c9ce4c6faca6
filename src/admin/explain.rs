//! `GET /explain?caller=&target=`: the checks that a message would pass or fail, without sending
//! one.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::Response;
use http::{HeaderMap, StatusCode};

use super::{json_response, rejection_response};
use crate::explain::{ExplainFn, ExplainQuery};
use crate::rejection::{Reason, Rejection};

/// Longest parameter of the query, in bytes: room for a list of workspaces.
const MEMBER_BYTES_MAX: usize = 4096;

/// Serves the route. The status is 200 even if the message would be rejected.
pub(super) async fn serve_explain(
    explain: ExplainFn,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let question = match parse_question(query) {
        Ok(question) => question,
        Err(rejection) => return rejection_response(&rejection, &headers),
    };
    let (caller, target) = (question.caller.clone(), question.target.clone());
    match explain(question).await {
        Ok(explanation) => json_response(StatusCode::OK, &explanation.to_json(&caller, &target)),
        Err(rejection) => rejection_response(&rejection, &headers),
    }
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
