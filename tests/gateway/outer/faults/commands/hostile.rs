//! Servers, agents and files that would steer the terminal of who runs a command, and lists that have no end.

use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Ran, ended, program};

/// Puts text into the clipboard, clears the screen, erases its line, and turns what follows around.
const EVIL: &str = "x\u{1b}]52;c;eA==\u{7}\u{9b}2J\u{85}\r\u{202e}\u{2066}y";

/// Serves each request with the answer to its path and query, and returns the address.
async fn serve(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // A body follows its head at once.
            let head = loop {
                let read = stream.read(&mut buffer).await.unwrap_or_default();
                request.extend_from_slice(&buffer[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let lower = head.to_lowercase();
                    let mut lines = lower.lines();
                    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
                    if length.is_none_or(|length| length.parse::<usize>().unwrap() <= body.len()) {
                        break head.to_owned();
                    }
                }
                if read == 0 {
                    break text;
                }
            };
            let path = head.split(' ').nth(1).unwrap_or_default();
            let _ = stream.write_all(answer(path).as_bytes()).await;
        }
    });
    format!("http://{address}")
}

fn answer(status: u16, fields: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close");
    format!("{head}\r\n{fields}\r\n{body}")
}

async fn run(url: &str, home: &Path, arguments: &[&str]) -> Ran {
    let mut command = program(home);
    for name in ["A2A_GATEWAY_URL", "A2A_GATEWAY_ADMIN_URL"] {
        command.env(name, url);
    }
    for name in ["A2A_GATEWAY_TOKEN", "A2A_GATEWAY_ADMIN_TOKEN"] {
        command.env(name, "t");
    }
    ended(command.args(arguments)).await
}

fn assert_steers_nothing(ran: &Ran, what: &[&str]) {
    for (at, text) in [("out", &ran.out), ("err", &ran.err)] {
        let evil = |c: char| {
            (c.is_control() && c != '\n')
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!text.chars().any(evil), "{what:?}, {at}: {text:?}");
    }
    assert!(!ran.out.is_empty() || !ran.err.is_empty(), "{what:?}");
}

#[tokio::test]
async fn what_a_server_an_agent_or_a_file_says_steers_no_terminal() {
    let home = tempfile::tempdir().unwrap();
    let fields = "Content-Type: application/json\r\n";
    let said = json!({"kind": "message", "role": "agent", "messageId": "m", "parts": [{"kind": "text", "text": EVIL}]});
    let event = json!({"jsonrpc": "2.0", "id": 1, "result": said});
    let event = format!("data: {event}\n\n");
    let refusal = json!({"error": EVIL, "reason": EVIL, "errors": [{"path": EVIL, "error": EVIL}],
        "changed": [{"kind": EVIL, "name": EVIL}]})
    .to_string();
    let workspace = json!({"id": EVIL, "name": EVIL, "status": EVIL, "org": EVIL, "role": EVIL});
    let grant = json!({"id": EVIL, "caller_id": EVIL, "target_id": EVIL, "note": EVIL});
    let stop = json!({"id": EVIL, "scope": {"workspace": EVIL}, "mode": EVIL, "reason": EVIL, "created_by": EVIL});
    let policy = json!({"version": 1, "revision": EVIL, "workspaces": [workspace], "grants": [grant], "stops": [stop]});
    let file = home.path().join("policy.json");
    // YAML has no such characters but as escapes.
    let escaped = policy.to_string().replace('\u{9b}', "\\u009b");
    std::fs::write(&file, escaped.replace('\u{85}', "\\u0085")).unwrap();
    let file = file.to_str().unwrap();
    let sends = json!({"result": said}).to_string();
    let grants = json!({"grants": [grant]}).to_string();
    let stops = json!({"stops": [stop]}).to_string();
    let policy = policy.to_string();
    let step = json!({"step": EVIL, "ok": false, "source": EVIL, "fact": {"said": EVIL}});
    let explained = json!({"admitted": false, "caller": EVIL, "target": EVIL, "steps": [step], "reason": EVIL, "message": EVIL});
    let explained = explained.to_string();
    let difference = json!({"changes": [{"action": "create", "kind": "workspace", "name": EVIL, "after": {"name": EVIL}}],
        "revision": EVIL, "unmanaged": [], "expired": []}).to_string();
    let list = json!([workspace]).to_string();
    let show = workspace.to_string();
    let csv = format!("day,org\n2026-11-01,{EVIL}\nno end {EVIL}");
    for (arguments, body) in [
        (&["send", "w", "hi"][..], &sends),
        (&["workspace", "list"], &list),
        (&["workspace", "list", "--json"], &list),
        (&["workspace", "show", "w", "--json"], &show),
        (&["grant", "list"], &grants),
        (&["grant", "list", "--json"], &grants),
        (&["stops"], &stops),
        (&["stops", "--json"], &stops),
        (&["usage", "--csv"], &csv),
        (&["export"], &policy),
        (&["export", "--json"], &policy),
        (&["explain", "a", "b"], &explained),
        (&["explain", "a", "b", "--json"], &explained),
        (&["apply", file, "--dry-run"], &difference),
        (&["apply", file, "--dry-run", "--json"], &difference),
        (&["health"], &refusal),
    ] {
        let (good, bad) = (answer(200, fields, body), answer(400, fields, &refusal));
        let ran = run(&serve(move |_| good.clone()).await, home.path(), arguments).await;
        assert_steers_nothing(&ran, arguments);
        let is_json = arguments.contains(&"--json");
        if is_json || *arguments == ["export"] {
            // The escapes are those of JSON, also in YAML: it says what the server said.
            let printed = serde_json::from_str::<Value>(&ran.out);
            let printed = printed.unwrap_or_else(|_| panic!("{arguments:?}: {ran:?}"));
            let printed = printed.to_string();
            assert!(printed.contains(&json!(EVIL).to_string()), "{printed}");
        }
        let refused = run(&serve(move |_| bad.clone()).await, home.path(), arguments).await;
        assert_steers_nothing(&refused, arguments);
        assert_ne!(refused.code, Some(0), "{arguments:?}");
    }
    let streamed = answer(200, "Content-Type: text/event-stream\r\n", &event);
    let at = serve(move |_| streamed.clone()).await;
    let ran = run(&at, home.path(), &["send", "w", "hi", "--stream"]).await;
    let shown = "x\\u001b]52;c;eA==\\u0007\\u009b2J\\u0085\\u000d\\u202e\\u2066y\n";
    assert_eq!(ran.out, shown);
    // What the arguments say is repeated by what is wrong with them.
    for arguments in [
        &[EVIL][..],
        &["grant", EVIL],
        &["workspace", "show", EVIL],
        &["stops", "--url", EVIL],
        &["apply", EVIL],
    ] {
        let ran = run("http://127.0.0.1:1", home.path(), arguments).await;
        assert_steers_nothing(&ran, arguments);
        assert_ne!(ran.code, Some(0), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_list_whose_pages_lead_in_a_circle_has_an_end() {
    let home = tempfile::tempdir().unwrap();
    let circle = |path: &str| {
        let next = if path.contains("cursor=a") { "b" } else { "a" };
        let body = json!({"grants": [{"id": "g"}], "next_cursor": next}).to_string();
        answer(200, "Content-Type: application/json\r\n", &body)
    };
    let ran = run(&serve(circle).await, home.path(), &["grant", "list"]).await;
    ran.refused(1, "leads back to an earlier one");
}

#[tokio::test]
async fn ids_that_a_shell_would_obey_are_not_offered_to_it() {
    let home = tempfile::tempdir().unwrap();
    let ids = ["good.one", "$(id)", "a;b", "--yes", "a b", "", EVIL];
    let stops = json!({"stops": ids.map(|id| json!({"id": id, "reason": EVIL}))}).to_string();
    let stops = answer(200, "Content-Type: application/json\r\n", &stops);
    let mut command = program(home.path());
    command.args(["--", "a2a-gateway", "release", ""]);
    for (name, value) in [
        ("A2A_GATEWAY_URL", &*serve(move |_| stops.clone()).await),
        ("A2A_GATEWAY_ADMIN_TOKEN", "t"),
        ("A2A_GATEWAY_COMPLETE", "bash"),
        ("_CLAP_COMPLETE_INDEX", "2"),
        ("_CLAP_IFS", "\n"),
    ] {
        command.env(name, value);
    }
    let offered = ended(&mut command).await.done();
    let ids: Vec<_> = offered
        .lines()
        .filter(|word| !word.starts_with("--") || *word == "--yes")
        .collect();
    assert_eq!(ids, ["good.one"], "{offered:?}");
}
