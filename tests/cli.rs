//! The command line from outside: the real binary, its exit status, what it prints.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `EX_USAGE`: arguments or configuration are wrong.
const USAGE: i32 = 64;

fn gateway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    ended(gateway(arguments).output().unwrap())
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// An address that is taken for as long as the listener lives.
fn taken() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn a_wrong_configuration_ends_the_start_with_64_before_a_port_is_bound() {
    let (_listener, address) = taken();
    // Were the port bound first, its being taken would be the complaint.
    let listen = format!("server.listen={address}");
    for (wrong, part) in [
        ("server.lisen=1", "did you mean `server.listen`?"),
        (
            "timeouts.idle=fast",
            "timeouts.idle (from --set): `fast` is not a duration",
        ),
        ("limits.request_bytes=0", "must be at least 1"),
        ("server.tls.cert=/nowhere/cert.pem", "needs server.tls.key"),
        ("address.profile=lax", "address.profile"),
    ] {
        let (code, out, err) = run(&["--set", &listen, "--set", wrong]);
        assert_eq!(code, Some(USAGE), "{wrong}: {err}");
        assert!(err.contains(part), "{wrong}: {err}");
        assert_eq!(out, "");
    }
    let (code, _, err) = run(&[
        "serve",
        "--set",
        "auth.mode=open",
        "--set",
        "server.listen=0.0.0.0:0",
    ]);
    assert_eq!(code, Some(USAGE));
    assert!(err.contains("auth.mode (from --set): \"open\""), "{err}");
    let (code, _, err) = run(&["--config", "/nowhere/gateway.toml"]);
    assert_eq!(code, Some(USAGE));
    assert!(err.contains("/nowhere/gateway.toml"), "{err}");
}

#[test]
fn the_environment_is_checked_too_and_secrets_stay_out_of_the_complaint() {
    for (name, value, part) in [
        (
            "A2A_GATEWAY__SERVER__LISTEN",
            "nowhere",
            "server.listen (from environment A2A_GATEWAY__SERVER__LISTEN)",
        ),
        (
            "A2A_GATEWAY__SERVER__LISTN",
            "1",
            "did you mean `server.listen`?",
        ),
        (
            "A2A_GATEWAY__STORES__SQL",
            "oracle://u:geheim@h/d",
            "stores.sql (from environment",
        ),
        ("A2A_GATEWAY_ADMIN_TOKEN", "geheim", "a2aa_"),
    ] {
        let output = gateway(&[]).env(name, value).output().unwrap();
        let (code, _, err) = ended(output);
        assert_eq!(code, Some(USAGE), "{err}");
        assert!(err.contains(part) && !err.contains("geheim"), "{err}");
    }
}

#[test]
fn wrong_arguments_end_with_64_and_help_with_0() {
    for wrong in [
        &["serv"][..],
        &["--sett", "a"],
        &["send", "a:b", "hi"],
        &["explain", "a"],
        &["agent", "odd"],
    ] {
        assert_eq!(run(wrong).0, Some(USAGE), "{wrong:?}");
    }
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for word in [
        "Examples:",
        "demo",
        "check-config",
        "send",
        "--config",
        "A2A_GATEWAY_ADMIN_TOKEN",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let (code, out, _) = run(&["--version"]);
    assert_eq!(
        (code, out.trim()),
        (Some(0), concat!("a2a-gateway ", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn check_config_shows_every_value_with_its_source_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, "[limits]\nrequest_bytes = \"1MiB\"\n").unwrap();
    let file = file.to_str().unwrap();
    let output = gateway(&["check-config", file, "--set", "timeouts.idle=10s"])
        .env("A2A_GATEWAY__STORES__SQL", "postgres://u:geheim@h/d")
        .output()
        .unwrap();
    let (code, out, err) = ended(output);
    assert_eq!(code, Some(0), "{err}");
    let source = |key: &str| {
        let line = out
            .lines()
            .find(|line| line.starts_with(&format!("{key} = ")));
        let line = line.unwrap_or_else(|| panic!("{key} is not in\n{out}"));
        line.split("  # ").nth(1).unwrap().to_owned()
    };
    assert!(source("limits.request_bytes").ends_with("gateway.toml"));
    assert_eq!(source("timeouts.idle"), "--set");
    assert_eq!(source("stores.sql"), "environment A2A_GATEWAY__STORES__SQL");
    assert_eq!(source("server.listen"), "default");
    assert!(
        out.contains("postgres://u:***@h/d") && !out.contains("geheim"),
        "{out}"
    );
    // What is printed is a configuration itself.
    toml::from_str::<toml::Table>(&out).unwrap();
}

#[test]
fn the_production_example_can_be_used() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/production.toml");
    let example = example.to_str().unwrap();
    // As shipped, only the certificate is missing.
    let (code, _, err) = run(&["check-config", example]);
    assert_eq!(code, Some(USAGE));
    assert_eq!(
        err.matches("cannot read /etc/a2a-gateway/tls").count(),
        2,
        "{err}"
    );
    assert_eq!(err.lines().count(), 3, "{err}");

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pair = rcgen::generate_simple_self_signed(["gateway.example.com".to_owned()]).unwrap();
    let token = format!("a2aa_{}\n", "x".repeat(43));
    let output = gateway(&["check-config", example])
        .env(
            "A2A_GATEWAY__SERVER__TLS__CERT",
            file("cert.pem", &pair.cert.pem()),
        )
        .env(
            "A2A_GATEWAY__SERVER__TLS__KEY",
            file("key.pem", &pair.signing_key.serialize_pem()),
        )
        .env(
            "A2A_GATEWAY__STORES__SQL_FILE",
            file("sql", "postgres://u:geheim@h/d\n"),
        )
        .env(
            "A2A_GATEWAY__STORES__SHARED_FILE",
            file("shared", "rediss://u:geheim@h:6379/0\n"),
        )
        .env("A2A_GATEWAY_ADMIN_TOKEN_FILE", file("token", &token))
        .output()
        .unwrap();
    let (code, out, err) = ended(output);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("public URL:        https://gateway.example.com"),
        "{out}"
    );
    assert!(
        out.contains("operator's token:  from the environment"),
        "{out}"
    );
    assert!(!out.contains("geheim") && !out.contains("a2aa_"), "{out}");
}

/// Answers one request with `response` and gives back what came.
fn answer_once(response: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let (listener, address) = taken();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !request.ends_with(b"}") {
            let read = stream.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
        }
        stream.write_all(response.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (format!("http://{address}"), server)
}

#[test]
fn send_prints_the_agents_text() {
    let (url, server) = answer_once(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
         {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"kind\":\"message\",\"parts\":[{\"kind\":\"text\",\"text\":\"hi\"}]}}",
    );
    let output = gateway(&["send", "acme-pm", "hello", "--url", &url])
        .env("A2A_GATEWAY_TOKEN", "a2aw_secret")
        .output()
        .unwrap();
    let (code, out, err) = ended(output);
    assert_eq!((code, out.as_str()), (Some(0), "hi\n"), "{err}");
    let request = server.join().unwrap();
    assert!(
        request.starts_with("POST /workspaces/acme-pm/a2a HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("uthorization: Bearer a2aw_secret\r\n"),
        "{request}"
    );
    assert!(
        request.ends_with("{\"message\":{\"text\":\"hello\"}}"),
        "{request}"
    );
}

/// Answers requests, each with one of `results`, and gives back their bodies.
fn answer_in_turn(
    results: &'static [&'static str],
) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let (listener, address) = taken();
    let server = std::thread::spawn(move || {
        let answer = |result: &&str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.ends_with(b"}") {
                let read = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..read]);
            }
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
            write!(
                stream,
                "{head}{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}"
            )
            .unwrap();
            let request = String::from_utf8(request).unwrap();
            request.split_once("\r\n\r\n").unwrap().1.to_owned()
        };
        results.iter().map(answer).collect()
    });
    (format!("http://{address}"), server)
}

#[test]
fn send_waits_for_a_task_and_says_how_to_reply() {
    let (url, server) = answer_in_turn(&[
        r#"{"kind":"task","id":"t-1","contextId":"c","status":{"state":"submitted"}}"#,
        r#"{"kind":"task","id":"t-1","contextId":"c","status":{"state":"working"}}"#,
        r#"{"kind":"task","id":"t-1","contextId":"c","status":{"state":"input-required","message":{"parts":[{"text":"which?"}]}}}"#,
    ]);
    let (code, out, err) = run(&["send", "acme-dev", "plan", "--wait=20s", "--url", &url]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "[input-required] which? (task t-1)\n"),
        "{err}"
    );
    assert!(
        err.contains("to reply: a2a-gateway send acme-dev --reply-to t-1 'TEXT'"),
        "{err}"
    );
    let asked = server.join().unwrap();
    assert_eq!(asked[1], r#"{"method":"tasks/get","params":{"id":"t-1"}}"#);
}

#[test]
fn send_takes_standard_input_files_and_data_and_prints_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("note.txt");
    std::fs::write(&file, "abc").unwrap();
    let (url, server) = answer_in_turn(&[r#"{"kind":"message","parts":[]}"#]);
    let data = r#"{"rows":[1]}"#;
    let arguments = [
        "send", "acme-dev", "-", "--json", "--data", data, "--url", &url,
    ];
    let mut command = gateway(&arguments);
    command.arg("--file").arg(&file).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from a pipe")
        .unwrap();
    let (code, out, err) = ended(child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{err}");
    let printed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(printed["kind"], "message");
    let body: serde_json::Value = serde_json::from_str(&server.join().unwrap()[0]).unwrap();
    let parts = &body["message"]["parts"];
    assert_eq!(parts[0]["text"], "from a pipe");
    assert_eq!(parts[1]["file"]["mimeType"], "text/plain");
    assert_eq!(parts[1]["file"]["bytes"], "YWJj");
    assert_eq!(parts[2]["data"]["rows"][0], 1);
    for wrong in [
        &["send", "acme-dev"][..],
        &["send", "a", "--file", "/nowhere/x"],
    ] {
        let (code, _, err) = run(wrong);
        assert_eq!(code, Some(USAGE), "{err}");
    }
}

#[test]
fn tasks_are_shown_cancelled_listed_and_followed() {
    let (url, server) = answer_in_turn(&[
        r#"{"kind":"task","id":"t-1","status":{"state":"canceled"}}"#,
        r#"{"tasks":[{"id":"t-1","status":{"state":"TASK_STATE_WORKING"}}],"nextPageToken":"p"}"#,
        r#"{"tasks":[{"id":"t-2","status":{"state":"TASK_STATE_FAILED"}}],"nextPageToken":""}"#,
        r#"{"kind":"task","id":"t-1","status":{"state":"completed"}}"#,
    ]);
    let told = |arguments: &[&str]| {
        let (code, out, err) = run(&[arguments, &["--url", &url]].concat());
        assert_eq!(code, Some(0), "{err}");
        out
    };
    assert_eq!(told(&["task", "cancel", "acme-dev", "t-1"]), "[canceled]\n");
    let listed = told(&["task", "list", "acme-dev", "--state", "input-required"]);
    assert!(
        listed.contains("t-1  working") && listed.contains("t-2  failed"),
        "{listed}"
    );
    assert_eq!(
        told(&["task", "follow", "acme-dev", "t-1"]),
        "[completed]\n"
    );
    let asked = server.join().unwrap();
    assert!(asked[0].contains("tasks/cancel"), "{asked:?}");
    assert!(asked[1].contains("TASK_STATE_INPUT_REQUIRED"), "{asked:?}");
    assert!(asked[2].contains(r#""pageToken":"p""#), "{asked:?}");
}

#[test]
fn send_prints_each_event_of_a_stream() {
    let (url, server) = answer_once(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n\
         data: {\"result\":{\"kind\":\"status-update\",\"status\":{\"state\":\"working\"}}}\n\n: keepalive\n\n\
         data: {\"result\":{\"kind\":\"artifact-update\",\"artifact\":{\"parts\":[{\"text\":\"done\"}]}}}\n\n",
    );
    let (code, out, err) = run(&["send", "acme-dev", "plan", "--stream", "--url", &url]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "[working]\ndone\n"),
        "{err}"
    );
    assert!(
        server
            .join()
            .unwrap()
            .contains("ccept: text/event-stream\r\n")
    );
}

#[test]
fn send_names_the_reason_of_a_refusal_and_fails() {
    let (url, _server) = answer_once(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nX-Request-Id: r-7\r\nConnection: close\r\n\r\n\
         {\"id\":null,\"error\":{\"code\":-32000,\"message\":\"no rule allows it\",\"data\":[{\"reason\":\"NOT_PERMITTED\"}]}}",
    );
    let (code, out, err) = run(&["send", "acme-dev", "plan", "--url", &url]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("not_permitted: no rule allows it (request r-7)"),
        "{err}"
    );
    let (listener, address) = taken();
    drop(listener);
    let (code, _, err) = run(&[
        "send",
        "acme-dev",
        "plan",
        "--url",
        &format!("http://{address}"),
    ]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains(&format!(
            "nothing listens at http://{address}; is the gateway running? --url"
        )),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    let (url, _server) = answer_once(
        "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
         {\"id\":null,\"error\":{\"code\":-32000,\"message\":\"no\",\"data\":[{\"reason\":\"UNAUTHENTICATED\"}]}}",
    );
    let (code, _, err) = run(&["send", "acme-dev", "plan", "--url", &url]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("--token") && err.contains("A2A_GATEWAY_TOKEN"),
        "{err}"
    );
}

#[test]
fn the_demo_says_when_its_port_is_taken() {
    let (_listener, address) = taken();
    let (code, _, err) = run(&["demo", "--listen", &address.to_string()]);
    assert_eq!(code, Some(1));
    assert!(err.contains("choose another with --listen"), "{err}");
}

#[test]
fn trusted_certificates_that_cannot_be_loaded_are_named() {
    for arguments in [&["send", "a", "hi"][..], &["serve"], &["health"], &["demo"]] {
        let output = gateway(arguments)
            .env("SSL_CERT_FILE", "/nowhere/ca.pem")
            .env("SSL_CERT_DIR", "/nowhere")
            .output();
        let (code, out, err) = ended(output.unwrap());
        assert_eq!(
            (code, out.as_str()),
            (Some(USAGE), ""),
            "{arguments:?} {err}"
        );
        assert!(err.contains("SSL_CERT_FILE"), "{err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

#[test]
fn a_store_url_that_cannot_be_read_and_an_unusable_certificate_end_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let set = |key: &str, value: &str| ["--set".to_owned(), format!("{key}={value}")].to_vec();
    let keys = set("keys.dir", folder.path().join("keys").to_str().unwrap());
    let cert = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let tls = |cert: &str, key: &str| {
        [
            set("server.tls.cert", &file("cert.pem", cert)),
            set("server.tls.key", &file("key.pem", key)),
        ]
        .concat()
    };
    for (wrong, part) in [
        (
            set("stores.sql", "postgres://u:geheim@h:port/d"),
            "stores.sql",
        ),
        (
            set("stores.shared", "redis://:geheim@h:port/0"),
            "stores.shared",
        ),
        (
            tls(&cert("CERTIFICATE"), &cert("PRIVATE KEY")),
            "server.tls",
        ),
        (
            tls(&pair.cert.pem(), &other.signing_key.serialize_pem()),
            "server.tls",
        ),
    ] {
        let listen = set("server.listen", "127.0.0.1:0");
        let arguments = [
            listen,
            set("admin.listen", "127.0.0.1:0"),
            keys.clone(),
            wrong,
        ]
        .concat();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, _, err) = run(&arguments);
        assert_eq!(code, Some(USAGE), "{arguments:?}: {err}");
        assert!(err.contains(part), "{err}");
        assert!(
            !err.contains("geheim") && !err.contains("panicked"),
            "{err}"
        );
    }
}

#[test]
fn check_config_prints_the_documented_defaults() {
    let (code, out, err) = run(&["check-config", "--defaults"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out, a2a_gateway::config::load::DEFAULT);
}

#[test]
fn health_says_what_is_missing() {
    let answer = |body: &'static str| {
        let (listener, address) = taken();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).unwrap();
            assert!(buffer[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(body.as_bytes()).unwrap();
        });
        run(&["health", "--url", &format!("http://{address}")])
    };
    let (code, out, err) = answer(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
         {\"status\":\"ready\",\"sql\":\"ok\",\"shared\":\"ok\",\"keys\":\"ok\",\"draining\":false}",
    );
    assert_eq!((code, out.as_str()), (Some(0), "ready\n"), "{err}");
    let (code, _, err) = answer(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
         {\"status\":\"not_ready\",\"sql\":\"unavailable\",\"shared\":\"ok\",\"keys\":\"ok\",\"draining\":false}",
    );
    assert_eq!(code, Some(1));
    assert!(err.contains("not ready: sql unavailable"), "{err}");
    let (code, _, err) = answer("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello");
    assert_eq!(code, Some(1), "another server is no gateway: {err}");
    let (listener, address) = taken();
    drop(listener);
    let (code, _, err) = run(&["health", "--url", &format!("http://{address}")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("nothing listens at"), "{err}");
    assert!(err.contains("admin.listen"), "{err}");
    let (code, _, err) = answer(
        "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
         {\"error\":\"no such route\",\"reason\":\"not_found\",\"request_id\":\"r\"}",
    );
    assert_eq!(code, Some(1));
    assert!(err.contains("public listener"), "{err}");
}

#[test]
fn an_address_that_is_taken_is_named_once_with_a_way_out() {
    let (_listener, address) = taken();
    let folder = tempfile::tempdir().unwrap();
    let output = gateway(&["--set", &format!("server.listen={address}")])
        .current_dir(&folder)
        .output();
    let (code, _, err) = ended(output.unwrap());
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(err.matches("in use").count(), 1, "{err}");
    assert!(err.contains("--set server.listen="), "{err}");
    let (code, _, err) = run(&["agent", "echo", "--listen", &address.to_string()]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&address.to_string()), "{err}");
}

#[test]
fn check_config_needs_no_file() {
    let (code, out, err) = run(&["check-config", "--set", "timeouts.idle=10s"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("timeouts.idle = \"10s\""), "{out}");
}

#[test]
fn an_agent_needs_a_credential_to_register() {
    let arguments = [
        "agent",
        "echo",
        "--id",
        "echo",
        "--gateway",
        "http://127.0.0.1:9",
    ];
    let output = gateway(&arguments)
        .env("A2A_GATEWAY_ADMIN_TOKEN", "")
        .output();
    let (code, _, err) = ended(output.unwrap());
    assert_eq!(code, Some(USAGE));
    assert!(err.contains("A2A_GATEWAY_ADMIN_TOKEN"), "{err}");
}

#[test]
fn a_context_is_tried_before_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("contexts.toml");
    let told = |arguments: &[&str]| {
        let output = gateway(arguments).env("A2A_CONTEXTS", &file).output();
        ended(output.unwrap())
    };
    let serve = |status: &'static str, body: &'static str| {
        let (listener, address) = taken();
        std::thread::spawn(move || {
            let answers = [("200 OK", r#"{"issuer":"http://h"}"#), (status, body)];
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n");
                write!(stream, "{head}Connection: close\r\n\r\n{body}").unwrap();
            }
        });
        format!("http://{address}/")
    };
    let url = serve(
        "401 Unauthorized",
        r#"{"reason":"unauthenticated","error":"unknown"}"#,
    );
    let (code, _, err) = told(&["login", &url, "--token", "a2aa_wrong", "--name", "a"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(!file.exists() && err.contains("unauthenticated"), "{err}");
    let url = serve("200 OK", r#"{"role":"read","label":"ada"}"#);
    let (code, out, err) = told(&["login", &url, "--token", "a2aa_right", "--name", "a"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(
        out,
        format!("operator (ada), role read, at {url}\na was added, and is the current context\n")
    );
    let (code, _, err) = told(&["login"]);
    assert!(code == Some(USAGE) && err.contains("no terminal"), "{err}");
    let (listener, address) = taken();
    drop(listener);
    let url = format!("http://{address}");
    let (code, out, err) = told(&["context", "add", "b", "--url", &url, "--token", "a2aa_x"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("was not reached") && err.contains("could not be tried"),
        "{out}{err}"
    );
    let (code, out, _) = told(&[
        "context",
        "add",
        "b",
        "--replace",
        "--as",
        "pm",
        "--token",
        "a2aw_y",
        "--offline",
    ]);
    assert_eq!((code, out.as_str()), (Some(0), "b was changed\n"));
    let (_, out, _) = told(&["context", "show", "b"]);
    assert!(out.contains("callers:    pm"), "{out}");
}
