//! URLs for push notifications: the agent calls them, so they pass the policy that agents' URLs pass.

use serde_json::{Value, json};

use super::{call, echoing, rpc};
use crate::harness::dns::Dns;
use crate::harness::{Builder, Connection, Gateway, Pair, Seat};

/// Everything that asks an agent to call `url`.
fn asking(url: &str) -> Vec<String> {
    let message = json!({"messageId": "m", "role": "user", "parts": []});
    let with = |configuration: Value| json!({"message": message, "configuration": configuration});
    let to = json!({"url": url});
    let config = json!({"pushNotificationConfig": to});
    let named = with(json!({"taskPushNotificationConfig": to}));
    let spelled = with(json!({"task_push_notification_config": to}));
    let kept = with(json!({"pushNotificationConfig": {"url": url, "token": "x"}}));
    let sent = json!({"id": "t", "message": {"parts": []}, "pushNotification": to});
    let set = |name: &str| json!({name: "t", "pushNotificationConfig": to});
    let create = "CreateTaskPushNotificationConfig";
    [
        ("message/send", kept),
        ("message/stream", with(config.clone())),
        ("SendMessage", named),
        ("SendStreamingMessage", spelled),
        ("tasks/send", sent),
        ("tasks/pushNotification/set", set("id")),
        ("tasks/pushNotificationConfig/set", set("taskId")),
        (create, json!({"taskId": "t", "url": url})),
        (create, json!({"parent": "tasks/t", "config": config})),
    ]
    .iter()
    .map(|(method, params)| rpc(method, params))
    .collect()
}

async fn assert_refused(gateway: &Gateway, dev: &Seat, url: &str) {
    let mut connection = Connection::open(gateway.public).await;
    for body in asking(url) {
        let answer = call(&mut connection, &dev.token, &body).await;
        let shown = format!("{body}: {} {}", answer.status, answer.text());
        assert_eq!(answer.status, 502, "{shown}");
        assert_eq!(answer.reason(), "address_forbidden", "{shown}");
        let json = answer.json();
        assert_eq!(json["error"]["code"], -32_602, "{shown}");
        assert_eq!(json["id"], "c-1", "{shown}");
        // It names no address: that would tell what a name means inside.
        let said = json["error"]["message"].to_string();
        assert!(said.contains("the URL for push notifications"), "{said}");
        assert!(!said.contains("127.0.0.1"), "{said}");
    }
    assert_eq!(dev.agent.count(), 0, "{url}");
}

async fn assert_passed(gateway: &Gateway, dev: &Seat, url: &str) {
    let mut connection = Connection::open(gateway.public).await;
    for body in asking(url) {
        let answer = call(&mut connection, &dev.token, &body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        assert_eq!(dev.agent.take().text(), body, "byte for byte");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_asked_to_call_only_where_an_agent_may_be() {
    let dns = Dns::start(|name, _| match name {
        "inside.example" => vec!["127.0.0.1".parse().unwrap()],
        "mixed.example" => vec!["8.8.8.8".parse().unwrap(), "10.0.0.1".parse().unwrap()],
        "outside.example" => vec!["8.8.8.8".parse().unwrap()],
        _ => Vec::new(),
    })
    .await;
    let agent = echoing().await;
    let port = agent.port;
    let gateway = Builder::new(Pair::Embedded)
        .set("address.profile", "strict")
        .set("address.nameservers", &dns.address.to_string())
        .set("trusted_agents", &format!("http://127.0.0.1:{port}"));
    let gateway = gateway.start().await;
    let dev = gateway.seat("dev", "", agent).await;
    for url in [
        "http://127.0.0.1:9/hook",
        "http://10.0.0.1/hook",
        "https://192.168.1.1/hook",
        "http://172.16.0.1/",
        "http://[::1]:9/",
        "http://[::ffff:127.0.0.1]/",
        "http://0x7f.1/",
        "http://2130706433/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://100.64.0.1/",
        "http://inside.example/hook",
        "http://mixed.example/hook",
        "http://nowhere.example/hook",
        "ftp://8.8.8.8/",
        "http://ada@8.8.8.8/",
        "//8.8.8.8/",
        "hook",
        "",
    ] {
        assert_refused(&gateway, &dev, url).await;
    }
    for url in [
        "http://8.8.8.8/hook",
        "https://outside.example/hook?x=1",
        "https://[2606:4700::1111]/",
    ] {
        assert_passed(&gateway, &dev, url).await;
    }
    // An agent that an operator vouches for.
    assert_passed(&gateway, &dev, &format!("http://127.0.0.1:{port}/hook")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_policy_opens_private_ranges_and_never_metadata() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let dev = gateway.seat("dev", "", echoing().await).await;
    for url in [
        "http://169.254.169.254/",
        "http://metadata@169.254.169.254:80/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://0251.0376.0251.0376/",
        "http://0.0.0.0/",
    ] {
        assert_refused(&gateway, &dev, url).await;
    }
    assert_passed(&gateway, &dev, "http://127.0.0.1:9/hook").await;
    assert_passed(&gateway, &dev, "http://10.1.2.3/hook").await;
    // What is no URL for push notifications is not judged.
    let mut connection = Connection::open(gateway.public).await;
    let message = json!({"messageId": "m", "role": "user", "parts": [{"url": "http://169.254.169.254/"}],
        "metadata": {"url": "http://169.254.169.254/"}});
    let body = rpc("message/send", &json!({"message": message}));
    call(&mut connection, &dev.token, &body).await.has(200);
    // More than can be looked up for one call.
    let urls = [0, 1, 2, 3, 4].map(|i| json!({"url": format!("http://8.8.8.{i}/")}));
    let params = json!({"taskId": "t", "x": urls});
    let body = rpc("CreateTaskPushNotificationConfig", &params);
    let answer = call(&mut connection, &dev.token, &body).await;
    answer.refuses(400, "invalid_request");
}
