//! Ids that a shell completes: of workspaces, tokens, grants, stops and contexts, from the gateway that the command
//! would ask; nothing, and at once, where it does not answer.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{done, ended, family, json_of, operating, program};
use crate::harness::{ADMIN, Gateway, Pair, until_holds};

/// The words that bash offers for a command line, of which the last word is being typed.
async fn offered(mut command: tokio::process::Command, script: &Path, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let last = words.len() - 1;
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let asked = format!(
        ". '{}'; COMP_WORDS=({}); COMP_CWORD={last}; COMP_TYPE=9; _clap_complete_a2a_gateway a2a-gateway '{}' ''; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        quoted.join(" "),
        words[last],
    );
    let out = ended(command.args(["-c", &asked])).await.done();
    // Options are offered beside ids.
    let is_id = |word: &&str| !word.is_empty() && !word.starts_with('-');
    out.lines().filter(is_id).map(str::to_owned).collect()
}

/// A shell with the program in its `PATH`, and what an operator has in the environment.
fn shell(like: &tokio::process::Command) -> tokio::process::Command {
    let mut shell = tokio::process::Command::new("bash");
    let kept = like.as_std().get_envs();
    let kept = kept.filter_map(|(name, value)| Some((name, value?)));
    shell.env_clear().envs(kept);
    shell
}

#[tokio::test]
async fn ids_come_from_the_gateway_that_the_command_would_ask() {
    let gateway = Gateway::start(Pair::Embedded).await;
    family(&gateway).await;
    for number in 0..520 {
        let id = format!("many-{number:03}");
        gateway.create(json!({"id": id, "name": id})).await;
    }
    let token = json_of(&gateway, "token create acme-dev --json").await;
    let token = token["id"].as_str().unwrap().to_owned();
    let stop = done(&gateway, "stop --workspace acme-qa --reason loop").await;
    let stop = stop.trim_end().rsplit(' ').next().unwrap().to_owned();
    let script = gateway.dir.join("a2a-gateway.bash");
    std::fs::write(&script, done(&gateway, "completions bash").await).unwrap();
    let ask = async |line: &str| offered(shell(&operating(&gateway)), &script, line).await;

    let stop = stop.as_str();
    for (line, ids) in [
        (
            "workspace show acme-",
            &["acme-dev", "acme-pm", "acme-qa"][..],
        ),
        // Beyond the first page, and by the name.
        ("workspace pause many-519", &["many-519"]),
        ("explain prod", &["acme-pm"]),
        ("stop --pair acme-pm rival", &["rival-spy"]),
        ("token revoke acme-d", &["acme-dev"]),
        ("release stop-", &[stop]),
    ] {
        // What is not there within a second is not offered.
        let are_offered = async || ask(&format!("a2a-gateway {line}")).await == ids;
        until_holds(line, are_offered).await;
    }
    let line = "a2a-gateway token revoke acme-dev ";
    until_holds(line, async || ask(line).await.contains(&token)).await;

    // Of the context that the line names, and with its token.
    let url = format!("http://{}", gateway.public);
    let add = ["context", "add", "here", "--url", &url, "--token", ADMIN];
    ended(program(&gateway.dir).args(add)).await.done();
    let plain = || shell(&program(&gateway.dir));
    let line = "a2a-gateway workspace show --context here rival";
    until_holds(line, async || {
        offered(plain(), &script, line).await == ["rival-spy"]
    })
    .await;
    let line = "a2a-gateway stops --context he";
    assert_eq!(offered(plain(), &script, line).await, ["here"]);

    // One that takes the connection and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut away = shell(&operating(&gateway));
    away.env("A2A_GATEWAY_URL", &url);
    let none = offered(away, &script, "a2a-gateway workspace show acme-");
    let none = timeout(Duration::from_secs(60), none).await;
    let none = none.expect("it is not waited for");
    assert!(none.is_empty(), "{none:?}");
}
