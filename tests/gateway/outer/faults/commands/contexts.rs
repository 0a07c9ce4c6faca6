//! Contexts: which gateway and which token a command uses, and who may read the file.

use std::os::unix::fs::PermissionsExt as _;

use super::{ended, program};
use crate::harness::{ADMIN, Gateway, Pair};

#[tokio::test]
async fn commands_that_change_the_file_at_once_do_not_overwrite_each_other() {
    let home = tempfile::tempdir().unwrap();
    let adding = (0..12).map(|number| {
        let mut command = program(home.path());
        command.args(["context", "add", &format!("c{number}"), "--url", "http://h"]);
        async move { ended(&mut command).await.done() }
    });
    futures_util::future::join_all(adding).await;
    let listed = ended(program(home.path()).args(["context", "list"]))
        .await
        .done();
    for number in 0..12 {
        assert!(listed.contains(&format!("c{number} ")), "{listed}");
    }
}

#[tokio::test]
async fn neither_passwords_of_urls_nor_bad_token_files_are_shown() {
    let home = tempfile::tempdir().unwrap();
    let run = async |line: &str| {
        let answer = ended(program(home.path()).args(line.split(' '))).await;
        assert!(
            !answer.out.contains("s3cret") && !answer.err.contains("s3cret"),
            "{answer:?}"
        );
        answer
    };
    for urls in [
        "--url https://ada:s3cret@h",
        "--url http://h --admin http://s3cret@h",
    ] {
        run(&format!("context add one {urls}"))
            .await
            .refused(64, "without a user");
    }
    // A file that was written by hand.
    let folder = home.path().join(".config/a2a-gateway");
    std::fs::create_dir_all(&folder).unwrap();
    let tokens = folder.join("tokens");
    let text = format!(
        "current = \"one\"\n[contexts.one]\nurl = \"https://ada:s3cret@h/@\"\nadmin_url = \"http://s3cret@a/\"\n\
         token_file = {tokens:?}\n"
    );
    for (path, text) in [
        (&folder.join("contexts.toml"), text.as_str()),
        (&tokens, "s3cret\ns3cret\n"),
    ] {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    for line in [
        "context list",
        "context list --json",
        "context show",
        "context show --json",
    ] {
        let shown = run(line).await.done();
        assert!(
            shown.contains("https://h/@") && shown.contains("http://a/"),
            "{shown}"
        );
    }
    run("workspace list")
        .await
        .refused(64, &tokens.display().to_string());
}

#[tokio::test]
async fn flags_count_more_than_the_environment_and_that_more_than_the_context() {
    let (one, two) = tokio::join!(
        Gateway::start(Pair::Embedded),
        Gateway::start(Pair::Embedded)
    );
    for (gateway, id) in [(&one, "of-one"), (&two, "of-two")] {
        gateway
            .create(serde_json::json!({"id": id, "name": id}))
            .await;
    }
    let home = tempfile::tempdir().unwrap();
    let url = |gateway: &Gateway| format!("http://{}", gateway.public);
    let (at_one, at_two) = (url(&one), url(&two));
    let run = async |env: &[(&str, &str)], line: &str| {
        let mut command = program(home.path());
        ended(command.envs(env.iter().copied()).args(line.split(' '))).await
    };
    std::fs::write(home.path().join("operator"), ADMIN).unwrap();
    let file = home.path().join("operator");
    let add_one = format!(
        "context add one --url {at_one} --admin http://{} --token {ADMIN}",
        one.admin
    );
    run(&[], &add_one).await.done();
    let add_two = format!(
        "context add two --url {at_two} --token-file {}",
        file.display()
    );
    // A token's file that others can read is refused at once and later, and the file of contexts is this user's alone.
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode));
    mode(0o644).unwrap();
    run(&[], &add_two).await.refused(64, "chmod 600");
    mode(0o600).unwrap();
    run(&[], &add_two).await.done();
    mode(0o644).unwrap();
    run(&[], "workspace list --context two")
        .await
        .refused(64, "chmod 600");
    mode(0o600).unwrap();
    let contexts = home.path().join(".config/a2a-gateway/contexts.toml");
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&contexts), 0o600);

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
    run(&elsewhere, "workspace list")
        .await
        .refused(64, "A2A_GATEWAY_ADMIN_TOKEN");
    // Of a flag, though the context has one, too.
    run(&[], "workspace list --token a2aa_wrong")
        .await
        .refused(1, "unauthenticated");

    // Commands of the admin listener and of callers use it, too.
    run(&[], "health").await.done();
    let explained = run(&[], "explain operator of-one").await;
    assert!(
        explained.out.contains("operator to of-one"),
        "{explained:?}"
    );
    run(&[], "health --context two")
        .await
        .refused(64, "no URL of the admin listener");
    run(&[], "send of-one hello")
        .await
        .refused(1, "workspace_restarting");

    run(&[], "context use two").await.done();
    sees(&[], "", "of-two").await;
    let shown = [
        run(&[], "context list").await.done(),
        run(&[], "context list --json").await.done(),
        run(&[], "context show one").await.done(),
        run(&[], "context show one --json").await.done(),
    ];
    for shown in &shown {
        assert!(shown.contains(&at_one) && !shown.contains(ADMIN), "{shown}");
    }
    run(&[], "context add two --url http://h")
        .await
        .refused(64, "--replace");
    // The rest stays, unless it is another gateway.
    let admin = format!("context add two --replace --admin http://{}", two.admin);
    run(&[], &admin).await.done();
    run(&[], "workspace list --context two").await.done();
    run(&[], "health --context two").await.done();
    run(&[], "context add four --replace --admin http://h")
        .await
        .refused(64, "--url");
    run(&[], "context add two --replace --url http://h")
        .await
        .done();
    let shown = run(&[], "context show two").await.done();
    assert!(
        !shown.contains("operator") && !shown.contains(&two.admin.to_string()),
        "{shown}"
    );
    run(&[], "context use three").await.refused(64, "three");
    run(&[], "context remove two").await.done();
    run(&[], "context show").await.refused(64, "context use");
    run(&[], "workspace list")
        .await
        .refused(64, "A2A_GATEWAY_TOKEN");

    std::fs::set_permissions(&contexts, std::fs::Permissions::from_mode(0o644)).unwrap();
    for line in ["context list", "workspace list", "stops --context one"] {
        run(&[], line).await.refused(64, "mode 644");
    }
    // A command that is told all needs no file.
    sees(&environment, "", "of-two").await;
    let other = home.path().join("other.toml");
    std::fs::write(&other, "[contexts.one]\nurl = \"a2aa_secret\"\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    let bad = run(&[("A2A_CONTEXTS", other.to_str().unwrap())], "context list").await;
    bad.refused(64, "line 2");
    assert!(!bad.err.contains("a2aa_secret"), "{bad:?}");
}
