//! `/registry`: registration, heartbeats, card updates and deregistration (`docs/reference/http-api.md`, "Registry").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json as Answer};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::Json;
use super::change_facts::about_workspace;
use super::dry_run::status_json;
use super::extract::{Caller, Registrant, is_root_of, not_permitted};
use super::workspaces::{parse_optional, require_same_org};
use access::identity::{CredentialKind, IssuedToken, Principal, TokenTerms};
use access::workspace::{CallerProof, DeliveryMode, Liveness, Status};
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use directory::{self, AGENT_CARD_BYTES_MAX, Heartbeat, Recheck, Registrar, Registration, Terms};
use kernel::ids::{InstanceId, WorkspaceId};
use kernel::rejection::{Reason, Rejection};
use stores::store::Run;

/// The body of `POST /registry/register`.
#[derive(Deserialize, ToSchema)]
#[schema(as = Registration)]
pub(super) struct RegisterRequest {
    #[schema(value_type = WorkspaceId)]
    id: String,
    /// One of several instances of the agent; for delivery_mode push.
    #[schema(value_type = Option<InstanceId>)]
    instance_id: Option<String>,
    /// Needed for push.
    #[schema(format = "uri")]
    url: Option<String>,
    #[schema(format = "uri")]
    internal_url: Option<String>,
    /// At most 256 KiB.
    #[schema(value_type = Object)]
    agent_card: Box<RawValue>,
    delivery_mode: Option<DeliveryMode>,
    /// What the token about the caller proves that the agent gets with each call.
    proof: Option<CallerProof>,
    /// Operators and org tokens only.
    #[schema(pattern = "^#Label$")]
    name: Option<String>,
    /// Operators and org tokens only.
    #[schema(value_type = Option<WorkspaceId>)]
    parent_id: Option<String>,
    /// Operators and org tokens only.
    #[schema(pattern = "^#Label$")]
    org: Option<String>,
    /// Operators and org tokens only.
    liveness: Option<Liveness>,
    /// Operators and org tokens only.
    #[schema(format = "uri")]
    card_url: Option<String>,
}

/// The answer to a registration. It has the token twice, since existing agents read `auth_token`.
#[derive(Serialize, ToSchema)]
#[schema(as = Registered)]
pub(super) struct RegisterResponse {
    #[schema(pattern = "^registered$")]
    status: &'static str,
    #[schema(value_type = WorkspaceId)]
    id: String,
    delivery_mode: DeliveryMode,
    /// Only while it is paused: it stays so until it is resumed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = String, pattern = "^true$", required = false)]
    paused: bool,
    /// Only when the workspace had no live token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<String>,
    /// The same as token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    auth_token: Option<String>,
    /// What does not fit between the url and the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    warning: Option<&'static str>,
}

/// `POST /registry/register`.
pub(super) async fn register_agent(
    State(gateway): State<Arc<Gateway>>,
    Registrant(caller): Registrant,
    Json(body): Json<RegisterRequest>,
) -> Result<(Extension<ChangeFacts>, Answer<RegisterResponse>), Rejection> {
    refuse_large_card(&body.agent_card)?;
    let id = WorkspaceId::parse(&body.id)?;
    caller.set_target(&id);
    let registrar = find_registrar(&gateway, &caller, &id, &body).await?;
    let redeemed = Arc::new(AtomicBool::new(false));
    let registration = Registration {
        recheck: Some(redemption_check(&gateway, &caller, &redeemed)),
        id,
        instance: parse_instance(body.instance_id.as_deref())?,
        url: body.url,
        internal_url: body.internal_url,
        agent_card: body.agent_card,
        delivery_mode: body.delivery_mode,
        proof: body.proof,
    };
    let enrolled = register_and_issue(&gateway, &caller, &registration, &registrar).await;
    if enrolled.is_err() && redeemed.load(Ordering::Relaxed) {
        let restored = gateway.identity.tokens.restore_enrolment(&caller.0).await;
        if let Err(error) = restored {
            tracing::warn!(%error, workspace.id = %registration.id, "registration failed, and its enrolment token could not be restored; the token is valid again in two minutes");
        }
    }
    let (registered, token) = enrolled?;
    let token = token.map(|token| token.token.expose_secret().to_owned());
    let workspace = registered.workspace;
    let about = about_workspace(&workspace).with_fact("token_issued", token.is_some());
    let about = match &registration.instance {
        Some(instance) => about.with_fact("instance_id", instance.as_str()),
        None => about,
    };
    let answer = Answer(RegisterResponse {
        status: "registered",
        id: workspace.id.to_string(),
        delivery_mode: workspace.delivery_mode,
        paused: workspace.status == Status::Paused,
        auth_token: token.clone(),
        token,
        warning: registered.warning,
    });
    Ok((Extension(about), answer))
}

fn refuse_large_card(card: &RawValue) -> Result<(), Rejection> {
    if card.get().len() > AGENT_CARD_BYTES_MAX {
        let message = "`agent_card` has at most 256 KiB";
        return Err(
            Rejection::new(Reason::BodyTooLarge, message).with_fact("limit", AGENT_CARD_BYTES_MAX)
        );
    }
    Ok(())
}

/// Returns the role in which the caller registers `id`.
async fn find_registrar(
    gateway: &Gateway,
    caller: &Caller,
    id: &WorkspaceId,
    body: &RegisterRequest,
) -> Result<Registrar, Rejection> {
    let terms = Terms {
        name: body.name.clone(),
        parent_id: parse_optional(body.parent_id.as_deref())?,
        org: body.org.clone(),
        liveness: body.liveness,
        card_url: body.card_url.clone(),
    };
    match caller.principal() {
        Principal::Operator => Ok(Registrar::Operator(terms)),
        Principal::Org { org, within } => {
            require_same_org(org, body.org.as_deref())?;
            // A caller without access to the parent learns nothing of it.
            if let Some(parent) = &terms.parent_id {
                gateway.hierarchy.permit(&caller.0, parent).await?;
            }
            Ok(Registrar::Org {
                org: org.clone(),
                within: within.clone(),
                terms,
            })
        }
        Principal::Workspace { id: own } if own == id => {
            (terms == Terms::default()).then_some(Registrar::Itself).ok_or_else(|| {
                not_permitted(
                    "`name`, `parent_id`, `org`, `liveness` and `card_url` are for admin and org tokens; leave them out",
                )
            })
        }
        Principal::Workspace { .. } => Err(not_permitted(
            "a workspace registers itself: send the token of the workspace that `id` names",
        )),
        Principal::Canvas { .. } => Err(not_permitted(
            "this needs the workspace's own token, its enrolment token, an org token or an admin token",
        )),
    }
}

/// Returns the check that precedes the registration: the caller stands, and an enrolment token is used up, so that of
/// two concurrent requests with the same token only one registers. `redeemed` is set with that.
fn redemption_check(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    redeemed: &Arc<AtomicBool>,
) -> Recheck {
    let proof = Arc::clone(&caller.0);
    let (gateway, redeemed) = (Arc::clone(gateway), Arc::clone(redeemed));
    Recheck::new(move || {
        let proof = Arc::clone(&proof);
        let (gateway, redeemed) = (Arc::clone(&gateway), Arc::clone(&redeemed));
        async move {
            gateway.identity.recheck(&proof).await?;
            if proof.kind != CredentialKind::Enrolment || redeemed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if !gateway.identity.tokens.redeem_enrolment(&proof).await? {
                return Err(Rejection::new(
                    Reason::Unauthenticated,
                    "the enrolment token was used just now, or has ended with a move; send the workspace token that its \
                     registration answered with, or ask for another enrolment token",
                ));
            }
            redeemed.store(true, Ordering::Relaxed);
            Ok(())
        }
    })
}

/// Registers the agent, and issues the first token, or to an enrolment token one of its own. Only a successful
/// registration consumes an enrolment token.
async fn register_and_issue(
    gateway: &Gateway,
    caller: &Caller,
    registration: &Registration,
    registrar: &Registrar,
) -> Result<(directory::RegistrationResult, Option<IssuedToken>), Rejection> {
    let registered = gateway
        .directory
        .registrations
        .register(registration, registrar)
        .await?;
    let ended = gateway
        .identity
        .tokens
        .end_enrolments(&registration.id, &caller.0);
    ended
        .await
        .map_err(|away| Rejection::from(away).after_commit(false))?;
    if let Registrar::Org { .. } = registrar
        && (is_root_of(caller, &registration.id)
            || gateway.hierarchy.holds_grant(&registration.id).await?)
    {
        // The token would give the org token's holder access that only the workspace has.
        return Ok((registered, None));
    }
    if matches!(
        caller.0.kind,
        CredentialKind::Workload | CredentialKind::Workspace
    ) {
        // It has a credential. The end of that one would count for nothing.
        return Ok((registered, None));
    }
    let (tokens, id) = (&gateway.identity.tokens, &registration.id);
    let issued = match caller.0.kind {
        CredentialKind::Enrolment => {
            let terms = TokenTerms::default();
            let own = tokens.issue_workspace(id, &terms, Run::Real);
            own.await.map(Some)
        }
        _ => tokens.issue_first(id).await,
    };
    // A token whose creation is uncertain is revoked when the uncertainty ends. Then another one can be issued.
    let again = gateway.coherence.write_uncertainty() + Duration::from_secs(1);
    let issued = issued.map_err(|why| why.after_commit(false).with_retry_after(again));
    Ok((registered, issued?))
}

/// The body of `POST /registry/heartbeat`. Other members are ignored for now.
#[derive(Deserialize, ToSchema)]
pub(super) struct HeartbeatRequest {
    #[schema(value_type = WorkspaceId)]
    workspace_id: String,
    #[schema(value_type = Option<InstanceId>)]
    instance_id: Option<String>,
    #[schema(minimum = 0, maximum = 1)]
    error_rate: Option<f64>,
    #[schema(minimum = 0, maximum = 4294967295_u32)]
    active_tasks: Option<u32>,
    current_task: Option<String>,
    /// One of its errors; told to those who watch when it becomes degraded.
    sample_error: Option<String>,
    #[schema(value_type = Option<f64>)]
    uptime_seconds: Option<serde_json::Number>,
    /// `wedged` makes the workspace degraded.
    runtime_state: Option<String>,
    runtime_metadata: Option<RuntimeMetadata>,
}

#[derive(Deserialize, ToSchema)]
struct RuntimeMetadata {
    /// Replaces timeouts.idle for this workspace; 0 takes it back.
    #[schema(minimum = 0, maximum = 4294967295_u32)]
    idle_timeout_seconds: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct HeartbeatResponse {
    #[schema(pattern = "^ok$")]
    status: &'static str,
    /// Seconds until the next one is due, at the latest.
    expires_in: u64,
}

/// `POST /registry/heartbeat`.
pub(super) async fn record_heartbeat(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(body): Json<HeartbeatRequest>,
) -> Result<Answer<HeartbeatResponse>, Rejection> {
    let id = WorkspaceId::parse(&body.workspace_id)?;
    caller.require_own(&id)?;
    let beat = Heartbeat {
        instance: parse_instance(body.instance_id.as_deref())?,
        error_rate: body.error_rate,
        wedged: body.runtime_state.as_deref() == Some("wedged"),
        active_tasks: body.active_tasks.unwrap_or(0),
        current_task: body.current_task,
        sample_error: body.sample_error,
        uptime_seconds: body.uptime_seconds,
        idle_timeout_seconds: body.runtime_metadata.and_then(|m| m.idle_timeout_seconds),
    };
    let beaten = gateway.directory.heartbeats.record(&id, &beat).await;
    let beaten = beaten.map_err(|refusal| match refusal.reason {
        Reason::WorkspaceNotFound => refusal.with_fact("reregister", true),
        _ => refusal,
    })?;
    Ok(Answer(HeartbeatResponse {
        status: "ok",
        expires_in: beaten.expires_in.as_secs(),
    }))
}

fn parse_instance(text: Option<&str>) -> Result<Option<InstanceId>, Rejection> {
    Ok(text.map(InstanceId::parse).transpose()?)
}

/// The body of `POST /registry/update-card`.
#[derive(Deserialize, ToSchema)]
pub(super) struct UpdateCardRequest {
    #[schema(value_type = WorkspaceId)]
    workspace_id: String,
    /// At most 256 KiB.
    #[schema(value_type = Object)]
    agent_card: Box<RawValue>,
}

/// `POST /registry/update-card`.
pub(super) async fn update_card(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(body): Json<UpdateCardRequest>,
) -> Result<(Extension<ChangeFacts>, Answer<Value>), Rejection> {
    let id = WorkspaceId::parse(&body.workspace_id)?;
    caller.require_own(&id)?;
    refuse_large_card(&body.agent_card)?;
    gateway
        .directory
        .registrations
        .update_card(&id, &body.agent_card)
        .await?;
    let about = Extension(ChangeFacts::for_workspace(&id));
    Ok((about, Answer(status_json("updated"))))
}

/// The body of `POST /registry/deregister`.
#[derive(Deserialize, ToSchema)]
pub(super) struct DeregisterRequest {
    #[schema(value_type = WorkspaceId)]
    workspace_id: String,
    /// Only this instance leaves, and the workspace with its last one.
    #[schema(value_type = Option<InstanceId>)]
    instance_id: Option<String>,
}

/// `POST /registry/deregister`.
pub(super) async fn deregister_agent(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(body): Json<DeregisterRequest>,
) -> Result<(Extension<ChangeFacts>, Answer<Value>), Rejection> {
    let id = WorkspaceId::parse(&body.workspace_id)?;
    caller.require_own(&id)?;
    let registrations = &gateway.directory.registrations;
    let mut about = ChangeFacts::for_workspace(&id);
    match parse_instance(body.instance_id.as_deref())? {
        None => registrations.deregister(&id).await?,
        Some(instance) => {
            registrations.deregister_instance(&id, &instance).await?;
            about = about.with_fact("instance_id", instance.as_str());
        }
    }
    Ok((Extension(about), Answer(status_json("deregistered"))))
}

/// The body of `POST /registry/drain`.
#[derive(Deserialize, ToSchema)]
pub(super) struct DrainRequest {
    #[schema(value_type = WorkspaceId)]
    workspace_id: String,
    #[schema(value_type = InstanceId)]
    instance_id: String,
}

/// `POST /registry/drain`.
pub(super) async fn drain_instance(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Json(body): Json<DrainRequest>,
) -> Result<(Extension<ChangeFacts>, Answer<Value>), Rejection> {
    let id = WorkspaceId::parse(&body.workspace_id)?;
    caller.require_own(&id)?;
    let instance = InstanceId::parse(&body.instance_id)?;
    let registrations = &gateway.directory.registrations;
    registrations.drain(&id, &instance).await?;
    let about = ChangeFacts::for_workspace(&id).with_fact("instance_id", instance.as_str());
    Ok((Extension(about), Answer(status_json("draining"))))
}
