//! TLS towards callers: what is agreed on, and what it changes for agents and tokens.

use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::tls::{Certificate, Secure};
use crate::harness::{ADMIN, Builder, CALL, Pair, Request, until_holds};
use crate::http2::Case;

#[tokio::test]
async fn alpn_offers_h2_and_http_1_1() {
    let case = Case::new().await;
    let secure = &case.secure;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let stream = secure.certificate.connect(secure.address, offered).await;
        let stream = stream.expect("TLS");
        let got = stream.get_ref().1.alpn_protocol();
        assert_eq!(got, chosen.map(str::as_bytes), "offered {offered:?}");
    }
}

#[tokio::test]
async fn https_is_what_agents_and_tokens_are_told() {
    let case = Case::new().await;
    let secure = &case.secure;
    // HTTP/1.1 over TLS, then HTTP/2: the same exchange.
    let told = |host: &str| {
        let arrived = case.target.agent.take();
        assert_eq!(arrived.field("x-forwarded-proto"), Some("https"));
        assert_eq!(arrived.field("x-forwarded-host"), Some(host));
        arrived
    };
    secure.gateway.call(&case.request(CALL)).await.has(200);
    told(&secure.gateway.public.to_string());
    let http2 = secure.http2().await;
    http2.call(&case.request(CALL)).await.has(200);
    let own = secure.address.to_string();
    let arrived = told(&own);
    assert!(arrived.head.starts_with("POST / HTTP/1.1\r\n"));

    // `server.public_url` is made of the scheme and the listener's address.
    let request = Request::post("/canvas/tokens", r#"{"user":"ada"}"#).bearer(ADMIN);
    let answer = http2.call(&request).await.has(201).json();
    let token = answer["token"].as_str().expect("a token").split('.').nth(1);
    let claims = URL_SAFE_NO_PAD.decode(token.expect("claims"));
    let claims: Value = serde_json::from_slice(&claims.expect("base64url")).expect("JSON");
    assert_eq!(claims["iss"], format!("https://{own}"));
}

#[tokio::test]
async fn a_host_that_is_not_ours_is_misdirected_over_http2_too() {
    let case = Case::new().await;
    let http2 = case.secure.http2().await;
    let mut stray = case.secure.http2().await;
    stray.set_authority("evil.example");
    let answer = stray.call(&case.request(CALL)).await;
    answer.refuses(421, "misdirected");
    assert_eq!(case.target.agent.count(), 0);
    case.still_works(&http2).await;
}

#[tokio::test]
async fn a_handshake_that_fails_is_logged_with_its_peer_and_cause() {
    let builder = Builder::new(Pair::Embedded).set("timeouts.request_head", "8s");
    let builder = builder.set("telemetry.log", "info,a2a_gateway_data_plane=debug");
    let secure = Secure::start(builder).await;
    let mut connections = Vec::new();
    for (bytes, cause) in [
        (&[0x99; 16][..], "InvalidContentType"),
        (b"", "deadline has elapsed"),
    ] {
        let mut plain = TcpStream::connect(secure.address).await.unwrap();
        plain.write_all(bytes).await.unwrap();
        connections.push((plain, cause));
    }
    for (plain, cause) in connections {
        let peer = plain.local_addr().unwrap().to_string();
        let failed = |line: &&str| line.contains("TLS handshake") && line.contains(&peer);
        let logged = async || secure.gateway.log().lines().any(|line| failed(&line));
        until_holds(cause, logged).await;
        let log = secure.gateway.log();
        let line = log.lines().find(failed).unwrap();
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["level"], "DEBUG");
        assert_eq!(line["peer"], peer);
        assert!(line["error"].as_str().unwrap().contains(cause), "{line}");
    }
}

/// Runs a command beside the test's own runtime, which serves the agents.
async fn run(arguments: &[&str], url: &str, token: &str, roots: &Certificate) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.env("A2A_GATEWAY_URL", url);
    command.env("A2A_GATEWAY_TOKEN", token);
    command.env("SSL_CERT_FILE", roots.path());
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    ended.await.unwrap()
}

#[tokio::test]
async fn the_command_line_says_that_a_certificate_is_not_trusted_and_what_to_do() {
    let case = Case::new().await;
    let url = format!("https://{}", case.secure.address);
    let token = &case.caller.token;
    let others = Certificate::new();
    for arguments in [&["send", "target", "hi"], &["token", "pair", "target"]] {
        let refused = run(arguments, &url, token, &others).await;
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        let expected = format!("the certificate of {url} is not trusted (");
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains("SSL_CERT_FILE names a PEM file"), "{said}");
        let good = run(arguments, &url, token, &case.secure.certificate).await;
        let said = String::from_utf8(good.stderr).unwrap();
        assert_eq!(good.status.code(), Some(0), "{said}");
    }
    assert_eq!(case.target.agent.count(), 1);
}
