//! The examples of every `--help`, found by walking the commands, run against a real gateway: each as it stands, but
//! for addresses, and for ids, which each example has to itself.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::operating;
use crate::audit::recorded;
use crate::harness::ports::free_address;
use crate::harness::{ADMIN, Agent, Builder, Gateway, Pair, Request};

/// Longest run of an example that ends by itself, and of the end of one that is interrupted.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long an example that serves or follows must go on, once it catches SIGINT, before it is interrupted.
const GOES_ON: Duration = Duration::from_secs(1);

/// Examples that run at the same time.
const AT_ONCE: usize = 4;

/// Commands that go on until they are interrupted, and the status that they end with.
const GO_ON: [(&str, i32); 7] = [
    ("", 0),
    ("serve", 0),
    ("demo", 0),
    ("agent", 0),
    ("sidecar", 0),
    ("exchange", 0),
    // Its agent's: ended by SIGINT.
    ("run", 130),
];

/// Seconds after which `timeout` ends an example that watches.
const WATCHED: u32 = 5;

/// An id in examples, which stands for one that the command before gave.
const SOME_ID: &str = "019aa9d2-6c1e-7b3a-9d52-0f7d4a1e2c33";

/// Words of examples that begin ids of workspaces or name orgs.
const NAMES: [&str; 3] = ["acme", "rival", "billing"];

/// One line of examples, and the command whose help has it.
#[derive(Debug)]
struct Example {
    command: String,
    line: String,
}

async fn help(path: &[String]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    let output = command.args(path).arg("--help").output().await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The lines of a block that follows `title`, up to an empty line.
fn block<'h>(help: &'h str, title: &str) -> Vec<&'h str> {
    let behind = help.lines().skip_while(|line| *line != title).skip(1);
    behind.take_while(|line| !line.is_empty()).collect()
}

/// The examples of a command: lines of its help, those that go on in the next one joined, without the remark behind.
fn examples_of(command: &str, help: &str) -> Vec<Example> {
    let text = block(help, "Examples:").join("\n").replace("\\\n", " ");
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        let end = line.find("   ").filter(|end| !line[..*end].ends_with(' '));
        let is_inner = |end: &usize| line[*end..].trim_start().starts_with('-');
        let end = end.filter(|end| !is_inner(end)).unwrap_or(line.len());
        Example {
            command: command.to_owned(),
            line: line[..end].to_owned(),
        }
    });
    lines.collect()
}

/// The examples of all commands. Fails for a command without one.
async fn all_examples() -> Vec<Example> {
    let (mut found, mut ahead) = (Vec::new(), vec![Vec::new()]);
    while let Some(path) = ahead.pop() {
        let help = help(&path).await;
        let command = path.join(" ");
        let examples = examples_of(&command, &help);
        assert!(!examples.is_empty(), "`{command} --help` has no example");
        for Example { line, .. } in &examples {
            let names_it = line.contains("a2a-gateway");
            assert!(names_it, "`{command} --help`: {line} is no example");
        }
        found.extend(examples);
        // Those of the program are in groups.
        let headings = [
            "Commands:",
            "Setup:",
            "Agents:",
            "Calls:",
            "Policy:",
            "Operate:",
        ];
        let listed = headings.iter().flat_map(|title| block(&help, title));
        // Of a command, and not of the second line of its description.
        let listed = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = listed.filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| *name != "help") {
            ahead.push([path.as_slice(), &[name.to_owned()]].concat());
        }
    }
    found
}

/// Where the examples run.
struct Stage {
    gateway: Gateway,
    agent: Agent,
}

impl Stage {
    async fn post(&self, path: &str, body: &Value) -> Value {
        let request = Request::post(path, body.to_string());
        let answer = self.gateway.as_operator(request).await;
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer.json()
    }

    async fn make(&self, path: &str) -> Value {
        self.post(path, &json!({})).await
    }

    /// Makes the workspaces of an example, `own` before their names.
    async fn make_family(&self, own: &str, line: &str) {
        for (id, parent) in [
            ("acme-pm", None),
            ("acme-dev", Some("acme-pm")),
            ("acme-qa", Some("acme-pm")),
            ("rival-pm", None),
            ("rival-spy", Some("rival-pm")),
            ("billing", None),
        ] {
            // The example makes it.
            if line.contains(&format!("workspace create {id}")) {
                continue;
            }
            let mut workspace = json!({"id": format!("{own}{id}"), "name": id});
            match parent {
                Some(parent) => workspace["parent_id"] = format!("{own}{parent}").into(),
                None => workspace["org"] = format!("{own}{}", id.split('-').next().unwrap()).into(),
            }
            if id != "billing" {
                workspace["url"] = self.agent.url().into();
                workspace["liveness"] = "assumed".into();
            }
            self.post("/workspaces", &workspace).await;
        }
    }

    /// The id that stands in an example for one that there is.
    async fn make_id(&self, own: &str, line: &str) -> String {
        if line.contains("audit chain") {
            let call = Request::post(format!("/workspaces/{own}acme-dev/a2a"), "{}");
            let answer = self.gateway.call(&call.bearer(ADMIN)).await;
            let id = answer.field("x-request-id").unwrap().to_owned();
            recorded(&self.gateway, &format!("request_id={id}"), 1).await;
            return id;
        }
        let made = match line {
            line if line.contains("grant") => {
                let grant = json!({"caller_id": format!("{own}rival-spy"), "target_id": format!("{own}acme-dev")});
                self.post("/grants", &grant).await
            }
            line if line.contains("release") => {
                let stop = json!({"scope": {"workspace": format!("{own}acme-qa")}, "mode": "new", "reason": "loop"});
                self.post("/stops", &stop).await
            }
            line if line.contains("--operator") => {
                let token = json!({"role": "read"});
                self.post("/operators/tokens", &token).await
            }
            line if line.contains("--org") => self.make(&format!("/orgs/{own}acme/tokens")).await,
            _ => {
                self.make(&format!("/workspaces/{own}acme-dev/tokens"))
                    .await
            }
        };
        let id = made["id"].as_str().unwrap();
        id.trim_start_matches("stop-").to_owned()
    }

    /// Puts the files that examples name into the folder.
    async fn furnish(&self, own: &str, line: &str, folder: &Path) {
        let token = |made: &Value, name: &str| made[name].as_str().unwrap().to_owned();
        let pm = self.make(&format!("/workspaces/{own}acme-pm/tokens")).await;
        let pair = Request::get(format!("/registry/discover/{own}acme-dev"));
        let pair = self.gateway.call(&pair.bearer(&token(&pm, "token"))).await;
        let stores = self.gateway.dir.join("gateway.db");
        let keys = self.gateway.dir.join("keys");
        // Those that serve have a gateway's files of their own.
        let settings = if line.contains("gateway keys") || line.contains("gateway audit") {
            let (stores, keys) = (stores.display(), keys.display());
            format!("[stores]\nsql = \"sqlite:{stores}\"\n[keys]\ndir = \"{keys}\"\n")
        } else {
            "[telemetry]\nlog = \"warn\"\n".to_owned()
        };
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/hello-agent.py");
        let mut files = BTreeMap::from([
            ("agent-token", token(&pm, "token")),
            ("operator-token", ADMIN.to_owned()),
            ("pm-token", token(&pm, "token")),
            ("report.pdf", "%PDF".to_owned()),
            ("chart.png", "PNG".to_owned()),
            ("signed-token", token(&pair.json(), "token")),
            ("gateway.toml", settings),
            ("agent.py", std::fs::read_to_string(agent).unwrap()),
        ]);
        // Those that an example writes itself are not there.
        if line.contains("a2a-gateway init") {
            files.remove("gateway.toml");
        }
        if line.contains("explain org:") {
            self.make(&format!("/orgs/{own}acme/tokens")).await;
        }
        if line.contains(" run ") {
            let made = self
                .make(&format!("/workspaces/{own}billing/enrolment"))
                .await;
            files.insert("token", token(&made, "enrolment_token"));
        }
        if line.contains("records.jsonl --jwks") {
            let jwks = Request::get("/.well-known/jwks.json");
            let jwks = self.gateway.call(&jwks).await.text();
            files.insert("jwks.json", jwks.rsplit("\r\n").next().unwrap().to_owned());
            let export = "audit export --config gateway.toml > records.jsonl";
            files.insert("before", format!("a2a-gateway {export}"));
        }
        let public = self.gateway.public;
        let add = format!("a2a-gateway context add staging --url http://{public}");
        if line.starts_with("git diff") {
            let change = "git init -q\necho a > a\ngit add a\necho b > a";
            files.insert("before", change.to_owned());
        }
        if line.contains(" --as ") && !line.contains("context") {
            let local = format!("a2a-gateway context add local --url http://{public}");
            let named = format!("a2a-gateway context add local --replace --as {own}acme-pm");
            let unset = "unset A2A_GATEWAY_URL A2A_GATEWAY_TOKEN";
            let named = format!("{unset}\n{local}\n{named} --token - < pm-token");
            files.insert("before", named);
        }
        if line.contains("demo --stop") {
            let (one, other) = (free_address("127.0.0.1"), free_address("127.0.0.1"));
            let addresses = format!("--listen {one} --admin-listen {other}");
            files.insert("before", format!("a2a-gateway demo --detach {addresses}"));
        }
        let is_there = !line.contains("context add") || line.contains("--replace");
        if line.contains(" context ") && is_there {
            files.insert("before", add.clone());
        }
        if line.contains("add local --replace") {
            files.insert("before", add.replace(" staging", " local"));
        }
        if line.contains("policy.yaml") && !line.contains("> policy.yaml") {
            files.insert("policy.yaml", "version: 1\n".to_owned());
        }
        if line.contains("main:policy.yaml") {
            let git = "git -c user.name=ada -c user.email=ada@example.com";
            let add = "git init -q -b main\ngit add policy.yaml";
            files.insert("before", format!("{add}\n{git} commit -qm policy"));
        }
        if line.contains("--context staging") {
            files.insert("before", format!("{add} --token-file operator-token"));
        }
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// Runs one example. Returns what is wrong with it.
    async fn run(&self, number: usize, example: &Example) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("x{number}");
        let mut line = example.line.clone();
        self.make_family(&own, &line).await;
        self.furnish(&own, &line, folder.path()).await;
        if line.contains(SOME_ID) {
            let id = self.make_id(&own, &line).await;
            line = line.replace(SOME_ID, &id);
        }
        for name in NAMES {
            line = own_names(&line, name, &own);
        }
        line = self.own_addresses(&line);
        let before = folder.path().join("before");
        let before = std::fs::read_to_string(before).unwrap_or_default();
        let mut shell = self.shell(folder.path());
        let script = format!("set -euo pipefail\n{before}\nexec {line}");
        let is_detached = line.contains("demo --detach") || line.contains("demo --stop");
        let then_stop = format!(
            "{}\na2a-gateway demo --stop",
            script.replace("\nexec ", "\n")
        );
        let is_watching = line.contains("--follow") || line.contains("--watch");
        let script = if line.contains("demo --detach") {
            then_stop
        } else if is_watching {
            script.replace("\nexec ", &format!("\nexec timeout {WATCHED} "))
        } else {
            script
        };
        // An assignment before the program is no command.
        let script = match line.starts_with("a2a-gateway") {
            true => script,
            false => script.replace("\nexec ", "\n"),
        };
        if line.contains("gateway keys") {
            shell.env("A2A_GATEWAY__KEYS__DIR", self.gateway.dir.join("keys"));
        }
        shell.args(["-c", &script]);
        let child = shell.spawn().unwrap();
        let words = line.split("a2a-gateway").nth(1).unwrap();
        let first = words.split_whitespace().next();
        let first = first.filter(|word| !word.starts_with('-'));
        let first = first.unwrap_or_default();
        let mut going_on = GO_ON.iter().filter(|_| !is_detached);
        let goes_on = going_on.find(|(name, _)| *name == first);
        let code = goes_on.map_or(if is_watching { 124 } else { 0 }, |(_, code)| *code);
        let ended = end(child, goes_on.is_some(), &line, folder.path()).await;
        let told = |name| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        if ended == Some(code) {
            return Ok(());
        }
        let (
            Example {
                command,
                line: shown,
            },
            said,
        ) = (example, told("out") + &told("err"));
        Err(format!(
            "`{command} --help`: {shown}\n{line}\nended with {ended:?} instead of {code}:\n{said}"
        ))
    }

    /// A shell in a folder of the example's own, for an operator.
    fn shell(&self, folder: &Path) -> Command {
        let like = operating(&self.gateway);
        let mut shell = Command::new("bash");
        let kept = like.as_std().get_envs();
        let file = |name: &str| Stdio::from(std::fs::File::create(folder.join(name)).unwrap());
        shell
            .env_clear()
            .envs(kept.filter_map(|(name, value)| Some((name, value?))))
            .env("HOME", folder)
            .env("A2A_GATEWAY_TOKEN", ADMIN)
            .env("A2A_GATEWAY__SERVER__LISTEN", "127.0.0.1:0")
            .env("A2A_GATEWAY__ADMIN__LISTEN", "127.0.0.1:0")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .kill_on_drop(true);
        shell
    }

    /// Puts addresses of this run in the place of those of an example.
    fn own_addresses(&self, line: &str) -> String {
        let free = || free_address("127.0.0.1");
        let (public, admin) = (self.gateway.public, self.gateway.admin);
        let guard = free().to_string();
        let mut line = line.to_owned();
        // A server of its own, or the gateway that there is.
        if line.contains("server.listen") || line.contains("demo") {
            for address in ["0.0.0.0:8080", "127.0.0.1:8085"] {
                line = line.replace(address, &free().to_string());
            }
            if line.contains("--stop") {
                return line;
            }
            if line.contains("demo") && !line.contains("--listen") {
                line.push_str(&format!(" --listen {}", free()));
            }
            if line.contains("demo") {
                line.push_str(&format!(" --admin-listen {}", free()));
            }
        }
        line = line.replace(" 8001", &format!(" {}", free().port()));
        let (url, public, admin) = (
            format!("http://{public}"),
            public.to_string(),
            admin.to_string(),
        );
        for (shown, own) in [
            ("https://gateway.example.com", &url),
            ("https://gateway.staging.example.com", &url),
            ("127.0.0.1:8080", &public),
            ("127.0.0.1:9090", &admin),
            ("10.0.0.5:9090", &admin),
            ("0.0.0.0:8081", &guard),
            ("10.0.0.12:8081", &guard),
        ] {
            line = line.replace(shown, own);
        }
        if line.contains("a2a-gateway sidecar") && !line.contains("--listen") {
            line.push_str(&format!(" --listen {guard}"));
        }
        line
    }
}

/// Puts `own` before each word of a line that begins with `name`.
fn own_names(line: &str, name: &str, own: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(name) {
        let is_inside = rest[..at].ends_with(|c: char| c.is_alphanumeric() || "-_/.".contains(c));
        text.push_str(&rest[..at]);
        if !is_inside {
            text.push_str(own);
        }
        text.push_str(name);
        rest = &rest[at + name.len()..];
    }
    text + rest
}

/// True if a process has a handler for SIGINT.
fn catches_interrupt(id: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 2 != 0)
}

/// Waits for the end of an example, which is interrupted if it goes on.
async fn end(mut child: Child, goes_on: bool, line: &str, folder: &Path) -> Option<i32> {
    if goes_on {
        let id = child.id()?.to_string();
        let mut deadline = Instant::now() + PATIENCE;
        let mut is_ready = false;
        // The agent of `run` has to listen, too.
        let has_joined = || {
            let said = std::fs::read_to_string(folder.join("err")).unwrap_or_default();
            !line.contains("a2a-gateway run ") || said.contains("the agent has joined")
        };
        while Instant::now() < deadline {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            if !is_ready && catches_interrupt(&id) && has_joined() {
                (is_ready, deadline) = (true, Instant::now() + GOES_ON);
            }
            sleep(Duration::from_millis(50)).await;
        }
        let _ = Command::new("kill").args(["-INT", &id]).status().await;
    }
    let status = timeout(PATIENCE, child.wait()).await.ok()?.ok()?;
    status.code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_every_help_runs() {
    let cap = tempfile::NamedTempFile::new().unwrap();
    let caps = "[[cap]]\nname = \"run-messages\"\nper = \"run\"\ncount = \"messages\"\nlimit = 5\n";
    let rates = "[rate]\ncaller_per_second = 0\n[stores]\ntimeout = \"60s\"\n";
    std::fs::write(cap.path(), format!("{rates}{caps}")).unwrap();
    let builder = Builder::new(Pair::Embedded);
    let result = json!({"jsonrpc": "2.0", "id": 1, "result": {"kind": "message", "parts": [{"kind": "text", "text": "hi"}]}});
    let stage = Stage {
        gateway: builder.file(PathBuf::from(cap.path())).start().await,
        agent: Agent::json(&result.to_string()).await,
    };
    let mut examples = all_examples().await;
    // It asks on a terminal.
    examples.retain(|example| example.line != "a2a-gateway login");
    assert!(examples.len() > 90, "{}", examples.len());
    let mut wrong = Vec::new();
    let numbered = examples.iter().enumerate();
    // What stops all calls comes when there are none any more.
    let (last, first): (Vec<_>, Vec<_>) =
        numbered.partition(|(_, example)| example.line.contains("stop --all"));
    for some in first.chunks(AT_ONCE).chain(last.chunks(1)) {
        let runs = some.iter();
        let runs = runs.map(|(number, example)| stage.run(*number, example));
        let ran = futures_util::future::join_all(runs).await;
        wrong.extend(ran.into_iter().filter_map(Result::err));
    }
    let (some, all, wrong) = (wrong.len(), examples.len(), wrong.join("\n\n"));
    assert_eq!(some, 0, "of {all}:\n{wrong}");
}
