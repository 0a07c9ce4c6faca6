//! `@a2a-js/sdk` in a real browser, from a canvas on another origin, with an agent made with `a2a-sdk`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::chromium::{Site, base};
use super::visit;
use crate::harness::packages::installed;
use crate::harness::{Gateway, card_1_0};

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
    let origin = site.origin("localhost");
    let gateway = Gateway::with(&format!("cors.origins={origin}")).await;
    let agent = SdkAgent::start(&packages, &gateway.dir.join("record"));
    let enrolment = gateway.found("target").await;
    let (mut card, url) = (card_1_0("target"), &agent.url);
    let registered = gateway.register("target", &enrolment, url, card.clone());
    registered.await;
    let token = gateway.token("/canvas/tokens", r#"{"user":"mia"}"#).await;

    // The page is told where the agent is by its owner, and then by the gateway's card.
    let target = format!("{}/workspaces/target/a2a", base(gateway.public));
    card["supportedInterfaces"][0]["url"] = target.into();
    card["capabilities"]["streaming"] = true.into();
    let task = json!({"gateway": base(gateway.public), "token": token, "card": card});
    let (_, found) = visit(site, "localhost", "/sdk.html", task).await;

    let working = "statusUpdate TASK_STATE_WORKING";
    let (submitted, artifact) = ("task TASK_STATE_SUBMITTED", "artifactUpdate");
    let [completed, canceled] =
        ["COMPLETED", "CANCELED"].map(|state| format!("statusUpdate TASK_STATE_{state}"));
    for step in ["given", "discovered", "discoveredRest"] {
        let four = json!([
            submitted, working, working, working, working, artifact, completed
        ]);
        assert_eq!(found[step], four, "{step}");
    }
    assert_eq!(found["canceled"], json!([submitted, working, canceled]));
}
