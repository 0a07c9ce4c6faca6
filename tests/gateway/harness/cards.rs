//! Cards of agents, and the agent that most cases need.

use serde_json::{Value, json};

use super::agent::{Agent, SSE_HEAD, Step, chunk};

/// The steps of an agent that streams `text` in one chunk, and then this.
pub(crate) fn sse(text: impl AsRef<[u8]>, then: Step) -> Vec<Step> {
    vec![Step::write(SSE_HEAD), Step::Write(chunk(text)), then]
}

/// An agent that answers every call with an empty result.
pub(crate) async fn answering() -> Agent {
    Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await
}

/// A minimal 0.3 card.
pub(crate) fn card(name: &str) -> Value {
    json!({"name": name, "description": name, "version": "1", "protocolVersion": "0.3.0",
        "url": "http://127.0.0.1/", "capabilities": {}, "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"], "skills": []})
}

/// A minimal card of an agent that speaks both generations, so that no call to it is translated.
pub(crate) fn card_of_both(name: &str) -> Value {
    let mut both = card(name);
    both["supportedInterfaces"] = card_1_0(name)["supportedInterfaces"].clone();
    both
}

/// A minimal 1.0 card.
pub(crate) fn card_1_0(name: &str) -> Value {
    json!({"name": name, "description": name, "version": "1", "capabilities": {},
        "supportedInterfaces": [{"url": "http://127.0.0.1/", "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0"}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "skills": []})
}
