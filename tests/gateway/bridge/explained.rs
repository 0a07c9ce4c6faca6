//! `GET /explain` says of each form of a call what a call in it meets.

use serde_json::{Value, json};

use super::agents::{
    agent_0_3, agent_1_0, agent_http_json, card_http_json, message_0_3, message_1_0,
};
use super::{Case, card, card_1_0};
use crate::explain::{explain, step};
use crate::harness::Answer;

impl Case {
    /// The translation in an explanation.
    async fn explained(&self) -> Value {
        let explained = explain(&self.gateway, "caller", "target").await;
        step(&explained, "call")["fact"]["bridge"].clone()
    }

    /// A message in a form.
    async fn send(&self, form: &str) -> Answer {
        let rest_0_3 = json!({"message": {"role": "ROLE_USER", "messageId": "m-1", "content": [{"text": "hi"}]}});
        let post = async |tail, body: Value| self.rest("POST", tail, &body.to_string()).await;
        match form {
            "0.3 JSONRPC" => self.call("message/send", message_0_3()).await,
            "1.0 JSONRPC" => self.call("SendMessage", message_1_0()).await,
            "0.3 HTTP+JSON" => post("v1/message:send", rest_0_3).await,
            _ => post("message:send", message_1_0()).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_says_what_a_call_in_each_form_meets() {
    for (card, agent, speaks) in [
        (card("target"), agent_0_3().await, "0.3 JSONRPC"),
        (card_1_0("target"), agent_1_0().await, "1.0 JSONRPC"),
        (card_http_json(), agent_http_json().await, "1.0 HTTP+JSON"),
    ] {
        let case = Case::new(card, agent).await;
        for mode in ["auto", "off"] {
            case.bridges(mode).await;
            let said = case.explained().await;
            assert_eq!(said["mode"], json!(mode));
            assert_eq!(said["agent_speaks"], json!([speaks]));
            assert_eq!(said["by"], "its registered card");
            let calls = said["calls"].as_object().unwrap();
            assert_eq!(calls.len(), 4, "{said}");
            for (form, expected) in calls {
                let answer = case.send(form).await;
                let met = match answer.field("x-a2a-bridged") {
                    Some(label) => json!(label),
                    None if answer.field("x-a2a-refused").is_some() => json!(answer.reason()),
                    None => Value::Null,
                };
                let what = format!("{form} to {speaks}, {mode}: {}", answer.text());
                assert_eq!(&met, expected, "{what}");
                let own = mode == "auto" && form == speaks;
                assert!(!own || (answer.status == 200 && met.is_null()), "{what}");
            }
        }
    }
}
