//! Polling targets: a message is put into the target's inbox, and the gateway answers in place of the agent
//! (`docs/reference/http-api.md`, "Inboxes"). To its callers the target is an agent like any other, but slower.

mod call;
mod responses;
mod send;
mod stream;

use crate::admission::{AdmittedCall, AllowedCaller};
use crate::complete::CheckedCall;
use crate::filters::{Rewrite, untranslatable_reply};
use crate::guard::CallGuards;
use crate::idempotency::mark_replay;
use crate::inbox::call::InboxCall;
use crate::inbox::responses::{ResponseForm, TaskParts, trim_task};
use crate::inbox::send::{OutgoingMessage, ReplyWait};
use crate::inbox::stream::stream_task;
use crate::listener::{PREFERENCE_APPLIED, internal_error};
use crate::policy::{ContentCall, check_content, set_guards};
use crate::record::{Answered, ExchangeError};
use crate::services::Request;
use crate::upstream_request::{inbox_side, translate_for_inbox};
use a2a::Generation;
use a2a::bridge::write_task;
use a2a::completion_steps::CompletionSteps;
use a2a::method::Method;
use a2a::state::TaskState;
use access::identity::{Principal, Proof};
use assembly::gateway::Gateway;
use bytes::Bytes;
use directory::AgentOptions;
use directory::tasks::may_see;
use http::header;
use kernel::ids::WorkspaceId;
use kernel::rejection::{AtStage as _, Reason, Rejection};
use kernel::stage::Stage;
use mailbox::inbox::{Inbox, InboxTask, Source, TaskQuery, no_task};
use pingora::http::ResponseHeader;
use serde_json::{Value, json};
use std::sync::Arc;

/// Tasks per page of a list: default and maximum (A2A 1.0, 3.1.4).
const PAGE: (u32, u32) = (50, 100);

/// The tasks of one caller in the inbox of its target.
struct CallerInbox<'a> {
    gateway: &'a Gateway,
    proof: Arc<Proof>,
    target: WorkspaceId,
}

/// The circumstances of a response, apart from its body.
struct ResponseContext {
    form: ResponseForm,
    done: CompletionSteps,
    rewrite: Option<Rewrite>,
    /// The guards that are asked about what the agent says.
    guarded: Option<Arc<CallGuards>>,
    /// True for a replay.
    replay: bool,
    /// True if the response is kept for replay.
    kept: bool,
    /// Wait for the end of the agent's turn.
    wait: Option<ReplyWait>,
}

/// Answers a call in place of a polling agent.
pub(super) async fn answer_call(
    request: &mut Request<'_>,
    admitted: AdmittedCall,
    mut checked: CheckedCall,
) -> Result<Answered, ExchangeError> {
    let headers = &request.session.req_header().headers;
    let (context, exchange) = (request.context, &mut *request.exchange);
    set_guards(context, exchange, &admitted, &mut checked, headers);
    let options = admitted.destination.options();
    let AllowedCaller { proof, permit } = &admitted.allowed;
    let inbox = CallerInbox {
        gateway: &request.context.gateway,
        target: permit.target().clone(),
        proof: Arc::clone(proof),
    };
    let method = request.exchange.call.method;
    let known = method.sends() || method.is_of_a_task() || method == Method::ListTasks;
    let body = checked.body.clone();
    let call = InboxCall::parse(&body, known).at(Stage::Envelope)?;
    let wait = ReplyWait::from_request(request, &call, checked.done, admitted.timeout);
    let response = ResponseContext {
        form: ResponseForm {
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
    let form = &response.form;
    let body = match method {
        Method::GetTask => {
            let task = inbox.load_task(call.params.task_id()?).await?;
            form.task_response(inbox.load_document(&task).await?, &requested_parts(&call, true))
        }
        Method::CancelTask => inbox.cancel_task(&call, form, options).await?,
        Method::ListTasks => inbox.list_tasks(&call, form).await?,
        Method::SubscribeToTask => {
            let task = inbox.load_task(call.params.task_id()?).await?;
            let first = inbox.store().read_document(&task).await?;
            return stream_task(request, response, task, first).await;
        }
        Method::GetExtendedCard => form.error_response(&json!({"code": -32007,
            "message": "an agent that polls has no extended card; its card is at the same address, by GET"})),
        _ => {
            translate_for_inbox(request.context, options, request.exchange, &mut checked).await?;
            let content = ContentCall {
                context: request.context,
                admitted: &admitted,
                caller: Some(&mut *request.session),
                exchange: request.exchange,
                call: &mut checked,
            };
            check_content(content).await?;
            let message = OutgoingMessage {
                inbox: &inbox,
                admitted: &admitted,
                call: &call,
                checked: &checked,
            };
            return message.send(request, response).await;
        }
    };
    send_answer(request, response, body, None).await
}

/// Returns the workspace with an inbox that has the caller's task.
///
/// # Errors
/// `store_unavailable`.
pub(crate) async fn find_target(
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
    match inbox.load_task(task).await {
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
    async fn load_document(&self, task: &InboxTask) -> Result<Value, Rejection> {
        Ok(self.store().read_document(task).await?.0)
    }

    /// Returns the task if it belongs to the caller.
    ///
    /// # Errors
    /// `task_not_found`, also for the task of another caller; `store_unavailable`.
    async fn load_task(&self, id: &str) -> Result<InboxTask, Rejection> {
        let (store, hierarchy) = (self.store(), &self.gateway.hierarchy);
        let found = async {
            let task = store.find_task(&self.target, id).await?;
            let task = task.ok_or_else(no_task)?;
            match may_see(hierarchy, &self.proof, &task.owner).await? {
                true => Ok(task),
                false => Err(no_task()),
            }
        };
        found.await.at(Stage::Tasks)
    }

    async fn cancel_task(
        &self,
        call: &InboxCall<'_>,
        form: &ResponseForm,
        options: &AgentOptions,
    ) -> Result<String, Rejection> {
        let task = self.load_task(call.params.task_id()?).await?;
        if task.state.is_terminal() {
            return Ok(form.not_cancelable(task.state));
        }
        let spoke = inbox_side(Generation::V0, options);
        let generation = spoke.map_or(Generation::V0, |spoke| spoke.side.generation);
        let by = (message_source(&self.proof), self.proof.owner());
        let canceled = self.store().cancel(&self.target, &task.id, by, generation);
        let task = match canceled.await {
            Ok(task) => task,
            // Its agent ended it, or a concurrent request canceled it.
            Err(refusal) => match self.load_task(&task.id).await {
                Ok(task) if task.state.is_terminal() => return Ok(form.not_cancelable(task.state)),
                _ => return Err(refusal),
            },
        };
        Ok(form.task_response(
            self.load_document(&task).await?,
            &requested_parts(call, true),
        ))
    }

    /// Lists the caller's own tasks at the target; for an operator, all tasks.
    async fn list_tasks(
        &self,
        call: &InboxCall<'_>,
        form: &ResponseForm,
    ) -> Result<String, Rejection> {
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
        let wanted = TaskQuery {
            owner: (self.proof.principal != Principal::Operator).then_some(&*owner),
            context: params.context_id.as_deref(),
            state: state.transpose()?,
            before: before.transpose()?,
            limit,
        };
        let page = self.store().tasks_of(&self.target, &wanted).await?;
        let what = requested_parts(call, params.include_artifacts == Some(true));
        let mut tasks = Vec::with_capacity(page.tasks.len());
        for task in &page.tasks {
            let document = self.load_document(task).await?;
            // Serialized at once: a tree takes many times the memory, so there is only one at a time.
            let task = write_task(form.generation, &trim_task(document, &what));
            tasks.push(task.map_err(untranslatable_reply)?);
        }
        let next = page.next.map(|next| next.to_string()).unwrap_or_default();
        let tasks = tasks.join(",");
        let list = format!(r#"{{"tasks":[{tasks}],"pageSize":{limit},"nextPageToken":"{next}"}}"#);
        Ok(form.result_response(&list))
    }
}

/// Sends the response in the form of an agent's.
async fn send_answer(
    request: &mut Request<'_>,
    response: ResponseContext,
    body: String,
    applied: Option<String>,
) -> Result<Answered, ExchangeError> {
    let mut head = own_head(request, "application/json", applied, &response)?;
    let mut body = Bytes::from(body);
    if let Some(rewrite) = response.rewrite {
        body = rewrite.rewrite_body(&mut head, body).await?;
    }
    if let Some(guarded) = response.guarded
        && let Some(changed) = guarded.check_response(&body).await?
    {
        body = changed;
    }
    head.insert_header(header::CONTENT_LENGTH, body.len())
        .map_err(internal_error)?;
    request.respond(head, body).await
}

/// Returns the head of a response of the gateway, with the common fields.
fn own_head(
    request: &Request<'_>,
    content_type: &'static str,
    applied: Option<String>,
    response: &ResponseContext,
) -> Result<ResponseHeader, Rejection> {
    let mut own = ResponseHeader::build(200, Some(4)).map_err(internal_error)?;
    own.append_header(header::CONTENT_TYPE, content_type)
        .map_err(internal_error)?;
    if let Some(applied) = applied {
        own.append_header(PREFERENCE_APPLIED, applied)
            .map_err(internal_error)?;
    }
    let mut head = request.response_head(own, response.done)?;
    mark_replay(&mut head, response.replay, response.kept)?;
    Ok(head)
}

/// Returns the parts of a task to include.
fn requested_parts(call: &InboxCall<'_>, artifacts: bool) -> TaskParts {
    TaskParts {
        history: call.params.history_limit(),
        artifacts,
    }
}

/// Returns the sender, as the agent may see it.
fn message_source(proof: &Proof) -> Source {
    match proof.principal.workspace() {
        Some(id) => Source::Agent(id.clone()),
        None => Source::Canvas,
    }
}
