//! The page that the demo prints: workspaces, commands, tokens. Each command is one line, so that
//! it can be pasted whole; the first is a unary message with a result.

use std::fmt::Write as _;

use super::seed::{DemoGateway, IssuedTokens, WORKSPACES};

/// The style of headings.
#[derive(Clone, Copy)]
pub(super) enum Style {
    /// No markup.
    Plain,
    /// Bold, for a terminal.
    Bold,
}

impl Style {
    fn format_heading(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Bold => format!("\x1b[1m{text}\x1b[0m"),
        }
    }
}

/// Returns the whole page.
pub(super) fn format_page(demo: &DemoGateway, issued: &IssuedTokens, style: Style) -> String {
    let public = demo.public.as_str().trim_end_matches('/');
    let admin = demo.admin.as_str().trim_end_matches('/');
    let heading = |text: &str| style.format_heading(text);
    // Browsers do not send the part after `#`, so that no server or log on the way sees the token.
    let canvas = issued.canvas.as_ref().filter(|_| demo.has_canvas);
    let canvas = canvas.map_or_else(String::new, |token| {
        format!("canvas in a browser  {public}/canvas/#token={token}\n  ")
    });
    let console = if demo.has_console {
        format!("console in a browser {admin}/\n  ")
    } else {
        String::new()
    };
    let mut out = format!(
        "\n{}\n\n  \
         {canvas}{console}callers and agents   {public}\n  \
         metrics and health   {admin}\n\n\
         {}\n\n  \
         acme-pm                echo agent: says back what it is told\n  \
         ├── acme-dev           slow agent: works for three seconds, streams its progress\n  \
         │   └── acme-intern    calls others, has no agent\n  \
         └── acme-qa            flaky agent: fails twice, is late once, works once, and again\n  \
         rival-spy              a stranger from another org\n  \
         ├── rival-ops          broken agent: answers 503 five times, then works\n  \
         └── rival-night        sleeps, until it is called\n\n\
         {}\n",
        heading("The gateway is up"),
        heading(
            "Who is there (parents may talk with their children, and siblings with each other)"
        ),
        heading("Try it: paste these into another terminal"),
    );
    for (number, (title, command)) in (1..).zip(list_commands(public, admin, demo, issued)) {
        let title = heading(&format!("# {number}. {title}"));
        let _ = write!(out, "\n{title}\n{command}\n");
    }
    let _ = write!(out, "\n{}\n\n", heading("Tokens, to go on by yourself"));
    for workspace in &WORKSPACES {
        let _ = writeln!(out, "  {:<12} {}", workspace.id, issued.token(workspace.id));
    }
    let _ = writeln!(out, "  {:<12} {}", "operator", demo.operator);
    if let Some(canvas) = &issued.canvas {
        let _ = writeln!(out, "  {:<12} {canvas}", "canvas");
    }
    let kept = if demo.tokens_file.is_some() {
        "The stores and tokens are kept for the next time."
    } else {
        "Nothing is kept."
    };
    let _ = write!(
        out,
        "\nEach exchange as a line of the log: start it with --set telemetry.log=info\n\
         Ctrl-C ends everything. {kept}\n\n"
    );
    out
}

/// Returns titles and commands, written out in full since users copy them as examples.
#[expect(clippy::too_many_lines, reason = "a list: each command with its title")]
fn list_commands(
    public: &str,
    admin: &str,
    demo: &DemoGateway,
    issued: &IssuedTokens,
) -> Vec<(&'static str, String)> {
    let a2a = |options: &str, to: &str, token: &str, body: &str| {
        format!(
            "curl {options} {public}/workspaces/{to}/a2a -H 'Authorization: Bearer {token}' \
             -H 'Content-Type: application/json' -d '{body}'"
        )
    };
    let call = |method: &str, text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{{"role":"user","parts":[{{"kind":"text","text":"{text}"}}]}}}}}}"#
        )
    };
    let (pm, dev) = (issued.token("acme-pm"), issued.token("acme-dev"));
    let operator = &demo.operator;
    // curl does not end its output with a line break.
    let once = "-sS -w '\\n'";
    let mut commands = vec![
        (
            "acme-dev asks its parent acme-pm: the answer is a `result` that says \"echo: hello\"",
            a2a(once, "acme-pm", dev, &call("message/send", "hello")),
        ),
        (
            "acme-pm asks its child acme-dev: a stream, event by event for three seconds",
            a2a(
                "-sSN",
                "acme-dev",
                pm,
                &call("message/stream", "plan the release"),
            ),
        ),
        (
            "rival-spy asks acme-dev: refused, with the reason NOT_PERMITTED",
            a2a(
                once,
                "acme-dev",
                issued.token("rival-spy"),
                &call("message/send", "what are you building?"),
            ),
        ),
        (
            "half a call is enough: x-a2a-completed says what the gateway filled in",
            a2a(
                "-sSi -w '\\n'",
                "acme-pm",
                dev,
                r#"{"message":{"text":"hello"}}"#,
            ),
        ),
        (
            "acme-pm looks up where acme-dev is, and its agent card",
            format!(
                "curl {once} {public}/registry/discover/acme-dev -H 'Authorization: Bearer {pm}'"
            ),
        ),
    ];
    if let Some(canvas) = &issued.canvas {
        commands.push((
            "a user of the canvas asks acme-qa: paste it four times, each ends differently",
            a2a(
                once,
                "acme-qa",
                canvas,
                &call("message/send", "are you there?"),
            ),
        ));
    }
    commands.push((
        "which workspaces acme-dev may message, and by which rule",
        format!("curl {once} {public}/registry/acme-dev/peers -H 'Authorization: Bearer {dev}'"),
    ));
    commands.push((
        "watch acme-pm and its kin: leave it open, and paste no. 1 into another terminal",
        format!("curl -sSN {public}/events -H 'Authorization: Bearer {pm}'"),
    ));
    let spy = issued.token("rival-spy");
    let ask = |to: &str| a2a(once, to, spy, r#"{"message":{"text":"are you up?"}}"#);
    commands.push((
        "rival-night sleeps: the gateway parks the call, has the agent started, and sends it a second later",
        ask("rival-night"),
    ));
    commands.push((
        "rival-ops fails five times: its breaker opens and refuses the sixth call; after five seconds one call tries",
        format!(
            "for call in 1 2 3 4 5 6; do {0}; done; sleep 6; {0}",
            ask("rival-ops")
        ),
    ));
    commands.push((
        "an operator lets rival-spy message acme-dev, across orgs: now no. 3 gets an answer",
        format!(
            "curl {once} {public}/grants -H 'Authorization: Bearer {operator}' \
             -H 'Content-Type: application/json' \
             -d '{{\"caller_id\":\"rival-spy\",\"target_id\":\"acme-dev\"}}'"
        ),
    ));
    commands.push((
        "the newest three records of the audit: caller, target, outcome",
        format!("curl {once} '{admin}/audit?event_type=A2A_CALL&limit=3'"),
    ));
    commands.push((
        "what the gateway has counted so far, by method and outcome",
        format!("curl -sS {admin}/metrics | grep '^a2a_gateway_exchanges_total'"),
    ));
    let program = std::env::current_exe().map_or_else(
        |_| "a2a-gateway".to_owned(),
        |path| path.display().to_string(),
    );
    commands.push((
        "the stream of no. 2 without curl, one line an event",
        format!(
            "'{program}' send acme-dev 'plan the release' --stream --url {public} --token {pm}"
        ),
    ));
    commands.push((
        "why a message of acme-intern would not reach acme-pm, check by check; nothing is sent",
        format!("'{program}' explain acme-intern acme-pm --admin {admin}"),
    ));
    let folder = std::path::absolute(&demo.folder).unwrap_or_else(|_| demo.folder.clone());
    let folder = folder.display();
    commands.push((
        "was any record of the audit changed, removed or put in?",
        format!(
            "'{program}' audit verify --set 'stores.sql=sqlite:{folder}/gateway.db' --set 'keys.dir={folder}/keys'"
        ),
    ));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(canvas: Option<&str>) -> String {
        let demo = DemoGateway {
            public: "http://127.0.0.1:8080/".parse().unwrap(),
            admin: "http://127.0.0.1:9090/".parse().unwrap(),
            operator: "a2aa_operator".to_owned(),
            has_canvas: true,
            has_console: true,
            waker: std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
            folder: "/tmp/demo".into(),
            tokens_file: None,
        };
        let issued = IssuedTokens {
            tokens: WORKSPACES
                .iter()
                .map(|workspace| (workspace.id.to_owned(), format!("a2aw_{}", workspace.id)))
                .collect(),
            canvas: canvas.map(str::to_owned),
        };
        format_page(&demo, &issued, Style::Plain)
    }

    #[test]
    fn the_first_command_is_a_unary_message_in_one_line() {
        let page = printed(Some("canvas.jwt"));
        let first = page.lines().find(|line| line.starts_with("curl")).unwrap();
        assert!(first.contains("http://127.0.0.1:8080/workspaces/acme-pm/a2a"));
        assert!(first.contains("Bearer a2aw_acme-dev") && first.contains("message/send"));
        let body = first.rsplit(" -d ").next().unwrap().trim_matches('\'');
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["params"]["message"]["parts"][0]["text"], "hello");
        let commands = page.lines().filter(|line| line.starts_with("curl "));
        assert_eq!(commands.count(), 12);
    }

    #[test]
    fn a_gateway_without_canvas_tokens_gets_a_page_without_them() {
        // The page contains the program's path, and its folders may have any name.
        let program = std::env::current_exe().unwrap();
        let page = printed(None).replace(&program.display().to_string(), "");
        assert!(!page.contains("canvas"), "{page}");
    }

    #[test]
    fn the_canvas_has_its_token_behind_the_hash() {
        let page = printed(Some("canvas.jwt"));
        assert!(
            page.contains(
                "  canvas in a browser  http://127.0.0.1:8080/canvas/#token=canvas.jwt\n"
            )
        );
    }

    #[test]
    fn every_line_that_is_no_command_can_be_pasted_without_harm() {
        let page = printed(Some("canvas.jwt"));
        let try_it = page.split("Try it").nth(1).unwrap();
        let commands = try_it.split("Tokens").next().unwrap();
        for line in commands.lines().skip(1).filter(|line| !line.is_empty()) {
            let harmless = ["# ", "curl ", "for call ", "'"]
                .iter()
                .any(|start| line.starts_with(start));
            assert!(harmless, "{line}");
        }
    }

    #[test]
    fn parents_are_made_before_their_children() {
        for (i, workspace) in WORKSPACES.iter().enumerate() {
            let made = |id: &&str| WORKSPACES[..i].iter().any(|earlier| earlier.id == *id);
            assert!(
                workspace.parent.is_none_or(|id| made(&id)),
                "{}",
                workspace.id
            );
        }
    }
}
