//! The verifiers of `docs/design/security.md`, run as they stand there, on tokens of a real gateway.

use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::answers;
use super::flaws::Forger;
use super::gateway::register;
use crate::harness::documents::block;
use crate::harness::issuer::Key;
use crate::harness::packages::installed;
use crate::harness::sidecar::GUARDED;
use crate::harness::{Agent, CALL, Gateway, Pair, Recorded, Request, answering};

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

/// Runs `program`, of which a file is made, on the cases.
fn run(command: &mut Command, file: &Path, program: &str, cases: &Value) -> Vec<Value> {
    std::fs::write(file, program).unwrap();
    answers(command.arg(file), cases)
}

/// What becomes of a token with a body.
struct Case {
    what: String,
    token: String,
    body: Vec<u8>,
    /// The words that PyJWT and jose refuse it with; `None`: it is admitted.
    refused: Option<[String; 2]>,
}

struct Cases(Vec<Case>);

impl Cases {
    /// What a real gateway sent to its target, and what its key could sign.
    async fn of_a_gateway(gateway: &Gateway) -> Self {
        let agent = answering().await;
        register(gateway, &agent.url(), json!({"proof": "request"})).await;
        let caller = gateway.seat("caller", "", Agent::json("{}").await).await;
        let other = gateway.seat("other", "", answering().await).await;
        let calls = async |id: &str| {
            let call = Request::post(format!("/workspaces/{id}/a2a"), CALL);
            gateway.call(&call.bearer(&caller.token)).await.has(200);
        };
        calls(GUARDED).await;
        calls("other").await;
        let of = |seen: &Recorded| {
            let field = seen.field("authorization").unwrap().to_owned();
            field.strip_prefix("Bearer ").unwrap().to_owned()
        };
        let seen = agent.take();
        let (token, body) = (of(&seen), seen.body);
        let others = of(&other.agent.take());
        let of_pairs = json!({"proof": "pair"});
        gateway.patch(GUARDED, of_pairs).await.has(200);
        calls(GUARDED).await;
        let of_pair = of(&agent.take());
        let discovered = Request::get(format!("/registry/discover/{GUARDED}"));
        let discovered = gateway.call(&discovered.bearer(&caller.token)).await.json();
        let discovered = discovered["token"].as_str().unwrap().to_owned();
        let mut flipped = body.clone();
        flipped[30] ^= 1;

        let jwks = gateway.call(&Request::get("/.well-known/jwks.json")).await;
        let active = gateway.dir.join("keys/active.pem");
        let forger = Forger {
            key: &Key::stolen(&active, &jwks.json()["keys"][0]["kid"]),
            issuer: &format!("http://{}", gateway.public),
            jwks: &jwks.body,
        };
        let refused = |python: &str, jose: &str| Some([python.to_owned(), jose.to_owned()]);
        let other_body = "InvalidTokenError: another body";
        let other_body = || refused(other_body, "JWTInvalid: another body");
        let other_target = "JWTClaimValidationFailed: unexpected \"aud\" claim value";
        let other_target = refused("InvalidAudienceError: ", other_target);
        let no_jws = "DecodeError: Not enough segments";
        let no_jws = refused(no_jws, "JWSInvalid: Invalid Compact JWS");
        let rows = [
            ("forwarded", token.clone(), body.clone(), None),
            ("forwarded, of the pair", of_pair, body.clone(), None),
            ("discovered", discovered, b"{}".to_vec(), None),
            ("made here", forger.saying(json!({})), CALL.into(), None),
            ("a flipped byte", token.clone(), flipped, other_body()),
            ("no body", token, Vec::new(), other_body()),
            ("another target's", others, body.clone(), other_target),
            ("a workspace's token", caller.token.clone(), body, no_jws),
        ];
        let rows = rows.map(|(what, token, body, refused)| Case {
            what: what.to_owned(),
            token,
            body,
            refused,
        });
        let flaws = forger.flaws().into_iter().filter_map(|flaw| {
            Some(Case {
                refused: Some(flaw.libraries?),
                what: flaw.what,
                token: flaw.token,
                body: CALL.into(),
            })
        });
        Self(rows.into_iter().chain(flaws).collect())
    }

    fn shown(&self) -> Value {
        let case = |case: &Case| json!({"token": case.token, "body": STANDARD.encode(&case.body)});
        self.0.iter().map(case).collect()
    }

    /// `library`: 0 is PyJWT, 1 is jose.
    fn assert(&self, answers: &[Value], library: usize) {
        assert_eq!(answers.len(), self.0.len());
        let mut others = Vec::new();
        for (case, answer) in self.0.iter().zip(answers) {
            let as_expected = match &case.refused {
                None => answer["sub"] == "caller",
                Some(words) => {
                    let said = answer["refused"].as_str();
                    said.is_some_and(|said| said.starts_with(&words[library]))
                }
            };
            if !as_expected {
                let Case { what, refused, .. } = case;
                others.push(format!("{what}: {answer}, and not {refused:?}"));
            }
        }
        assert!(others.is_empty(), "library {library}: {others:#?}");
    }
}

/// The block with the two lines that a reader changes, changed.
fn filled_in(language: &str, gateway: &Gateway) -> String {
    let block = block("### With a library", language);
    for line in ["https://gateway.example.com", "acme-pm"] {
        assert!(block.contains(line), "{line}");
    }
    let url = format!("http://{}", gateway.public);
    let block = block.replace("https://gateway.example.com", &url);
    block.replace("acme-pm", GUARDED)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documents_verifiers_admit_what_is_good_and_nothing_else() {
    // First, since tokens end while it takes its time.
    let installed = tokio::task::spawn_blocking(|| installed("scripts/verifiers"));
    let installed = installed.await.unwrap();
    let gateway = Gateway::start(Pair::Embedded).await;
    let cases = Cases::of_a_gateway(&gateway).await;
    let python = filled_in("python", &gateway) + PYTHON;
    let javascript = filled_in("js", &gateway) + JAVASCRIPT;
    let shown = cases.shown();
    let running = tokio::task::spawn_blocking(move || {
        let dir = tempfile::tempdir().unwrap();
        let mut interpreter = Command::new(installed.join("python/bin/python"));
        let file = dir.path().join("verify.py");
        let in_python = run(&mut interpreter, &file, &python, &shown);
        // Modules are looked for beside the file that imports them.
        let link = dir.path().join("node_modules");
        std::os::unix::fs::symlink(installed.join("node_modules"), link).unwrap();
        let file = dir.path().join("verify.mjs");
        let in_javascript = run(&mut Command::new("node"), &file, &javascript, &shown);
        (in_python, in_javascript)
    });
    let (in_python, in_javascript) = running.await.unwrap();
    cases.assert(&in_python, 0);
    cases.assert(&in_javascript, 1);
}
