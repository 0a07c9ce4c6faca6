//! `keys` and `token`: what they print, and with which status they end.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Family, claims};
use crate::answers::words;
use crate::harness::{ADMIN, Gateway, Pair, Request};

/// Exit status, standard output, standard error.
type Ended = (i32, String, String);

/// Runs a command beside the test's own runtime, which serves the agents.
async fn run(arguments: &[&str], gateway: Option<&Gateway>, token: &str, input: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.args(arguments).env_clear().stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(gateway) = gateway {
        command.env("A2A_GATEWAY_URL", format!("http://{}", gateway.public));
    }
    command.env("A2A_GATEWAY_TOKEN", token);
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        // One that reads nothing may have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    });
    let output = ended.await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn keys_are_listed_and_rotated_without_a_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("keys.dir={}", folder.path().join("keys").display());
    let told = |line: &str| line.split_whitespace().nth(2).unwrap().to_owned();
    let keys = async |arguments: &[&str]| {
        let arguments = [&["keys"], arguments, &["--set", &place]].concat();
        run(&arguments, None, "", "").await
    };
    let (status, out, error) = keys(&["list"]).await;
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(error.contains("there are no keys in"), "{error}");
    assert!(error.contains("keys rotate"), "{error}");
    let (status, out, error) = keys(&["rotate", "--algorithm", "ES256"]).await;
    assert_eq!(status, 0, "{error}");
    assert!(error.contains("published"), "{error}");
    assert!(error.contains("5 minutes"), "{error}");
    let states: Vec<_> = out.lines().skip(1).map(told).collect();
    assert_eq!(states, ["active", "next", "retired"], "{out}");
    let mut lines = out.lines().skip(1);
    assert!(lines.all(|line| line.contains("ES256")), "{out}");
    assert_eq!(keys(&["list"]).await, (0, out, String::new()));
    for entry in std::fs::read_dir(folder.path().join("keys")).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        let path = entry.path();
        let is_pem = path.extension().is_some_and(|one| one == "pem");
        assert!(!is_pem || mode == 0o600, "{}: {mode:o}", path.display());
    }
    assert_eq!(keys(&["rotate", "--algorithm", "HS256"]).await.0, 64);
    assert_eq!(keys(&["list", "--set", "keys.dri=x"]).await.0, 64);
    let next = folder.path().join("keys/next.pem");
    let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    std::fs::write(&next, pem).unwrap();
    for verb in ["list", "rotate"] {
        let (status, out, error) = keys(&[verb]).await;
        assert_eq!((status, out.as_str()), (1, ""), "{verb}");
        assert!(error.contains("next.pem"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_asked_for_looked_into_and_verified() {
    let family = Family::new(Pair::Embedded).await;
    let gateway = Some(&family.gateway);
    let of_two = ["token", "pair", "two"];
    let (status, pair, error) = run(&of_two, gateway, &family.one.token, "").await;
    assert_eq!(status, 0, "{error}");
    let pair = pair.trim();
    assert_eq!(claims(&family.gateway, pair, "two").await["sub"], "one");
    assert_eq!(family.call(pair).await.0, 200);

    let (status, said, _) = run(&["token", "inspect", "-"], None, "", &format!("{pair}\n")).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(status, 0);
    assert_eq!(said["header"]["typ"], "a2a-pair+jwt");
    assert_eq!(said["claims"]["sub"], "one");
    let end = said["claims"]["exp"].as_str().unwrap();
    assert!(end.ends_with("Z)"), "{said}");

    let verify = ["token", "verify", "-"];
    let (status, said, error) = run(&verify, gateway, "", pair).await;
    assert_eq!(status, 0, "{error}");
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["aud"], "two");
    let for_two = ["token", "verify", pair, "--audience", "two"];
    assert_eq!(run(&for_two, gateway, "", "").await.0, 0);
    let stranger = Family::new(Pair::Embedded).await;
    let other_issuer = ["token", "verify", pair, "--issuer", "https://else.example"];
    let [head, _, signature] = pair.split('.').collect::<Vec<_>>()[..] else {
        panic!()
    };
    let bent = format!("{head}.e30.{signature}");
    let for_one = ["token", "verify", pair, "--audience", "one"];
    let nowhere = ["token", "verify", pair, "--url", "http://127.0.0.1:1"];
    let neither = ["token", "verify", "e30.e30.e30"];
    let theirs = Some(&stranger.gateway);
    let expected = r#"it is for "two", and "one" was expected"#;
    for (arguments, at, complaint) in [
        (&for_one[..], gateway, expected),
        (&other_issuer, gateway, "another issuer or audience"),
        (&["token", "verify", pair], theirs, "does not publish"),
        (&["token", "verify", &bent], gateway, "signature is wrong"),
        (&["token", "verify", "rubbish"], gateway, "no signed token"),
        (&neither, gateway, "neither a pair token nor a canvas token"),
        (&["token", "inspect", "a.b"], None, "no signed token"),
        (&nowhere, None, "nothing listens"),
    ] {
        let (status, out, error) = run(arguments, at, "", "").await;
        assert_eq!((status, out.as_str()), (1, ""), "{arguments:?}");
        assert!(error.contains(complaint), "{arguments:?}: {error}");
    }

    let canvas: [_; 8] = words("token canvas --user ada --workspace two --ttl 10min");
    let (status, token, error) = run(&canvas, gateway, ADMIN, "").await;
    assert_eq!(status, 0, "{error}");
    assert_eq!(family.call(token.trim()).await.0, 200);
    let (status, said, _) = run(&verify, gateway, "", &token).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(status, 0);
    assert_eq!(said["sub"], "ada");
    assert_eq!(said["workspaces"][0], "two");

    let made: [_; 7] = words("token workspace one --label laptop --expires-in 30days");
    let (status, brief, error) = run(&made, gateway, ADMIN, "").await;
    assert!(status == 0 && brief.starts_with("a2aw_"), "{error}");
    let list = Request::get("/workspaces/one/tokens").bearer(brief.trim());
    let list = family.gateway.call(&list).await.json();
    let shown = list["tokens"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(shown["label"], "laptop");
    assert!(shown["expires_at"].is_string(), "{shown}");
    let (status, _, error) = run(&made[..3], gateway, brief.trim(), "").await;
    assert!(status == 1, "{error}");
    assert!(error.contains("no token that lasts longer"), "{error}");

    let for_two = ["token", "verify", "-", "--audience", "two"];
    let (status, _, error) = run(&for_two, gateway, "", &token).await;
    let own = family.gateway.public;
    let named = format!(r#"it is for "http://{own}", and "two" was expected"#);
    assert!(status == 1 && error.contains(&named), "{error}");

    let long: [_; 6] = words("token canvas --user ada --ttl 2days");
    let one = &*family.one.token;
    for (arguments, token, status, complaint) in [
        (&of_two[..], ADMIN, 1, "ask with a workspace's token"),
        (&of_two, "", 1, "A2A_GATEWAY_TOKEN"),
        (&["token", "pair", "no id!"], one, 64, "id"),
        (&["token", "pair", "nobody"], one, 1, "not_permitted"),
        (&long[..4], one, 1, "not_permitted"),
        (&long, ADMIN, 1, "86400"),
        (&["token", "workspace", "no id!"], ADMIN, 64, "id"),
        (&["token", "workspace", "two"], one, 1, "not_permitted"),
        (&["token"], "", 64, "inspect"),
    ] {
        let (ended, out, error) = run(arguments, gateway, token, "").await;
        assert_eq!(ended, status, "{arguments:?}: {error}");
        assert_eq!(out, "", "{arguments:?}: {error}");
        assert!(error.contains(complaint), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn a_gateway_that_is_not_there_is_looked_for_where_the_command_is_told_to() {
    let arguments = ["token", "pair", "target", "--url", "http://127.0.0.1:9"];
    let (status, out, error) = run(&arguments, None, "a2aw_x", "").await;
    assert_eq!((status, out.as_str()), (1, ""), "{error}");
    for part in ["nothing listens at", "--url", "A2A_GATEWAY_URL"] {
        assert!(error.contains(part), "{error}");
    }
}
