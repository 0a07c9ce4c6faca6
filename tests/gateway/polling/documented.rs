//! `docs/guide/poll-agent.py` outlives a stop, a kill and an exchange of its gateway, and asks little.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::{Case, hello};
use crate::handover::{Supervisor, signal};
use crate::harness::{Builder, Gateway, Pair, Request, card, until_holds};

const SOON: Duration = Duration::from_secs(60);

/// The agent of the documents. Dropping it ends it.
struct Documented(Child);

impl Documented {
    fn start(gateway: &Gateway, token: &str) -> Self {
        let child = Command::new("python3")
            .arg("-u")
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/docs/guide/poll-agent.py"
            ))
            .env("GATEWAY", format!("http://{}", gateway.public))
            .env("TOKEN", token)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("python3 is installed");
        Self(child)
    }

    fn lives(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Documented {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Case {
    /// Sends a message, and waits until it is replied to.
    async fn served(&self, what: &str, agent: &mut Documented) {
        let task = self.sent().await;
        let is_replied = async || self.task(&task).await["status"]["state"] == "completed";
        until_holds(what, is_replied).await;
        assert!(agent.lives(), "{what}: the agent ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_agent_outlives_its_gateways() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = Supervisor::new(folder.path());
    let notify = folder.path().join("notify");
    let builder = Builder::new(Pair::External).env("NOTIFY_SOCKET", notify.to_str().unwrap());
    let mut case = Case::with(builder, card("poller")).await;
    supervisor.next();
    let mut agent = Documented::start(&case.gateway, &case.token);
    case.served("at first", &mut agent).await;

    case.gateway.terminate();
    assert!(case.gateway.wait(SOON).success());
    case.gateway.restart().await;
    supervisor.next();
    case.served("after a stop", &mut agent).await;

    case.gateway.kill();
    case.gateway.restart().await;
    let before = supervisor.next();
    case.served("after a kill", &mut agent).await;

    assert!(signal(before, "USR2"));
    let after = tokio::task::block_in_place(|| supervisor.next());
    assert_ne!(after, before);
    assert!(case.gateway.wait(SOON).success());
    case.served("after an exchange", &mut agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_agent_works_off_a_backlog_within_the_default_rate() {
    let builder = Builder::new(Pair::Embedded)
        .set("rate.caller_per_second", "50")
        .set("rate.caller_burst", "20");
    let case = Case::with(builder, card("poller")).await;
    let mut last = String::new();
    for _ in 0..60 {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": hello()});
        // The sender keeps to its rate.
        last = loop {
            let request = Request::post("/workspaces/poller/a2a", body.to_string());
            let sent = case.gateway.as_operator(request).await;
            if sent.status != 429 {
                break sent.json()["activity_id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
    }
    let mut agent = Documented::start(&case.gateway, &case.token);
    let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": last}});
    let asked = Request::post("/workspaces/poller/a2a", asked.to_string());
    let is_done = async || {
        let task = case.gateway.as_operator(asked.clone()).await.json();
        task["result"]["status"]["state"] == "completed"
    };
    until_holds("the backlog is worked off", is_done).await;
    assert!(agent.lives());
}
