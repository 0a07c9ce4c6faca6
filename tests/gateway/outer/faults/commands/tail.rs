//! `exchange tail`: exchanges as they end, through any replica; its end, and what it does when the gateway leaves.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::timeout;

use super::{ended, operating, program, refused};
use crate::harness::{CALL, Gateway, Pair, Request, answering};

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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.args(line.split(' ')).spawn().unwrap();
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
        let mut kill = tokio::process::Command::new("kill");
        let killed = kill.args(["-INT", &id]).status().await;
        assert!(killed.unwrap().success());
        let ended = timeout(PATIENCE, self.child.wait()).await;
        ended.unwrap().unwrap().code()
    }
}

/// Calls with these tokens until the tail has lines: it says nothing when it has connected.
async fn lines<const N: usize>(gateway: &Gateway, tail: &mut Tail, tokens: &[&str]) -> [String; N] {
    let calls = async {
        loop {
            for token in tokens {
                let call = Request::post("/workspaces/target/a2a", CALL);
                gateway.call(&call.bearer(token)).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let told = async {
        let mut told = [const { String::new() }; N];
        for line in &mut told {
            *line = tail.line().await;
        }
        told
    };
    tokio::select! {
        told = told => told,
        () = calls => unreachable!("it does not end"),
    }
}

#[tokio::test]
async fn exchanges_are_told_filtered_and_the_tail_ends_with_0() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let (caller, _target) = gateway.pair(answering().await).await;
    let mut all = Tail::start(&gateway, "exchange tail --json");
    let [line] = lines(&gateway, &mut all, &[&caller.token]).await;
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(told["caller"], "caller");
    assert_eq!(told["outcome"], "answered");
    assert_eq!(told["target"], "target");
    assert_eq!(all.interrupt().await, Some(0));

    let line = "exchange tail --refused --outcome unauthenticated --target target";
    let mut refused = Tail::start(&gateway, line);
    let tokens = [&*caller.token, "a2aw_wrong"];
    let told: [String; 2] = lines(&gateway, &mut refused, &tokens).await;
    for line in told {
        let said = "  - -> target  unread  401 unauthenticated  ";
        assert!(line.contains(said), "{line}");
    }
    assert_eq!(refused.interrupt().await, Some(0));
}

#[tokio::test]
async fn a_gateway_that_leaves_is_waited_for_and_a_token_that_ends_is_not() {
    let mut gateway = Gateway::start(Pair::Embedded).await;
    let (caller, _target) = gateway.pair(answering().await).await;
    let mut tail = Tail::start(&gateway, "exchange tail");
    let [_] = lines(&gateway, &mut tail, &[&caller.token]).await;
    gateway.restart().await;
    let remark = tail.remark("opened again in").await;
    assert!(remark.starts_with("a2a-gateway: "), "{remark}");
    tail.remark("the feed is open again").await;
    let [_] = lines(&gateway, &mut tail, &[&caller.token]).await;
    assert_eq!(tail.interrupt().await, Some(0));

    let with = async |mut command: tokio::process::Command, token: &str| {
        command.env("A2A_GATEWAY_ADMIN_TOKEN", token);
        ended(command.args(["exchange", "tail"])).await
    };
    let wrong = with(operating(&gateway), &caller.token).await;
    wrong.refused(1, "not_permitted");
    let nowhere = "exchange tail --admin http://127.0.0.1:1";
    refused(&gateway, nowhere, 1, "is the gateway running?").await;
    let public = format!("exchange tail --admin http://{}", gateway.public);
    refused(&gateway, &public, 1, "admin.listen").await;
    let none = Gateway::with("admin.console=false").await;
    refused(&none, "exchange tail", 1, "admin.console").await;
    let without = with(program(&gateway.dir), "").await;
    without.refused(64, "A2A_GATEWAY_ADMIN_TOKEN");
}
