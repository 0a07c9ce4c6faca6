//! Contexts: which gateway and which token a command uses, and who may read the file.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{ended, program};
use crate::harness::{ADMIN, Gateway};

#[tokio::test]
async fn commands_that_change_the_file_at_once_do_not_overwrite_each_other() {
    let home = tempfile::tempdir().unwrap();
    let adding = (0..12).map(|number| {
        let mut command = program(home.path());
        command.args(["context", "add", &format!("c{number}"), "--url", "http://h"]);
        async move { ended(&mut command).await.done() }
    });
    futures_util::future::join_all(adding).await;
    let listed = ended(program(home.path()).args(["context", "list"])).await;
    let listed = listed.done();
    for number in 0..12 {
        assert!(listed.contains(&format!("c{number} ")), "{listed}");
    }
}

#[tokio::test]
async fn neither_passwords_of_urls_nor_bad_token_files_are_shown() {
    let home = tempfile::tempdir().unwrap();
    let run = async |line: &str| {
        let answer = ended(program(home.path()).args(line.split(' '))).await;
        assert!(!answer.out.contains("s3cret"), "{answer:?}");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
        answer
    };
    for urls in ["https://ada:s3cret@h", "http://h --admin http://s3cret@h"] {
        let added = run(&format!("context add one --url {urls}")).await;
        added.refused(64, "without a user");
    }
    // A file that was written by hand.
    let folder = home.path().join(".config/a2a-gateway");
    std::fs::create_dir_all(&folder).unwrap();
    let tokens = folder.join("tokens");
    let text = format!(
        "current = \"one\"\n[contexts.one]\nurl = \"https://ada:s3cret@h/@\"\nadmin_url = \"http://s3cret@a/\"\n\
         token_file = {tokens:?}\n"
    );
    let contexts = folder.join("contexts.toml");
    for (path, text) in [(&contexts, &*text), (&tokens, "s3cret\ns3cret\n")] {
        std::fs::write(path, text).unwrap();
        set_mode(path, 0o600);
    }
    for line in ["list", "list --json", "show", "show --json"] {
        let shown = run(&format!("context {line}")).await.done();
        assert!(shown.contains("https://h/@"), "{shown}");
        assert!(shown.contains("http://a/"), "{shown}");
    }
    let listed = run("workspace list").await;
    listed.refused(64, &tokens.display().to_string());
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn flags_count_more_than_the_environment_and_that_more_than_the_context() {
    let (one, two) = tokio::join!(Gateway::with(""), Gateway::with(""));
    one.found("of-one").await;
    two.found("of-two").await;
    let home = tempfile::tempdir().unwrap();
    let url = |gateway: &Gateway| format!("http://{}", gateway.public);
    let (at_one, at_two) = (url(&one), url(&two));
    let run = async |env: &[(&str, &str)], line: &str| {
        let mut command = program(home.path());
        ended(command.envs(env.iter().copied()).args(line.split(' '))).await
    };
    let done = async |line: &str| run(&[], line).await.done();
    let refused = async |line: &str, code: i32, part: &str| {
        run(&[], line).await.refused(code, part);
    };
    let file = home.path().join("operator");
    std::fs::write(&file, ADMIN).unwrap();
    let (admin, path) = (one.admin, file.display());
    done(&format!(
        "context add one --url {at_one} --admin http://{admin} --token {ADMIN}"
    ))
    .await;
    let add_two = format!("context add two --url {at_two} --token-file {path}");
    // A token's file that others can read is refused at once and later, and the file of contexts is this user's alone.
    set_mode(&file, 0o644);
    refused(&add_two, 64, "chmod 600").await;
    set_mode(&file, 0o600);
    done(&add_two).await;
    set_mode(&file, 0o644);
    refused("workspace list --context two", 64, "chmod 600").await;
    set_mode(&file, 0o600);
    let contexts = home.path().join(".config/a2a-gateway/contexts.toml");
    let mode = std::fs::metadata(&contexts).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let sees = async |env: &[(&str, &str)], flags: &str, id: &str| {
        let line = format!("workspace list{flags}");
        let seen = run(env, &line).await.done();
        assert!(seen.contains(id), "{env:?} {line}: {seen}");
    };
    sees(&[], "", "of-one").await;
    sees(&[], " --context two", "of-two").await;
    let environment = [
        ("A2A_GATEWAY_URL", at_two.as_str()),
        ("A2A_GATEWAY_ADMIN_TOKEN", ADMIN),
    ];
    sees(&environment, "", "of-two").await;
    sees(&environment, &format!(" --url {at_one}"), "of-one").await;
    sees(&environment, " --context one", "of-one").await;
    sees(&[("A2A_GATEWAY_URL", "")], "", "of-one").await;
    // The token of a context goes to no other gateway.
    let elsewhere = [("A2A_GATEWAY_URL", at_two.as_str())];
    let listed = run(&elsewhere, "workspace list").await;
    listed.refused(64, "A2A_GATEWAY_ADMIN_TOKEN");
    // Of a flag, though the context has one, too.
    refused("workspace list --token a2aa_wrong", 1, "unauthenticated").await;

    // Commands of the admin listener and of callers use it, too.
    done("health").await;
    let explained = run(&[], "explain operator of-one").await;
    let said = explained.out.contains("503 workspace_restarting");
    assert!(said, "{explained:?}");
    refused("health --context two", 64, "no URL of the admin listener").await;
    refused("send of-one hello", 1, "workspace_restarting").await;

    done("context use two").await;
    sees(&[], "", "of-two").await;
    for line in ["list", "list --json", "show one", "show one --json"] {
        let shown = done(&format!("context {line}")).await;
        assert!(shown.contains(&at_one) && !shown.contains(ADMIN), "{shown}");
    }
    refused("context add two --url http://h", 64, "--replace").await;
    // The rest stays, unless it is another gateway.
    let admin = two.admin.to_string();
    done(&format!("context add two --replace --admin http://{admin}")).await;
    done("workspace list --context two").await;
    done("health --context two").await;
    refused("context add four --replace --admin http://h", 64, "--url").await;
    done("context add two --replace --url http://h").await;
    let shown = done("context show two").await;
    assert!(!shown.contains("operator"), "{shown}");
    assert!(!shown.contains(&admin), "{shown}");
    refused("context use three", 64, "three").await;
    done("context remove two").await;
    refused("context show", 64, "context use").await;
    refused("workspace list", 64, "A2A_GATEWAY_TOKEN").await;

    set_mode(&contexts, 0o644);
    for line in ["context list", "workspace list", "stops --context one"] {
        refused(line, 64, "mode 644").await;
    }
    // A command that is told all needs no file.
    sees(&environment, "", "of-two").await;
    let other = home.path().join("other.toml");
    std::fs::write(&other, "[contexts.one]\nurl = \"a2aa_secret\"\n").unwrap();
    set_mode(&other, 0o600);
    let bad = run(&[("A2A_CONTEXTS", other.to_str().unwrap())], "context list").await;
    bad.refused(64, "line 2");
    assert!(!bad.err.contains("a2aa_secret"), "{bad:?}");
}
