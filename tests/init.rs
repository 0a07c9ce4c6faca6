//! `a2a-gateway init`: its files run a real gateway, and what it prints leads to an answer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "common/ports.rs"]
mod ports;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sha2::{Digest as _, Sha256};

const PROGRAM: &str = env!("CARGO_BIN_EXE_a2a-gateway");

/// `EX_USAGE`: the answers are wrong.
const USAGE: i32 = 64;

fn free() -> String {
    ports::free_address("127.0.0.1").to_string()
}

fn init(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(PROGRAM);
    command
        .arg("init")
        .arg(folder)
        .args(more)
        .stdin(Stdio::null());
    ended(command.output().unwrap())
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

/// Runs a command that must pass, and returns its output.
fn passed(command: &mut Command) -> String {
    let (code, out, err) = ended(command.stdin(Stdio::null()).output().unwrap());
    assert_eq!(code, Some(0), "{command:?}: {out}\n{err}");
    out
}

fn texts(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    found.sort();
    found
}

/// A folder whose path a unit for systemd can have, whatever `TMPDIR` is.
fn plain_folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The commands behind a heading of the output.
fn commands(out: &str, heading: &str) -> String {
    let below = out
        .split(heading)
        .nth(1)
        .unwrap_or_else(|| panic!("{heading} is not in {out}"));
    let lines = below
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect()
}

#[test]
fn what_is_printed_leads_from_the_files_to_an_answer() {
    let folder = plain_folder();
    let home = folder.path().join("gateway");
    let (listen, admin, agent) = (free(), free(), free());
    let (code, out, err) = init(
        &home,
        &["--yes", "--listen", &listen, "--admin-listen", &admin],
    );
    assert_eq!(code, Some(0), "{err}");
    let token = fs::read_to_string(home.join("admin-token")).unwrap();
    assert!(!out.contains(token.trim()), "the token is printed");
    let checked = passed(
        Command::new(PROGRAM)
            .arg("check-config")
            .arg(home.join("gateway.toml")),
    );
    assert!(
        checked.contains("operator's token:  1 known by hash"),
        "{checked}"
    );
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    let script = format!(
        "PATH='{programs}':$PATH\n\
         trap 'kill $(jobs -p); wait' EXIT\n\
         ({start}) &\n\
         until a2a-gateway health --config gateway/gateway.toml; do sleep 0.2; done 2> /dev/null\n\
         {workspace} 2> run.log &\n\
         a2a-gateway health\n\
         until a2a-gateway send billing 'hello, gateway' --token \"$A2A_GATEWAY_ADMIN_TOKEN\"; do sleep 0.2; done 2> send.log\n",
        start = commands(&out, "Or by hand:").trim(),
        workspace = commands(&out, "Make the first workspace").trim(),
    );
    let port = agent.rsplit_once(':').unwrap().1;
    let script = script.replace("--port 8001", &format!("--port {port}"));
    let script = script.replace("127.0.0.1:8001", &agent);
    let said = passed(
        Command::new("timeout")
            .args(["600", "bash", "-euo", "pipefail", "-c", &script])
            .current_dir(folder.path()),
    );
    assert!(said.contains("echo: hello, gateway"), "{said}");
    assert!(home.join("data/gateway.db").exists());
    let own = fs::read_to_string(folder.path().join("token")).unwrap();
    assert!(
        own.starts_with("a2aw_"),
        "the agent did not keep its own token"
    );
}

#[test]
fn secrets_are_their_owners_and_nothing_is_replaced_unasked() {
    let folder = plain_folder();
    assert_eq!(init(folder.path(), &["--yes"]).0, Some(0));
    let mode = |name: &str| {
        let path = folder.path().join(name);
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode("admin-token"), 0o600);
    assert_eq!(mode("data"), 0o700);
    let before = texts(folder.path());
    let names: Vec<_> = before.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["a2a-gateway.service", "admin-token", "gateway.toml"]
    );
    let token = before[1].1.trim();
    assert!(token.starts_with("a2aa_") && token.len() == 48, "{token}");
    assert!(!before[2].1.contains(token));
    for more in [&["--yes"][..], &["--yes", "--for", "compose"]] {
        let (code, _, err) = init(folder.path(), more);
        assert_eq!(code, Some(1), "{err}");
        assert!(err.contains("exists") && err.contains("--force"), "{err}");
        assert_eq!(texts(folder.path()), before);
    }
    let (code, _, err) = init(folder.path(), &["--yes", "--force"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(mode("admin-token"), 0o600);
    let after = texts(folder.path());
    assert_eq!(after.len(), 3, "a file was left behind");
    assert_ne!(after[1], before[1]);
}

#[test]
fn answers_that_start_no_gateway_are_refused_before_anything_is_written() {
    let folder = plain_folder();
    for (more, code, part) in [
        (&["--listen", "0.0.0.0:8080"][..], USAGE, "--public-url"),
        (
            &["--public-url", "https://gw.test/?a=b"],
            USAGE,
            "server.public_url",
        ),
        (&["--listen", "8080"], USAGE, "--listen"),
        (&["--listen", "127.0.0.1:0"], USAGE, "--listen needs a port"),
        (
            &["--sql", "postgres://u:geheim@h/d", "--shared", "redis://h"],
            USAGE,
            "password_file",
        ),
        (
            &["--sql", "oracle://h/d", "--shared", "redis://h"],
            USAGE,
            "stores.sql",
        ),
        (&["--sql", "postgres://h/d"], USAGE, "--shared"),
    ] {
        let (ended, _, err) = init(folder.path(), &[more, &["--yes"]].concat());
        assert_eq!(ended, Some(code), "{more:?}: {err}");
        assert!(
            err.contains(part) && !err.contains("geheim"),
            "{more:?}: {err}"
        );
        assert!(texts(folder.path()).is_empty(), "{more:?}");
    }
    let (code, _, err) = init(&folder.path().join("a folder"), &["--yes"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("choose another folder"), "{err}");
}

#[test]
fn a_token_and_its_hash_are_replaced_together() {
    let folder = plain_folder();
    assert_eq!(init(folder.path(), &["--yes"]).0, Some(0));
    let matches = || {
        let token = fs::read_to_string(folder.path().join("admin-token")).unwrap();
        let config = fs::read_to_string(folder.path().join("gateway.toml")).unwrap();
        config.contains(&hex::encode(Sha256::digest(token.trim())))
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let (code, _, err) = init(folder.path(), &["--yes", "--force"]);
                assert!(code == Some(0) || err.contains("another init"), "{err}");
            });
        }
    });
    assert!(matches());
    // A file that cannot be written: all stay.
    let token = folder.path().join("admin-token");
    fs::remove_file(&token).unwrap();
    fs::create_dir(&token).unwrap();
    let before = texts(folder.path());
    let (code, _, err) = init(folder.path(), &["--yes", "--force"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("cannot write"), "{err}");
    assert_eq!(texts(folder.path()), before);
}

#[test]
fn the_printed_commands_work_on_this_machine_and_in_every_folder() {
    let folder = plain_folder();
    let odd = folder.path().join("it's $(exit 7) a \"folder\"");
    let (code, out, err) = init(&odd, &["--yes", "--for", "compose"]);
    assert_eq!(code, Some(0), "{err}");
    let script = format!(
        "docker() {{ printf '%s\\n' \"$@\"; }}\n{}\nexport() {{ printf '%s\\n' \"$@\"; }}\n{}",
        commands(&out, "Start it:"),
        commands(&out, "Make the first workspace:")
            .lines()
            .take(2)
            .collect::<Vec<_>>()
            .join("\n"),
    );
    let said = passed(Command::new("bash").args(["-euc", &script]));
    let token = fs::read_to_string(odd.join("admin-token")).unwrap();
    assert!(said.lines().any(|line| Path::new(line) == odd), "{said}");
    let variable = format!("A2A_GATEWAY_ADMIN_TOKEN={}", token.trim());
    assert!(said.lines().any(|line| line == variable), "{said}");

    for (listen, url, advertise) in [
        ("0.0.0.0:8080", "http://127.0.0.1:8080 ", false),
        ("10.0.0.5:8080", "http://10.0.0.5:8080 ", true),
    ] {
        let folder = plain_folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let more = ["--public-url", "https://gw.test", "--listen", listen];
        let (code, out, err) = init(folder.path(), &[&more[..], &["--yes"]].concat());
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(&format!("A2A_GATEWAY_URL={url}")), "{out}");
        assert_eq!(out.contains("--advertise http://127.0.0.1:8001"), advertise);
        // The folder is open to its owner only.
        let is_root = fs::metadata(folder.path()).unwrap().uid() == 0;
        assert_eq!(out.contains("cannot enter"), is_root, "{out}");
    }
}

#[test]
fn systemd_takes_the_unit() {
    let folder = plain_folder();
    assert_eq!(init(folder.path(), &["--yes"]).0, Some(0));
    let path = folder.path().join("a2a-gateway.service");
    let unit = fs::read_to_string(&path).unwrap();
    let home = folder.path().canonicalize().unwrap();
    for line in [
        format!(
            "ExecStart={PROGRAM} --config {}/gateway.toml",
            home.display()
        ),
        format!("WorkingDirectory={}", home.display()),
        format!("ReadWritePaths={}/data", home.display()),
        "Type=notify".to_owned(),
        "ProtectSystem=strict".to_owned(),
    ] {
        assert!(unit.lines().any(|own| own == line), "{line}: {unit}");
    }
    // Nothing of the package's paths is left.
    for packaged in ["/etc/a2a-gateway", "/var/lib/a2a-gateway", "StateDirectory"] {
        assert!(!unit.contains(packaged), "{packaged}: {unit}");
    }
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_ok()
    {
        passed(Command::new("systemd-analyze").arg("verify").arg(&path));
    }
}

#[test]
fn the_compose_file_runs_the_image_with_the_configuration() {
    let folder = plain_folder();
    let (code, out, err) = init(
        folder.path(),
        &["--yes", "--for", "compose", "--listen", "127.0.0.1:8088"],
    );
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("docker compose"), "{out}");
    let read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let file = folder.path().join("compose.yaml");
    let parsed = passed(Command::new("python3").args(["-c", read]).arg(file));
    let parsed: serde_json::Value = serde_json::from_str(&parsed).unwrap();
    let gateway = &parsed["services"]["gateway"];
    assert_eq!(gateway["ports"][0], "127.0.0.1:8088:8080");
    assert_eq!(
        gateway["volumes"][0],
        "./gateway.toml:/etc/a2a-gateway/config.toml:ro"
    );
    // As in the container: its variables over its file.
    let variables = gateway["environment"].as_object().unwrap();
    let mut check = Command::new(PROGRAM);
    check
        .arg("check-config")
        .arg(folder.path().join("gateway.toml"));
    for (name, value) in variables {
        check.env(name, value.as_str().unwrap());
    }
    let checked = passed(&mut check);
    assert!(
        checked.contains("public URL:        http://127.0.0.1:8088"),
        "{checked}"
    );
    // The image reads the file at that place, as another user.
    let image =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile")).unwrap();
    assert!(image.contains(r#"CMD ["serve", "--config", "/etc/a2a-gateway/config.toml"]"#));
    let mode = folder
        .path()
        .join("gateway.toml")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn a_terminal_is_asked_what_no_flag_says() {
    let folder = plain_folder();
    let line = format!("{PROGRAM} init --for compose '{}'", folder.path().display());
    let mut child = Command::new("timeout")
        .args(["120", "script", "-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A wrong address first; the third answer is the default.
    let answers = "8080\n0.0.0.0:8088\nhttp://gw.test:8088\n\n";
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(answers.as_bytes())
        .unwrap();
    let (code, out, _) = ended(child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("write an address and a port"), "{out}");
    assert_eq!(
        out.matches('?').count(),
        4,
        "four questions, one of them twice, one by flag: {out}"
    );
    let config = fs::read_to_string(folder.path().join("gateway.toml")).unwrap();
    assert!(
        config.contains("public_url = \"http://gw.test:8088\""),
        "{config}"
    );
    assert!(config.contains("sqlite:data/gateway.db"), "{config}");
}
