//! `/workspaces/{id}/delegate` and `/delegations`: a workspace delegates a task to another one, and reads the outcome
//! (`docs/reference/a2a.md`, "Delegations").

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Json;
use super::extract::{Caller, PathDelegationId, PathId, not_permitted};
use super::page::Page;
use a2a::call_names::{CallNames, RUN_BYTES_MAX};
use a2a::method::Method;
use access::caps::{Caps, Charge, Facts, Names};
use access::hierarchy::Permit;
use access::identity::{ClientAddr, Proof, WITHHELD_CONTENT, WithheldContent};
use access::workspace::Timestamp;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::hops::count_hops;
use kernel::ids::WorkspaceId;
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;
use kernel::telemetry::traces::context;
use mailbox::jobs::{Content, DelegationView, Job, Kind, NewJob, Task, TaskRun};

/// Maximum bytes of a task's text.
const TASK_BYTES_MAX: usize = 256 * 1024;

/// Maximum bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 256;

/// Default deadline of a delegation, in seconds.
const DEADLINE_SECONDS_DEFAULT: u64 = 1800;

/// Maximum deadline of a delegation, in seconds: a day.
const DEADLINE_SECONDS_MAX: u64 = 86_400;

/// Priority of delegations, the same as the default of deferred calls: the oldest is made first.
const PRIORITY: i64 = 50;

/// The body of `POST /workspaces/{id}/delegate`.
#[derive(Deserialize, ToSchema)]
pub(super) struct DelegateRequest {
    #[schema(value_type = WorkspaceId)]
    target_id: String,
    /// At most 256 KiB, not blank, without NUL characters.
    #[schema(min_length = 1)]
    task: String,
    /// At most 256 bytes.
    #[schema(
        min_length = 1,
        max_length = 256,
        pattern = r"^[^\x00-\x1F\x7F-\x9F]*$"
    )]
    idempotency_key: Option<String>,
    #[schema(minimum = 1, maximum = 86400, default = 1800)]
    deadline_seconds: Option<u64>,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
struct Metadata {
    /// The run that it serves.
    #[schema(pattern = "^[!-~]{1,128}$")]
    run_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct DelegateResponse {
    delegation_id: String,
    #[schema(pattern = "^(delegated|pending|dispatched|completed|failed|expired)$")]
    status: &'static str,
    #[schema(value_type = WorkspaceId)]
    target_id: String,
    /// It was delegated before, under the same key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = String, pattern = "^true$", required = false)]
    idempotent_hit: bool,
}

/// `POST /workspaces/{id}/delegate`, by the workspace itself.
pub(super) async fn create_delegation(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    client: Option<Extension<ClientAddr>>,
    headers: HeaderMap,
    Json(mut new): Json<DelegateRequest>,
) -> Result<Response, Rejection> {
    if caller.principal().workspace() != Some(&id) {
        return Err(not_permitted(
            "a workspace delegates itself: this needs its own token",
        ));
    }
    let target = WorkspaceId::parse(&new.target_id)?;
    if new.idempotency_key.is_none() {
        // The same field as on other routes. A value that is not text is invalid.
        let field = headers.get("idempotency-key");
        let key = field.map(|field| field.to_str().unwrap_or_default());
        new.idempotency_key = key.map(str::to_owned);
    }
    caller.set_target(&target);
    let hops = count_hops(&headers, gateway.config().forward.max_hops)?;
    let client = client.map(|Extension(ClientAddr(client))| client);
    check_request(&id, &target, &new)?;
    let seconds = new.deadline_seconds.unwrap_or(DEADLINE_SECONDS_DEFAULT);
    let permit = gateway.hierarchy.permit(&caller.0, &target).await?;
    let checked = gateway.check_chain(&caller.0, &permit).await;
    checked.at(Stage::Chain)?;
    gateway.stops.check(&permit).at(Stage::Stop)?;
    let run = run_of(&new.metadata, &headers)?;
    let charge = count_call(&gateway, &caller, &permit, run.as_ref()).await?;
    let new = NewJob {
        owner: caller.0.owner(),
        caller: gateway.identity.signed.to_stored(&caller.0, None),
        source: Some(id),
        target,
        content: Content::Task(Task {
            text: new.task,
            hops,
            client,
            run,
        }),
        idempotency_key: new.idempotency_key,
        priority: PRIORITY,
        patience: Duration::from_secs(seconds),
    };
    let accepted = gateway.delivery.jobs.accept(&new).await?;
    if let Some(charge) = charge.filter(|_| !accepted.known) {
        drop(charge.into_sent());
    }
    let (code, status) = if accepted.known {
        (StatusCode::OK, accepted.state.as_str())
    } else {
        (StatusCode::ACCEPTED, "delegated")
    };
    let about = ChangeFacts::for_workspace(&new.target)
        .with_fact("delegation_id", accepted.id.as_str())
        .with_fact("known", accepted.known);
    let delegated = DelegateResponse {
        delegation_id: accepted.id,
        status,
        target_id: new.target.to_string(),
        idempotent_hit: accepted.known,
    };
    Ok((code, Extension(about), Answer(delegated)).into_response())
}

/// Returns the run that a delegation serves.
///
/// # Errors
/// `invalid_params`.
fn run_of(metadata: &Metadata, headers: &HeaderMap) -> Result<Option<TaskRun>, Rejection> {
    if let Some(name) = metadata
        .run_id
        .as_deref()
        .filter(|name| !CallNames::is_run(name))
    {
        let message = format!(
            "`metadata.run_id` is 1 to {RUN_BYTES_MAX} visible ASCII characters, not {} bytes of others",
            name.len()
        );
        return Err(Rejection::new(Reason::InvalidParams, message));
    }
    let fields = headers.get_all("traceparent").iter();
    let trace = context::parse_context(fields.map(http::HeaderValue::as_bytes), []);
    let name = metadata.run_id.clone();
    let name = name.or_else(|| trace.as_ref().map(|trace| trace.trace_id().to_string()));
    Ok(name.map(|name| TaskRun {
        name,
        traceparent: trace.as_ref().map(context::to_traceparent),
    }))
}

/// Counts a delegation for the caps: once, when it is accepted. It counts in the run that it serves.
///
/// # Errors
/// `cap_reached`, `store_unavailable`.
async fn count_call(
    gateway: &Gateway,
    caller: &Caller,
    permit: &Permit,
    run: Option<&TaskRun>,
) -> Result<Option<Box<Charge>>, Rejection> {
    let config = gateway.config.snapshot();
    if !Caps::are_configured(&config) {
        return Ok(None);
    }
    let names = Names {
        run: run.map(|run| run.name.clone()),
        ..Names::default()
    };
    let facts = Facts::for_call(
        &gateway.hierarchy,
        &caller.0,
        permit,
        Method::SendMessage,
        names,
    );
    let charge = gateway.caps.count_call(&config, &facts.await?).await?;
    Ok(Some(Box::new(charge)))
}

fn check_request(
    id: &WorkspaceId,
    target: &WorkspaceId,
    new: &DelegateRequest,
) -> Result<(), Rejection> {
    let wrong = |message| Err(Rejection::new(Reason::InvalidParams, message));
    if target == id {
        return wrong("self-delegation not permitted: `target_id` is the delegating workspace");
    }
    if new.task.trim().is_empty() || new.task.len() > TASK_BYTES_MAX || new.task.contains('\0') {
        return wrong("`task` is text of 1 byte to 256 KiB, without NUL characters");
    }
    let is_key =
        |key: &str| (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.chars().any(char::is_control);
    if !new.idempotency_key.as_deref().is_none_or(is_key) {
        return wrong(
            "`idempotency_key`, or the field Idempotency-Key, is text of 1 to 256 bytes, without control characters",
        );
    }
    let seconds = new.deadline_seconds.unwrap_or(DEADLINE_SECONDS_DEFAULT);
    if !(1..=DEADLINE_SECONDS_MAX).contains(&seconds) {
        return wrong("`deadline_seconds` is a whole number from 1 to 86400");
    }
    Ok(())
}

/// `GET /workspaces/{id}/delegations`.
pub(super) async fn list_delegations(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
) -> Result<Response, Rejection> {
    caller.require_own(&id)?;
    let life = gateway.identity.find_incarnation(&id).await?;
    let jobs = &gateway.delivery.jobs;
    let found = jobs.list_delegations(&life, &page.after, page.limit);
    let (found, more) = found.await?;
    let next = Page::cursor_after(found.last().map(|job| &*job.id), more);
    let shown = found
        .iter()
        .map(|job| DelegationResponse::from_job(job, &caller.0));
    let shown: Vec<DelegationResponse<'_>> = shown.collect();
    let look = ChangeFacts::for_content_read(&caller.0, Some(&id)).map(Extension);
    Ok((look, page.to_response(&shown, next)).into_response())
}

/// `GET /workspaces/{id}/delegations/{delegation_id}`.
pub(super) async fn read_delegation(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    PathDelegationId(delegation): PathDelegationId,
    caller: Caller,
) -> Result<Response, Rejection> {
    caller.require_own(&id)?;
    let found = gateway.delivery.jobs.find(&delegation).await?;
    let owner = gateway.identity.find_incarnation(&id).await?.to_string();
    // For whichever root.
    let is_own = |of: &str| {
        of.strip_prefix(&owner)
            .is_some_and(|root| root.is_empty() || root.starts_with(" for "))
    };
    let own = |job: &Job| job.kind == Kind::Delegation && is_own(&job.owner);
    let job = found.filter(own).ok_or_else(|| {
        Rejection::new(
            Reason::NotFound,
            "the workspace has no such delegation, or it ended longer ago than delegation.retention",
        )
    })?;
    let look = ChangeFacts::for_content_read(&caller.0, Some(&id)).map(Extension);
    Ok((look, Answer(DelegationResponse::from_job(&job, &caller.0))).into_response())
}

/// The view of a delegation for its own workspace, and for operators.
#[derive(Serialize, ToSchema)]
#[schema(as = Delegation)]
pub(super) struct DelegationResponse<'a> {
    #[serde(flatten)]
    shown: DelegationView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task: Option<&'a str>,
    #[schema(minimum = 0)]
    attempts: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
    deadline: Timestamp,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    withheld: Option<WithheldContent>,
}

impl<'a> DelegationResponse<'a> {
    fn from_job(job: &'a Job, reader: &Proof) -> Self {
        let withheld = reader.sees_no_content().then_some(WITHHELD_CONTENT);
        let task = match &job.content {
            Content::Task(task) if withheld.is_none() => Some(task.text.as_str()),
            _ => None,
        };
        Self {
            shown: DelegationView::new(job, withheld.is_none()),
            task,
            withheld,
            attempts: job.attempts,
            created_at: job.created_at,
            updated_at: job.updated_at,
            deadline: job.deadline,
        }
    }
}
