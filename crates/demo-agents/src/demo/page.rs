//! The page that the demo prints: workspaces, commands, tokens. Each command is one line, so that
//! it can be pasted whole; the first is a unary message with a result.

use std::fmt::Write as _;

use super::seed::{DemoGateway, IssuedTokens};

/// The page: headings behind `==`, titles of commands behind `#`, and names in braces. Commands are written out in
/// full, since users copy them as examples. A line with a name that has no value is left out.
const PAGE: &str = include_str!("page.txt");

/// Returns the whole page, with bold headings for a terminal if `is_bold`.
pub(super) fn format_page(demo: &DemoGateway, issued: &IssuedTokens, is_bold: bool) -> String {
    let values = list_values(demo, issued);
    let heading = |text: &str| match is_bold {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let (mut page, mut title, mut number) = (String::new(), None, 0);
    for line in PAGE.lines() {
        if let Some(text) = line.strip_prefix("== ") {
            let _ = writeln!(page, "{}", heading(text));
            continue;
        }
        if let Some(next) = line.strip_prefix("# ") {
            title = Some(next);
            continue;
        }
        let title = title.take();
        let Some(line) = fill_line(line, &values) else {
            continue;
        };
        if let Some(title) = title {
            number += 1;
            let title = heading(&format!("# {number}. {title}"));
            let _ = writeln!(page, "\n{title}");
        }
        let _ = writeln!(page, "{line}");
    }
    page
}

/// Returns a line with the values of its names. `None`: one of them has none.
fn fill_line(line: &str, values: &[(&str, Option<String>)]) -> Option<String> {
    let mut filled = line.to_owned();
    for (name, value) in values {
        let name = format!("{{{name}}}");
        if filled.contains(&name) {
            filled = filled.replace(&name, value.as_deref()?);
        }
    }
    Some(filled)
}

/// Returns the values of the names in [`PAGE`].
fn list_values<'a>(demo: &DemoGateway, issued: &'a IssuedTokens) -> Vec<(&'a str, Option<String>)> {
    let base = |url: &url::Url| url.as_str().trim_end_matches('/').to_owned();
    let admin = base(&demo.admin);
    let program = std::env::current_exe().map_or_else(
        |_| "a2a-gateway".to_owned(),
        |path| path.display().to_string(),
    );
    let folder = std::path::absolute(&demo.folder).unwrap_or_else(|_| demo.folder.clone());
    let kept = match demo.tokens_file {
        Some(_) => "The stores and tokens are kept for the next time.",
        None => "Nothing is kept.",
    };
    // Browsers do not send the part after `#`, so that no server or log on the way sees the token.
    let canvas_page = issued.canvas.clone().filter(|_| demo.has_canvas);
    let tokens = issued.tokens.iter();
    let tokens = tokens.map(|(id, token)| (id.as_str(), Some(token.clone())));
    let others = [
        ("canvas", issued.canvas.clone()),
        ("canvas-page", canvas_page),
        ("console-page", demo.has_console.then(|| admin.clone())),
        ("public", Some(base(&demo.public))),
        ("admin", Some(admin)),
        ("operator", Some(demo.operator.clone())),
        ("kept", Some(kept.to_owned())),
        ("program", Some(program)),
        ("folder", Some(folder.display().to_string())),
    ];
    tokens.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::super::seed::WORKSPACES;
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
        format_page(&demo, &issued, false)
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
