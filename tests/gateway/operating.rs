//! Small things that an operator meets: the name of a replica, plain HTTP at a TLS port, where the admin listener is.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::harness::documents::block_of;
use crate::harness::tls::Secure;
use crate::harness::{Agent, Builder, Connection, Gateway, Pair, Request, until_holds};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_called_what_its_configuration_says() {
    let named = Builder::new(Pair::Embedded).set("server.replica", "gateway-7");
    let gateway = named.start().await;
    // Records are written behind what they tell of.
    let named = async || {
        let page = gateway.admin_get("/audit?limit=5").await.unwrap().json();
        let replica = page["records"][0]["replica"].as_str().map(str::to_owned);
        replica.is_some_and(|replica| replica.starts_with("gateway-7-"))
    };
    until_holds("a record names the replica", named).await;
}

#[test]
fn a_name_that_is_none_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .args(["check-config", "--set", "server.replica=a b"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{told}");
    assert!(
        told.contains("server.replica") && told.contains("1 to 48 letters"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_at_the_tls_port_is_told_so() {
    let secure = Secure::start(Builder::new(Pair::Embedded)).await;
    for request in [
        Request::get("/registry"),
        Request::post("/workspaces", "{}"),
    ] {
        let answer = Connection::open(secure.address).await.call(&request).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.reason(), "invalid_request");
        answer.says("https://");
    }
    // TLS is spoken as before.
    let answer = secure
        .gateway
        .call(&Request::get("/.well-known/jwks.json"))
        .await;
    assert_eq!(answer.status, 200);
}

fn told(gateway: &Gateway, arguments: &[&str], env: Option<String>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    command.args(arguments).current_dir(&gateway.dir);
    command.envs(env.map(|url| ("A2A_GATEWAY_ADMIN_URL", url)));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_explain_find_the_admin_listener() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let file = gateway.dir.join("gateway.toml");
    std::fs::write(&file, format!("[admin]\nlisten = \"{}\"\n", gateway.admin)).unwrap();
    let config = file.display().to_string();
    let url = format!("http://{}", gateway.admin);
    for arguments in [&["health"][..], &["health", "--traffic"]] {
        let by_env = told(&gateway, arguments, Some(url.clone()));
        assert_eq!(by_env, (Some(0), "ready\n".to_owned()));
        let by_file = told(
            &gateway,
            &[arguments, &["--config", &config]].concat(),
            None,
        );
        assert_eq!(by_file, (Some(0), "ready\n".to_owned()));
    }
    let question = ["explain", "operator", "nobody", "--verbose"];
    let (code, text) = told(&gateway, &question, Some(url));
    assert!(
        code == Some(1) && text.contains("operator to nobody"),
        "{text}"
    );
    let by_file = [&question[..], &["--config", &config]].concat();
    let (code, text) = told(&gateway, &by_file, None);
    assert!(
        code == Some(1) && text.contains("operator to nobody"),
        "{text}"
    );
    let (code, text) = told(&gateway, &["health", "--config", "missing.toml"], None);
    assert!(code == Some(64) && text.contains("missing.toml"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn send_and_token_find_the_public_listener() {
    let gateway = Gateway::start(Pair::Embedded).await;
    let agent =
        Agent::json(r#"{"jsonrpc":"2.0","id":1,"result":{"parts":[{"text":"well"}]}}"#).await;
    let (caller, _target) = gateway.pair(agent).await;
    let file = gateway.dir.join("gateway.toml");
    let config = file.display().to_string();
    let port = gateway.public.port();
    for server in [
        format!("listen = \"{}\"", gateway.public),
        format!("listen = \"127.0.0.1:9\"\npublic_url = \"http://localhost:{port}/\""),
    ] {
        std::fs::write(&file, format!("[server]\n{server}\n")).unwrap();
        let token = ["--token", &caller.token, "--config", &config];
        let sent = told(
            &gateway,
            &[&["send", "target", "hello"][..], &token].concat(),
            None,
        );
        assert_eq!(sent, (Some(0), "well\n".to_owned()), "{server}");
        let (code, text) = told(
            &gateway,
            &[&["token", "pair", "target"][..], &token].concat(),
            None,
        );
        assert_eq!(code, Some(0), "{text}");
        let verify = ["token", "verify", text.trim(), "--config", &config];
        assert_eq!(told(&gateway, &verify, None).0, Some(0), "{server}");
    }
    for command in [
        &["send", "target", "hello"][..],
        &["token", "verify", "a.b.c"],
    ] {
        let (code, text) = told(
            &gateway,
            &[command, &["--config", "missing.toml"]].concat(),
            None,
        );
        assert!(code == Some(64) && text.contains("missing.toml"), "{text}");
    }
}

/// The path that a unit names behind `key`.
fn path_of(unit: &str, key: &str) -> String {
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    let word = line.split(' ').find(|word| word.contains('/')).unwrap();
    word.trim_start_matches('-')
        .trim_start_matches("file:")
        .to_owned()
}

#[test]
fn the_documented_steps_install_all_that_the_service_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().display();
    let steps = block_of("docs/guide/deploy.md", "## As a service of systemd", "sh");
    let steps = steps
        .replace(
            "target/release",
            Path::new(env!("CARGO_BIN_EXE_a2a-gateway"))
                .parent()
                .unwrap()
                .to_str()
                .unwrap(),
        )
        .replace("--group=a2a-gateway ", "")
        .replace(" /etc/", " \"$HERE\"/etc/")
        .replace(" /usr/", " \"$HERE\"/usr/");
    let script = format!(
        "useradd() {{ :; }}; systemctl() {{ :; }}\n\
         mkdir -p \"$HERE\"/usr/local/bin \"$HERE\"/etc/systemd/system\n{steps}"
    );
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .env("HERE", folder.path())
        .current_dir(root)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let unit = format!("{there}/etc/systemd/system/a2a-gateway.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let config = unit
        .lines()
        .find_map(|line| line.split_once("--config "))
        .unwrap()
        .1;
    for path in ["ExecStart=", "EnvironmentFile=", "Documentation="].map(|key| path_of(&unit, key))
    {
        assert!(Path::new(&format!("{there}{path}")).is_file(), "{path}");
    }
    let config = format!("{there}{config}");
    let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
        .args(["check-config", &config])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let secrets = std::fs::metadata(format!("{there}/etc/a2a-gateway/secrets")).unwrap();
    assert_eq!(secrets.permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_store_url_that_cannot_be_is_told_without_its_password() {
    for (key, url, part) in [
        (
            "stores.sql",
            "postgres://u:geheim@one:5432,two:x/db",
            "is not a URL",
        ),
        (
            "stores.shared",
            "redis://:geheim@one:6379,two:6379",
            "redis+sentinel://",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
            .args(["check-config", "--set", &format!("{key}={url}")])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{told}");
        assert!(told.contains(key) && told.contains(part), "{told}");
        assert!(!told.contains("geheim"), "{told}");
    }
}
