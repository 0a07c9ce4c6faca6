//! `/console/…`: data and actions of the console that no other route has, behind
//! [`gate::operators_with_token`](super::gate).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::gate::Operator;
use super::session::{self, RequestSession};
use crate::declare_routes;
use crate::extract::is_name;
use access::identity::Proof;
use access::workspace::Timestamp;
use assembly::console::{FeedOverrun, Reader};
use assembly::gateway::Gateway;
use assembly::health::Overview;
use audit::usage::{Cell, CellSpan};
use audit::{DONE, Draft, EventType};
use directory::CapacityView;
use kernel::deadline::ticks;
use kernel::health::CallResult;
use kernel::ids::{InstanceId, RequestId, WorkspaceId};
use kernel::metrics::AgentFailure;
use kernel::rejection::{Reason, Rejection};
use kernel::telemetry::Chain;
use trust::{KeyInfo, KeyState, KeyTimeSource, RotateError, RotationOutcome};
use url::form_urlencoded;

/// Maximum events queued for a connection.
const WAITING_MAX: usize = 4;

/// Longest time for a connection to accept one event.
const PIECE_MAX: Duration = Duration::from_secs(10);

/// Interval of credential checks: a revoked credential closes its feeds within 2 s.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Largest body of a rotation, in bytes.
const BODY_BYTES_MAX: usize = 4096;

/// Longest time to receive a body.
const BODY_WITHIN: Duration = Duration::from_secs(10);

declare_routes! {
    /// What the console shows, as an event stream that does not end by itself.
    GET "/console/feed" => serve_feed, Read,
        says op("admin", "followConsole").by("adminToken")
            .answers(200, "The stream: `begin`, `rows` until one says `last`, then a `tick` each second \
                (docs/reference/admin-api.md).")
            .streams("Server-sent events with `event` and `data`: begin, rows, tick, trouble, end.");
    /// How all workspaces are.
    GET "/console/overview" => serve_overview, Read,
        says op("admin", "readOverview").by("adminToken")
            .gives_named(200, "Overview", "The numbers of workspaces by state, those that are not healthy, the worst first, and \
                agents that failed until a moment ago.");
    /// Sums of calls over time.
    GET "/console/traffic" => serve_traffic, Read,
        says op("admin", "readTraffic").by("adminToken")
            .gives_named(200, "Traffic", "Cells with a call, the oldest first, and the sums by workspace.")
            .query("TrafficOver TrafficOrg TrafficWorkspace").refuses("400");
    /// How loaded a workspace is.
    GET "/console/workspaces/{id}" => serve_load, Read,
        says op("admin", "readLoad").by("adminToken")
            .gives_named(200, "Load", "Calls in progress, inbox, and their limits.").refuses("400 404");
    /// Where the chains of the audit end.
    GET "/console/chains" => serve_chains, Read,
        says op("admin", "listChains").by("adminToken")
            .gives_named(200, "Chains", "All chains, the last signed first.");
    /// The trust keys.
    GET "/console/keys" => serve_keys, Read,
        says op("admin", "listKeys").by("adminToken")
            .gives_named(200, "TrustKeys", "The active one, the next one, retired ones from new to old.")
            .refuses("500");
    /// Have the next trust key sign from now on.
    POST "/console/keys/rotate" => rotate_keys, Admin, records KeysChanged,
        says op("admin", "rotateKeys").by("adminToken").takes::<Rotation>().never("415")
            .gives_named(200, "Rotated", "Done; other replicas follow within two seconds.").refuses("400 409 500");
    /// Begin a session of the console, which lets its page be loaded again.
    POST "/console/session" => session::begin_session, Read,
        says op("admin", "beginConsoleSession").by("adminToken")
            .gives_named(200, "Session", "A session. A request that has both the cookie and the field `X-A2A-Session` counts \
                as one with the token.")
            .headers("Set-Cookie");
    /// End the session of the request.
    DELETE "/console/session" => session::end_session, Read,
        says op("admin", "endConsoleSession").by("adminToken")
            .gives_named(200, "EndedSession", "It has ended, or there was none.");
}

/// Serves `GET /console/feed`: all workspaces, then events, once a second.
async fn serve_feed(
    State(gateway): State<Arc<Gateway>>,
    Extension(Operator(proof)): Extension<Operator>,
    held: Option<Extension<RequestSession>>,
) -> Result<Response, Rejection> {
    let reader = gateway.console.open_reader()?;
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    // Ends with the reader's connection, its credential, a write timeout, or the gateway.
    let by = FeedCredential {
        proof,
        session: held.map(|Extension(held)| held),
    };
    tokio::spawn(pump_events(gateway, by, reader, sender));
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece: Bytes = receiver.recv().await?;
        Some((Ok::<_, Infallible>(piece), receiver))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    fields.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The credential of a feed, checked while it is open.
struct FeedCredential {
    proof: Arc<Proof>,
    session: Option<RequestSession>,
}

impl FeedCredential {
    /// Returns the reason to end the feed, if its credential is no longer valid.
    async fn end_reason(&self, gateway: &Gateway) -> Option<&'static str> {
        let has_ended = |session: &RequestSession| !session.is_still_open();
        if self.session.as_ref().is_some_and(has_ended) {
            return Some("the session has ended; log in again");
        }
        let good = gateway.identity.is_still_valid(&self.proof).await;
        (!good).then_some("the token was revoked")
    }
}

/// Forwards events until the reader or the gateway ends the feed.
async fn pump_events(
    gateway: Arc<Gateway>,
    by: FeedCredential,
    mut reader: Reader,
    sender: mpsc::Sender<Bytes>,
) {
    let mut check = ticks(CHECK_EVERY);
    loop {
        let (piece, over) = {
            // Kept across credential checks: its wait may be longer than their interval.
            let mut next = pin!(reader.next());
            loop {
                break tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    () = gateway.drain.wait_for_leave() => {
                        (end_event("shutting_down", "this gateway is shutting down"), true)
                    }
                    _ = check.tick() => {
                        let Some(why) = by.end_reason(&gateway).await else {
                            continue;
                        };
                        gateway.metrics.count_event_reader_cut("credential");
                        (end_event("unauthenticated", why), true)
                    }
                    next = &mut next => match next {
                        Ok(piece) => (piece, false),
                        Err(FeedOverrun) => {
                            gateway.metrics.count_event_reader_cut("slow");
                            (end_event("too_slow", "events came faster than they were read"), true)
                        }
                    },
                };
            }
        };
        match timeout(PIECE_MAX, sender.send(piece)).await {
            Ok(Ok(())) if !over => {}
            Ok(_) => return,
            Err(_) => return gateway.metrics.count_event_reader_cut("slow"),
        }
    }
}

fn end_event(reason: &str, message: &str) -> Bytes {
    let data = json!({"reason": reason, "message": message});
    format!("event: end\ndata: {data}\n\n").into()
}

/// Serves `GET /console/overview`: how all workspaces are.
async fn serve_overview(State(gateway): State<Arc<Gateway>>) -> Result<Json<Overview>, Rejection> {
    let overview = gateway.health.overview().await?;
    Ok(Json(Overview::clone(&overview)))
}

/// The times that `GET /console/traffic` may be asked for: the name, the cells of its charts and their number, and the
/// cells of its list. Fewer and longer cells for the list: it reads those of all workspaces.
const TIMES: [(&str, CellSpan, u32, CellSpan); 4] = [
    ("1h", CellSpan::Minute, 60, CellSpan::Minute),
    ("6h", CellSpan::FiveMinutes, 72, CellSpan::Hour),
    ("24h", CellSpan::FiveMinutes, 288, CellSpan::Hour),
    ("7d", CellSpan::Hour, 168, CellSpan::Hour),
];

/// Serves `GET /console/traffic`: sums of calls by time, for charts, and by workspace.
async fn serve_traffic(
    State(gateway): State<Arc<Gateway>>,
    uri: Uri,
) -> Result<Json<Value>, Rejection> {
    let (mut over, mut org, mut workspace) = (TIMES[0], None, None);
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let is_text = is_name(&value);
        match &*name {
            "over" => match TIMES.iter().find(|(word, ..)| *word == value) {
                Some(found) => over = *found,
                None => return Err(invalid_query("`over` is 1h, 6h, 24h or 7d")),
            },
            "org" if is_text => org = Some(value.into_owned()),
            "workspace" if is_text => workspace = Some(value.into_owned()),
            _ => return Err(invalid_query("the query takes over, org and workspace")),
        }
    }
    let (word, span, steps, listed) = over;
    let now = Timestamp::now().0 / 1000;
    let first = |span: CellSpan, seconds: i64| {
        (now - seconds).div_euclid(span.seconds()) * span.seconds() + span.seconds()
    };
    let seconds = span.seconds() * i64::from(steps);
    let from = first(span, seconds);
    let usage = &gateway.audit.usage;
    let cells = usage
        .read_cells((span, from, steps), workspace.as_deref(), org.as_deref())
        .await?;
    let by_workspace = match workspace {
        None => {
            usage
                .read_workspace_cells(listed, first(listed, seconds))
                .await?
        }
        Some(_) => Vec::new(),
    };
    Ok(Json(json!({
        "over": word,
        "from": from,
        "step": span.seconds(),
        "steps": steps,
        "recording": gateway.audit.is_on(),
        "cells": cells.iter().map(|(at, cell)| cell_as_json(at, cell)).collect::<Vec<_>>(),
        "workspaces": by_workspace.iter().map(|(id, cell)| cell_as_json(id, cell)).collect::<Vec<_>>(),
    })))
}

/// Returns a cell as an array, since there are many: its key, calls by result, streams, and the durations within which
/// half and 95 % of the calls ended.
fn cell_as_json(key: impl serde::Serialize, cell: &Cell) -> Value {
    let results = CallResult::ALL.iter().map(|result| cell.count_of(*result));
    let quantiles = [0.5, 0.95].map(|part| cell.quantile_ms(part).map(f64::round));
    json!([
        key,
        results.collect::<Vec<_>>(),
        cell.streams(),
        quantiles[0],
        quantiles[1]
    ])
}

fn invalid_query(message: &'static str) -> Rejection {
    Rejection::new(Reason::InvalidParams, message)
}

/// Serves `GET /console/workspaces/{id}`: the load of a workspace.
async fn serve_load(
    State(gateway): State<Arc<Gateway>>,
    uri: Uri,
) -> Result<Json<Value>, Rejection> {
    // Not percent-decoded: no route accepts an encoded id.
    let id = uri.path().rsplit('/').next().unwrap_or_default();
    let id = WorkspaceId::parse(id)?;
    let (found, inbox) = tokio::join!(
        gateway.workspaces.find(&id),
        gateway.delivery.inbox.backlog_of(&id)
    );
    let workspace = found?.ok_or_else(|| {
        let message = "there is no workspace of this id";
        Rejection::new(Reason::WorkspaceNotFound, message)
    })?;
    let inbox = inbox?;
    let config = gateway.config();
    let (limits, timeouts) = (&config.limits, &config.timeouts);
    let default = limits.target_concurrency as u64;
    Ok(Json(json!({
        "id": workspace.id.as_str(),
        "replica": gateway.replica.as_str(),
        "calls": {
            "in_progress": gateway.directory.slots.in_progress(&id),
            "limit": workspace.max_concurrent.map_or(default, u64::from),
            "limit_by": if workspace.max_concurrent.is_some() { "the workspace" } else { "limits.target_concurrency" },
        },
        "capacity": capacity_as_json(&gateway, &id),
        "idle": {
            "seconds": workspace.idle_timeout_seconds.map_or(timeouts.idle.as_secs(), u64::from),
            "by": if workspace.idle_timeout_seconds.is_some() { "the workspace" } else { "timeouts.idle" },
        },
        "inbox": {
            "waiting": inbox.entries,
            "oldest": inbox.oldest,
            "limit": config.inbox.max_messages,
        },
    })))
}

/// Returns what this replica knows of how much the agent takes, or each of its instances.
fn capacity_as_json(gateway: &Gateway, id: &WorkspaceId) -> Vec<Value> {
    let views = gateway.directory.slots.capacity_views(id);
    views.iter().map(capacity_view_as_json).collect()
}

fn capacity_view_as_json(view: &CapacityView) -> Value {
    json!({
        "instance_id": view.instance.as_ref().map(InstanceId::as_str),
        "in_progress": view.in_progress,
        "breaker": view.breaker,
        "breaker_cause": view.failure.map(AgentFailure::as_str),
        "retry_after_seconds": view.retry_after.map(|after| after.as_secs() + 1),
        "learned_limit": view.learned_limit,
        "learned_limit_streams": view.learned_limit_streams,
        "waiting": view.queued,
    })
}

/// Serves `GET /console/chains`: the ends of the audit chains.
async fn serve_chains(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Rejection> {
    let chains = gateway.audit.chain_ends().await?;
    Ok(Json(
        json!({"recording": gateway.audit.is_on(), "chains": chains}),
    ))
}

/// Serves `GET /console/keys`: the trust keys.
async fn serve_keys(State(gateway): State<Arc<Gateway>>) -> Result<Json<Value>, Rejection> {
    let keys = Arc::clone(&gateway.keys);
    // The folder may be on a network file system.
    let read = spawn_blocking(move || (keys.list(), keys.start_times())).await;
    let (list, [active, next]) = read.map_err(|error| keys_unusable().with_cause(error))?;
    let keys = list.iter().map(|key| match key.state {
        KeyState::Active => key_as_json(key, active),
        KeyState::Next => key_as_json(key, next),
        KeyState::Retired { .. } => key_as_json(key, None),
    });
    let keys: Vec<_> = keys.collect();
    let current = gateway.metrics.keys.current.get() != 0;
    Ok(Json(json!({"readable": current, "keys": keys})))
}

/// Returns one key as JSON. `since` is the time since which it has its state, and the source of
/// that time.
fn key_as_json(key: &KeyInfo, since: Option<(SystemTime, KeyTimeSource)>) -> Value {
    let mut shown = json!({
        "kid": key.kid,
        "algorithm": key.algorithm.as_str(),
        "state": key.state.as_str(),
    });
    if let Some((since, known)) = since {
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        shown["since"] = json!(to_timestamp(since));
        shown["since_by"] = json!(known.as_str());
        shown["age_seconds"] = json!(age.as_secs());
    }
    if let KeyState::Retired { at, until } = key.state {
        shown["retired_at"] = json!(to_timestamp(at));
        shown["verifies_until"] = json!(to_timestamp(until));
    }
    shown
}

fn to_timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The body of `POST /console/keys/rotate`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Rotation {
    /// The key that signs, as `GET /console/keys` says. Another one by now is a conflict.
    #[schema(max_length = 256)]
    active: String,
    /// Also where the next key has been published for less than 300 s.
    #[serde(default)]
    #[schema(default = false)]
    force: bool,
}

impl Rotation {
    /// # Errors
    /// `body_too_large`, `request_timeout`, `invalid_params`.
    async fn from_body(body: Body) -> Result<Self, Rejection> {
        let read = timeout(BODY_WITHIN, to_bytes(body, BODY_BYTES_MAX));
        let Ok(read) = read.await else {
            let message = "the body did not arrive in time; send it without a pause";
            return Err(Rejection::new(Reason::RequestTimeout, message));
        };
        let body = read.map_err(|error| {
            let message = "the body could not be read, or has more than 4 KiB";
            Rejection::new(Reason::BodyTooLarge, message).with_cause(error)
        })?;
        serde_json::from_slice(&body).map_err(|error| {
            let message = r#"the body is {"active": "<kid>"} with the id of the key that signs now (GET /console/keys), and "force": true to replace it whatever the age of the next one"#;
            Rejection::new(Reason::InvalidParams, message).with_cause(error)
        })
    }
}

/// Serves `POST /console/keys/rotate`: rotates like `a2a-gateway keys rotate`, if `active` is still
/// the active key. Other replicas follow the folder.
async fn rotate_keys(
    State(gateway): State<Arc<Gateway>>,
    Extension(Operator(proof)): Extension<Operator>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Rejection> {
    let client = peer.map(|Extension(ConnectInfo(peer))| peer.ip().to_canonical());
    let id = RequestId::from_caller(headers.get("x-request-id").map(HeaderValue::as_bytes));
    // A separate task, so that a disconnect cannot cancel it before the audit record. The shutdown
    // waits for it.
    let running = (gateway.drain.count_work(), gateway.audit.begin_change());
    let work = tokio::spawn(async move {
        let _running = running;
        let asked = Rotation::from_body(body).await;
        let turned = match asked {
            Ok(asked) => run_rotation(&gateway, asked).await,
            Err(rejection) => Err(rejection),
        };
        let (outcome, status) = match &turned {
            Ok(_) => (DONE, 200),
            Err(rejection) => (rejection.reason.as_str(), rejection.reason.status()),
        };
        let detail = match &turned {
            Ok(rotated) => json!({
                "active": rotated.active,
                "rotated": true,
                "in_force": rotated.not_in_force.is_none(),
                "finished": rotated.unfinished.is_none(),
            }),
            Err(_) => json!({"active": gateway.keys.kid(), "rotated": false}),
        };
        gateway.audit.record(Draft {
            request_id: Some(id.clone()),
            proof: Some(proof),
            client: gateway.audit.mask_client(client),
            outcome,
            status,
            ..Draft::new(EventType::KeysChanged).with_detail(detail)
        });
        log_failures(&turned, &id);
        turned
    });
    let rotated = work.await;
    let rotated = rotated.map_err(|error| rotation_interrupted().with_cause(error))??;
    Ok(Json(rotation_as_json(&rotated)))
}

/// Rotates the keys.
///
/// # Errors
/// `conflict`, `internal`: nothing is rotated, unless the message says otherwise.
async fn run_rotation(gateway: &Gateway, asked: Rotation) -> Result<RotationOutcome, Rejection> {
    let keys = Arc::clone(&gateway.keys);
    // The folder may be on a network file system.
    let turned = spawn_blocking(move || keys.rotate(&asked.active, asked.force)).await;
    turned
        .map_err(|error| rotation_interrupted().with_cause(error))?
        .map_err(|error| match error {
            RotateError::NotActive { .. } => {
                let message = format!("{error}. Nothing was done; look at the keys again");
                Rejection::new(Reason::Conflict, message)
            }
            RotateError::TooYoung { ready_at, .. } => {
                let at = humantime::format_rfc3339_seconds(ready_at);
                let message = format!(
                    r#"{error}. Nothing was done; it can sign from {at}, or at once with "force": true"#
                );
                let left = ready_at.duration_since(SystemTime::now()).unwrap_or_default();
                Rejection::new(Reason::Conflict, message).with_retry_after(left)
            }
            RotateError::Keys(error) => keys_unusable().with_cause(error),
        })
}

/// Returns the body of the response to a rotation, with the steps that failed.
fn rotation_as_json(rotated: &RotationOutcome) -> Value {
    let mut told = json!({
        "status": "rotated",
        "active": rotated.active,
        "in_force": rotated.not_in_force.is_none(),
        "finished": rotated.unfinished.is_none(),
    });
    let mut words = Vec::new();
    if rotated.unfinished.is_some() {
        words.push(
            "The next key signs now, but the rotation did not come to its end: a next key may be missing, or an old \
             one still there.",
        );
    }
    if rotated.not_in_force.is_some() {
        words.push(
            "This replica cannot read the keys again and goes on to sign with the one before, which still verifies; \
             it tries again every second.",
        );
    }
    if !words.is_empty() {
        words.push(
            "Do not rotate again for it: look at keys.dir, and at the log under the request's id.",
        );
        told["message"] = words.join(" ").into();
    }
    told
}

fn log_failures(turned: &Result<RotationOutcome, Rejection>, id: &RequestId) {
    let id = id.as_str();
    match turned {
        Ok(rotated) => {
            let troubles = [&rotated.unfinished, &rotated.not_in_force];
            for error in troubles.into_iter().flatten() {
                tracing::error!(exchange.id = id, error = %Chain(error), "trust keys rotated, but a later step failed");
            }
        }
        Err(rejection) if rejection.reason == Reason::Internal => {
            let error = rejection.cause.as_deref();
            let error = error.map(|cause| Chain(cause).to_string());
            tracing::error!(exchange.id = id, error, "trust key rotation failed");
        }
        Err(_) => {}
    }
}

fn keys_unusable() -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the keys in keys.dir could not be read or written, and are as before; the log says more under the request's id",
    )
}

fn rotation_interrupted() -> Rejection {
    Rejection::new(
        Reason::Internal,
        "the rotation broke off, and whether the next key signs is not known: look at the keys before another one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::KeyError;

    #[test]
    fn a_rotation_that_did_not_go_all_the_way_is_told_as_one() {
        let rotated = |unfinished, not_in_force| {
            rotation_as_json(&RotationOutcome {
                active: "k".to_owned(),
                unfinished,
                not_in_force,
            })
        };
        let all = json!({"status": "rotated", "active": "k", "in_force": true, "finished": true});
        assert_eq!(rotated(None, None), all);
        let told = rotated(None, Some(KeyError::Generation));
        assert_eq!(
            (&told["status"], &told["in_force"]),
            (&json!("rotated"), &json!(false))
        );
        let told = rotated(Some(KeyError::Generation), None);
        assert_eq!(
            (&told["finished"], &told["in_force"]),
            (&json!(false), &json!(true))
        );
        let message = told["message"].as_str().unwrap();
        assert!(message.contains("Do not rotate again"), "{message}");
    }
}
