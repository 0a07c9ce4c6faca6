//! `/policy`: workspaces, grants and stops as one document (`docs/reference/http-api.md`, "Policy"). Operators only.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::body::{Bodies, PolicyJson};
use super::dry_run::{Applier, Prover};
use super::extract::Caller;
use super::page::Page;
use super::turns::Turn;
use super::usage::csv_cell;
use access::identity::{ClientAddr, Principal};
use assembly::gateway::Gateway;
use assembly::policy::{
    self, AccessRow, ApplyOptions, ApplyOutcome, OrgScope, RawDocument, Replay,
};
use audit::change::ChangeFacts;
use audit::{Detail, Draft, EventType};
use kernel::ids::RequestId;
use kernel::rejection::{Reason, Rejection};
use stores::store::Unavailable;

/// Changes that one record of the audit names.
const CHANGES_OF_A_RECORD: usize = 100;

/// `GET /policy`.
pub(super) async fn export_policy(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Extension(bodies): Extension<Bodies>,
) -> Result<Response, Rejection> {
    caller.require_operator()?;
    let _turn = bodies.policies.take(&caller.0).await?;
    let text = policy::export_document(&gateway).await?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// Facts of a request for its records.
pub(super) struct RequestOrigin {
    id: Option<RequestId>,
    client: Option<ClientAddr>,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestOrigin {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        Ok(Self {
            id: parts.extensions.get().cloned(),
            client: parts.extensions.get().copied(),
        })
    }
}

/// `POST /policy`.
pub(super) async fn apply_policy(
    State(gateway): State<Arc<Gateway>>,
    Applier {
        caller,
        prune,
        force,
        replay,
    }: Applier,
    Extension(bodies): Extension<Bodies>,
    origin: RequestOrigin,
    PolicyJson(raw, turn): PolicyJson<RawDocument>,
) -> Result<Response, Rejection> {
    let options = ApplyOptions {
        dry_run: caller.run().is_dry(),
        prune,
        force,
        by: caller.0.principal.name().into_owned(),
        operator: caller.0.operator.clone(),
    };
    if let Some(back) = replay {
        let replay = Replay::prepare(&gateway, raw, &options, back).await?;
        drop(turn);
        let turn = bodies.replays.take(&caller.0).await?;
        return Ok(stream_replay(gateway, replay, turn));
    }
    let applied = policy::apply_document(&gateway, raw, &options).await?;
    if caller.run().is_dry() {
        return Ok(Answer(applied).into_response());
    }
    // Also of one that did not reach the shared state: it was committed.
    let about = record_changes(&gateway, &caller, origin, &applied, prune);
    Ok(match applied.published {
        Ok(()) => (Extension(about), Answer(applied)).into_response(),
        Err(why) => (Extension(about), why).into_response(),
    })
}

/// Answers with a line for each batch, and the result in the last one. It ends when the caller leaves.
fn stream_replay(gateway: Arc<Gateway>, replay: Replay, turn: Turn) -> Response {
    let begin = (gateway, replay, turn);
    let lines = try_unfold(begin, |(gateway, mut replay, turn)| async move {
        let line = replay.next_line(&gateway.audit).await?;
        let line = line.map(|line| Bytes::from(format!("{line}\n")));
        Ok::<_, Unavailable>(line.map(|line| (line, (gateway, replay, turn))))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let media = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

/// `POST /policy/prove`.
pub(super) async fn prove_policy(
    State(gateway): State<Arc<Gateway>>,
    Prover { caller, prune }: Prover,
    PolicyJson(raw, _turn): PolicyJson<RawDocument>,
) -> Result<Answer<policy::Proof>, Rejection> {
    let org = match caller.principal() {
        Principal::Operator => None,
        Principal::Org { org, within } => Some(OrgScope {
            org: org.clone(),
            within: within.as_ref().map(|root| root.id.clone()),
        }),
        _ => {
            return Err(Rejection::new(
                Reason::NotPermitted,
                "this needs an admin token, or an org token for its org",
            ));
        }
    };
    let options = ApplyOptions {
        dry_run: true,
        prune,
        force: false,
        by: caller.0.principal.name().into_owned(),
        operator: caller.0.operator.clone(),
    };
    policy::prove_document(&gateway, raw, &options, org)
        .await
        .map(Answer)
}

/// The query of `GET /access/matrix`, but for its page.
#[derive(Deserialize)]
pub(super) struct MatrixQuery {
    format: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

/// `GET /access/matrix`.
pub(super) async fn list_matrix(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Extension(bodies): Extension<Bodies>,
    query: Result<Query<MatrixQuery>, QueryRejection>,
    page: Page,
) -> Result<Response, Rejection> {
    caller.require_operator()?;
    let wrong = |message| Rejection::new(Reason::InvalidParams, message);
    let Ok(Query(query)) = query else {
        return Err(wrong(
            "the query of this route is `format`, `cursor` and `limit`, each once",
        ));
    };
    let is_csv = match query.format.as_deref() {
        None | Some("json") => false,
        Some("csv") => true,
        Some(_) => return Err(wrong("`format` is json or csv")),
    };
    if is_csv && (query.cursor.is_some() || query.limit.is_some()) {
        let message = "a CSV file has all of it: leave `cursor` and `limit` out";
        return Err(wrong(message));
    }
    let _turn = bodies.policies.take(&caller.0).await?;
    let mut rows = policy::list_access(&gateway).await?;
    if is_csv {
        let csv = "text/csv; charset=utf-8; header=present";
        return Ok(([(CONTENT_TYPE, csv)], to_csv(&rows)).into_response());
    }
    let begin = rows.partition_point(|row| row.key <= page.after);
    rows.drain(..begin);
    let next_cursor = page.truncate_page(&mut rows, |row| &row.key);
    let listed = json!({"access": rows, "next_cursor": next_cursor});
    Ok(Answer(listed).into_response())
}

/// Returns a line for each pair, and for each member of a group, which has a number.
fn to_csv(rows: &[AccessRow]) -> String {
    let mut text = "group,caller,target,rule\r\n".to_owned();
    for (n, row) in rows.iter().enumerate() {
        let cell = |value: &Option<String>| csv_cell(value.as_deref().unwrap_or_default());
        if row.group.is_none() {
            let (caller, target) = (cell(&row.caller), cell(&row.target));
            text.push_str(&format!(",{caller},{target},{}\r\n", row.rule));
        }
        for member in row.group.iter().flatten() {
            text.push_str(&format!("{},{},,{}\r\n", n + 1, csv_cell(member), row.rule));
        }
    }
    text
}

/// Records all changes, [`CHANGES_OF_A_RECORD`] in each record. Returns the facts of the first, which the frame writes.
fn record_changes(
    gateway: &Gateway,
    caller: &Caller,
    origin: RequestOrigin,
    applied: &ApplyOutcome,
    prune: bool,
) -> ChangeFacts {
    let about = ChangeFacts::default()
        .with_fact("changed", applied.changes.len())
        .with_fact("prune", prune)
        .with_fact("revision", applied.revision.as_str());
    let mut parts = applied.changes.chunks(CHANGES_OF_A_RECORD);
    let first = parts.next().unwrap_or_default();
    let client = gateway
        .audit
        .mask_client(origin.client.map(|client| client.0));
    for (n, part) in parts.enumerate() {
        let detail = json!({"changes": changes_for_record(part), "part": n + 2, "revision": applied.revision});
        gateway.audit.record(Draft {
            request_id: origin.id.clone(),
            status: 200,
            detail: Detail::new(detail),
            proof: Some(Arc::clone(&caller.0)),
            client,
            ..Draft::new(EventType::PolicyApplied)
        });
    }
    about
        .with_fact("changes", changes_for_record(first))
        .with_fact("part", 1)
}

/// Returns changes as records have them: names and the names of members, never values.
fn changes_for_record(changes: &[Box<RawValue>]) -> Value {
    let of = |change: &RawValue| {
        let change: Value = serde_json::from_str(change.get()).unwrap_or_default();
        let fields = change["fields"].as_array().into_iter().flatten();
        let fields: Vec<&Value> = fields.map(|field| &field["field"]).collect();
        let mut facts =
            json!({"action": change["action"], "kind": change["kind"], "name": change["name"]});
        if !fields.is_empty() {
            facts["fields"] = json!(fields);
        }
        facts
    };
    changes.iter().map(|change| of(change)).collect()
}
