//! Files of secrets that every user of the machine can read: the gateway does not start with them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::authority::{self, write_secret};
use crate::harness::{ADMIN, Builder, Pair};

/// `serve` with these settings and variables, which ends before a port is bound: status and complaint.
fn refused(folder: &Path, sets: &[String], env: &[(&str, String)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.args(["serve", "--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "admin.listen=127.0.0.1:0"]);
    for set in sets {
        command.arg("--set").arg(set);
    }
    let variables = env.iter().map(|(name, value)| (*name, value));
    let output = command.envs(variables).current_dir(folder).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

#[test]
fn a_secret_that_everybody_can_read_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("keys")).unwrap();
    let pair = authority::self_signed(&["localhost"]);
    std::fs::write(at("cert.pem"), &pair.pem).unwrap();
    let text = |name: &str| at(name).display().to_string();
    let set = |key: &str, name: &str| format!("{key}={}", text(name));
    let seal = "ab".repeat(32);
    let (cert, key) = ("server.tls.cert", "server.tls.key");
    let pem = vec![set(cert, "cert.pem"), set(key, "key.pem")];
    let (sql, redis) = (
        "postgres://u:s3cret@127.0.0.1:9/d",
        "redis://:s3cret@127.0.0.1:9",
    );
    // A secret in a file that a setting names, or a variable.
    let settings = [
        ("seal-key", &*seal, vec![set("keys.seal_key", "seal-key")]),
        ("keys/active.pem", &pair.key, vec![set("keys.dir", "keys")]),
        ("keys/seal.key", &seal, vec![set("keys.dir", "keys")]),
        ("key.pem", &pair.key, pem),
    ]
    .map(|(name, content, sets)| (name, content, sets, None));
    let variables = [
        ("token", ADMIN, "A2A_GATEWAY_ADMIN_TOKEN_FILE"),
        ("sql", sql, "A2A_GATEWAY__STORES__SQL_FILE"),
        ("shared", redis, "A2A_GATEWAY__STORES__SHARED_FILE"),
    ]
    .map(|(name, content, variable)| (name, content, vec![], Some(variable)));
    for (name, content, sets, variable) in settings.into_iter().chain(variables) {
        write_secret(&at(name), content);
        let env: Vec<_> = variable
            .into_iter()
            .map(|named| (named, text(name)))
            .collect();
        for mode in [0o644, 0o604] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(at(name), permissions).unwrap();
            let (status, said) = refused(folder.path(), &sets, &env);
            assert_eq!(status, Some(64), "{name} {mode:o}: {said}");
            let advice = format!("chmod 600 {}", text(name));
            assert!(said.contains(&advice), "{name}: {said}");
            let leaks = said.contains("s3cret") || said.contains(content);
            assert!(!leaks, "{said}");
        }
        std::fs::remove_file(at(name)).unwrap();
    }
    assert!(!at("data").exists(), "it has begun to serve");
}

#[test]
fn a_key_file_that_is_none_is_told_by_the_check_as_by_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("seal.key");
    let setting = format!("keys.seal_key={}", key.display());
    let told = |reason: &str| {
        let mut check = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
        let checked = check.args(["check-config", "--set", &setting]);
        let checked = checked.output().unwrap();
        let said = String::from_utf8(checked.stderr).unwrap();
        let started = refused(folder.path(), std::slice::from_ref(&setting), &[]);
        for (status, said) in [(checked.status.code(), said), started] {
            assert_eq!(status, Some(64), "{said}");
            let expected = format!("cannot read {}: {reason}", key.display());
            assert!(said.contains("keys.seal_key"), "{said}");
            assert!(said.contains(&expected), "{said}");
        }
    };
    told("No such file");
    // Nobody is waited for to write into a pipe.
    let made = Command::new("mkfifo").arg(&key).status().unwrap();
    assert!(made.success());
    told("it is not a regular file");
}

#[tokio::test]
async fn a_key_that_its_group_can_read_is_used_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("seal-key");
    write_secret(&key, "ab".repeat(32));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o440)).unwrap();
    let builder = Builder::new(Pair::Embedded).set("keys.seal_key", &key.display().to_string());
    let gateway = builder.start().await;
    gateway.until_told("is readable by its group", 1).await;
}
