//! Drives a2a-client-lf 0.2.9, the A2A SDK for Rust, as a client of A2A 1.0. `driving.py` says what a driver reads and
//! prints, and what the scenarios are for.

use std::error::Error;
use std::io::stdin;
use std::sync::Arc;
use std::time::Duration;

use a2a::{
    A2AError, AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
    ListTaskPushNotificationConfigsRequest, ListTasksRequest, Message, Part, PartContent, Role,
    SendMessageRequest, SendMessageResponse, StreamResponse, SubscribeToTaskRequest, Task,
    TaskPushNotificationConfig, TaskState,
};
use a2a_client::agent_card::AgentCardResolver;
use a2a_client::jsonrpc::JsonRpcTransportFactory;
use a2a_client::rest::RestTransportFactory;
use a2a_client::{A2AClient, A2AClientFactory, BoxStream, Transport, TransportFactory};
use futures::TryStreamExt;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

/// The time for a scenario as a whole.
const PATIENCE: Duration = Duration::from_secs(90);
const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";
const HOOK: &str = "http://127.0.0.1:9/hook";
const PLACE: &str = "http://127.0.0.1:9/f.png";

type Events = BoxStream<'static, Result<StreamResponse, A2AError>>;

fn say_parts(parts: Vec<Part>) -> SendMessageRequest {
    SendMessageRequest {
        message: Message::new(Role::User, parts),
        configuration: None,
        metadata: None,
        tenant: None,
    }
}

fn say(text: &str) -> SendMessageRequest {
    say_parts(vec![Part::text(text)])
}

/// `TASK_STATE_INPUT_REQUIRED` is `input-required`.
fn read_state(state: &TaskState) -> String {
    let name = json!(state);
    let name = name.as_str().unwrap_or_default();
    let name = name.trim_start_matches("TASK_STATE_").to_lowercase();
    name.replace('_', "-")
}

fn join_texts(parts: &[Part]) -> String {
    parts.iter().filter_map(Part::as_text).collect()
}

fn read_part(part: &Part) -> Value {
    let (name, kind) = (&part.filename, &part.media_type);
    match &part.content {
        PartContent::Text(text) => json!(["text", text]),
        PartContent::Data(data) => json!(["data", data]),
        // In base64, as the SDK writes it.
        PartContent::Raw(_) => json!(["bytes", json!(part)["raw"], kind, name]),
        PartContent::Url(url) => json!(["url", url, kind, name]),
    }
}

fn read_card(card: &AgentCard) -> Value {
    let skills: Vec<_> = card.skills.iter().map(|skill| &skill.id).collect();
    json!({"name": card.name, "skills": skills})
}

fn read_task(task: &Task) -> Value {
    let artifacts = task.artifacts.iter().flatten();
    let texts: Vec<_> = artifacts.map(|one| join_texts(&one.parts)).collect();
    let state = read_state(&task.status.state);
    json!({"task": state, "artifacts": texts, "task_id": task.id, "context_id": task.context_id})
}

fn read_message(message: &Message) -> Value {
    json!({"message": join_texts(&message.parts)})
}

/// An event of a stream, in the form that all drivers share.
fn read_event(event: StreamResponse) -> Value {
    match event {
        StreamResponse::Message(message) => read_message(&message),
        StreamResponse::Task(task) => read_task(&task),
        StreamResponse::StatusUpdate(update) => json!({
            "status": read_state(&update.status.state),
            "n": update.metadata.as_ref().and_then(|members| members.get("n")),
            "task_id": update.task_id,
            "context_id": update.context_id,
        }),
        StreamResponse::ArtifactUpdate(update) => json!({
            "artifact": join_texts(&update.artifact.parts),
            "append": update.append.unwrap_or_default(),
            "last": update.last_chunk.unwrap_or_default(),
            "task_id": update.task_id,
            "context_id": update.context_id,
        }),
    }
}

/// An event without the ids, which differ from run to run, and without its place in an artifact.
fn without_ids(mut event: Value) -> Value {
    if let Some(members) = event.as_object_mut() {
        for name in ["task_id", "context_id", "append", "last"] {
            members.remove(name);
        }
    }
    event
}

fn all_without_ids(events: Vec<Value>) -> Value {
    events.into_iter().map(without_ids).collect()
}

fn read_id(event: &Value, name: &str) -> String {
    event[name].as_str().unwrap_or_default().to_owned()
}

async fn read_all(events: Events) -> Result<Vec<Value>, A2AError> {
    events.map_ok(read_event).try_collect().await
}

struct Sdk {
    resolver: AgentCardResolver,
    base: String,
    client: A2AClient<Box<dyn Transport>>,
}

impl Sdk {
    async fn connect(job: &Value) -> Result<Self, A2AError> {
        let base = read_id(job, "base");
        let proof = format!("Bearer {}", read_id(job, "token"));
        let proof = proof.parse().expect("a token is visible ASCII");
        let fields = HeaderMap::from_iter([(AUTHORIZATION, proof)]);
        let http = reqwest::Client::builder().default_headers(fields);
        let http = http.no_proxy().build().expect("a client without TLS");
        let resolver = AgentCardResolver::new(Some(http.clone()));
        let card = resolver.resolve(&base).await?;
        let binding: Arc<dyn TransportFactory> = if job["binding"] == "JSONRPC" {
            Arc::new(JsonRpcTransportFactory::new(Some(http)))
        } else {
            Arc::new(RestTransportFactory::new(Some(http)))
        };
        let factory = A2AClientFactory::builder().no_defaults().register(binding);
        let client = factory.build().create_from_card(&card).await?;
        Ok(Self {
            resolver,
            base,
            client,
        })
    }

    async fn send(&self, request: SendMessageRequest) -> Result<Value, A2AError> {
        Ok(match self.client.send_message(&request).await? {
            SendMessageResponse::Task(task) => read_task(&task),
            SendMessageResponse::Message(message) => read_message(&message),
        })
    }

    async fn stream(&self, text: &str) -> Result<Vec<Value>, A2AError> {
        let events = self.client.send_streaming_message(&say(text)).await?;
        read_all(events).await
    }

    async fn get(&self, id: &str) -> Result<Value, A2AError> {
        let request = GetTaskRequest {
            id: id.to_owned(),
            history_length: None,
            tenant: None,
        };
        let task = self.client.get_task(&request).await?;
        Ok(without_ids(read_task(&task)))
    }

    async fn cancel(&self, id: &str) -> Result<Value, A2AError> {
        let request = CancelTaskRequest {
            id: id.to_owned(),
            metadata: None,
            tenant: None,
        };
        let task = self.client.cancel_task(&request).await?;
        Ok(without_ids(read_task(&task)))
    }

    /// Sends `parts`, and reads the parts of the artifact.
    async fn echo_parts(&self) -> Result<Value, A2AError> {
        let request = say_parts(vec![
            Part::text("parts"),
            Part::data(json!({"n": 7, "deep": [1.5, null, "ü"]})),
            Part::raw(vec![0, 255])
                .with_media_type("application/octet-stream")
                .with_filename("b.bin"),
            Part::url(PLACE)
                .with_media_type("image/png")
                .with_filename("f.png"),
        ]);
        Ok(match self.client.send_message(&request).await? {
            SendMessageResponse::Task(task) => {
                let artifacts = task.artifacts.iter().flatten();
                let parts = artifacts.flat_map(|one| &one.parts);
                parts.map(read_part).collect()
            }
            SendMessageResponse::Message(message) => read_message(&message),
        })
    }

    /// Begins a task that waits: its id, its events until it works, and those to come.
    async fn begin(&self) -> Result<(String, Vec<Value>, Events), A2AError> {
        let mut events = self.client.send_streaming_message(&say("wait")).await?;
        let mut seen = Vec::new();
        while let Some(event) = events.try_next().await? {
            let event = read_event(event);
            let works = event["status"] == "working" || event["task"] == "working";
            let id = read_id(&event, "task_id");
            seen.push(event);
            if works {
                return Ok((id, seen, events));
            }
        }
        Err(A2AError::internal("the stream ended before the task began"))
    }

    async fn list(&self, context_id: String) -> Result<Vec<Value>, A2AError> {
        let request = ListTasksRequest {
            context_id: Some(context_id),
            status: None,
            page_size: None,
            page_token: None,
            history_length: None,
            status_timestamp_after: None,
            include_artifacts: None,
            tenant: None,
        };
        let listed = self.client.list_tasks(&request).await?;
        Ok(listed.tasks.iter().map(read_task).collect())
    }

    async fn push(&self, task_id: &str) -> Result<Value, A2AError> {
        let (task_id, id) = (task_id.to_owned(), String::from("p-1"));
        let config = TaskPushNotificationConfig {
            url: HOOK.into(),
            id: Some(id.clone()),
            task_id: task_id.clone(),
            token: Some("t-1".into()),
            authentication: None,
            tenant: None,
        };
        let made = self.client.create_push_config(&config).await?;
        let query = GetTaskPushNotificationConfigRequest {
            task_id: task_id.clone(),
            id: id.clone(),
            tenant: None,
        };
        let read = self.client.get_push_config(&query).await?;
        let query = ListTaskPushNotificationConfigsRequest {
            task_id: task_id.clone(),
            page_size: None,
            page_token: None,
            tenant: None,
        };
        let listed = self.client.list_push_configs(&query).await?;
        let query = DeleteTaskPushNotificationConfigRequest {
            task_id,
            id,
            tenant: None,
        };
        self.client.delete_push_config(&query).await?;
        let listed: Vec<_> = listed.configs.iter().map(|config| &config.url).collect();
        Ok(json!([made.url, read.url, listed]))
    }

    async fn show(&self, scenario: &str) -> Result<Value, A2AError> {
        Ok(match scenario {
            "card" => read_card(&self.resolver.resolve(&self.base).await?),
            "send" => without_ids(self.send(say("hello")).await?),
            "task" => without_ids(self.send(say("task")).await?),
            "stream" => all_without_ids(self.stream("stream 3").await?),
            "pieces" => {
                let seen = self.stream("pieces").await?;
                let pieces = seen.iter().filter(|event| !event["artifact"].is_null());
                let places = pieces.map(|event| [&event["append"], &event["last"]]);
                let places = json!(places.collect::<Vec<_>>());
                let id = seen.last().map(|event| read_id(event, "task_id"));
                let task = self.get(&id.unwrap_or_default()).await?;
                json!({"stream": all_without_ids(seen), "places": places, "task": task})
            }
            "parts" => self.echo_parts().await?,
            "get" => {
                let task = self.send(say("task")).await?;
                self.get(&read_id(&task, "task_id")).await?
            }
            "ask" => {
                let asked = self.send(say("ask")).await?;
                let mut answer = say("answer");
                answer.message.task_id = Some(read_id(&asked, "task_id"));
                answer.message.context_id = Some(read_id(&asked, "context_id"));
                let answered = self.send(answer).await?;
                all_without_ids(vec![asked, answered])
            }
            "fail" => without_ids(self.send(say("fail")).await?),
            "cancel" => {
                let (id, mut seen, events) = self.begin().await?;
                let canceled = self.cancel(&id).await?;
                seen.extend(read_all(events).await?);
                json!({"canceled": canceled, "stream": all_without_ids(seen)})
            }
            "resubscribe" => {
                let (id, _, first) = self.begin().await?;
                let request = SubscribeToTaskRequest {
                    id: id.clone(),
                    tenant: None,
                };
                let mut events = self.client.subscribe_to_task(&request).await?;
                // The task, with which A2A 1.0 begins: this stream follows it.
                let mut seen = Vec::from_iter(events.try_next().await?.map(read_event));
                self.cancel(&id).await?;
                seen.extend(read_all(events).await?);
                read_all(first).await?;
                all_without_ids(seen)
            }
            "list" => {
                let task = self.send(say("task")).await?;
                all_without_ids(self.list(read_id(&task, "context_id")).await?)
            }
            "push" => {
                let (id, _, events) = self.begin().await?;
                let pushed = self.push(&id).await;
                self.cancel(&id).await?;
                read_all(events).await?;
                pushed?
            }
            "unknown" => self.get(UNKNOWN).await?,
            "terminal" => {
                let task = self.send(say("task")).await?;
                self.cancel(&read_id(&task, "task_id")).await?
            }
            "extended" => {
                let request = GetExtendedAgentCardRequest { tenant: None };
                read_card(&self.client.get_extended_agent_card(&request).await?)
            }
            _ => return Err(A2AError::internal(format!("no scenario {scenario}"))),
        })
    }
}

/// Reports what a scenario showed. No answer can be recorded here, but an error has the code of its own.
fn report(seen: Result<Value, A2AError>) -> Value {
    match seen {
        Ok(got) => json!({"saw": {"got": got}, "wire": []}),
        Err(error) => {
            let saw = json!({"error": format!("A2AError: {error}")});
            let body = json!({"error": {"code": error.code}}).to_string();
            json!({"saw": saw, "wire": [{"status": 200, "type": "application/json", "body": body}]})
        }
    }
}

async fn drive(job: &Value) -> Value {
    let sdk = match Sdk::connect(job).await {
        Ok(sdk) => sdk,
        Err(error) => return json!({"connect": report(Err(error))}),
    };
    let mut found = Map::new();
    for scenario in job["scenarios"].as_array().into_iter().flatten() {
        let name = scenario.as_str().unwrap_or_default();
        let seen = timeout(PATIENCE, sdk.show(name)).await;
        let late = || Err(A2AError::internal("no end in time"));
        found.insert(name.to_owned(), report(seen.unwrap_or_else(|_| late())));
    }
    found.into()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let input: Value = serde_json::from_reader(stdin())?;
    let mut results = Map::new();
    for job in input["jobs"].as_array().into_iter().flatten() {
        results.insert(read_id(job, "name"), drive(job).await);
    }
    println!("{}", Value::Object(results));
    Ok(())
}
