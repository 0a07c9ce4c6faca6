//! `@a2a-js/sdk` in a real browser, from a canvas on another origin, with an agent made with `a2a-sdk`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::chromium::{Site, base};
use super::visit;
use crate::harness::packages::installed;
use crate::harness::{Builder, Pair, Request, card_1_0};

/// An agent of `tests/clients/agents`, ended with this process at the latest.
struct SdkAgent {
    child: Child,
    url: String,
}

impl SdkAgent {
    fn start(packages: &Path, record: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(packages.join("py13/python/bin/python"))
            .arg("-B")
            .arg(root.join("tests/clients/agents/py13.py"))
            .arg(record)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let mut told = BufReader::new(child.stdout.take().unwrap());
        told.read_line(&mut port).unwrap();
        let url = format!("http://127.0.0.1:{}/a2a/jsonrpc", port.trim());
        Self { child, url }
    }
}

impl Drop for SdkAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_made_with_the_sdk_streams_through_the_gateway() {
    let packages = tokio::task::spawn_blocking(|| installed("scripts/clients"));
    let packages = packages.await.unwrap();
    let site = Site::with_packages(packages.join("js13"));
    let builder = Builder::new(Pair::Embedded).set("cors.origins", &site.origin("localhost"));
    let gateway = builder.start().await;
    let agent = SdkAgent::start(&packages, &gateway.dir.join("record"));
    let enrolment = gateway
        .create(json!({"id": "target", "name": "target"}))
        .await;
    let mut card = card_1_0("target");
    gateway
        .register("target", &enrolment, &agent.url, card.clone())
        .await;
    let request = Request::post("/canvas/tokens", r#"{"user":"mia"}"#);
    let token = gateway.as_operator(request).await.json()["token"].take();

    // The page is told where the agent is by its owner, and then by the gateway's card.
    let target = format!("{}/workspaces/target/a2a", base(gateway.public));
    card["supportedInterfaces"][0]["url"] = target.into();
    card["capabilities"]["streaming"] = true.into();
    let task = json!({"gateway": base(gateway.public), "token": token, "card": card});
    let (_, found) = visit(site, "localhost", "/sdk.html", task).await;

    let working = "statusUpdate TASK_STATE_WORKING";
    let mut events = vec![
        "task TASK_STATE_SUBMITTED",
        working,
        working,
        working,
        working,
    ];
    events.extend(["artifactUpdate", "statusUpdate TASK_STATE_COMPLETED"]);
    let canceled = json!([
        "task TASK_STATE_SUBMITTED",
        working,
        "statusUpdate TASK_STATE_CANCELED"
    ]);
    let expected: [(&str, Value); 4] = [
        ("given", json!(events)),
        ("canceled", canceled),
        ("discovered", json!(events)),
        ("discoveredRest", json!(events)),
    ];
    for (step, expected) in expected {
        assert_eq!(found[step], expected, "{step}");
    }
}
