//! Tokens of operators, and files that tokens are written into.

use std::os::unix::fs::PermissionsExt as _;

use super::{ended, operating};
use crate::harness::{Gateway, Pair};

#[tokio::test]
async fn an_operators_token_is_made_into_a_file_listed_and_revoked() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let workspace = serde_json::json!({"id": "acme-dev", "name": "Dev"});
    gateway.create(workspace).await;
    let home = tempfile::tempdir().unwrap();
    let run = async |line: &str| {
        let mut command = operating(&gateway);
        command.current_dir(home.path());
        ended(command.args(line.split(' '))).await
    };
    let kept = |name: &str| {
        let path = home.path().join(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    };

    let make = "token operator --role read --label night --token-file night";
    let told = run(make).await.done();
    let token = kept("night");
    assert!(token.starts_with("a2aa_") && !told.contains(&token));
    run(make).await.refused(64, "night");
    let listed = run("token list --operators").await.done();
    let row = listed.lines().find(|line| line.contains("  night  "));
    let row = row.unwrap_or_else(|| panic!("{listed}"));
    let count = listed.lines().count();
    assert_eq!(count, 2, "a refused one was made: {listed}");
    let id = row.split(' ').next().unwrap();
    assert!(row.contains("  read  ") && told.contains(id), "{told}{row}");
    let seen = format!("workspace list --token {token}");
    run(&seen).await.done();
    let revoke = format!("token revoke --operator {id}");
    let would = run(&format!("{revoke} --dry-run")).await.done();
    assert!(would.contains("would be revoked"), "{would}");
    run(&seen).await.done();
    run(&revoke).await.done();
    run(&seen).await.refused(1, "unauthenticated");
    let both = run("token revoke --operator acme-dev x").await;
    both.refused(64, "--operator");

    let made = run("token operator --role read --json").await.json();
    assert!(made["id"].is_string() && made["token"].is_string());
    let made = run("token create acme-dev --json --token-file dev").await;
    let made = made.json();
    assert!(made["id"].is_string() && made["token"].is_null(), "{made}");
    assert!(kept("dev").starts_with("a2aw_"));
    run("token create acme-dev --enrolment --token-file enrolment")
        .await
        .done();
    assert!(kept("enrolment").starts_with("a2ae_"));
    let canvas = "token canvas --user ada --workspace acme-dev --ttl 10min";
    let made = run(&format!("{canvas} --json")).await.json();
    assert!(made["token"].as_str().unwrap().starts_with("eyJ"), "{made}");
    assert_eq!(made["expires_in"], 600);
    let told = run(&format!("{canvas} --token-file canvas")).await.done();
    assert!(
        told.starts_with("token ") && told.ends_with(": in canvas\n"),
        "{told}"
    );
    assert!(kept("canvas").starts_with("eyJ"));
    let told = run("workspace create acme-qa --json --token-file qa")
        .await
        .json();
    assert_eq!(told["id"], "acme-qa");
    assert_eq!(told.get("enrolment_token"), None);
    assert!(kept("qa").starts_with("a2ae_"));
    run("token create acme-dev --dry-run --token-file none")
        .await
        .done();
    assert!(!home.path().join("none").exists());
}
