//! Changes that are made although their caller is refused: said to the caller, and written down.

use serde_json::json;

use super::Site;
use crate::audit::recorded;
use crate::harness::{Answer, Request};

async fn change(site: &Site, method: &str, path: &str, body: &str, id: &str) -> Answer {
    let mut request = Request::post(path, body).field("X-Request-Id", id);
    request.method = method.to_owned();
    site.gateway.as_operator(request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_made_before_redis_fails_says_so_and_is_completed_by_the_next() {
    let site = Site::new().await;
    let leaving = json!({"workspace_id": "far"}).to_string();
    let (target, cold) = ("/workspaces/target", "/workspaces/cold");
    let (leave, moved) = ("/registry/deregister", r#"{"internal_url": null}"#);
    for (method, path, body, id, again) in [
        ("PATCH", target, moved, "patched", 200),
        ("POST", leave, &*leaving, "deregistered", 200),
        ("DELETE", cold, "", "removed", 410),
    ] {
        site.redis_link.cut();
        let ask = async |id: &str| {
            if path.starts_with("/registry") {
                let request = Request::post(path, body).bearer(&site.cold_target.token);
                let request = request.field("X-Request-Id", id);
                return site.gateway.call(&request).await;
            }
            change(&site, method, path, body, id).await
        };
        let answer = ask(id).await;
        answer.refuses(503, "store_unavailable");
        assert_eq!(answer.json()["committed"], true, "{id}: {}", answer.text());
        let records = recorded(&site.gateway, &format!("request_id={id}"), 1).await;
        let record = &records[0];
        assert_eq!(record["outcome"], "store_unavailable", "{record}");
        assert_eq!(record["detail"]["committed"], true, "{record}");
        site.redis_link.resume();
        site.gateway.await_ready().await;
        let answer = ask(&format!("{id}-again")).await;
        assert_eq!(answer.status, again, "{id}: {}", answer.text());
    }
}
