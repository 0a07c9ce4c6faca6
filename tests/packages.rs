//! Releases: completions, manual pages, the archive with the program, and the workflows that make them. The Debian
//! package on a machine: `scripts/check-package`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_a2a-gateway");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command in a folder, and returns what it prints. Fails when it does.
fn printed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let [out, complaint] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    assert!(output.status.success(), "{command:?}: {out}\n{complaint}");
    out.into_owned()
}

fn gateway(arguments: &[&str]) -> String {
    printed(Command::new(PROGRAM).args(arguments))
}

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = gateway(&["--help"]);
    let (_, behind) = help.split_once("\nSetup:\n").unwrap();
    let (listed, _) = behind.split_once("\nOptions:\n").unwrap();
    let lines = listed.lines().filter(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let found: Vec<_> = names.filter(|n| *n != "help").map(str::to_owned).collect();
    assert!(found.len() > 12, "{help}");
    found
}

/// The words that bash offers behind `typed`.
fn offered(script: &Path, typed: &[&str]) -> BTreeSet<String> {
    let last = typed.len() - 1;
    let asked = format!(
        "PATH='{}':$PATH; . '{}'; COMP_WORDS=({}); COMP_CWORD={last}; COMP_TYPE=9; \
         _clap_complete_a2a_gateway a2a-gateway {} {}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        Path::new(PROGRAM).parent().unwrap().display(),
        script.display(),
        typed.join(" "),
        typed[last],
        typed[last - 1],
    );
    let words = printed(Command::new("bash").args(["-c", &asked]));
    words.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_their_options_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a2a-gateway.bash");
    fs::write(&script, gateway(&["completions", "bash"])).unwrap();
    let first = offered(&script, &["a2a-gateway", "''"]);
    for command in commands() {
        assert!(first.contains(&command), "{command}: {first:?}");
    }
    let audit = offered(&script, &["a2a-gateway", "audit", "ver"]);
    assert_eq!(audit, BTreeSet::from(["verify".to_owned()]));
    let health = offered(&script, &["a2a-gateway", "health", "--tr"]);
    assert_eq!(health, BTreeSet::from(["--traffic".to_owned()]));
    let agents = offered(&script, &["a2a-gateway", "agent", "ec"]);
    assert_eq!(agents, BTreeSet::from(["echo".to_owned()]));
}

#[test]
fn fish_and_zsh_get_a_script_that_offers_every_command() {
    for (shell, first) in [("fish", "complete "), ("zsh", "#compdef a2a-gateway\n")] {
        let script = gateway(&["completions", shell]);
        let asks = format!("A2A_GATEWAY_COMPLETE=\"{shell}\"");
        assert!(script.starts_with(first), "{script}");
        assert!(
            script.replace('"', "").contains(&asks.replace('"', "")),
            "{script}"
        );
        // What the script asks when nothing is typed yet.
        let mut asked = Command::new(PROGRAM);
        asked
            .env("A2A_GATEWAY_COMPLETE", shell)
            .env("_CLAP_COMPLETE_INDEX", "1")
            .args(["--", "a2a-gateway", ""]);
        let offered = printed(&mut asked);
        let words: Vec<_> = offered.split([':', '\t', '\n']).collect();
        for command in commands() {
            assert!(
                words.contains(&command.as_str()),
                "{shell}: {command}: {offered}"
            );
        }
    }
}

#[test]
fn every_command_has_a_manual_page_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("share/man1");
    gateway(&["man", "--out", there.to_str().unwrap()]);
    let first = fs::read_to_string(there.join("a2a-gateway.1")).unwrap();
    assert_eq!(gateway(&["man"]), first);
    assert!(first.contains("A2A_GATEWAY_ADMIN_TOKEN"), "{first}");
    for command in commands() {
        let page = fs::read_to_string(there.join(format!("a2a-gateway-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}: {page}");
        assert!(first.contains(&command.replace('-', "\\-")), "{command}");
    }
    let page = fs::read_to_string(there.join("a2a-gateway-audit-verify.1")).unwrap();
    assert!(page.contains("\\-\\-config"), "{page}");
}

#[test]
fn a_folder_for_manual_pages_that_cannot_be_made_is_named() {
    let output = Command::new(PROGRAM)
        .args(["man", "--out", "/proc/nowhere"])
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("/proc/nowhere"), "{complaint}");
}

/// A block of commands of the guide.
fn steps(heading: &str) -> String {
    let page = fs::read_to_string(root().join("docs/guide/install.md")).unwrap();
    let below = page.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let block = below.split("\n```sh\n").nth(1).unwrap();
    block.split("\n```\n").next().unwrap().to_owned()
}

fn run_in(folder: &Path, script: &str) -> String {
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    let script = format!("PATH='{programs}':$PATH\n{script}");
    let mut shell = Command::new("bash");
    printed(
        shell
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(folder),
    )
}

#[test]
fn the_documented_steps_install_the_archive_of_a_release() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["archive", "sums"] {
        let mut package = Command::new(root().join("scripts/package"));
        package.arg(part).env("OUT", folder.path());
        printed(package.env("BIN", Path::new(PROGRAM).parent().unwrap()));
    }
    let steps = steps("Static program")
        .replace(" /usr/", " \"$HERE\"/usr/")
        .replace("\n/usr/", "\n\"$HERE\"/usr/");
    let steps = format!("HERE=$PWD; mkdir -p \"$HERE\"/usr/local/bin\n{steps}");
    let out = run_in(folder.path(), &steps);
    let version = concat!("a2a-gateway ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(
        out.contains(".tar.gz: OK\n") && out.ends_with(version),
        "{out}"
    );
    for file in [
        "local/share/man/man1/a2a-gateway-serve.1",
        "local/share/bash-completion/completions/a2a-gateway",
        "local/share/zsh/site-functions/_a2a-gateway",
        "local/share/fish/vendor_completions.d/a2a-gateway.fish",
    ] {
        assert!(folder.path().join("usr").join(file).is_file(), "{file}");
    }
    let licences = fs::read_to_string(find(folder.path(), "THIRD-PARTY.txt")).unwrap();
    for part in ["tokio 1.", "aws-lc-sys 0.", "Permission is hereby granted"] {
        assert!(licences.contains(part), "{part}");
    }
}

/// Makes packages of the built program, and returns their paths.
fn packed(kind: &str, out: &Path) -> Vec<String> {
    let mut package = Command::new(root().join("scripts/package"));
    package.arg(kind).env("OUT", out);
    let made = printed(package.env("BIN", Path::new(PROGRAM).parent().unwrap()));
    made.lines().map(str::to_owned).collect()
}

/// Runs a command without the environment of the test: no compiler, no repository.
fn clean(folder: &Path, command: &str, arguments: &[&str]) -> std::process::Output {
    let find = |name: &str| printed(Command::new("sh").args(["-c", &format!("command -v {name}")]));
    let node = find("node || true");
    let node = Path::new(node.trim())
        .parent()
        .unwrap_or(Path::new("/usr/bin"));
    let mut command = Command::new(command);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command
        .env_clear()
        .env("HOME", folder)
        .env("TMPDIR", folder);
    let path = format!("{}:/usr/bin:/bin", node.display());
    command.env("PATH", path).output().unwrap()
}

fn cleanly(folder: &Path, command: &str, arguments: &[&str]) -> String {
    let output = clean(folder, command, arguments);
    let [out, complaint] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    assert!(output.status.success(), "{command}: {out}\n{complaint}");
    out.into_owned()
}

/// Starts the demo with an installed program, sends the first message, and ends the demo.
fn answer_first_message(folder: &Path, program: &str) {
    let start = [
        "demo",
        "--detach",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ];
    cleanly(folder, program, &start);
    let first = clean(
        folder,
        program,
        &["send", "acme-pm", "hello", "--as", "acme-dev"],
    );
    cleanly(folder, program, &["demo", "--stop"]);
    assert_eq!(
        String::from_utf8_lossy(&first.stdout),
        "echo: hello\n",
        "{first:?}"
    );
}

#[test]
fn the_wheel_is_installed_without_an_index_and_answers_the_first_message() {
    let folder = tempfile::tempdir().unwrap();
    let (there, wheels) = (folder.path(), packed("wheel", folder.path()));
    let tag = wheels[0].rsplit_once("-none-").unwrap().1;
    assert!(tag.starts_with("manylinux_2_"), "{wheels:?}");
    printed(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(there.join("v")),
    );
    let pip = there.join("v/bin/pip").display().to_string();
    let quiet = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--find-links",
        ".",
    ];
    cleanly(there, &pip, &[&quiet[..], &["a2a-gateway"]].concat());
    answer_first_message(
        there,
        &there.join("v/bin/a2a-gateway").display().to_string(),
    );
    // Elsewhere pip takes the pure one, which says what to do.
    let windows = [
        "--platform",
        "win_amd64",
        "--only-binary",
        ":all:",
        "--target",
        "w",
        "a2a-gateway",
    ];
    cleanly(there, &pip, &[&quiet[..], &windows].concat());
    let run = "import sys; sys.path.insert(0, 'w'); import a2a_gateway_elsewhere as e; e.main()";
    let output = clean(there, "python3", &["-c", run]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && told.contains("on Windows run it in WSL"),
        "{told}"
    );
}

#[test]
fn the_npm_package_needs_no_script_and_answers_the_first_message() {
    let folder = tempfile::tempdir().unwrap();
    let (there, packages) = (folder.path(), packed("npm", folder.path()));
    fs::write(there.join("package.json"), "{}").unwrap();
    let quiet = [
        "install",
        "--offline",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ];
    let files: Vec<&str> = packages.iter().map(String::as_str).collect();
    cleanly(there, "npm", &[&quiet[..], &files].concat());
    let program = there
        .join("node_modules/.bin/a2a-gateway")
        .display()
        .to_string();
    answer_first_message(there, &program);
    let refused = clean(there, &program, &["send", "a:b", "hi"]);
    assert_eq!(
        refused.status.code(),
        Some(64),
        "its exit status is passed on"
    );
    let main = fs::read_to_string(there.join("node_modules/a2a-gateway/package.json")).unwrap();
    assert!(
        !main.contains("scripts") && main.contains("a2a-gateway-darwin-arm64"),
        "{main}"
    );
    for name in fs::read_dir(there.join("node_modules")).unwrap() {
        let path = name.unwrap().path();
        if path.to_string_lossy().contains("a2a-gateway-") {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let output = clean(there, &program, &["--version"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && told.contains("on Windows run it in WSL"),
        "{told}"
    );
}

/// A file of the documents in the unpacked archive.
fn find(folder: &Path, name: &str) -> std::path::PathBuf {
    let unpacked = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files = unpacked.map(|path| path.join("doc").join(name));
    files.find(|path| path.is_file()).unwrap()
}

#[test]
fn the_documented_steps_make_manual_pages_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let out = run_in(folder.path(), &steps("Manual pages and completions"));
    assert!(out.contains("-F _clap_complete_a2a_gateway"), "{out}");
    assert!(folder.path().join("man1/a2a-gateway-serve.1").is_file());
}

#[test]
fn the_settings_of_the_debian_package_can_be_used() {
    let settings = root().join("packaging/debian/gateway.toml");
    let shown = gateway(&["check-config", settings.to_str().unwrap()]);
    for line in [
        "server.listen = \"127.0.0.1:8080\"",
        "admin.listen = \"127.0.0.1:9090\"",
        "stores.sql = \"sqlite:/var/lib/a2a-gateway/",
        "keys.dir = \"/var/lib/a2a-gateway/",
        "audit.spool_dir = \"/var/lib/a2a-gateway/",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    // What the package tells apart to know whether a new process can take over.
    let shared = gateway(&[
        "check-config",
        "--set",
        "stores.sql=postgres://one@host/db",
        "--set",
        "stores.shared=rediss://host:6379/0",
    ]);
    assert!(shared.contains("\nstores.sql = \"postgres"), "{shared}");
    assert!(shared.contains("\nstores.shared = \"redis"), "{shared}");
    let script = fs::read_to_string(root().join("packaging/debian/postinst")).unwrap();
    for pattern in [
        "'^stores\\.sql = \"postgres'",
        "'^stores\\.shared = \"redis'",
    ] {
        assert!(script.contains(pattern), "{pattern}");
    }
}

#[test]
fn a_dry_run_of_a_release_makes_its_files_and_changes_nothing_here() {
    let folder = tempfile::tempdir().unwrap();
    let here = || {
        printed(
            Command::new("git")
                .args(["status", "--porcelain"])
                .current_dir(root()),
        )
    };
    let before = here();
    let mut release = Command::new(root().join("scripts/release"));
    release.args(["--dry-run", "0.1.0", "https://git.example/acme/a2a-gateway"]);
    release.envs([
        ("OUT", folder.path()),
        ("BIN", Path::new(PROGRAM).parent().unwrap()),
    ]);
    let said = printed(release.env("PARTS", "archive npm chart"));
    assert_eq!(here(), before);
    let machine = std::env::consts::ARCH;
    let archive = format!("a2a-gateway-0.1.0-{machine}.tar.gz");
    for file in [
        &archive,
        "a2a-gateway-0.1.0.tgz",
        "a2a-gateway-0.1.0-chart.tgz",
        "a2a-gateway.rb",
    ] {
        assert!(said.contains(file), "{file}: {said}");
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    // The formula names the archive with its checksum.
    let formula = fs::read_to_string(folder.path().join("a2a-gateway.rb")).unwrap();
    let sums = fs::read_to_string(folder.path().join("SHA256SUMS")).unwrap();
    let line = sums.lines().find(|line| line.ends_with(&archive)).unwrap();
    let digest = line.split_whitespace().next().unwrap();
    assert!(formula.contains(digest), "{formula}");
    let url = format!("https://git.example/acme/a2a-gateway/releases/download/v0.1.0/{archive}");
    assert!(formula.contains(&url), "{formula}");
}

#[test]
fn the_workflows_are_valid_and_name_files_that_there_are() {
    printed(&mut Command::new(root().join("scripts/workflows")));
}
