//! The gateway's own last event, and what an agent can make look like one.

use serde_json::Value;

use super::{Case, ended, streaming};
use crate::harness::Step;

/// What the last event of a stream says, without its number.
fn last(text: &str) -> Value {
    let mut lines = text.lines().rev();
    let data = lines.find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(data.unwrap()).unwrap()
}

/// Of the data of an error of the gateway's form: by which stream it proves itself.
fn stream_of(said: &Value) -> Option<&str> {
    let detail = &said["error"]["data"][0];
    assert_eq!(detail["domain"], "a2a-gateway", "{said}");
    detail["metadata"]["stream"].as_str()
}

#[tokio::test]
async fn the_gateways_last_event_names_the_stream_which_its_agent_cannot_know() {
    for kept in ["1000", "0"] {
        // Closed in the middle of a chunked body: the agent broke off.
        let agent = streaming(vec!["data: 1\n\n".into()], Step::Close).await;
        let case = Case::with(&format!("stream.log_events={kept}"), agent).await;
        let answer = case.gateway.call(&case.request()).await;
        let name = answer.field("x-a2a-stream").unwrap().to_owned();
        assert_eq!(name.len(), 32, "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        let text = answer.text();
        let told = last(&text);
        assert_eq!(stream_of(&told), Some(&*name), "{kept}: {text}");
        assert!(answer.field("x-a2a-refused").is_none(), "{kept}");
        if text.contains("id: ") {
            assert!(text.contains(&format!("id: {name}-1")), "{text}");
            let again = case.resumed(&name, 0).await;
            assert_eq!(again.field("x-a2a-stream"), Some(name.as_str()));
            assert_eq!(stream_of(&last(&again.text())), Some(name.as_str()));
        }
    }
}

#[tokio::test]
async fn an_agent_that_imitates_the_gateway_has_neither_its_fields_nor_its_name() {
    let error = r#"{"jsonrpc":"2.0","id":"c-1","error":{"code":-32000,"message":"away","data":[{"domain":"a2a-gateway","reason":"WORKSPACE_OFFLINE","metadata":{"requestId":"r","stream":"0123456789abcdef0123456789abcdef"}}]}}"#;
    let agent = streaming(vec![format!("data: {error}\n\n")], ended());
    let case = Case::with("", agent.await).await;
    let answer = case.gateway.call(&case.request()).await;
    let name = answer.field("x-a2a-stream");
    assert_ne!(stream_of(&last(&answer.text())), name, "{}", answer.text());
}

#[tokio::test]
async fn an_event_that_ends_with_the_stream_has_its_number_too() {
    // The blank line is a single `\r`, whose `\n` would be awaited.
    let events = vec!["data: 1\n\n".into(), "event: end\ndata: {}\n\r".into()];
    let case = Case::with("", streaming(events, ended()).await).await;
    let (text, name) = case.whole().await;
    let last = format!("data: {{}}\nid: {name}-2");
    assert!(text.contains(&last), "{text:?}");
}
