//! Guards: what one rejects, replaces or cannot judge reaches no other side, and what others do goes on (contract §16).

mod attacks;
mod example;
mod isolation;
mod later;
mod matrix;
mod patterns;
mod questions;
mod records;
mod streams;

use serde_json::{Value, json};

use crate::answers::merged;
use crate::harness::{
    Agent, Answer, Builder, Gateway, LAST_CHUNK, Pair, Recorded, Request, SSE_HEAD, Seat, Step,
    card, card_1_0, chunk, ok_json, planted,
};

/// The text that no guard may let through.
const SECRET: &str = "planted-for-the-guards";

/// The text that a guard puts in its place.
const MASK: &str = "masked-by-the-guard";

/// Reaction of a guard to a text that has the secret. It passes everything else.
const BEHAVIOURS: [&str; 8] = [
    "pass", "reject", "replace", "rename", "hang", "die", "garbage", "huge",
];

/// A server of guards. The path of a question is the behaviour.
async fn guard() -> Agent {
    planted::plant(SECRET);
    Agent::scripted(|request| {
        let question: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let line = request.head.lines().next().unwrap_or_default().to_owned();
        let behaviour = line.split([' ', '?']).nth(1).unwrap_or_default();
        let texts = question["texts"].to_string();
        if !texts.contains(SECRET) {
            return verdict(&json!({"action": "pass"}));
        }
        let payload = question["payload"].to_string();
        let replaced = |payload: String| {
            let payload: Value = serde_json::from_str(&payload).unwrap();
            verdict(&json!({"action": "replace", "payload": payload}))
        };
        let masked = payload.replace(SECRET, MASK);
        match behaviour {
            "/pass" => verdict(&json!({"action": "pass"})),
            "/reject" => verdict(&json!({"action": "reject", "reason": "not\nthis"})),
            "/replace" => replaced(masked),
            "/rename" => {
                let renamed = masked.replace("\"m-1\"", "\"m-2\"");
                replaced(renamed.replace("\"c-1\"", "\"c-2\""))
            }
            "/hang" => vec![Step::Hang],
            "/die" => vec![
                Step::write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a"),
                Step::Reset,
            ],
            "/garbage" => verdict(&json!({"action": "perhaps"})),
            "/huge" => verdict(&json!({"action": "pass", "more": "x".repeat(10 << 20)})),
            other => panic!("{other}"),
        }
    })
    .await
}

fn verdict(json: &Value) -> Vec<Step> {
    vec![Step::Write(ok_json(&json.to_string()))]
}

/// A call with the secret in it, for an agent of either generation.
fn call_in(request: &Recorded) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}

/// An agent of JSON-RPC of both generations, whose answers and second events have `said` in them.
async fn agent(said: &'static str) -> Agent {
    Agent::scripted(move |request| {
        let call = call_in(request);
        let reply = |result: Value| json!({"jsonrpc": "2.0", "id": call["id"], "result": result});
        let event = |result: Value| format!("data: {}\n\n", reply(result));
        let ids = json!({"taskId": "t-1", "contextId": "c-1"});
        let with = |more: Value| merged(ids.clone(), &more);
        let old = [json!({"kind": "text", "text": said})];
        let new = [json!({"text": said})];
        let body = match call["method"].as_str().unwrap_or_default() {
            "message/send" => reply(json!({"kind": "message", "messageId": "m-1", "role": "agent", "contextId": "c-1", "parts": old})),
            "SendMessage" => reply(json!({"message": {"messageId": "m-1", "role": "ROLE_AGENT", "contextId": "c-1", "parts": new}})),
            "message/stream" => {
                return stream(&[
                    event(json!({"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "working"}})),
                    event(with(json!({"kind": "artifact-update", "artifact": {"artifactId": "a", "parts": old}}))),
                    event(with(json!({"kind": "status-update", "status": {"state": "completed"}, "final": true}))),
                ]);
            }
            "SendStreamingMessage" => {
                return stream(&[
                    event(json!({"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}})),
                    event(json!({"artifactUpdate": with(json!({"artifact": {"artifactId": "a", "parts": new}}))})),
                    event(json!({"statusUpdate": with(json!({"status": {"state": "TASK_STATE_COMPLETED"}}))})),
                ]);
            }
            _ => reply(json!({"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": "completed"},
                "history": [{"kind": "message", "messageId": "m-1", "role": "agent", "parts": old}]})),
        };
        vec![Step::Write(ok_json(&body.to_string()))]
    })
    .await
}

/// A stream of these events, each in a chunk of its own.
fn stream(events: &[String]) -> Vec<Step> {
    let mut steps = vec![Step::write(SSE_HEAD)];
    steps.extend(events.iter().map(|event| Step::Write(chunk(event))));
    steps.push(Step::write(LAST_CHUNK));
    steps
}

/// A form in which a caller calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Rpc03,
    Rpc10,
    Rest10,
}

impl Form {
    const ALL: [Self; 3] = [Self::Rpc03, Self::Rpc10, Self::Rest10];

    /// A call that says `text`.
    fn request(self, to: &Seat, by: &Seat, streams: bool, text: &str) -> Request {
        let old = json!({"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": text}]});
        let new = json!({"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]});
        let rpc = |method: &str, message: Value| {
            let call = json!({"jsonrpc": "2.0", "id": "c", "method": method, "params": {"message": message}});
            Request::post(to.path(), call.to_string())
        };
        let request = match (self, streams) {
            (Self::Rpc03, false) => rpc("message/send", old),
            (Self::Rpc03, true) => rpc("message/stream", old),
            (Self::Rpc10, false) => rpc("SendMessage", new).field("A2A-Version", "1.0"),
            (Self::Rpc10, true) => rpc("SendStreamingMessage", new).field("A2A-Version", "1.0"),
            (Self::Rest10, streams) => {
                let verb = if streams { "stream" } else { "send" };
                let path = format!("/workspaces/{}/a2a/message:{verb}", to.id);
                Request::post(path, json!({"message": new}).to_string()).field("A2A-Version", "1.0")
            }
        };
        request.bearer(&by.token)
    }
}

/// One guard of the configuration. It has as long as it may have, but where it hangs.
fn table(name: &str, server: &Agent, behaviour: &str, more: Value) -> Value {
    let timeout = if behaviour == "hang" { "300ms" } else { "60s" };
    let url = format!("{}{behaviour}", server.url());
    let table = json!({"name": name, "url": url, "timeout": timeout});
    merged(table, &more)
}

fn builder(pair: Pair, guards: &Value) -> Builder {
    Builder::new(pair).set("guard", &guards.to_string())
}

/// Two siblings, of which `target` answers with `said`.
struct Case {
    gateway: Gateway,
    caller: Seat,
    target: Seat,
}

impl Case {
    async fn on(builder: Builder, agent: Agent) -> Self {
        let gateway = builder.start().await;
        let (caller, target) = gateway.pair(agent).await;
        Self {
            gateway,
            caller,
            target,
        }
    }

    /// The same with these guards and an agent that says this.
    async fn guarded(guards: &Value, said: &'static str) -> Self {
        Self::on(builder(Pair::Embedded, guards), agent(said).await).await
    }

    /// How often a guard gave this verdict.
    async fn verdicts(&self, guard: &str, verdict: &str) -> f64 {
        let labels = [("guard", guard), ("verdict", verdict)];
        let [guard, verdict] = labels.map(|(name, value)| format!("{name}=\"{value}\""));
        let name = "a2a_gateway_guard_verdicts_total";
        self.gateway.metric(name, &[&guard, &verdict]).await
    }

    fn request(&self, form: Form, streams: bool, text: &str) -> Request {
        form.request(&self.target, &self.caller, streams, text)
    }

    async fn call(&self, form: Form, streams: bool, text: &str) -> Answer {
        self.gateway.call(&self.request(form, streams, text)).await
    }
}

/// Everything that an agent got, as text.
fn wire(agent: &Agent) -> String {
    let requests = agent.requests().into_iter();
    let text = |one: Recorded| one.head + &String::from_utf8_lossy(&one.body);
    requests.map(text).collect()
}
