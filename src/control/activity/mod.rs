//! The inbox of a workspace (`docs/reference/http-api.md`, "Inboxes"): read, wait, acknowledge; and notices to its user.

mod feed;
mod held;
mod query;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json as Answer};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use self::query::Query;
use super::body::Json;
use super::extract::{Caller, PathId, not_permitted};
use super::page::Page;
use crate::audit::change::About;
use crate::delivery::inbox::{Filter, Notice, Page as Found, Start};
use crate::gateway::Gateway;
use crate::identity::Proof;
use crate::ids::WorkspaceId;
use crate::metrics::InboxReader;
use crate::rejection::{Reason, Rejection};

/// Interval of credential checks for waiting readers: a revocation ends their request within 2 s.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Records that the agent of an inbox is alive: it reads, follows, replies or acknowledges. An operator's read is no
/// evidence of it.
pub(super) async fn note_life(gateway: &Gateway, proof: &Proof, id: &WorkspaceId) {
    if proof.principal.workspace() == Some(id) && gateway.delivery.inbox.note_life(id).await {
        // Boxed: rarely taken, and an inline future would enlarge that of every request.
        Box::pin(gateway.directory.heartbeats.record_poll(id)).await;
    }
}

/// `GET /workspaces/{id}/activity`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    page: Page,
    query: Query,
) -> Result<Response, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    read(gateway, id, caller, page, query).await
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
    read(gateway, id, caller, page, query).await
}

async fn read(
    gateway: Arc<Gateway>,
    id: WorkspaceId,
    caller: Caller,
    page: Page,
    query: Query,
) -> Result<Response, Rejection> {
    let before = page.number()?;
    note_life(&gateway, &caller.0, &id).await;
    if query.streams {
        let look = About::look(&caller.0, Some(&id)).map(Extension);
        let opened = feed::open(gateway, id, caller, query).await?;
        return Ok((look, opened).into_response());
    }
    let inbox = &gateway.delivery.inbox;
    let start = match (&query.since_id, before) {
        (Some(_), Some(_)) => {
            let message = "`since_id` and `cursor` are two places to go on from: send one";
            return Err(Rejection::new(Reason::InvalidParams, message));
        }
        (Some(since), None) => Start::After(inbox.position(&id, since).await?),
        (None, Some(seq)) => Start::Before(seq),
        (None, None) => Start::Newest,
    };
    let look = About::look(&caller.0, Some(&id)).map(Extension);
    let wanted = (query.filter, start, page.limit);
    let (mut found, _) = held::page(&gateway, (&caller.0, &id), wanted).await?;
    if found.items.is_empty() && !query.wait.is_zero() {
        let asked = Asked {
            id,
            filter: query.filter,
            start,
            limit: page.limit,
        };
        found = wait(&gateway, &caller, &asked, query.wait).await?;
    }
    let last = found.items.last().filter(|_| found.more);
    let next = last.map(|last| match start {
        Start::After(_) => ("since_id", last.id.clone()),
        Start::Newest | Start::Before(_) => ("cursor", Page::cursor(last.seq)),
    });
    Ok((look, page.linked(&found.items, next)).into_response())
}

/// The query of a waiting reader.
struct Asked {
    id: WorkspaceId,
    filter: Filter,
    start: Start,
    limit: u32,
}

/// Reads again whenever there may be new entries, until there are some, the time is over or the gateway shuts down.
async fn wait(
    gateway: &Gateway,
    caller: &Caller,
    asked: &Asked,
    span: Duration,
) -> Result<Found, Rejection> {
    let until = Instant::now() + span;
    let inbox = &gateway.delivery.inbox;
    let mut reader = inbox.stay(&asked.id, &caller.0, InboxReader::Wait)?;
    let mut check = Instant::now() + CHECK_EVERY;
    loop {
        let wanted = (asked.filter, asked.start, asked.limit);
        let (found, held) = held::page(gateway, (&caller.0, &asked.id), wanted).await?;
        if !found.items.is_empty() || until <= Instant::now() || gateway.draining() {
            return Ok(found);
        }
        loop {
            tokio::select! {
                biased;
                () = gateway.drain.leaves() => break,
                () = sleep_until(until) => break,
                () = sleep_until(check) => {
                    if !gateway.identity.still_good(&caller.0).await {
                        return Err(feed::credential_gone());
                    }
                    note_life(gateway, &caller.0, &asked.id).await;
                    check = Instant::now() + CHECK_EVERY;
                    // The release of a stop is no entry.
                    if held {
                        break;
                    }
                }
                () = reader.changed() => break,
            }
        }
    }
}

/// The body of `POST /workspaces/{id}/activity/ack`.
#[derive(Deserialize)]
pub(super) struct UpTo {
    up_to: String,
}

#[derive(Serialize)]
pub(super) struct Acknowledged {
    status: &'static str,
    /// The number of newly acknowledged entries.
    acknowledged: i64,
}

/// `POST /workspaces/{id}/activity/ack`.
pub(super) async fn acknowledge(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    Json(UpTo { up_to }): Json<UpTo>,
) -> Result<Answer<Acknowledged>, Rejection> {
    caller.require_own_existing(&gateway, &id).await?;
    note_life(&gateway, &caller.0, &id).await;
    let acknowledged = gateway.delivery.inbox.acknowledge(&id, &up_to).await?;
    Ok(Answer(Acknowledged {
        status: "ok",
        acknowledged,
    }))
}

#[derive(Serialize)]
pub(super) struct Sent {
    status: &'static str,
}

/// `POST /workspaces/{id}/notify`.
pub(super) async fn notify(
    State(gateway): State<Arc<Gateway>>,
    PathId(id): PathId,
    caller: Caller,
    Json(notice): Json<Notice>,
) -> Result<Answer<Sent>, Rejection> {
    caller.require_itself(&id)?;
    let owner = caller.0.owner();
    let inbox = &gateway.delivery.inbox;
    inbox.notify(&id, owner, &notice).await?;
    Ok(Answer(Sent { status: "sent" }))
}
