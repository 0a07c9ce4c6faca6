//! `urls`: instances of A2A servers that know nothing of the gateway.

use super::*;
use crate::harness::assert_refusal;
use crate::on_both_pairs;

async fn create(set: &Set, body: Value) -> Answer {
    set.post("/workspaces", body).await
}

async fn view(set: &Set, id: &str) -> Value {
    set.gateway.read(&format!("/workspaces/{id}")).await
}

fn urls_of(view: &Value) -> Vec<&str> {
    let all = view["instances"].as_array().unwrap();
    let mut urls: Vec<_> = all.iter().map(|one| one["url"].as_str().unwrap()).collect();
    urls.sort_unstable();
    urls
}

async fn call(set: &Set, id: &str) -> Answer {
    let request = Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(&set.caller.token);
    set.gateway.call(&request).await
}

on_both_pairs! {
    async fn servers_that_know_nothing_of_the_gateway_are_its_instances(pair: Pair) {
        let set = Set::new(pair).await;
        let (one, two, three) = (answering().await, answering().await, answering().await);
        let urls = [one.url(), two.url()];
        let body = json!({"id": "plain", "name": "plain", "liveness": "assumed", "urls": urls});
        create(&set, body).await.has(201);
        let before = view(&set, "plain").await;
        let mut expected: Vec<&str> = urls.iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(urls_of(&before), expected);
        for instance in before["instances"].as_array().unwrap() {
            assert_eq!((&instance["status"], &instance["last_seen"]), (&json!("online"), &Value::Null));
        }
        assert_eq!(before["url"], json!(one.url()), "the first");
        for _ in 0..10 {
            assert_eq!(call(&set, "plain").await.status, 200);
        }
        assert_eq!(one.calls() + two.calls(), 10);
        // A URL that stays keeps its id.
        let answer = set.gateway.patch("plain", json!({"urls": [three.url(), one.url()]})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let after = answer.json();
        let id_of = |view: &Value, url: &str| {
            let all = view["instances"].as_array().unwrap().clone();
            let one = all.into_iter().find(|one| one["url"] == url);
            one.map(|one| one["instance_id"].clone())
        };
        assert_eq!(id_of(&after, &one.url()), id_of(&before, &one.url()));
        assert_eq!(id_of(&after, &two.url()), None);
        // The server that left the list is free.
        let enrolment = set.gateway.create(json!({"id": "other", "name": "other"})).await;
        let body = json!({"id": "other", "url": two.url(), "agent_card": card("other")});
        let register = Request::post("/registry/register", body.to_string()).bearer(&enrolment);
        assert_eq!(set.gateway.call(&register).await.status, 200);
        // Back to one URL.
        let answer = set.gateway.patch("plain", json!({"url": one.url()})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.json().get("instances").is_none(), "{}", answer.text());
        let before = one.calls();
        assert_eq!(call(&set, "plain").await.status, 200);
        assert_eq!(one.calls(), before + 1);
        let answer = set.gateway.patch("plain", json!({"urls": [three.url()]})).await;
        assert_eq!(urls_of(&answer.json()), [three.url()]);
        let answer = set.gateway.patch("plain", json!({"urls": null})).await;
        assert_eq!((answer.status, &answer.json()["url"]), (200, &json!(three.url())));
        assert!(answer.json().get("instances").is_none(), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_urls_that_cannot_be_is_refused() {
    let set = Set::new(Pair::Embedded).await;
    let url = answering().await.url();
    let many: Vec<String> = (0..65).map(|n| format!("http://127.0.0.1:9/{n}")).collect();
    let beating = json!({"urls": [url], "liveness": "heartbeat"});
    let metadata = json!({"urls": [url, "http://169.254.169.254/"]});
    for (more, reason) in [
        (json!({"urls": []}), "invalid_params"),
        (json!({"urls": many}), "invalid_params"),
        (json!({"urls": [url, url]}), "invalid_params"),
        (json!({"urls": [url], "url": url}), "invalid_params"),
        (
            json!({"urls": [url], "internal_url": url}),
            "invalid_params",
        ),
        (beating, "invalid_params"),
        (json!({"urls": ["ftp://127.0.0.1/"]}), "address_forbidden"),
        (metadata, "address_forbidden"),
    ] {
        let body = json!({"id": "plain", "name": "plain", "liveness": "assumed"});
        let answer = create(&set, merged(body, &more)).await;
        assert_refusal(&answer, "", "seen", reason, &more.to_string());
    }
    let org = set.gateway.token("/orgs/acme/tokens", "{}").await;
    let body = json!({"id": "plain", "name": "plain", "liveness": "assumed", "urls": [url]});
    let request = Request::post("/workspaces", body.to_string()).bearer(&org);
    let answer = set.gateway.call(&request).await;
    answer.refuses(403, "not_permitted");
    let answer = create(&set, json!({"id": "plain", "name": "plain"})).await;
    assert_eq!(answer.status, 201, "nothing was created: {}", answer.text());
    let answer = set.gateway.patch("plain", json!({"urls": [url]})).await;
    answer.refuses(400, "invalid_params");
    assert!(answer.text().contains("assumed"), "{}", answer.text());
    let body = json!({"id": "listed", "name": "listed", "liveness": "assumed", "urls": [url]});
    assert_eq!(create(&set, body).await.status, 201);
    let beating = json!({"liveness": "heartbeat"});
    let answer = set.gateway.patch("listed", beating).await;
    answer.refuses(400, "invalid_params");
    // Instances that registered themselves are not moved by a URL.
    let token = set.own_token().await;
    let agent = answering().await;
    set.register(&token, "one", &agent).await;
    let listed = json!({"liveness": "assumed", "urls": [answering().await.url()]});
    let null = json!({"url": null});
    for change in [json!({"url": url}), null, json!({"urls": null}), listed] {
        let answer = set.gateway.patch("target", change.clone()).await;
        answer.refuses_for(&change, 409, "conflict");
    }
}
