//! The inbox of a workspace (`docs/reference/http-api.md`, "Inboxes"): read, wait, acknowledge; and notices to its
//! user.

mod feed;
mod query;
mod readable;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json as Answer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use utoipa::ToSchema;

use self::query::Query;
use super::body::Json;
use super::dry_run::status_json;
use super::extract::{Caller, PathId, not_permitted};
use super::page::Page;
use access::identity::Proof;
use assembly::gateway::Gateway;
use audit::change::ChangeFacts;
use kernel::ids::WorkspaceId;
use kernel::metrics::InboxReader;
use kernel::rejection::{Reason, Rejection};
use mailbox::inbox::{Filter, Notice, Page as EntryPage, Start};

/// Interval of credential checks for waiting readers: a revocation ends their request within 2 s.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Records that the agent of an inbox is alive: it reads, follows, replies or acknowledges. An operator's read is no
/// evidence of it.
pub(super) async fn note_life(gateway: &Gateway, proof: &Proof, id: &WorkspaceId) {
    if proof.principal.workspace() == Some(id) && gateway.delivery.inbox.record_heartbeat(id).await
    {
        // Boxed: rarely taken, and an inline future would enlarge that of every request.
        Box::pin(gateway.directory.heartbeats.record_poll(id)).await;
    }
}

/// `GET /workspaces/{id}/activity`.
pub(super) async fn list_activity(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
    query: Query,
) -> Result<Response, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    read_inbox(gateway, id, caller, page, query).await
}

/// `GET /activity`: the inbox of the workspace that the token proves.
pub(super) async fn list_own(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    page: Page,
    query: Query,
) -> Result<Response, Rejection> {
    let Some(id) = caller.principal().workspace().cloned() else {
        return Err(not_permitted("this needs a workspace's own token"));
    };
    read_inbox(gateway, id, caller, page, query).await
}

async fn read_inbox(
    gateway: Arc<Gateway>,
    id: WorkspaceId,
    caller: Caller,
    page: Page,
    query: Query,
) -> Result<Response, Rejection> {
    let before = page.number_cursor()?;
    note_life(&gateway, &caller.0, &id).await;
    if query.streams {
        let look = ChangeFacts::for_content_read(&caller.0, Some(&id)).map(Extension);
        let opened = feed::open_feed(gateway, id, caller, query).await?;
        return Ok((look, opened).into_response());
    }
    let inbox = &gateway.delivery.inbox;
    let start = match (&query.since_id, before) {
        (Some(_), Some(_)) => {
            let message = "`since_id` and `cursor` are two places to go on from: send one";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        (Some(since), None) => Start::After(inbox.find_position(&id, since).await?),
        (None, Some(seq)) => Start::Before(seq),
        (None, None) => Start::Newest,
    };
    let look = ChangeFacts::for_content_read(&caller.0, Some(&id)).map(Extension);
    let wanted = (query.filter, start, page.limit);
    let (mut found, _) = readable::load_page(&gateway, (&caller.0, &id), wanted).await?;
    if found.items.is_empty() && !query.wait.is_zero() {
        let waiting = WaitQuery {
            id,
            filter: query.filter,
            start,
            limit: page.limit,
        };
        found = wait_for_entries(&gateway, &caller, &waiting, query.wait).await?;
    }
    let last = found.items.last().filter(|_| found.more);
    let next = last.map(|last| match start {
        Start::After(_) => ("since_id", last.id.clone()),
        Start::Newest | Start::Before(_) => ("cursor", Page::encode_number(last.seq)),
    });
    Ok((look, page.to_linked_response(&found.items, next)).into_response())
}

/// The query of a waiting reader.
struct WaitQuery {
    id: WorkspaceId,
    filter: Filter,
    start: Start,
    limit: u32,
}

/// Reads again whenever there may be new entries, until there are some, the time is over or the gateway shuts down.
async fn wait_for_entries(
    gateway: &Gateway,
    caller: &Caller,
    query: &WaitQuery,
    span: Duration,
) -> Result<EntryPage, Rejection> {
    let until = Instant::now() + span;
    let inbox = &gateway.delivery.inbox;
    let mut reader = inbox.open_reader(&query.id, &caller.0, InboxReader::Wait)?;
    let mut check = Instant::now() + CHECK_EVERY;
    loop {
        let wanted = (query.filter, query.start, query.limit);
        let (found, held) = readable::load_page(gateway, (&caller.0, &query.id), wanted).await?;
        if !found.items.is_empty() || until <= Instant::now() || gateway.is_draining() {
            return Ok(found);
        }
        loop {
            tokio::select! {
                biased;
                () = gateway.drain.wait_for_leave() => break,
                () = sleep_until(until) => break,
                () = sleep_until(check) => {
                    if !gateway.identity.is_still_valid(&caller.0).await {
                        return Err(feed::credential_gone());
                    }
                    note_life(gateway, &caller.0, &query.id).await;
                    check = Instant::now() + CHECK_EVERY;
                    // The release of a stop is no entry.
                    if held {
                        break;
                    }
                }
                () = reader.watch.changed() => break,
            }
        }
    }
}

/// The body of `POST /workspaces/{id}/activity/ack`.
#[derive(Deserialize, ToSchema)]
pub(super) struct AcknowledgeRequest {
    /// The id of the entry.
    up_to: String,
}

#[derive(Serialize, ToSchema)]
pub(super) struct AcknowledgeResponse {
    #[schema(pattern = "^ok$")]
    status: &'static str,
    /// Entries that were not before.
    #[schema(minimum = 0)]
    acknowledged: i64,
}

/// `POST /workspaces/{id}/activity/ack`.
pub(super) async fn acknowledge_entries(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    Json(AcknowledgeRequest { up_to }): Json<AcknowledgeRequest>,
) -> Result<Answer<AcknowledgeResponse>, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    note_life(&gateway, &caller.0, &id).await;
    let acknowledged = gateway.delivery.inbox.acknowledge(&id, &up_to).await?;
    Ok(Answer(AcknowledgeResponse {
        status: "ok",
        acknowledged,
    }))
}

/// `POST /workspaces/{id}/notify`.
pub(super) async fn notify_user(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    Json(notice): Json<Notice>,
) -> Result<Answer<Value>, Rejection> {
    caller.require_itself(&id)?;
    let owner = caller.0.owner();
    let inbox = &gateway.delivery.inbox;
    inbox.put_notice(&id, owner, &notice).await?;
    Ok(Answer(status_json("sent")))
}
