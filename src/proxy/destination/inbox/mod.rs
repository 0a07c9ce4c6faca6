//! Polling targets: a message is put into the target's inbox, and the gateway answers in place of the agent
//! (`docs/reference/http-api.md`, "Inboxes"). To its callers the target is an agent like any other, but slower.

mod call;
mod send;
mod stream;
mod words;

use std::sync::Arc;

use bytes::Bytes;
use http::header;
use pingora::http::ResponseHeader;
use serde_json::{Value, json};

use self::call::Call;
use self::send::{Message, Wait};
use self::stream::follow;
use self::words::{Shown, Words, cut};
use super::idempotency::mark;
use crate::a2a::Generation;
use crate::a2a::bridge::task_in;
use crate::a2a::done::Done;
use crate::a2a::method::Method;
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{Inbox, InboxTask, Source, Wanted};
use crate::directory::AgentOptions;
use crate::gateway::Gateway;
use crate::identity::{Principal, Proof};
use crate::ids::WorkspaceId;
use crate::proxy::admit::{Admitted, Allowed};
use crate::proxy::bridge::{inbox_side, meet_inbox};
use crate::proxy::bridged::untranslated;
use crate::proxy::guard::Guarded;
use crate::proxy::guarding::{ask_about_call, set_guards};
use crate::proxy::outcome::Ended;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::request::Request;
use crate::proxy::request::checked::CheckedCall;
use crate::proxy::respond::internal;
use crate::rejection::{Reason, Rejection};

/// Tasks per page of a list: default and maximum (A2A 1.0, 3.1.4).
const PAGE: (u32, u32) = (50, 100);

/// The tasks of one caller in the inbox of its target.
struct CallerInbox<'a> {
    gateway: &'a Gateway,
    proof: Arc<Proof>,
    target: WorkspaceId,
}

/// Properties of a response.
struct Outward {
    words: Words,
    done: Done,
    rewrite: Option<Rewrite>,
    /// The guards that are asked about what the agent says.
    guarded: Option<Arc<Guarded>>,
    /// True for a replay.
    replay: bool,
    /// True if the response is kept for replay.
    kept: bool,
    /// Wait for the end of the agent's turn.
    wait: Option<Wait>,
}

/// Answers a call in place of a polling agent.
pub(super) async fn answer_call(
    request: &mut Request<'_>,
    admitted: Admitted,
    mut checked: CheckedCall,
) -> Result<Ended, Ended> {
    let headers = &request.session.req_header().headers;
    let (context, exchange) = (request.context, &mut *request.exchange);
    set_guards(context, exchange, &admitted, &mut checked, headers);
    let options = admitted.destination.options();
    let Allowed { proof, permit } = &admitted.allowed;
    let inbox = CallerInbox {
        gateway: &request.context.gateway,
        target: permit.target().clone(),
        proof: Arc::clone(proof),
    };
    let method = request.exchange.method;
    let known = method.sends() || method.is_of_a_task() || method == Method::ListTasks;
    let body = checked.body.clone();
    let call = Call::read(&body, known)?;
    let wait = Wait::asked(request, &call, checked.done, admitted.timeout);
    let outward = Outward {
        words: Words {
            id: call.id.to_owned(),
            generation: call.generation(),
        },
        done: checked.done,
        rewrite: checked.rewrite.take(),
        guarded: checked.guarded.clone(),
        replay: false,
        kept: true,
        wait,
    };
    let words = &outward.words;
    let body = match method {
        Method::GetTask => {
            let task = inbox.task(call.params.task()?).await?;
            words.task(inbox.document(&task).await?, &shown(&call, true))
        }
        Method::CancelTask => inbox.cancel(&call, words, options).await?,
        Method::ListTasks => inbox.list(&call, words).await?,
        Method::SubscribeToTask => {
            let task = inbox.task(call.params.task()?).await?;
            let first = inbox.store().document(&task).await?;
            return follow(request, outward, task, first).await;
        }
        Method::GetExtendedCard => words.error(&json!({"code": -32007,
            "message": "an agent that polls has no extended card; its card is at the same address, by GET"})),
        _ => {
            meet_inbox(request.context, options, request.exchange, &mut checked).await?;
            if checked.guarded.is_some() {
                let (caller, exchange) = (Some(&mut *request.session), &*request.exchange);
                let about = (request.context, &admitted);
                ask_about_call(about, caller, exchange, &mut checked).await?;
            }
            let message = Message {
                inbox: &inbox,
                allowed: &admitted.allowed,
                call: &call,
                method: checked.method_name.as_deref().unwrap_or(&call.name),
                body: &checked.body,
                key: checked.key.as_ref(),
                hops: admitted.hops,
            };
            return message.send(request, outward).await;
        }
    };
    answer(request, outward, body, None).await
}

/// Returns the workspace with an inbox that has the caller's task.
///
/// # Errors
/// `store_unavailable`.
pub(in crate::proxy) async fn target_of(
    gateway: &Gateway,
    proof: &Arc<Proof>,
    task: &str,
) -> Result<Option<WorkspaceId>, Rejection> {
    let Some(target) = gateway.delivery.inbox.target_of(task).await? else {
        return Ok(None);
    };
    let inbox = CallerInbox {
        gateway,
        proof: Arc::clone(proof),
        target,
    };
    match inbox.task(task).await {
        Ok(_) => Ok(Some(inbox.target)),
        Err(refusal) if refusal.reason == Reason::TaskNotFound => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

impl CallerInbox<'_> {
    fn store(&self) -> &Arc<Inbox> {
        &self.gateway.delivery.inbox
    }

    /// Returns the present document of a task.
    async fn document(&self, task: &InboxTask) -> Result<Value, Rejection> {
        Ok(self.store().document(task).await?.0)
    }

    /// Returns the task if it belongs to the caller.
    ///
    /// # Errors
    /// `task_not_found`, also for the task of another caller; `store_unavailable`.
    async fn task(&self, id: &str) -> Result<InboxTask, Rejection> {
        let task = self.store().task(&self.target, id).await?;
        let task = task.ok_or_else(no_task)?;
        let (tasks, hierarchy) = (&self.gateway.tasks, &self.gateway.hierarchy);
        if !tasks.may_ask(hierarchy, &self.proof, &task.owner).await? {
            return Err(no_task());
        }
        Ok(task)
    }

    async fn cancel(
        &self,
        call: &Call<'_>,
        words: &Words,
        options: &AgentOptions,
    ) -> Result<String, Rejection> {
        let task = self.task(call.params.task()?).await?;
        if task.state.is_terminal() {
            return Ok(words.over(task.state));
        }
        let (source, owner) = (source(&self.proof), self.proof.owner());
        let spoke = inbox_side(Generation::V0, options);
        let generation = spoke.map_or(Generation::V0, |spoke| spoke.side.generation);
        let by = (source, owner);
        let canceled = self.store().cancel(&self.target, &task.id, by, generation);
        let task = match canceled.await {
            Ok(task) => task,
            // Its agent ended it, or a concurrent request canceled it.
            Err(refusal) => match self.task(&task.id).await {
                Ok(task) if task.state.is_terminal() => return Ok(words.over(task.state)),
                _ => return Err(refusal),
            },
        };
        Ok(words.task(self.document(&task).await?, &shown(call, true)))
    }

    /// Lists the caller's own tasks at the target; for an operator, all tasks.
    async fn list(&self, call: &Call<'_>, words: &Words) -> Result<String, Rejection> {
        let wrong = |message| Rejection::new(Reason::InvalidParams, message);
        let params = &call.params;
        let state = params.status.as_deref().map(|word| {
            TaskState::parse(word).ok_or_else(|| wrong("`status` is the state of a task"))
        });
        let token = params
            .page_token
            .as_deref()
            .filter(|token| !token.is_empty());
        let before = token.map(|token| {
            let before = token.parse().ok().filter(|before| *before > 0);
            before.ok_or_else(|| wrong("`pageToken` is the `nextPageToken` of the page before"))
        });
        let limit = params.page_size.unwrap_or(PAGE.0);
        if !(1..=PAGE.1).contains(&limit) {
            return Err(wrong("`pageSize` is a whole number from 1 to 100"));
        }
        let owner = self.proof.owner();
        let wanted = Wanted {
            owner: (self.proof.principal != Principal::Operator).then_some(&*owner),
            context: params.context_id.as_deref(),
            state: state.transpose()?,
            before: before.transpose()?,
            limit,
        };
        let page = self.store().tasks_of(&self.target, &wanted).await?;
        let what = shown(call, params.include_artifacts == Some(true));
        let mut tasks = Vec::with_capacity(page.tasks.len());
        for task in &page.tasks {
            let document = self.document(task).await?;
            // Serialized at once: a tree takes many times the memory, so there is only one at a time.
            let task = task_in(words.generation, &cut(document, &what));
            tasks.push(task.map_err(untranslated)?);
        }
        let next = page.next.map(|next| next.to_string()).unwrap_or_default();
        let tasks = tasks.join(",");
        let list = format!(r#"{{"tasks":[{tasks}],"pageSize":{limit},"nextPageToken":"{next}"}}"#);
        Ok(words.result(&list))
    }
}

/// Sends the response in the form of an agent's.
async fn answer(
    request: &mut Request<'_>,
    outward: Outward,
    body: String,
    applied: Option<String>,
) -> Result<Ended, Ended> {
    let mut own = ResponseHeader::build(200, Some(2)).map_err(internal)?;
    own.append_header(header::CONTENT_TYPE, "application/json")
        .map_err(internal)?;
    if let Some(applied) = applied {
        own.append_header("preference-applied", applied)
            .map_err(internal)?;
    }
    let mut head = own_head(request, own, &outward)?;
    let mut body = Bytes::from(body);
    if let Some(rewrite) = outward.rewrite {
        body = rewrite.answer(&mut head, body).await?;
    }
    if let Some(guarded) = outward.guarded
        && let Some(changed) = guarded.response(&body).await?
    {
        body = changed;
    }
    head.insert_header(header::CONTENT_LENGTH, body.len())
        .map_err(internal)?;
    request.respond(head, body).await
}

/// Returns the head of a response of the gateway, with the common fields.
fn own_head(
    request: &Request<'_>,
    own: ResponseHeader,
    outward: &Outward,
) -> Result<ResponseHeader, Rejection> {
    let mut head = request.response_head(own, outward.done)?;
    mark(&mut head, outward.replay, outward.kept)?;
    Ok(head)
}

/// Returns the parts of a task to include.
fn shown(call: &Call<'_>, artifacts: bool) -> Shown {
    Shown {
        history: call.params.history(),
        artifacts,
    }
}

/// Returns the sender, as the agent may see it.
fn source(proof: &Proof) -> Source {
    match proof.principal.workspace() {
        Some(id) => Source::Agent(id.clone()),
        None => Source::Canvas,
    }
}

fn no_task() -> Rejection {
    Rejection::new(
        Reason::TaskNotFound,
        "there is no such task for this caller: a task belongs to the caller that started it",
    )
}
