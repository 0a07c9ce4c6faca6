//! The built-in guard, which needs no server.

use super::*;

fn patterns(more: &Value) -> Value {
    let mut table = json!({"name": "own", "builtin": "patterns", "patterns": [
        {"name": "secret", "regex": "planted-for-the-guard[s]"},
        {"name": "email", "regex": "[a-z]+@[a-z]+\\.example", "action": "mask"}]});
    table
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!([table])
}

fn posts(agent: &Agent) -> usize {
    let requests = agent.requests();
    requests
        .iter()
        .filter(|one| one.head.starts_with("POST "))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_reject_and_mask_calls_in_each_form() {
    for card_of in [card, card_1_0] {
        let gateway = builder(Pair::Embedded, &patterns(&json!({}))).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let target = gateway
            .seat_of(card_of("target"), "", agent("from b@b.example").await)
            .await;
        for form in Form::ALL {
            for streams in [false, true] {
                let call = async |text: &str| {
                    gateway
                        .call(&form.request(&target, &caller, streams, text))
                        .await
                };
                let before = posts(&target.agent);
                let rejected = call(&format!("my {SECRET}")).await;
                rejected.refuses(403, "guard_rejected");
                assert_eq!(
                    rejected.fact("why").as_deref(),
                    Some("pattern `secret` matches")
                );
                assert_eq!(posts(&target.agent), before);
                let passed = call("to a@a.example").await;
                assert_eq!(passed.status, 200, "{}", passed.text());
                passed.says("from [email]");
                assert!(!passed.text().contains("b@b"), "{}", passed.text());
                let sent = target.agent.take();
                assert!(
                    sent.text().contains("to [email]") && !sent.text().contains("a@a"),
                    "{}",
                    sent.text()
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_see_metadata_and_errors_and_answers_that_are_no_json() {
    let case = Case::on(
        builder(Pair::Embedded, &patterns(&json!({}))),
        Agent::scripted(|request| {
            let id = call_in(request)["id"].clone();
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "no", "data": {"at": SECRET}}});
            let page = format!("<p>{SECRET}</p>");
            let page = format!("HTTP/1.1 500 X\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            match request.text().contains("page") {
                true => vec![Step::write(page)],
                false => vec![Step::Write(ok_json(&error.to_string()))],
            }
        })
        .await,
    )
    .await;
    for text in ["error", "page"] {
        let answer = case.call(Form::Rpc03, false, text).await;
        answer.refuses(403, "guard_rejected");
        assert_eq!(answer.fact("delivered").as_deref(), Some("true"));
    }
    let mut call: Value = serde_json::from_str(crate::harness::CALL).unwrap();
    call["params"]["metadata"] = json!({"note": [SECRET]});
    let request = Request::post(case.target.path(), call.to_string()).bearer(&case.caller.token);
    assert_eq!(case.gateway.call(&request).await.status, 403);
    assert_eq!(case.target.agent.count(), 2);
}
