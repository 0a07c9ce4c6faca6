//! The doors of the repository: `scripts/test` and `scripts/demo`, in a clone at a path with a space, without a
//! compiler: `cargo` and what it builds are scripts that note how they were called.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Programs that every system has.
const SYSTEM: [&str; 26] = [
    "awk", "bash", "cat", "cksum", "cut", "dirname", "env", "grep", "head", "id", "jq", "mkdir",
    "mktemp", "nice", "realpath", "rm", "sed", "sort", "tail", "tee", "tr", "true", "uname", "wc",
    "xargs", "sh",
];

/// Programs that the core needs, and that are installed here.
const NEEDED: [&str; 6] = ["cmake", "make", "cc", "curl", "python3", "setpriv"];

/// Prints as Cargo does what it built: the tests that are named, and the units of the library.
const CARGO: &str = r#"#!/usr/bin/env bash
echo "cargo $*" >>"$DOORS/record"
echo "into ${CARGO_TARGET_DIR:-}" >>"$DOORS/record"
case " $* " in *" --no-run "*) ;; *) exit 0 ;; esac
built() {
  printf '{"reason":"compiler-artifact","manifest_path":"%s/Cargo.toml","profile":{"test":true},' "$PWD"
  printf '"target":{"name":"%s"},"executable":"%s"}\n' "$1" "$DOORS/programs/$1"
}
case " $* " in *" --lib "*) built a2a_gateway ;; esac
while [ $# -gt 0 ]; do
  [ "$1" != --test ] || built "$2"
  shift
done
"#;

/// A test program. That of the gateway suite has a case that needs PostgreSQL, and one that fails if it should.
const PROGRAM: &str = r#"#!/usr/bin/env bash
name=${0##*/}
echo "$name $*" >>"$DOORS/record"
[ "$name" = gateway ] || exit 0
echo "stores ${A2A_TEST_STORES:-}" >>"$DOORS/record"
failed=0
case " ${A2A_TEST_WITHOUT:-} " in
  *" postgres "*)
    echo "tasks::kept::external postgres" >>"$target/tmp/left-out"
    echo "test tasks::kept::external ... FAILED"
    failed=1
    ;;
esac
if [ -n "${BROKEN:-}" ] && [ "$BROKEN $1" != "once --exact" ]; then
  echo "test tasks::broken ... FAILED"
  failed=$((failed + 1))
fi
[ "$failed" = 0 ] || printf '\nfailures:\n    tasks::kept::external\n\n'
echo "test result: $([ "$failed" = 0 ] && echo ok || echo FAILED). 7 passed; $failed failed; 0 ignored"
[ "$failed" = 0 ] || exit 101
"#;

/// Notes its name: a script that installs packages, or the built program.
const NOTED: &str = "#!/usr/bin/env bash\necho \"${0##*/} $*\" >>\"$DOORS/record\"\n";

/// Prints the free space that the case has set.
const DF: &str = r#"#!/usr/bin/env bash
echo "Avail"
case ${*: -1} in /dev/shm) echo "${SHM:-0}G" ;; *) echo "${DISK:-100}G" ;; esac
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // It may be a link to that of the system.
    let _ = fs::remove_file(path);
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A clone with the scripts, and a machine with few programs.
struct Doors {
    /// Below the system's temporary folder, at a path with a space.
    temporary: tempfile::TempDir,
    /// At a path without one.
    home: tempfile::TempDir,
    /// A file that is written cannot be run, and each process that another case begins inherits it for a moment.
    _alone: MutexGuard<'static, ()>,
}

/// The outcome of a door.
struct Done {
    code: Option<i32>,
    out: String,
    complaint: String,
    /// The calls, in order.
    record: Vec<String>,
}

impl Done {
    fn calls(&self, name: &str) -> Vec<&str> {
        let calls = self.record.iter();
        calls
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .collect()
    }
}

impl Doors {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let temporary = tempfile::Builder::new().prefix("a clone ").tempdir();
        let doors = Self {
            temporary: temporary.unwrap(),
            home: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
        };
        for folder in ["scripts", "scripts/lib"] {
            for entry in fs::read_dir(root().join(folder)).unwrap() {
                let file = entry.unwrap().path();
                let copy = doors.tree().join(folder).join(file.file_name().unwrap());
                let is_kept = file.ends_with("scripts/test") || file.ends_with("scripts/demo");
                if is_kept || file.extension().is_some_and(|e| e == "sh") {
                    program(&copy, &fs::read_to_string(&file).unwrap());
                } else if file.is_file() && folder == "scripts" {
                    program(&copy, NOTED);
                }
            }
        }
        let bin = doors.home.path().join("bin");
        program(&bin.join("cargo"), CARGO);
        program(&bin.join("df"), DF);
        for name in NEEDED {
            program(&bin.join(name), "#!/bin/sh\n");
        }
        for name in SYSTEM {
            let folders = ["/usr/bin", "/bin", "/usr/local/bin"].map(|f| Path::new(f).join(name));
            let found = folders.into_iter().find(|path| path.exists());
            symlink(found.unwrap_or_else(|| panic!("no {name}")), bin.join(name)).unwrap();
        }
        for name in targets().into_iter().chain(["a2a_gateway".to_owned()]) {
            program(&doors.home.path().join("programs").join(name), PROGRAM);
        }
        doors
    }

    fn tree(&self) -> PathBuf {
        self.temporary.path().join("of it")
    }

    /// Puts a program on the machine.
    fn with(self, name: &str, text: &str) -> Self {
        program(&self.home.path().join("bin").join(name), text);
        self
    }

    fn with_stores(self) -> Self {
        self.with("redis-server", NOTED).with("postgres", NOTED)
    }

    fn run(&self, door: &str, arguments: &[&str], more: &[(&str, &str)]) -> Done {
        let record = self.home.path().join("record");
        let _ = fs::remove_file(&record);
        let output = Command::new(self.tree().join(door))
            .args(arguments)
            .env_clear()
            .env("PATH", self.home.path().join("bin"))
            .env("SERVERS_PATH", "")
            .env("HOME", self.home.path())
            .env("DOORS", self.home.path())
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let record = fs::read_to_string(record).unwrap_or_default();
        Done {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            complaint: String::from_utf8(output.stderr).unwrap(),
            record: record.lines().map(str::to_owned).collect(),
        }
    }
}

/// The test targets: the files and folders of `tests/`, and those of the crates.
fn targets() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["tests", "crates/a2a/tests"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists() {
                found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// The fields of each part, as `scripts/test` has them.
fn parts() -> Vec<Vec<String>> {
    let script = text("scripts/test");
    let table = script.split("<<'END'\n").nth(1).unwrap();
    let table = table.split("\nEND\n").next().unwrap();
    let fields = |line: &str| line.split(';').map(str::to_owned).collect();
    table.lines().map(fields).collect()
}

fn words(fields: &str) -> BTreeSet<String> {
    fields.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_core_is_built_and_run_without_the_parts() {
    let done = Doors::new().with_stores().run("scripts/test", &[], &[]);
    assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.complaint);
    let calls = done.calls("cargo");
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[0].starts_with("test --locked --no-run "), "{calls:?}");
    assert_eq!(calls[1], "test --locked --doc");
    let of_parts: BTreeSet<_> = parts().iter().flat_map(|part| words(&part[1])).collect();
    let built = calls[0].split(" --test ").skip(1);
    let built: BTreeSet<_> = built.map(|one| one.trim().to_owned()).collect();
    let rest: BTreeSet<_> = targets().difference(&of_parts).cloned().collect();
    assert_eq!(built, rest, "the tests of neither the core nor a part");
    for name in rest.iter().filter(|name| *name != "gateway") {
        assert_eq!(done.calls(name), [""], "{name}: {:?}", done.record);
    }
    assert_eq!(done.calls("a2a_gateway"), [""]);
    assert_eq!(done.calls("gateway"), ["--skip outer::"]);
    assert!(!done.out.contains("left out"), "{}", done.out);
}

#[test]
fn a_clone_at_a_path_with_a_space_is_built_elsewhere() {
    let doors = Doors::new().with_stores();
    let done = doors.run("scripts/test", &["openapi"], &[]);
    assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.complaint);
    let into = done.calls("into")[0].to_owned();
    assert!(Path::new(&into).starts_with(doors.home.path()), "{into}");
    assert!(done.complaint.contains(&into), "{}", done.complaint);
    program(&Path::new(&into).join("debug/a2a-gateway"), NOTED);
    let done = doors.run("scripts/demo", &["--set", "a=b c"], &[]);
    assert_eq!(done.code, Some(0), "{}", done.complaint);
    assert_eq!(done.calls("into"), [into.as_str()]);
    assert_eq!(done.calls("a2a-gateway"), ["demo --set a=b c"]);
    let unfit = [("CARGO_TARGET_DIR", "/a b"), ("XDG_CACHE_HOME", "/c d")];
    let done = doors.run("scripts/test", &[], &unfit);
    assert_eq!(done.code, Some(1));
    assert!(
        done.complaint.contains("CARGO_TARGET_DIR"),
        "{}",
        done.complaint
    );
}

#[test]
fn without_a_store_its_cases_are_left_out_and_counted() {
    let offline = "#!/bin/sh\nexit 100\n";
    let user = "#!/bin/sh\necho 1000\n";
    let machines: [&[(&str, &str)]; 3] = [
        &[],
        &[("apt-get", offline), ("id", "#!/bin/sh\necho 0\n")],
        &[("apt-get", "#!/bin/sh\n"), ("id", user)],
    ];
    for machine in machines {
        let mut doors = Doors::new().with("redis-server", NOTED);
        for (name, text) in machine {
            doors = doors.with(name, text);
        }
        let done = doors.run("scripts/test", &[], &[]);
        let said = format!("{machine:?}: {}\n{}", done.out, done.complaint);
        assert_eq!(done.code, Some(0), "{said}");
        for part in [
            "test tasks::kept::external ... left out",
            "test result: ok. 7 passed; 0 failed; 1 left out;",
            "left out: 1 cases that need PostgreSQL",
        ] {
            assert!(done.out.contains(part), "{part}: {said}");
        }
        assert!(!done.out.contains("need Redis"), "{said}");
        assert!(done.complaint.contains("postgresql"), "{said}");
        // A case that fails is no case that is left out.
        let done = doors.run("scripts/test", &[], &[("BROKEN", "1")]);
        assert_eq!(done.code, Some(1), "{}", done.out);
        assert!(
            done.out
                .contains("test result: FAILED. 7 passed; 1 failed; 1 left out;")
        );
        // Parts need what they name.
        let done = doors.run("scripts/test", &["faults"], &[]);
        assert!(done.code.is_some_and(|code| code != 0), "{said}");
        assert!(done.calls("cargo").is_empty());
    }
}

#[test]
fn a_case_that_passes_when_it_is_run_again_is_listed() {
    let again = ["--skip outer::", "--exact tasks::broken"];
    for (broken, code, listed) in [("once", Some(0), true), ("always", Some(1), false)] {
        let doors = Doors::new().with_stores();
        let done = doors.run("scripts/test", &[], &[("BROKEN", broken)]);
        assert_eq!(done.code, code, "{}\n{}", done.out, done.complaint);
        assert_eq!(done.calls("gateway"), again);
        let line = "flaky, passed when run again alone: tasks::broken";
        assert_eq!(done.out.contains(line), listed, "{}", done.out);
    }
}

#[test]
fn a_part_alone_installs_and_runs_what_is_its_own() {
    for part in parts() {
        let [name, targets, modules, commands, installing, what] = &part[..] else {
            panic!("{part:?}");
        };
        assert!(!what.is_empty(), "{part:?}");
        let mut doors = Doors::new();
        for command in commands.split_whitespace() {
            doors = doors.with(command.split(':').next().unwrap(), NOTED);
        }
        let done = doors.run("scripts/test", &[name], &[]);
        assert_eq!(
            done.code,
            Some(0),
            "{name}: {}\n{}",
            done.out,
            done.complaint
        );
        let calls = done.calls("cargo");
        assert!(
            calls.len() == 1 && !calls[0].contains("--lib"),
            "{name}: {calls:?}"
        );
        for target in targets.split_whitespace() {
            assert_eq!(done.calls(target).last(), Some(&""), "{name}: {target}");
        }
        let cases = words(modules)
            .into_iter()
            .map(|one| format!("outer::{one}::"));
        assert_eq!(done.calls("gateway"), cases.collect::<Vec<_>>(), "{name}");
        for script in installing.split_whitespace() {
            let (script, argument) = script.split_once('+').unwrap_or((script, ""));
            assert!(done.calls(script).contains(&argument), "{name}: {script}");
            assert!(
                root().join("scripts").join(script).is_file(),
                "{name}: {script}"
            );
        }
        assert!(
            done.out.contains(&format!("{name}: passed, in ")),
            "{}",
            done.out
        );
    }
}

#[test]
fn all_is_the_core_and_then_every_part_in_one_build() {
    let mut doors = Doors::new();
    for command in parts().iter().flat_map(|part| words(&part[3])) {
        doors = doors.with(command.split(':').next().unwrap(), NOTED);
    }
    let done = doors.run("scripts/test", &["all"], &[]);
    assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.complaint);
    assert_eq!(done.calls("cargo").len(), 2, "{:?}", done.record);
    let suite = done.calls("gateway");
    assert_eq!(suite[0], "--skip outer::");
    assert_eq!(
        suite.len(),
        1 + parts().iter().filter(|p| !p[2].is_empty()).count()
    );
    for target in targets().iter().filter(|name| *name != "gateway") {
        assert_eq!(done.calls(target).last(), Some(&""), "{target}");
    }
    let ended = done
        .out
        .lines()
        .filter(|line| line.contains(": passed, in "));
    assert_eq!(ended.count(), parts().len(), "{}", done.out);
    // It measures, so nothing runs beside it.
    assert_eq!(
        done.record[done.record.len() - 3],
        "soak ",
        "{:?}",
        done.record
    );
}

#[test]
fn a_part_that_does_not_exist_ends_with_64_and_the_list() {
    let doors = Doors::new();
    for wrong in [
        &["nonsense"][..],
        &["clients", "tasks::"],
        &[""],
        &["--all"],
    ] {
        let done = doors.run("scripts/test", wrong, &[]);
        assert_eq!(done.code, Some(64), "{wrong:?}");
        assert!(done.record.is_empty(), "{:?}", done.record);
        for part in parts() {
            let listed = format!("\n  {} ", part[0]);
            assert!(done.complaint.contains(&listed), "{}", done.complaint);
        }
    }
    let done = doors.run("scripts/test", &["help"], &[]);
    assert_eq!(done.code, Some(0));
    assert!(
        done.out.contains("cargo test --test gateway NAME"),
        "{}",
        done.out
    );
}

#[test]
fn databases_are_in_memory_only_where_that_has_room() {
    let doors = Doors::new().with_stores();
    for (memory, threads) in [("0", "12"), ("4", "12"), ("7", "24")] {
        let more = [("SHM", memory), ("RUST_TEST_THREADS", threads)];
        let done = doors.run("scripts/test", &[], &more);
        assert_eq!(done.code, Some(0), "{}", done.complaint);
        assert_eq!(done.calls("stores"), [""], "{memory} GB, {threads} threads");
    }
    let done = doors.run("scripts/test", &[], &[("DISK", "1")]);
    assert_eq!(done.code, Some(1));
    assert!(done.complaint.contains("TMPDIR"), "{}", done.complaint);
    let done = doors.run(
        "scripts/test",
        &[],
        &[("A2A_TEST_STORES", "/dev/shm"), ("SHM", "9")],
    );
    assert_eq!(done.calls("stores"), ["/dev/shm"]);
}

#[test]
fn the_parts_are_those_of_the_tests_the_manifest_and_the_documents() {
    let parts = parts();
    let of =
        |field: usize| -> BTreeSet<_> { parts.iter().flat_map(|p| words(&p[field])).collect() };
    let outer = text("tests/gateway/outer/mod.rs");
    let modules = outer.lines().filter_map(|line| line.strip_prefix("mod "));
    let modules: BTreeSet<_> = modules
        .map(|m| m.trim_end_matches(';').to_owned())
        .collect();
    assert_eq!(of(2), modules);
    let mut waiting = BTreeSet::new();
    for manifest in ["Cargo.toml", "crates/a2a/Cargo.toml"] {
        let manifest = text(manifest).parse::<toml::Table>().unwrap();
        let tests = manifest["test"].as_array().unwrap().iter();
        let tests = tests.filter(|test| test["test"].as_bool() == Some(false));
        waiting.extend(tests.map(|test| test["name"].as_str().unwrap().to_owned()));
    }
    let mut named = of(1);
    named.insert("gateway".to_owned());
    assert_eq!(
        waiting, named,
        "`cargo test` alone leaves out the gateway suite and the parts"
    );
    let contributing = text("CONTRIBUTING.md");
    for part in &parts {
        let named = format!("`{}`", part[0]);
        assert!(contributing.contains(&named), "CONTRIBUTING.md: no {named}");
    }
    let readme = text("README.md");
    for door in ["scripts/demo", "scripts/test", "scripts/test all"] {
        assert!(
            readme.contains(&format!("`{door}`")),
            "README.md: no {door}"
        );
    }
}

#[test]
fn every_script_of_the_shell_can_be_read() {
    let mut scripts = vec![root().join(".ci/run")];
    for folder in ["scripts", "scripts/lib"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        scripts.extend(entries.map(|entry| entry.unwrap().path()));
    }
    scripts.retain(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.starts_with("#!/usr/bin/env bash\n") || text.starts_with("# shellcheck shell=bash\n")
    });
    assert!(scripts.len() > 20, "{scripts:?}");
    for script in scripts {
        let output = Command::new("bash")
            .arg("-n")
            .arg(&script)
            .output()
            .unwrap();
        assert!(output.status.success(), "{script:?}: {output:?}");
    }
}
