//! The verifiers of `docs/security.md`, run as they stand there, on tokens of a real gateway.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::bent;
use super::gateway::register;
use crate::harness::packages::installed;
use crate::harness::sidecar::GUARDED;
use crate::harness::{Agent, CALL, Gateway, Pair, Request};

/// The first code block of a language in the document.
pub(super) fn block(language: &str) -> String {
    let document = include_str!("../../../docs/security.md");
    let (_, rest) = document.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split_once("\n```\n").unwrap().0.to_owned()
}

/// Reads cases from standard input, and answers for each with the caller or with what was wrong.
const PYTHON: &str = r#"
import sys
answers = []
for case in json.load(sys.stdin):
    try:
        answers.append({"sub": verify(case["token"], base64.b64decode(case["body"]))["sub"]})
    except jwt.PyJWTError as error:
        answers.append({"refused": type(error).__name__ + ": " + str(error)})
json.dump(answers, sys.stdout)
"#;

const JAVASCRIPT: &str = r#"
import { readFileSync } from "node:fs";
const answers = [];
for (const { token, body } of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    answers.push({ sub: (await verify(token, Buffer.from(body, "base64"))).sub });
  } catch (error) {
    answers.push({ refused: `${error.name}: ${error.message}` });
  }
}
process.stdout.write(JSON.stringify(answers));
"#;

/// Runs `program`, of which a file named `name` is made, on the cases.
fn run(command: &mut Command, file: &Path, program: &str, cases: &Value) -> Vec<Value> {
    std::fs::write(file, program).unwrap();
    let mut child = command
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(cases.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A token and a body, and whether they belong together.
struct Cases(Vec<(&'static str, String, Vec<u8>, bool)>);

impl Cases {
    /// What a real gateway sent to its target, and what could be made of it.
    async fn of_a_gateway(gateway: &Gateway) -> Self {
        let agent = Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await;
        register(gateway, &agent.url(), json!({})).await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let other = gateway
            .seat(
                "other",
                "",
                Agent::json(r#"{"jsonrpc":"2.0","id":"c-1","result":{}}"#).await,
            )
            .await;
        let call =
            |id: &str| Request::post(format!("/workspaces/{id}/a2a"), CALL).bearer(&caller.token);
        assert_eq!(gateway.call(&call(GUARDED)).await.status, 200);
        assert_eq!(gateway.call(&call("other")).await.status, 200);
        let of = |seen: &crate::harness::Recorded| {
            let field = seen.field("authorization").unwrap().to_owned();
            field.strip_prefix("Bearer ").unwrap().to_owned()
        };
        let seen = agent.take();
        let (token, body) = (of(&seen), seen.body);
        let [head, rest] = [0, 1].map(|at| token.splitn(2, '.').nth(at).unwrap().to_owned());
        let mut decoded: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&head).unwrap()).unwrap();
        let mut with = |name: &str, value: Value| {
            let before = decoded[name].take();
            decoded[name] = value;
            let made = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(decoded.to_string()));
            decoded[name] = before;
            if decoded[name].is_null() {
                decoded.as_object_mut().unwrap().remove(name);
            }
            made
        };
        let discovered =
            Request::get(format!("/registry/discover/{GUARDED}")).bearer(&caller.token);
        let discovered = gateway.call(&discovered).await.json()["token"]
            .as_str()
            .unwrap()
            .to_owned();
        let mut flipped = body.clone();
        flipped[30] ^= 1;
        Self(vec![
            ("forwarded", token.clone(), body.clone(), true),
            ("discovered", discovered, b"{}".to_vec(), true),
            ("a flipped byte", token.clone(), flipped, false),
            ("no body", token.clone(), Vec::new(), false),
            (
                "another target's",
                of(&other.agent.take()),
                body.clone(),
                false,
            ),
            ("alg none", with("alg", json!("none")), body.clone(), false),
            ("an HMAC", with("alg", json!("HS256")), body.clone(), false),
            (
                "another typ",
                with("typ", json!("JWT")),
                body.clone(),
                false,
            ),
            (
                "an unknown key",
                with("kid", json!("unknown")),
                body.clone(),
                false,
            ),
            (
                "a key of its own",
                with("jwk", json!({"kty": "OKP"})),
                body.clone(),
                false,
            ),
            ("a bent signature", bent(&token), body.clone(), false),
            ("a workspace's token", caller.token.clone(), body, false),
        ])
    }

    fn shown(&self) -> Value {
        let case = |(_, token, body, _): &(_, String, Vec<u8>, _)| json!({"token": token, "body": STANDARD.encode(body)});
        self.0.iter().map(case).collect()
    }

    fn assert(&self, answers: &[Value]) {
        assert_eq!(answers.len(), self.0.len());
        for ((what, _, _, good), answer) in self.0.iter().zip(answers) {
            if *good {
                assert_eq!(answer["sub"], "caller", "{what}: {answer}");
            } else {
                assert!(answer["refused"].is_string(), "{what}: {answer}");
            }
        }
    }
}

/// The block with the two lines that a reader changes, changed.
fn filled_in(language: &str, gateway: &Gateway) -> String {
    let block = block(language);
    for line in ["https://gateway.example.com", "acme-pm"] {
        assert!(block.contains(line), "{line}");
    }
    block
        .replace(
            "https://gateway.example.com",
            &format!("http://{}", gateway.public),
        )
        .replace("acme-pm", GUARDED)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documents_verifiers_admit_what_is_good_and_nothing_else() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let cases = Cases::of_a_gateway(&gateway).await;
    let python = filled_in("python", &gateway) + PYTHON;
    let javascript = filled_in("js", &gateway) + JAVASCRIPT;
    let shown = cases.shown();
    let running = tokio::task::spawn_blocking(move || {
        let installed = installed("scripts/verifiers");
        let dir = tempfile::tempdir().unwrap();
        let mut interpreter = Command::new(installed.join("python/bin/python"));
        let in_python = run(
            &mut interpreter,
            &dir.path().join("verify.py"),
            &python,
            &shown,
        );
        // Modules are looked for beside the file that imports them.
        let link = dir.path().join("node_modules");
        std::os::unix::fs::symlink(installed.join("node_modules"), link).unwrap();
        let file = dir.path().join("verify.mjs");
        let in_javascript = run(&mut Command::new("node"), &file, &javascript, &shown);
        (in_python, in_javascript)
    });
    let (in_python, in_javascript) = running.await.unwrap();
    cases.assert(&in_python);
    cases.assert(&in_javascript);
}
