//! Agents of either generation that did not register, and agents with a card of the other generation.

use super::*;
use crate::cards::AHEAD_MAX;
use a2a::Generation;
use kernel::metrics::Format;

const CALL_1_0: &str = r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}}}"#;
const CALL_0_3: &str = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// An agent with a card at its origin, which takes calls in one generation at one path.
#[derive(Clone, Copy)]
struct Speaker {
    /// The generation of its card; `None`: it has none.
    says: Option<Generation>,
    speaks: Generation,
    path: &'static str,
}

impl Speaker {
    /// Starts the agent. Another call than it speaks is an unknown method.
    async fn start(self) -> Agent {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = socket.accept().await {
                let request = read_request(&mut stream).await;
                let answer = self.answer(&request, port);
                if !request.is_empty() {
                    recorded.lock().push(request);
                }
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Agent {
            port,
            requests,
            serving,
        }
    }

    fn answer(self, request: &str, port: u16) -> String {
        if request.starts_with("GET ") {
            let url = format!("http://127.0.0.1:{port}{}", self.path);
            return match self.says {
                None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
                Some(Generation::V0) => unary_answer(
                    &json!({"name": "n", "protocolVersion": "0.3.0", "url": url}).to_string(),
                ),
                Some(Generation::V1) => unary_answer(
                    &json!({"name": "n", "supportedInterfaces":
                        [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]})
                    .to_string(),
                ),
            };
        }
        let is_here = request.starts_with(&format!("POST {} ", self.path));
        if !is_here {
            return "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned();
        }
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let call: Value = serde_json::from_str(body).unwrap();
        let task =
            |state: &str| json!({"id": "t-1", "contextId": "c-1", "status": {"state": state}});
        let result = match (call["method"].as_str().unwrap(), self.speaks) {
            ("message/send", Generation::V0) => {
                json!({"kind": "message", "role": "agent", "messageId": "m-2", "parts": [{"kind": "text", "text": "ho"}]})
            }
            ("SendMessage", Generation::V1) => {
                json!({"message": {"role": "ROLE_AGENT", "messageId": "m-2", "parts": [{"text": "ho"}]}})
            }
            ("tasks/get", Generation::V0) => {
                let mut task = task("working");
                task["kind"] = "task".into();
                task
            }
            ("tasks/resubscribe", Generation::V0) => {
                let ended = json!({"jsonrpc": "2.0", "id": 1, "result": {"kind": "status-update", "taskId": "t-1",
                    "contextId": "c-1", "status": {"state": "completed"}, "final": true}});
                return stream_answer(&[&ended.to_string()], true);
            }
            _ => {
                let error = json!({"code": -32601, "message": format!("no {}", call["method"])});
                return unary_answer(
                    &json!({"jsonrpc": "2.0", "id": call["id"], "error": error}).to_string(),
                );
            }
        };
        unary_answer(&json!({"jsonrpc": "2.0", "id": call["id"], "result": result}).to_string())
    }
}

/// A gateway with the agent as the workspace `added`, known by the member `known_by`.
async fn add(agent: &Agent, known_by: &str, path: &str) -> TestGateway {
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let url = format!("http://127.0.0.1:{}{path}", agent.port);
    let new = json!({"id": "added", "name": "added", "liveness": "assumed", known_by: url});
    let admin = gateway.admin_field();
    let created = gateway
        .send("POST /workspaces", &[&admin], &new.to_string())
        .await;
    assert_eq!(created.status, 201, "{}", created.body);
    gateway
}

async fn call(gateway: &TestGateway, body: &str) -> Reply {
    let admin = gateway.admin_field();
    gateway
        .send("POST /workspaces/added/a2a", &[&admin], body)
        .await
}

/// Returns the number of calls that the agent got.
fn calls(agent: &Agent) -> usize {
    let requests = agent.requests();
    requests
        .iter()
        .filter(|one| one.starts_with("POST "))
        .count()
}

fn text_of(reply: &Reply) -> Value {
    let result = reply.json()["result"].clone();
    let message = match result.get("message") {
        Some(message) => message.clone(),
        None => result,
    };
    message["parts"][0]["text"].clone()
}

const BOTH: [Generation; 2] = [Generation::V0, Generation::V1];

#[tokio::test]
async fn the_first_call_to_an_agent_that_was_added_is_in_its_generation() {
    for speaks in BOTH {
        let speaker = Speaker {
            says: Some(speaks),
            speaks,
            path: "/rpc",
        };
        for (known_by, path) in [("url", "/rpc"), ("card_url", "/card.json")] {
            for body in [CALL_0_3, CALL_1_0] {
                let agent = speaker.start().await;
                let gateway = add(&agent, known_by, path).await;
                let reply = call(&gateway, body).await;
                assert_eq!(text_of(&reply), "ho", "{known_by} {body}: {}", reply.body);
                assert_eq!(calls(&agent), 1, "{known_by} {body}");
                let again = call(&gateway, body).await;
                assert_eq!(text_of(&again), "ho");
                let cards = agent.requests().len() - calls(&agent);
                assert_eq!((cards, calls(&agent)), (1, 2), "its card is read once");
                let fact = gateway.explain_call("added").await;
                assert_eq!(fact["a2a_by"], "the card that was fetched", "{fact}");
                assert!(fact["a2a_ms_ago"].is_u64(), "{fact}");
                let added = gateway.read_workspace("added").await;
                assert_eq!(added.get("warnings"), None, "{added}");
            }
        }
    }
}

/// Waits until the agent is asked for its card, before any call.
async fn wait_for_card(agent: &Agent) {
    let asked = async {
        while agent.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(30), asked).await;
    asked.expect("its card is read");
    assert_eq!(calls(agent), 0);
}

#[tokio::test]
async fn the_card_of_an_agent_is_read_when_it_is_added_or_changed() {
    let speaker = Speaker {
        says: Some(Generation::V1),
        speaks: Generation::V1,
        path: "/rpc",
    };
    for (known_by, path) in [("url", "/rpc"), ("card_url", "/card.json")] {
        let agent = speaker.start().await;
        let gateway = add(&agent, known_by, path).await;
        wait_for_card(&agent).await;
        let other = speaker.start().await;
        let url = format!("http://127.0.0.1:{}{path}", other.port);
        let change = json!({ known_by: url }).to_string();
        let admin = gateway.admin_field();
        let line = "PATCH /workspaces/added";
        let changed = gateway.send(line, &[&admin], &change).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        wait_for_card(&other).await;
        assert_eq!(text_of(&call(&gateway, CALL_0_3).await), "ho");
        assert_eq!(other.requests().len(), 2, "its card is read once");
    }
}

#[tokio::test]
async fn cards_of_more_agents_than_are_read_at_once_are_left_to_the_first_call() {
    let silent = Agent::start(AgentAnswer::open(String::new())).await;
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let admin = gateway.admin_field();
    let url = format!("http://127.0.0.1:{}/", silent.port);
    let new = json!({"name": "a", "liveness": "assumed", "url": url}).to_string();
    for _ in 0..=AHEAD_MAX {
        let created = gateway.send("POST /workspaces", &[&admin], &new).await;
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let text = gateway.listener.metrics.render(Format::Text);
    let name = "a2a_gateway_card_fetches_total{outcome=\"overloaded\"}";
    let left = text.lines().find(|line| line.starts_with(name));
    assert!(left.is_some_and(|line| line.ends_with(" 1")), "{left:?}");
}

#[tokio::test]
async fn the_card_of_an_agent_is_read_where_the_registered_one_names_no_interface() {
    let speaker = Speaker {
        says: Some(Generation::V1),
        speaks: Generation::V1,
        path: "/rpc",
    };
    let agent = speaker.start().await;
    let gateway = TestGateway::new(unary_answer("{}"), |_| ()).await;
    let new = r#"{"id":"added","name":"added"}"#;
    let admin = gateway.admin_field();
    let created = gateway.send("POST /workspaces", &[&admin], new).await;
    let created = created.json();
    let token = created["enrolment_token"].as_str().unwrap();
    let token = format!("authorization: Bearer {token}");
    let url = format!("http://127.0.0.1:{}/rpc", agent.port);
    let body = json!({"id": "added", "url": url, "agent_card": {"name": "n"}}).to_string();
    let line = "POST /registry/register";
    let registered = gateway.send(line, &[&token], &body).await;
    assert_eq!(registered.status, 200, "{}", registered.body);
    wait_for_card(&agent).await;
    let reply = call(&gateway, CALL_0_3).await;
    assert_eq!(text_of(&reply), "ho", "{}", reply.body);
    assert_eq!(reply.field("x-a2a-bridged"), Some("0.3>1.0"));
}

#[tokio::test]
async fn a_subscription_to_an_agent_known_by_its_card_begins_with_its_task() {
    let speaker = Speaker {
        says: Some(Generation::V0),
        speaks: Generation::V0,
        path: "/rpc",
    };
    let agent = speaker.start().await;
    let gateway = add(&agent, "card_url", "/card.json").await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"t-1"}}"#;
    let reply = call(&gateway, body).await;
    let asked = agent.requests().into_iter();
    let asked: Vec<String> = asked
        .filter(|one| one.starts_with("POST "))
        .map(|one| one.lines().next().unwrap().to_owned())
        .collect();
    assert_eq!(asked, ["POST /rpc HTTP/1.1"; 2], "{}", reply.body);
    let first = reply.body.find(r#""task":"#);
    let last = reply.body.find("TASK_STATE_COMPLETED");
    assert!(first.is_some() && first < last, "{}", reply.body);
}

#[tokio::test]
async fn a_card_that_says_another_generation_is_corrected_once() {
    for (speaks, body) in [(Generation::V0, CALL_0_3), (Generation::V1, CALL_1_0)] {
        let other = [CALL_1_0, CALL_0_3].into_iter().find(|one| *one != body);
        for (body, bridged) in [(body, false), (other.unwrap(), true)] {
            let speaker = Speaker {
                says: Some(speaks.other()),
                speaks,
                path: "/rpc",
            };
            let agent = speaker.start().await;
            let gateway = add(&agent, "url", "/rpc").await;
            let reply = call(&gateway, body).await;
            assert_eq!(text_of(&reply), "ho", "{body}: {}", reply.body);
            assert_eq!(calls(&agent), 2, "{body}");
            let label = reply.field("x-a2a-bridged");
            assert_eq!(label.is_some(), bridged, "{body}: {label:?}");
            // It is remembered.
            let again = call(&gateway, body).await;
            assert_eq!(text_of(&again), "ho", "{}", again.body);
            assert_eq!(calls(&agent), 3, "{body}");
            // Operators and the owner see it.
            let fact = gateway.explain_call("added").await;
            let major = &speaks.version()[..1];
            assert_eq!(fact["a2a"], format!("{major}.x"), "{fact}");
            assert_eq!(fact["a2a_by"], "its answers", "{fact}");
            assert!(fact["a2a_ms_ago"].is_u64(), "{fact}");
            let added = gateway.read_workspace("added").await;
            let warning = added["warnings"][0].as_str().unwrap();
            let said = format!("calls in A2A {} and not", speaks.version());
            assert!(warning.contains(&said), "{warning}");
        }
    }
}

#[tokio::test]
async fn a_message_of_1_0_under_a_method_of_0_3_passes_to_an_agent_that_takes_it() {
    let body = CALL_0_3.replace(r#""kind":"message","#, "");
    let body = body.replace(r#""kind":"text","#, "");
    for (speaks, first, label) in [
        (Generation::V0, 1, None),
        (Generation::V1, 2, Some("0.3>1.0")),
    ] {
        let speaker = Speaker {
            says: Some(Generation::V1),
            speaks,
            path: "/rpc",
        };
        let agent = speaker.start().await;
        let gateway = add(&agent, "url", "/rpc").await;
        for count in [first, first + 1] {
            let reply = call(&gateway, &body).await;
            assert_eq!(text_of(&reply), "ho", "{}", reply.body);
            assert_eq!(reply.field("x-a2a-bridged"), label);
            assert_eq!(calls(&agent), count, "what it takes is remembered");
        }
        let sent = agent.requests().into_iter();
        let sent: Vec<String> = sent.filter(|one| one.starts_with("POST ")).collect();
        assert!(sent[0].ends_with(&body), "{}", sent[0]);
    }
}

#[tokio::test]
async fn a_method_that_an_agent_knows_in_neither_generation_is_tried_twice_once() {
    let speaker = Speaker {
        says: Some(Generation::V1),
        speaks: Generation::V1,
        path: "/rpc",
    };
    let agent = speaker.start().await;
    let gateway = add(&agent, "url", "/rpc").await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"t-1"}}"#;
    for count in [2, 3] {
        let reply = call(&gateway, body).await;
        let error = &reply.json()["error"];
        assert_eq!(error["code"], -32601, "{}", reply.body);
        assert_eq!(error["message"], "no \"CancelTask\"", "the first answer");
        assert_eq!(calls(&agent), count);
    }
    let reply = call(&gateway, CALL_1_0).await;
    assert_eq!(text_of(&reply), "ho", "sends are as before");
    assert_eq!(calls(&agent), 4);
}

#[tokio::test]
async fn an_agent_without_a_card_is_found_out_by_its_answer() {
    let speaker = Speaker {
        says: None,
        speaks: Generation::V1,
        path: "/rpc",
    };
    let agent = speaker.start().await;
    let gateway = add(&agent, "url", "/rpc").await;
    let reply = call(&gateway, CALL_0_3).await;
    assert_eq!(text_of(&reply), "ho", "{}", reply.body);
    assert_eq!(reply.field("x-a2a-bridged"), Some("0.3>1.0"));
    assert_eq!(calls(&agent), 2);
}

#[tokio::test]
async fn a_served_card_names_the_tenant_of_an_http_json_interface_and_hides_its_query() {
    let interface = json!({"url": "http://a.test/rest?code=KEY", "protocolBinding": "http+json",
        "protocolVersion": "1.0", "tenant": "t"});
    let card = json!({"name": "n", "supportedInterfaces": [interface]});
    let agent = Agent::start(unary_answer(&card.to_string()).into()).await;
    let gateway = add(&agent, "url", "/").await;
    let admin = gateway.admin_field();
    let fields = ["a2a-version: 1.0", admin.as_str()];
    let served = gateway
        .send("GET /workspaces/added/a2a", &fields, "")
        .await
        .json();
    let served = &served["supportedInterfaces"][0];
    assert_eq!(served["protocolBinding"], "HTTP+JSON");
    assert_eq!(served["tenant"], "t");
    assert!(!served.to_string().contains("KEY"), "{served}");
    let body = r#"{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    for path in ["message:send", "t/message:send"] {
        let line = format!("POST /workspaces/added/a2a/{path}");
        let reply = gateway.send(&line, &fields, body).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let requests = agent.requests();
        let sent = requests.last().unwrap().lines().next().unwrap();
        assert_eq!(
            sent, "POST /rest/t/message:send?code=KEY HTTP/1.1",
            "{path}"
        );
    }
}

#[tokio::test]
async fn cards_for_0_3_name_the_http_json_that_is_translated() {
    let card = json!({"name": "n", "protocolVersion": "0.3.0", "url": "http://a.test/rpc"});
    let agent = Agent::start(unary_answer(&card.to_string()).into()).await;
    let gateway = add(&agent, "url", "/").await;
    let admin = gateway.admin_field();
    let fields = ["a2a-version: 0.3", admin.as_str()];
    let served = gateway
        .send("GET /workspaces/added/a2a", &fields, "")
        .await
        .json();
    assert_eq!(served["preferredTransport"], "JSONRPC", "{served}");
    let other = json!({"url": served["url"], "transport": "HTTP+JSON"});
    assert_eq!(served["additionalInterfaces"], json!([other]));
}

#[tokio::test]
async fn a_file_is_written_as_an_agent_of_the_python_sdk_reads_it() {
    let card = json!({"capabilities": {}, "name": "n", "preferredTransport": "HTTP+JSON", "protocolVersion": "0.3.0",
        "url": "http://a.test/rest"});
    let agent = Agent::start(unary_answer(&card.to_string()).into()).await;
    let gateway = add(&agent, "url", "/").await;
    call(
        &gateway,
        &CALL_1_0.replace(r#""text":"hi""#, r#""raw":"aGVsbG8=""#),
    )
    .await;
    let sent = agent.requests().pop().unwrap();
    assert!(sent.starts_with("POST /rest/v1/message:send "), "{sent}");
    assert!(
        sent.contains(r#"{"fileWithBytes":"YUdWc2JHOD0="}"#),
        "{sent}"
    );
}
