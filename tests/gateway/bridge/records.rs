//! What is written down of a call that was translated.

use serde_json::{Value, json};

use super::agents::{agent_0_3, message_0_3, message_1_0};
use super::{Case, card};
use crate::audit::{audit, end, recorded};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_translated_call_is_recorded_as_one_beside_others() {
    let mut case = Case::new(card("target"), agent_0_3().await).await;
    for (id, method, params) in [
        ("as-it-came", "message/send", message_0_3()),
        ("translated", "SendMessage", message_1_0()),
        ("stream", "SendStreamingMessage", message_1_0()),
        ("again", "message/send", message_0_3()),
        ("refused", "ListTasks", json!({})),
    ] {
        let asked = case.request(method, params).field("X-Request-Id", id);
        let answer = case.gateway.call(&asked).await;
        let records = recorded(&case.gateway, &format!("request_id={id}"), 1).await;
        let told = answer.field("x-a2a-bridged");
        let told = told.map_or(Value::Null, Value::from);
        let is_translated = ["translated", "stream"].contains(&id);
        assert_eq!(told.is_string(), is_translated, "{id}");
        let expected = is_translated.then_some(&told);
        assert_eq!(records[0].get("bridged"), expected, "{id}");
        let line = &case.gateway.access_lines(id).await[0];
        assert_eq!(line["bridged"], told, "{id}");
        assert_eq!(line["method"], records[0]["method"], "{id}");
    }
    let sent = recorded(&case.gateway, "method=SendMessage&target=target", 3).await;
    let methods: Vec<_> = sent.iter().map(|record| record["method"].clone()).collect();
    assert_eq!(methods, ["send_message"; 3], "{sent:?}");
    end(&mut case.gateway);
    let (said, status) = audit(&case.gateway, &["verify"]);
    assert_eq!(status, Some(0), "{said}");
    let (exported, _) = audit(&case.gateway, &["export"]);
    let bridged = exported.matches("\"bridged\":\"1.0>0.3\"");
    assert_eq!(bridged.count(), 2, "{exported}");
    let file = case.gateway.dir.join("audit.jsonl");
    std::fs::write(&file, exported.replace("1.0>0.3", "0.3>1.0")).unwrap();
    let (said, status) = audit(&case.gateway, &["verify", "audit.jsonl"]);
    // A record that was changed is found.
    assert_eq!(status, Some(1), "{said}");
}
