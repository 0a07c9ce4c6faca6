//! Redirects of agents.

use super::*;

const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"kind":"message","role":"agent","messageId":"m-2","parts":[{"kind":"text","text":"ho"}]}}"#;

/// Returns a gateway with the workspace `moved`, the agent of which redirects calls of `/a2a` to this place, `PORT` for
/// its port; what the agent got; and the token of the workspace.
async fn start(status: u16, location: &str) -> (TestGateway, Arc<Mutex<Vec<String>>>, String) {
    let gateway = TestGateway::new(unary_answer(ANSWER), |_| ()).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    gateway.closed_port.store(port, Ordering::Relaxed);
    let location = location.replace("PORT", &port.to_string());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = socket.accept().await {
            let request = read_request(&mut stream).await;
            let answer = match request.starts_with("POST /a2a ") {
                true => format!(
                    "HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
                ),
                false => unary_answer(ANSWER),
            };
            recorded.lock().push(request);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let token = gateway
        .create_workspace(json!({"id": "moved", "name": "moved"}))
        .await;
    (gateway, requests, token)
}

async fn call(gateway: &TestGateway, fields: &[&str]) -> Reply {
    let admin = gateway.admin_field();
    let fields = [fields, &[&admin]].concat();
    gateway
        .send("POST /workspaces/moved/a2a", &fields, CALL)
        .await
}

#[tokio::test]
async fn a_redirect_at_the_same_server_is_followed_and_kept() {
    let key = "idempotency-key: k-1";
    for (status, location, fields) in [
        (307, "/a2a/?k=1", &[][..]),
        (307, "/a2a/?k=1", &[key][..]),
        (308, "http://127.0.0.1:PORT/a2a/?k=1", &[][..]),
        (307, "//127.0.0.1:PORT/a2a/?k=1#f", &[][..]),
    ] {
        let (gateway, requests, token) = start(status, location).await;
        let reply = call(&gateway, fields).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ANSWER));
        let asked = std::mem::take(&mut *requests.lock());
        let [first, second] = &asked[..] else {
            panic!("two requests: {asked:?}");
        };
        assert!(second.starts_with("POST /a2a/?k=1 HTTP/1.1"), "{second}");
        let rest = |request: &str| request.split_once("\r\n").unwrap().1.to_owned();
        assert_eq!(rest(first), rest(second), "nothing else differs");
        // The next call goes there.
        assert_eq!(call(&gateway, &[]).await.status, 200);
        let asked = std::mem::take(&mut *requests.lock());
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].starts_with("POST /a2a/?k=1 HTTP/1.1"), "{asked:?}");
        let fact = gateway.explain_call("moved").await;
        assert_eq!(fact["path"], "/a2a/?k=1", "{fact}");
        assert_eq!(fact["redirected"]["from"], "/a2a", "{fact}");
        assert!(fact["redirected"]["ms_ago"].is_u64(), "{fact}");
        let moved = gateway.read_workspace("moved").await;
        let warning = moved["warnings"][0].as_str().unwrap();
        assert!(warning.contains("/a2a to /a2a/?k=1"), "{warning}");
        // Until the agent registers again.
        let card: Value = CARD.parse().unwrap();
        let body = json!({"id": "moved", "url": moved["url"], "agent_card": card}).to_string();
        let line = "POST /registry/register";
        assert_eq!(gateway.send(line, &[&token], &body).await.status, 200);
        let fact = gateway.explain_call("moved").await;
        assert_eq!(fact["path"], "/a2a", "{fact}");
        assert_eq!(fact["redirected"], Value::Null, "{fact}");
        let moved = gateway.read_workspace("moved").await;
        assert_eq!(moved.get("warnings"), None, "{moved}");
    }
}

#[tokio::test]
async fn a_redirect_elsewhere_or_once_more_or_of_another_method_is_refused() {
    for (status, location) in [
        (307, "/a2a"),
        (302, "/a2a/"),
        (308, "https://127.0.0.1:PORT/a2a/"),
        (308, "http://127.0.0.1:1/a2a/"),
        (308, "https://else.test/"),
        (308, "//else.test/"),
        (308, "ftp:x"),
    ] {
        let (gateway, ..) = start(status, location).await;
        let reply = call(&gateway, &[]).await;
        let refusal = (reply.status, reply.refusal());
        assert_eq!(refusal, (502, Some("agent_redirected")), "{location}");
        let fact = gateway.explain_call("moved").await;
        assert_eq!(fact["path"], "/a2a", "{location}: {fact}");
    }
}
