//! `GET /explain` and the command beside it: it says of a pair what a message of the same pair meets, from
//! where it knows, and changes nothing.

mod advice;
mod command;
mod effects;
mod gate;
mod lapses;
mod stores;
mod table;

use serde_json::Value;

use crate::harness::{Answer, CALL, Connection, Gateway, Request, Seat};

/// What a message met, or what an explanation says it would.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Met {
    /// `sent`, or the reason.
    pub(crate) reason: String,
    status: u16,
    pub(crate) message: String,
    retry_after: Option<u64>,
    facts: Vec<(String, String)>,
}

/// The message of a refusal without the time to wait, which only its caller is to read there.
pub(crate) fn without_wait(message: &str) -> String {
    let (sentence, _) = message
        .split_once(" (Retry-After: ")
        .unwrap_or((message, ""));
    sentence.to_owned()
}

impl Met {
    /// By the answer to a message.
    pub(crate) fn of_message(answer: &Answer) -> Self {
        if answer.status == 200 {
            return Self::sent();
        }
        let json = answer.json();
        let error = &json["error"];
        let metadata = error["data"][0]["metadata"].as_object().unwrap();
        let facts = metadata.iter();
        let facts = facts.filter(|(name, _)| !["requestId", "retryAfter"].contains(&name.as_str()));
        Self {
            reason: answer.reason(),
            status: answer.status,
            message: without_wait(error["message"].as_str().unwrap()),
            retry_after: json["retry_after"].as_u64(),
            facts: sorted(facts),
        }
    }

    /// By an explanation, whose last step must be the one that refuses, and the only one.
    pub(crate) fn of_explanation(json: &Value) -> Self {
        let steps = json["steps"].as_array().unwrap();
        let refused: Vec<_> = steps.iter().filter(|step| step["ok"] == false).collect();
        if json["admitted"] == true {
            assert_eq!(refused.len(), 0, "{json:#}");
            assert_eq!([&json["reason"], &json["status"]], [&Value::Null; 2]);
            return Self::sent();
        }
        assert_eq!(refused, [steps.last().unwrap()], "{json:#}");
        let facts = json["facts"].as_object().unwrap();
        Self {
            reason: json["reason"].as_str().unwrap().to_owned(),
            status: u16::try_from(json["status"].as_u64().unwrap()).unwrap(),
            message: json["message"].as_str().unwrap().to_owned(),
            retry_after: json["retry_after"].as_u64(),
            facts: sorted(facts.iter()),
        }
    }

    fn sent() -> Self {
        Self {
            reason: "sent".into(),
            status: 200,
            message: String::new(),
            retry_after: None,
            facts: Vec::new(),
        }
    }
}

fn sorted<'a>(facts: impl Iterator<Item = (&'a String, &'a Value)>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let facts = facts.map(|(name, value)| (name.clone(), text(value)));
    let mut facts: Vec<_> = facts.collect();
    facts.sort();
    facts
}

/// The explanation of a message of `caller` to `target`; both are spelled for a query.
pub(crate) async fn explain(gateway: &Gateway, caller: &str, target: &str) -> Value {
    let path = format!("/explain?caller={caller}&target={target}");
    let answer = gateway.admin_get(&path).await.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    assert_eq!(answer.field("cache-control"), Some("no-store"));
    answer.json()
}

/// A call to `target` with `token`.
pub(crate) fn call(target: &str, token: &str) -> Request {
    Request::post(format!("/workspaces/{target}/a2a"), CALL).bearer(token)
}

/// What a message meets on a connection that is open already.
pub(crate) async fn send_on(connection: &mut Connection, target: &str, token: &str) -> Met {
    Met::of_message(&connection.call(&call(target, token)).await)
}

/// Explains, sends, and explains again: all three agree. Answers what was met, and the last explanation.
pub(crate) async fn agree(
    gateway: &Gateway,
    (caller, token): (&str, &str),
    target: &str,
    what: &str,
) -> (String, Value) {
    let before = Met::of_explanation(&explain(gateway, caller, target).await);
    let met = Met::of_message(&gateway.call(&call(target, token)).await);
    let explained = explain(gateway, caller, target).await;
    let after = Met::of_explanation(&explained);
    assert_eq!(before, met, "before: {what}: {explained:#}");
    assert_eq!(after, met, "after: {what}: {explained:#}");
    (met.reason, explained)
}

/// The step of this name.
pub(crate) fn step<'a>(explained: &'a Value, name: &str) -> &'a Value {
    let steps = explained["steps"].as_array().unwrap();
    let found = steps.iter().find(|step| step["step"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {explained:#}"))
}

/// The name of the last step.
pub(crate) fn last(explained: &Value) -> &str {
    let steps = explained["steps"].as_array().unwrap();
    steps.last().unwrap()["step"].as_str().unwrap()
}

/// A call that reached its agent and is not answered.
pub(crate) async fn hanging(gateway: &Gateway, caller: &Seat, target: &Seat) -> Connection {
    let before = target.agent.count();
    let mut connection = Connection::open(gateway.public).await;
    let wire = call(&target.id, &caller.token).wire(&gateway.public.to_string());
    connection.send(&wire).await;
    target.agent.until_count(before + 1).await;
    connection
}
