//! `exchange tail`: exchanges as they end, through any replica; its end, and what it does when the gateway leaves.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::timeout;

use super::{operating, run};
use crate::harness::{Agent, Builder, CALL, Gateway, Pair, Request};

/// How long anything may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Tail {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Tail {
    fn start(gateway: &Gateway, line: &str) -> Self {
        let mut command = operating(gateway);
        command.args(line.split(' '));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let err = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, out, err }
    }

    async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.out.next_line()).await;
        line.expect("a line in time").unwrap().expect("a line")
    }

    /// The next remark with this part.
    async fn remark(&mut self, part: &str) -> String {
        let read = async {
            loop {
                let line = self.err.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("no {part}"));
                if line.contains(part) {
                    return line;
                }
            }
        };
        timeout(PATIENCE, read).await.expect("a remark in time")
    }

    async fn interrupt(mut self) -> Option<i32> {
        let id = self.child.id().unwrap().to_string();
        let kill = tokio::process::Command::new("kill")
            .args(["-INT", &id])
            .status()
            .await;
        assert!(kill.unwrap().success());
        timeout(PATIENCE, self.child.wait())
            .await
            .unwrap()
            .unwrap()
            .code()
    }
}

fn message(token: &str) -> Request {
    Request::post("/workspaces/target/a2a", CALL).bearer(token)
}

/// Calls until the tail has a line: it says nothing when it has connected.
async fn first_line(gateway: &Gateway, tail: &mut Tail, request: &Request) -> String {
    let calls = async {
        loop {
            gateway.call(request).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        line = tail.line() => line,
        () = calls => unreachable!("it does not end"),
    }
}

#[tokio::test]
async fn exchanges_are_told_filtered_and_the_tail_ends_with_0() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let answers = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, _target) = gateway.pair(answers).await;
    let mut all = Tail::start(&gateway, "exchange tail --json");
    let line = first_line(&gateway, &mut all, &message(&caller.token)).await;
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&told["caller"], &told["outcome"]),
        (&"caller".into(), &"answered".into())
    );
    assert_eq!(told["target"], "target");
    assert_eq!(all.interrupt().await, Some(0));

    let line = "exchange tail --refused --outcome unauthenticated --target target";
    let mut refused = Tail::start(&gateway, line);
    let both = async {
        loop {
            gateway.call(&message(&caller.token)).await;
            gateway.call(&message("a2aw_wrong")).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let lines = async { (refused.line().await, refused.line().await) };
    let (one, two) = tokio::select! {
        lines = lines => lines,
        () = both => unreachable!("it does not end"),
    };
    for line in [one, two] {
        assert!(
            line.contains("  - -> target  unread  401 unauthenticated  "),
            "{line}"
        );
    }
    assert_eq!(refused.interrupt().await, Some(0));
}

#[tokio::test]
async fn a_gateway_that_leaves_is_waited_for_and_a_token_that_ends_is_not() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let answers = Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    let (caller, _target) = gateway.pair(answers).await;
    let mut tail = Tail::start(&gateway, "exchange tail");
    first_line(&gateway, &mut tail, &message(&caller.token)).await;
    gateway.restart().await;
    let remark = tail.remark("opened again in").await;
    assert!(remark.starts_with("a2a-gateway: "), "{remark}");
    tail.remark("the feed is open again").await;
    first_line(&gateway, &mut tail, &message(&caller.token)).await;
    assert_eq!(tail.interrupt().await, Some(0));

    let mut wrong = operating(&gateway);
    wrong
        .env("A2A_GATEWAY_ADMIN_TOKEN", &caller.token)
        .args(["exchange", "tail"]);
    super::ended(&mut wrong).await.refused(1, "not_permitted");
    let nowhere = run(&gateway, "exchange tail --admin http://127.0.0.1:1").await;
    nowhere.refused(1, "is the gateway running?");
    let public = format!("exchange tail --admin http://{}", gateway.public);
    run(&gateway, &public).await.refused(1, "admin.listen");
    let none = Builder::new(Pair::Embedded)
        .set("admin.console", "false")
        .start()
        .await;
    run(&none, "exchange tail")
        .await
        .refused(1, "admin.console");
    let mut without = super::program(&gateway.dir);
    without
        .env("A2A_GATEWAY_ADMIN_TOKEN", "")
        .args(["exchange", "tail"]);
    super::ended(&mut without)
        .await
        .refused(64, "A2A_GATEWAY_ADMIN_TOKEN");
}
