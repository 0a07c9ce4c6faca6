//! The built-in guard, which needs no server.

use super::*;

fn patterns() -> Value {
    json!([{"name": "own", "builtin": "patterns", "patterns": [
        {"name": "secret", "regex": "planted-for-the-guard[s]"},
        {"name": "email", "regex": "[a-z]+@[a-z]+\\.example", "action": "mask"}]}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_reject_and_mask_calls_in_each_form() {
    for card_of in [card, card_1_0] {
        let gateway = builder(Pair::Embedded, &patterns()).start().await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let agent = agent("from b@b.example").await;
        let target = gateway.seat_of(card_of("target"), "", agent).await;
        for form in Form::ALL {
            for streams in [false, true] {
                let call = async |text: &str| {
                    let request = form.request(&target, &caller, streams, text);
                    gateway.call(&request).await
                };
                let before = target.agent.calls();
                let rejected = call(&format!("my {SECRET}")).await;
                rejected.refuses(403, "guard_rejected");
                rejected.tells("why", "pattern `secret` matches");
                assert_eq!(target.agent.calls(), before);
                let passed = call("to a@a.example").await.has(200);
                passed.says("from [email]");
                assert!(!passed.text().contains("b@b"), "{}", passed.text());
                let sent = target.agent.take();
                assert!(sent.text().contains("to [email]"), "{}", sent.text());
                assert!(!sent.text().contains("a@a"), "{}", sent.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_see_metadata_and_errors_and_answers_that_are_no_json() {
    let agent = Agent::scripted(|request| {
        let id = call_in(request)["id"].clone();
        let error = json!({"code": -32000, "message": "no", "data": {"at": SECRET}});
        let error = json!({"jsonrpc": "2.0", "id": id, "error": error});
        let page = format!("<p>{SECRET}</p>");
        let head = "HTTP/1.1 404 X\r\nContent-Type: text/html\r\nContent-Length";
        match request.text().contains("page") {
            true => vec![Step::write(format!("{head}: {}\r\n\r\n{page}", page.len()))],
            false => vec![Step::Write(ok_json(&error.to_string()))],
        }
    });
    let case = Case::on(builder(Pair::Embedded, &patterns()), agent.await).await;
    for text in ["error", "page"] {
        let answer = case.call(Form::Rpc03, false, text).await;
        answer.refuses(403, "guard_rejected");
        answer.tells("delivered", "true");
    }
    let mut call: Value = serde_json::from_str(crate::harness::CALL).unwrap();
    call["params"]["metadata"] = json!({"note": [SECRET]});
    let request = Request::post(case.target.path(), call.to_string()).bearer(&case.caller.token);
    assert_eq!(case.gateway.call(&request).await.status, 403);
    assert_eq!(case.target.agent.count(), 2);
}
