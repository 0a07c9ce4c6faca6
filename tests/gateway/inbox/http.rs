//! The routes: reading, waiting, acknowledging, telling the user.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::events::{seat, token};
use crate::harness::watcher::Feed;
use crate::harness::{Answer, Builder, Gateway, Pair, Request, until_holds};
use crate::on_both_pairs;

pub(super) async fn tell(gateway: &Gateway, id: &str, token: &str, text: &str) {
    let body = json!({"message": text}).to_string();
    let answer = gateway
        .call(&Request::post(format!("/workspaces/{id}/notify"), body).bearer(token))
        .await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"status": "sent"}))
    );
}

pub(super) async fn get(gateway: &Gateway, path: &str, token: &str) -> Answer {
    gateway.call(&Request::get(path).bearer(token)).await
}

pub(super) async fn acknowledge(gateway: &Gateway, token: &str, up_to: &str) -> Answer {
    let body = json!({"up_to": up_to}).to_string();
    gateway
        .call(&Request::post("/workspaces/dev/activity/ack", body).bearer(token))
        .await
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
        let answer = gateway.call(&Request::post(path, said.to_string()).bearer(&dev)).await;
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
            let answer = gateway.call(&Request::post(path, body.to_string()).bearer(&dev)).await;
            assert_eq!((answer.status, &*answer.reason()), (400, "invalid_params"), "{says}");
            assert!(answer.json()["error"].as_str().unwrap().contains(says), "{}", answer.text());
        }
        let good = json!({"message": "m"}).to_string();
        for request in [Request::post(path, &good).bearer(&qa), Request::post(path, &good).bearer(&canvas)] {
            assert_eq!(gateway.call(&request).await.reason(), "not_permitted");
        }
        assert_eq!(gateway.as_operator(Request::post(path, &good)).await.reason(), "not_permitted");

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
    let canvas = token(&gateway, "/canvas/tokens", json!({"user": "ada"}))
        .await
        .0;
    let path = "/workspaces/dev/activity";
    let cursor = "MQ";
    for (path, token, status, reason) in [
        (path.to_owned(), &qa, 403, "not_permitted"),
        (path.to_owned(), &canvas, 403, "not_permitted"),
        ("/activity".to_owned(), &canvas, 403, "not_permitted"),
        (path.to_owned(), &String::new(), 401, "unauthenticated"),
        (
            "/workspaces/a:b/activity".to_owned(),
            &dev,
            400,
            "invalid_workspace_id",
        ),
        (
            format!("/activity?since_id={entry}"),
            &qa,
            410,
            "cursor_gone",
        ),
        (format!("{path}?since_id=no"), &dev, 410, "cursor_gone"),
        (format!("{path}?since_id="), &dev, 410, "cursor_gone"),
        (
            format!("{path}?since_id={entry}&since_id={entry}"),
            &dev,
            400,
            "invalid_params",
        ),
        (
            format!("{path}?since_id={entry}&cursor={cursor}"),
            &dev,
            400,
            "invalid_params",
        ),
        (format!("{path}?cursor=eA"), &dev, 400, "invalid_params"),
        (format!("{path}?limit=0"), &dev, 400, "invalid_params"),
        (format!("{path}?limit=501"), &dev, 400, "invalid_params"),
        (format!("{path}?wait=61"), &dev, 400, "invalid_params"),
        (format!("{path}?wait=1.5"), &dev, 400, "invalid_params"),
        (format!("{path}?wait=-1"), &dev, 400, "invalid_params"),
        (
            format!("{path}?type=A2A_RECEIVE"),
            &dev,
            400,
            "invalid_params",
        ),
        (format!("{path}?source=user"), &dev, 400, "invalid_params"),
    ] {
        let answer = get(&gateway, &path, token).await;
        assert_eq!(
            (answer.status, &*answer.reason()),
            (status, reason),
            "{path}"
        );
    }
    let nobody = gateway
        .as_operator(Request::get("/workspaces/nobody/activity"))
        .await;
    assert_eq!(
        (nobody.status, &*nobody.reason()),
        (404, "workspace_not_found")
    );
    let own = gateway.as_operator(Request::get("/activity")).await;
    assert_eq!((own.status, &*own.reason()), (403, "not_permitted"));

    for (token, up_to, status, reason) in [
        (&qa, &*entry, 403, "not_permitted"),
        (&dev, "no", 410, "cursor_gone"),
    ] {
        let answer = acknowledge(&gateway, token, up_to).await;
        assert_eq!((answer.status, &*answer.reason()), (status, reason));
    }
    let missing = gateway
        .call(&Request::post("/workspaces/dev/activity/ack", "{}").bearer(&dev))
        .await;
    assert_eq!(
        (missing.status, &*missing.reason()),
        (400, "invalid_params")
    );
    let done = acknowledge(&gateway, &dev, &entry).await;
    assert_eq!(done.json(), json!({"status": "ok", "acknowledged": 1}));
    assert_eq!(
        acknowledge(&gateway, &dev, &entry).await.json()["acknowledged"],
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_its_credential_and_with_the_gateway() {
    let mut gateway = Builder::new(Pair::Embedded)
        .set("inbox.connections_per_caller", "1")
        .set("server.drain", "10min")
        .start()
        .await;
    let dev = seat(&gateway, "dev", None, None).await;
    let (goes, id) = token(&gateway, "/workspaces/dev/tokens", json!({})).await;
    let waits = get(&gateway, "/activity?wait=60", &goes);
    let ends = async {
        waiting(&gateway, 1.0).await;
        let full = get(&gateway, "/activity?wait=60", &goes).await;
        assert_eq!((full.status, &*full.reason()), (429, "rate_limited"));
        let path = format!("/workspaces/dev/tokens/{id}");
        assert_eq!(
            gateway
                .as_operator(Request::new("DELETE", path))
                .await
                .status,
            200
        );
    };
    let (answer, ()) = tokio::join!(waits, ends);
    assert_eq!((answer.status, &*answer.reason()), (401, "unauthenticated"));

    waiting(&gateway, 0.0).await;
    let began = Instant::now();
    let waits = get(&gateway, "/activity?wait=60", &dev);
    let ends = async {
        waiting(&gateway, 1.0).await;
        gateway.terminate();
    };
    let (answer, ()) = tokio::join!(waits, ends);
    assert_eq!((answer.status, answer.json()), (200, json!([])));
    assert!(
        began.elapsed() < Duration::from_secs(55),
        "its own time ends it, and not the signal"
    );
    assert!(gateway.wait(Duration::from_secs(60)).success());
}
