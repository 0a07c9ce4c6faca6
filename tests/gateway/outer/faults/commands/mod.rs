//! The daily tasks on the command line: the real binary against a real gateway.

mod completion;
mod contexts;
mod dry_runs;
mod examples;
mod hostile;
mod tail;
mod tokens;
mod usage;
mod workspaces;

use std::path::Path;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{ADMIN, Gateway};

/// How a command ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    /// Its output. Fails unless it ended with 0.
    fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    fn json(self) -> Value {
        let out = self.done();
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("no JSON: {out}"))
    }

    /// Fails unless it ended with `code` and an error that has `part`, and printed nothing.
    fn refused(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(part) && self.out.is_empty(), "{self:?}");
    }
}

/// `PATH` with the folder of the program before all others.
fn path_with_program() -> std::ffi::OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let path = std::env::var_os("PATH").unwrap();
    let others = std::env::split_paths(&path);
    let folder = program.parent().unwrap().to_owned();
    std::env::join_paths(std::iter::once(folder).chain(others)).unwrap()
}

/// The program without variables of the environment that it was started in; `home` has the file of contexts.
fn program(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command
        .env_clear()
        .env("HOME", home)
        .env("PATH", path_with_program())
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    command
}

async fn ended(command: &mut Command) -> Ran {
    let output = command.output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The program as an operator uses it, by the environment.
fn operating(gateway: &Gateway) -> Command {
    let mut command = program(&gateway.dir);
    command
        .env("A2A_GATEWAY_URL", format!("http://{}", gateway.public))
        .env("A2A_GATEWAY_ADMIN_URL", format!("http://{}", gateway.admin))
        .env("A2A_GATEWAY_ADMIN_TOKEN", ADMIN);
    command
}

/// Runs a command line without quotes as an operator.
async fn run(gateway: &Gateway, line: &str) -> Ran {
    ended(operating(gateway).args(line.split(' '))).await
}

/// As [`Ran::done`].
async fn done(gateway: &Gateway, line: &str) -> String {
    run(gateway, line).await.done()
}

/// As [`Ran::json`].
async fn json_of(gateway: &Gateway, line: &str) -> Value {
    run(gateway, line).await.json()
}

/// As [`Ran::refused`].
async fn refused(gateway: &Gateway, line: &str, code: i32, part: &str) {
    run(gateway, line).await.refused(code, part);
}

/// Makes a root with two workspaces below it, in the org `acme`, and one of another org.
async fn family(gateway: &Gateway) {
    for workspace in [
        json!({"id": "acme-pm", "name": "Product", "org": "acme"}),
        json!({"id": "acme-dev", "name": "Dev", "parent_id": "acme-pm", "role": "builds"}),
        json!({"id": "acme-qa", "name": "QA", "parent_id": "acme-pm"}),
        json!({"id": "rival-spy", "name": "Spy", "org": "rival"}),
    ] {
        gateway.create(workspace).await;
    }
}
