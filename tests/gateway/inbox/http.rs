//! The routes: reading, waiting, acknowledging, telling the user.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::events::{seat, token};
use crate::harness::watcher::Feed;
use crate::harness::{ADMIN, Answer, Builder, Gateway, Pair, Request, until_holds};
use crate::on_both_pairs;

/// A request of the workspace `dev`, or of another token.
async fn post(gateway: &Gateway, path: &str, token: &str, body: &Value) -> Answer {
    let request = Request::post(path, body.to_string());
    gateway.call(&request.bearer(token)).await
}

pub(super) async fn tell(gateway: &Gateway, id: &str, token: &str, text: &str) {
    let path = format!("/workspaces/{id}/notify");
    let answer = post(gateway, &path, token, &json!({ "message": text })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json(), json!({"status": "sent"}));
}

pub(super) async fn get(gateway: &Gateway, path: &str, token: &str) -> Answer {
    gateway.call(&Request::get(path).bearer(token)).await
}

pub(super) async fn acknowledge(gateway: &Gateway, token: &str, up_to: &str) -> Answer {
    let path = "/workspaces/dev/activity/ack";
    post(gateway, path, token, &json!({ "up_to": up_to })).await
}

pub(super) fn is_refused(answer: &Answer, status: u16, reason: &str, what: &str) {
    let said = answer.reason();
    assert_eq!((answer.status, &*said), (status, reason), "{what}");
}

/// The texts of a page.
fn texts(answer: &Answer) -> Vec<String> {
    let text = |item: &Value| item["request_body"]["message"].as_str().unwrap().to_owned();
    answer.json().as_array().unwrap().iter().map(text).collect()
}

fn id_of(answer: &Answer, at: usize) -> String {
    answer.json()[at]["id"].as_str().unwrap().to_owned()
}

/// The reference in `Link`.
fn next(answer: &Answer) -> Option<String> {
    let link = answer.field("link")?;
    let (reference, rel) = link.strip_prefix('<').unwrap().split_once('>').unwrap();
    assert_eq!(rel, "; rel=\"next\"");
    Some(reference.to_owned())
}

/// Waits until so many requests wait for an entry.
async fn waiting(gateway: &Gateway, count: f64) {
    let readers = async || gateway.metric("a2a_gateway_inbox_readers", &["wait"]).await;
    until_holds(&format!("{count} wait"), async || readers().await == count).await;
}

on_both_pairs! {
    async fn an_inbox_is_read_from_the_newest_and_followed_from_any_entry(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let dev = seat(&gateway, "dev", None, None).await;
        assert_eq!(texts(&get(&gateway, "/workspaces/dev/activity", &dev).await), [""; 0]);
        for n in 1..=5 {
            tell(&gateway, "dev", &dev, &n.to_string()).await;
        }
        let page = get(&gateway, "/workspaces/dev/activity?limit=2&type=notify", &dev).await;
        assert_eq!(texts(&page), ["5", "4"]);
        let page = get(&gateway, &next(&page).unwrap(), &dev).await;
        assert_eq!(texts(&page), ["3", "2"]);
        let page = get(&gateway, &next(&page).unwrap(), &dev).await;
        assert_eq!((texts(&page), next(&page)), (vec!["1".to_owned()], None));
        let first = id_of(&page, 0);

        let page = get(&gateway, &format!("/activity?since_id={first}&limit=3"), &dev).await;
        assert_eq!(texts(&page), ["2", "3", "4"]);
        let page = get(&gateway, &next(&page).unwrap(), &dev).await;
        assert_eq!((texts(&page), next(&page)), (vec!["5".to_owned()], None));
        let item = &page.json()[0];
        assert_eq!((&item["seq"], &item["activity_type"], &item["status"]), (&json!(5), &json!("notify"), &json!("ok")));
        assert_eq!((&item["source_id"], &item["target_id"], &item["task_id"]), (&json!("dev"), &Value::Null, &Value::Null));

        let operator = gateway.as_operator(Request::get("/workspaces/dev/activity?source=agent")).await;
        assert_eq!(texts(&operator).len(), 5);
        for filter in ["source=canvas", "type=a2a_receive"] {
            assert_eq!(texts(&get(&gateway, &format!("/activity?{filter}"), &dev).await), [""; 0]);
        }
    }

    async fn a_wait_ends_with_an_entry_that_the_filters_let_through(pair: Pair) {
        let gateway = Gateway::start(pair).await;
        let dev = seat(&gateway, "dev", None, None).await;
        let waits = get(&gateway, "/activity?wait=60", &dev);
        let late = async {
            waiting(&gateway, 1.0).await;
            tell(&gateway, "dev", &dev, "1").await;
        };
        let (found, ()) = tokio::join!(waits, late);
        assert_eq!(texts(&found), ["1"]);
        let again = get(&gateway, "/activity?wait=60", &dev).await;
        assert_eq!(texts(&again), ["1"], "what is there is not waited for");

        let since = format!("/activity?since_id={}", id_of(&found, 0));
        let (filtered, open) = (format!("{since}&wait=1&type=a2a_receive"), format!("{since}&wait=60"));
        let late = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            tell(&gateway, "dev", &dev, "2").await;
        };
        let began = Instant::now();
        let (nothing, found, ()) = tokio::join!(get(&gateway, &filtered, &dev), get(&gateway, &open, &dev), late);
        assert_eq!((nothing.status, texts(&nothing).len(), texts(&found)), (200, 0, vec!["2".to_owned()]));
        assert!(began.elapsed() >= Duration::from_secs(1));
        waiting(&gateway, 0.0).await;
    }

    async fn what_a_workspace_tells_is_kept_and_heard(pair: Pair) {
        let mut gateway = Gateway::start(pair).await;
        let dev = seat(&gateway, "dev", None, None).await;
        let qa = seat(&gateway, "qa", None, None).await;
        let canvas = token(&gateway, "/canvas/tokens", json!({"user": "ada"})).await.0;
        let mut watching = Feed::open(gateway.public, &Request::get("/events").bearer(&canvas)).await;
        let path = "/workspaces/dev/notify";
        let file = json!({"uri": "https://files.example/a", "name": "a.txt", "mimeType": "text/plain", "size": 3});
        let said = json!({"message": "look", "attachments": [file, {"uri": "u", "name": "n"}]});
        let answer = post(&gateway, path, &dev, &said).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "sent"})));
        // What becomes of the workspaces themselves may be told first.
        let event = loop {
            let event = watching.event().await.data;
            if event["event"] == "AGENT_MESSAGE" {
                break event;
            }
        };
        assert_eq!((&event["event"], &event["workspace_id"]), (&json!("AGENT_MESSAGE"), &json!("dev")));
        assert_eq!(event["payload"], said);

        let many: Vec<Value> = (0..33).map(|n| json!({"uri": "u", "name": n.to_string()})).collect();
        for (body, says) in [
            (json!({}), "`message` is missing"),
            (json!({"message": 1}), "`message`"),
            (json!({"message": " "}), "`message`"),
            (json!({"message": "x".repeat((64 << 10) + 1)}), "64 KiB"),
            (json!({"message": "m", "attachments": many}), "32"),
            (json!({"message": "m", "attachments": [{"uri": "u"}]}), "name"),
            (json!({"message": "m", "attachments": [{"uri": "u", "name": "n"}, {"uri": "", "name": "n"}]}), "attachments[1]"),
            (json!({"message": "m", "attachments": [{"uri": "u".repeat(2049), "name": "n"}]}), "attachments[0]"),
            (json!({"message": "m", "attachments": [{"uri": "u", "name": "n", "size": -1}]}), "size"),
        ] {
            let answer = post(&gateway, path, &dev, &body).await;
            is_refused(&answer, 400, "invalid_params", says);
            assert!(answer.json()["error"].as_str().unwrap().contains(says), "{}", answer.text());
        }
        let good = json!({"message": "m"});
        for token in [&*qa, &canvas, ADMIN] {
            assert_eq!(post(&gateway, path, token, &good).await.reason(), "not_permitted");
        }

        // SIGKILL takes nothing that was answered.
        gateway.kill();
        gateway.restart().await;
        let page = get(&gateway, "/activity", &dev).await;
        assert_eq!(page.json().as_array().unwrap().len(), 1);
        assert_eq!(page.json()[0]["request_body"], said);
        tell(&gateway, "dev", &dev, "next").await;
        assert_eq!(get(&gateway, "/activity", &dev).await.json()[0]["seq"], 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reads_anothers_and_what_is_wrong_is_said() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let dev = seat(&gateway, "dev", None, None).await;
    let qa = seat(&gateway, "qa", None, None).await;
    tell(&gateway, "dev", &dev, "1").await;
    let entry = id_of(&get(&gateway, "/activity", &dev).await, 0);
    let canvas = token(&gateway, "/canvas/tokens", json!({"user": "ada"})).await;
    let (canvas, nobody) = (canvas.0, String::new());
    let path = "/workspaces/dev/activity";
    let at = |query: &str| format!("{path}?{query}");
    let (since, misspelt) = (format!("since_id={entry}"), "/workspaces/a:b/activity");
    for (path, token, status, reason) in [
        (path.to_owned(), &qa, 403, "not_permitted"),
        (path.to_owned(), &canvas, 403, "not_permitted"),
        ("/activity".to_owned(), &canvas, 403, "not_permitted"),
        (path.to_owned(), &nobody, 401, "unauthenticated"),
        (misspelt.to_owned(), &dev, 400, "invalid_workspace_id"),
        (format!("/activity?{since}"), &qa, 410, "cursor_gone"),
        (at("since_id=no"), &dev, 410, "cursor_gone"),
        (at("since_id="), &dev, 410, "cursor_gone"),
        (at(&format!("{since}&{since}")), &dev, 400, "invalid_params"),
        (
            at(&format!("{since}&cursor=MQ")),
            &dev,
            400,
            "invalid_params",
        ),
        (at("cursor=eA"), &dev, 400, "invalid_params"),
        (at("limit=0"), &dev, 400, "invalid_params"),
        (at("limit=501"), &dev, 400, "invalid_params"),
        (at("wait=61"), &dev, 400, "invalid_params"),
        (at("wait=1.5"), &dev, 400, "invalid_params"),
        (at("wait=-1"), &dev, 400, "invalid_params"),
        (at("type=A2A_RECEIVE"), &dev, 400, "invalid_params"),
        (at("source=user"), &dev, 400, "invalid_params"),
    ] {
        is_refused(&get(&gateway, &path, token).await, status, reason, &path);
    }
    let nobody = get(&gateway, "/workspaces/nobody/activity", ADMIN).await;
    is_refused(&nobody, 404, "workspace_not_found", "nobody");
    let own = get(&gateway, "/activity", ADMIN).await;
    is_refused(&own, 403, "not_permitted", "an operator's own");

    let foreign = acknowledge(&gateway, &qa, &entry).await;
    is_refused(&foreign, 403, "not_permitted", "another's");
    let unknown = acknowledge(&gateway, &dev, "no").await;
    is_refused(&unknown, 410, "cursor_gone", "no entry");
    let missing = post(&gateway, "/workspaces/dev/activity/ack", &dev, &json!({})).await;
    is_refused(&missing, 400, "invalid_params", "no entry is named");
    for count in [1, 0] {
        let done = acknowledge(&gateway, &dev, &entry).await.json();
        assert_eq!(done, json!({"status": "ok", "acknowledged": count}));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_its_credential_and_with_the_gateway() {
    let builder = Builder::new(Pair::Embedded).set("inbox.connections_per_caller", "1");
    let mut gateway = builder.set("server.drain", "10min").start().await;
    let dev = seat(&gateway, "dev", None, None).await;
    let (goes, id) = token(&gateway, "/workspaces/dev/tokens", json!({})).await;
    let waits = get(&gateway, "/activity?wait=60", &goes);
    let ends = async {
        waiting(&gateway, 1.0).await;
        let full = get(&gateway, "/activity?wait=60", &goes).await;
        is_refused(&full, 429, "rate_limited", "a second one");
        let path = format!("/workspaces/dev/tokens/{id}");
        let revoked = gateway.as_operator(Request::new("DELETE", path)).await;
        assert_eq!(revoked.status, 200);
    };
    let (answer, ()) = tokio::join!(waits, ends);
    is_refused(&answer, 401, "unauthenticated", "revoked");

    waiting(&gateway, 0.0).await;
    let began = Instant::now();
    let waits = get(&gateway, "/activity?wait=60", &dev);
    let ends = async {
        waiting(&gateway, 1.0).await;
        gateway.terminate();
    };
    let (answer, ()) = tokio::join!(waits, ends);
    assert_eq!((answer.status, answer.json()), (200, json!([])));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(55), "its own time ended it");
    assert!(gateway.wait(Duration::from_secs(60)).success());
}
