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
use pingora::protocols::http::ServerSession;
use serde_json::json;

use self::call::Call;
use self::send::{Message, Wait};
use self::words::{Shown, Words, cut};
use crate::a2a::dialect::bare;
use crate::a2a::done::Done;
use crate::a2a::method::Method;
use crate::a2a::state::TaskState;
use crate::delivery::inbox::{Inbox, InboxTask, Source, Wanted};
use crate::identity::{Principal, Proof};
use crate::ids::WorkspaceId;
use crate::proxy::Proxy;
use crate::proxy::admit::Admitted;
use crate::proxy::outcome::Ended;
use crate::proxy::record::Exchange;
use crate::proxy::relay::forward::Outgoing;
use crate::proxy::relay::rewrite::Rewrite;
use crate::proxy::respond::{KEPT, REPLAY, internal, respond, response_head};
use crate::rejection::{Reason, Rejection};

/// Tasks per page of a list: default and maximum (A2A 1.0, 3.1.4).
const PAGE: (u32, u32) = (50, 100);

/// Caller and target of a call.
struct Pair {
    proof: Arc<Proof>,
    target: WorkspaceId,
}

/// Properties of a response.
struct Outward {
    words: Words,
    done: Done,
    rewrite: Option<Rewrite>,
    /// True for a replay.
    replay: bool,
    /// True if the response is kept for replay.
    kept: bool,
    /// Wait for the end of the agent's turn.
    wait: Option<Wait>,
}

impl Proxy {
    /// Answers a call in place of a polling agent.
    pub(in crate::proxy) async fn deliver(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
        admitted: Admitted,
        outgoing: Outgoing,
    ) -> Result<Ended, Ended> {
        let pair = Pair {
            target: admitted.permit.target().clone(),
            proof: admitted.proof,
        };
        let method = exchange.method;
        let known = method.sends() || method.is_of_a_task() || method == Method::ListTasks;
        let call = Call::read(&outgoing.body, known)?;
        let wait = Wait::asked(session, exchange, (&call, outgoing.done), admitted.timeout);
        let outward = Outward {
            words: Words {
                id: call.id.to_owned(),
                generation: call.generation(),
            },
            done: outgoing.done,
            rewrite: outgoing.rewrite,
            replay: false,
            kept: true,
            wait,
        };
        let words = &outward.words;
        let body = match method {
            Method::GetTask => {
                let task = self.own_task(&pair, call.params.task()?).await?;
                let document = self.inbox().document(&task).await?.0;
                words.task(document, &shown(&call, true))
            }
            Method::CancelTask => self.cancel(&pair, &call, words).await?,
            Method::ListTasks => self.list(&pair, &call, words).await?,
            Method::SubscribeToTask => {
                let task = self.own_task(&pair, call.params.task()?).await?;
                let first = self.inbox().document(&task).await?;
                return self.follow(session, exchange, outward, (task, first)).await;
            }
            Method::GetExtendedCard => words.error(&json!({"code": -32007,
                "message": "an agent that polls has no extended card; its card is at the same address, by GET"})),
            _ => {
                let message = Message {
                    pair: &pair,
                    call: &call,
                    body: &outgoing.body,
                    key: outgoing.key.as_ref(),
                    hops: admitted.hops,
                };
                return self.send(session, exchange, outward, message).await;
            }
        };
        self.answer(session, exchange, outward, body, None).await
    }

    fn inbox(&self) -> &Arc<Inbox> {
        &self.gateway.delivery.inbox
    }

    /// Returns the task if it belongs to the caller.
    ///
    /// # Errors
    /// `task_not_found`, also for the task of another caller; `store_unavailable`.
    async fn own_task(&self, pair: &Pair, id: &str) -> Result<InboxTask, Rejection> {
        let task = self.inbox().task(&pair.target, id).await?;
        let task = task.ok_or_else(no_task)?;
        let (tasks, hierarchy) = (&self.gateway.tasks, &self.gateway.hierarchy);
        if !tasks.may_ask(hierarchy, &pair.proof, &task.owner).await? {
            return Err(no_task());
        }
        Ok(task)
    }

    /// Returns the workspace with an inbox that has the caller's task.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(in crate::proxy) async fn inbox_of(
        &self,
        proof: &Arc<Proof>,
        task: &str,
    ) -> Result<Option<WorkspaceId>, Rejection> {
        let Some(target) = self.inbox().target_of(task).await? else {
            return Ok(None);
        };
        let pair = Pair {
            proof: Arc::clone(proof),
            target,
        };
        match self.own_task(&pair, task).await {
            Ok(_) => Ok(Some(pair.target)),
            Err(refusal) if refusal.reason == Reason::TaskNotFound => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    async fn cancel(
        &self,
        pair: &Pair,
        call: &Call<'_>,
        words: &Words,
    ) -> Result<String, Rejection> {
        let task = self.own_task(pair, call.params.task()?).await?;
        if task.state.is_terminal() {
            return Ok(words.over(task.state));
        }
        let (source, owner) = (source(&pair.proof), pair.proof.owner());
        let canceled = self
            .inbox()
            .cancel(&pair.target, &task.id, source, owner)
            .await;
        let task = match canceled {
            Ok(task) => task,
            // Its agent ended it, or a concurrent request canceled it.
            Err(refusal) => match self.own_task(pair, &task.id).await {
                Ok(task) if task.state.is_terminal() => return Ok(words.over(task.state)),
                _ => return Err(refusal),
            },
        };
        let document = self.inbox().document(&task).await?.0;
        Ok(words.task(document, &shown(call, true)))
    }

    /// Lists the caller's own tasks at the target; for an operator, all tasks.
    async fn list(&self, pair: &Pair, call: &Call<'_>, words: &Words) -> Result<String, Rejection> {
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
        let owner = pair.proof.owner();
        let wanted = Wanted {
            owner: (pair.proof.principal != Principal::Operator).then_some(&*owner),
            context: params.context_id.as_deref(),
            state: state.transpose()?,
            before: before.transpose()?,
            limit,
        };
        let page = self.inbox().tasks_of(&pair.target, &wanted).await?;
        let what = shown(call, params.include_artifacts == Some(true));
        let mut tasks = Vec::with_capacity(page.tasks.len());
        for task in &page.tasks {
            let document = self.inbox().document(task).await?.0;
            // Serialized at once: a tree takes many times the memory, so there is only one at a time.
            tasks.push(bare(&cut(document, &what), words.generation).to_string());
        }
        let next = page.next.map(|next| next.to_string()).unwrap_or_default();
        let tasks = tasks.join(",");
        let list = format!(r#"{{"tasks":[{tasks}],"pageSize":{limit},"nextPageToken":"{next}"}}"#);
        Ok(words.result(&list))
    }

    /// Sends the response in the form of an agent's.
    async fn answer(
        &self,
        session: &mut ServerSession,
        exchange: &mut Exchange,
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
        let mut head = self.own_head(session, exchange, own, &outward)?;
        let mut body = Bytes::from(body);
        if let Some(rewrite) = outward.rewrite {
            body = rewrite.answer(&mut head, body).await?;
        }
        head.insert_header(header::CONTENT_LENGTH, body.len())
            .map_err(internal)?;
        respond(session, exchange, head, body).await
    }

    /// Returns the head of a response of the gateway, with the common fields.
    fn own_head(
        &self,
        session: &ServerSession,
        exchange: &Exchange,
        own: ResponseHeader,
        outward: &Outward,
    ) -> Result<ResponseHeader, Rejection> {
        let request = &session.req_header().headers;
        let completed = (!outward.done.is_empty()).then(|| outward.done.to_string());
        let head = response_head(own, request, &self.origins.get(), exchange, completed);
        let mut head = head.map_err(internal)?;
        if outward.replay {
            head.insert_header(REPLAY, "true").map_err(internal)?;
        }
        if !outward.kept {
            head.insert_header(KEPT, "false").map_err(internal)?;
        }
        Ok(head)
    }
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
