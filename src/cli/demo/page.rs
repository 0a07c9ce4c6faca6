//! What the demo prints: addresses, hierarchy, tokens, and commands. Each command is one line, so
//! that it can be pasted whole; the first is a unary message that has a result.

use std::fmt::Write as _;

use super::seed::{Cast, Demo, SEATS, call};

/// The whole page.
pub(super) fn page(demo: &Demo, cast: &Cast) -> String {
    let public = demo.public.as_str().trim_end_matches('/');
    let admin = demo.admin.as_str().trim_end_matches('/');
    let mut out = format!(
        "\na2a-gateway demo\n\n  \
         callers and agents  {public}\n  \
         metrics and health  {admin}\n\n\
         acme-pm               echo agent: says back what it is told\n\
         ├── acme-dev          slow agent: works for three seconds, streams its progress\n\
         │   └── acme-intern   a caller without an agent\n\
         └── acme-qa           flaky agent: fails three times, then works, and so on\n\
         rival-spy             a stranger, in another org\n\n\
         Tokens\n\n"
    );
    for seat in &SEATS {
        let _ = writeln!(out, "  {:<12} {}", seat.id, cast.token(seat.id));
    }
    if let Some(canvas) = &cast.canvas {
        let _ = writeln!(out, "  {:<12} {canvas}", "canvas");
    }
    let _ = writeln!(out, "  {:<12} {}", "operator", demo.operator);
    out.push_str("\nTry\n");
    for (title, command) in commands(public, admin, cast) {
        let _ = write!(out, "\n# {title}\n{command}\n");
    }
    out.push_str("\nCtrl-C ends everything.\n\n");
    out
}

fn commands(public: &str, admin: &str, cast: &Cast) -> Vec<(String, String)> {
    let a2a = |options: &str, to: &str, token: &str, method: &str, text: &str| {
        format!(
            "curl {options} {public}/workspaces/{to}/a2a -H 'Authorization: Bearer {token}' \
             -H 'Content-Type: application/json' -d '{}'",
            call(method, text)
        )
    };
    let (pm, dev) = (cast.token("acme-pm"), cast.token("acme-dev"));
    // curl writes no line end of its own after JSON.
    let once = "-sS -w '\\n'";
    let mut commands = vec![
        (
            "acme-dev asks acme-pm, its parent; the gateway fills in the missing messageId"
                .to_owned(),
            a2a(once, "acme-pm", dev, "message/send", "hello"),
        ),
        (
            "acme-pm asks acme-dev, and watches the work event by event".to_owned(),
            a2a("-sSN", "acme-dev", pm, "message/stream", "plan the release"),
        ),
        (
            "rival-spy asks acme-dev, and is refused; see `reason`".to_owned(),
            a2a(
                once,
                "acme-dev",
                cast.token("rival-spy"),
                "message/send",
                "what are you building?",
            ),
        ),
        (
            "acme-pm looks up where acme-dev is".to_owned(),
            format!(
                "curl {once} {public}/registry/discover/acme-dev -H 'Authorization: Bearer {pm}'"
            ),
        ),
    ];
    if let Some(canvas) = &cast.canvas {
        commands.push((
            "a user of the canvas asks acme-qa; try it four times".to_owned(),
            a2a(once, "acme-qa", canvas, "message/send", "are you there?"),
        ));
    }
    commands.push((
        "what was counted".to_owned(),
        format!("curl -sS {admin}/metrics"),
    ));
    let program = std::env::current_exe().map_or_else(
        |_| "a2a-gateway".to_owned(),
        |path| path.display().to_string(),
    );
    commands.push((
        "the same stream without curl".to_owned(),
        format!(
            "'{program}' send acme-dev 'plan the release' --stream --url {public} --token {pm}"
        ),
    ));
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(canvas: Option<&str>) -> String {
        let demo = Demo {
            public: "http://127.0.0.1:8080/".parse().unwrap(),
            admin: "http://127.0.0.1:9090/".parse().unwrap(),
            operator: "a2aa_operator".to_owned(),
            kept: None,
        };
        let cast = Cast {
            tokens: SEATS
                .iter()
                .map(|seat| (seat.id.to_owned(), format!("a2aw_{}", seat.id)))
                .collect(),
            canvas: canvas.map(str::to_owned),
        };
        page(&demo, &cast)
    }

    #[test]
    fn the_first_command_is_a_unary_message_in_one_line() {
        let page = printed(Some("canvas.jwt"));
        let first = page.lines().find(|line| line.starts_with("curl")).unwrap();
        assert!(first.contains("http://127.0.0.1:8080/workspaces/acme-pm/a2a"));
        assert!(first.contains("Bearer a2aw_acme-dev") && first.contains("message/send"));
        let commands = page.lines().filter(|line| line.starts_with("curl "));
        assert_eq!(commands.count(), 6);
    }

    #[test]
    fn a_gateway_without_canvas_tokens_gets_a_page_without_them() {
        assert!(!printed(None).contains("canvas"));
    }

    #[test]
    fn parents_are_made_before_their_children() {
        for (i, seat) in SEATS.iter().enumerate() {
            let made = |id: &&str| SEATS[..i].iter().any(|earlier| earlier.id == *id);
            assert!(seat.parent.is_none_or(|id| made(&id)), "{}", seat.id);
        }
    }
}
