//! The demo as a new user meets it: the real binary, the printed page, its commands pasted into a
//! shell, Ctrl-C.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "common/ports.rs"]
mod ports;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The time after which the page, an event or the end counts as missing.
const NEVER: Duration = Duration::from_secs(120);

/// A running demo. Dropping it kills it.
struct Demo {
    child: Child,
    page: String,
    temporary: tempfile::TempDir,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"));
    // A group of its own, as a terminal gives to what is typed: what is left of it can be found.
    command
        .arg("demo")
        .args(arguments)
        .env_remove("A2A_GATEWAY_ADMIN_TOKEN")
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .process_group(0);
    command
}

impl Demo {
    /// Starts it and waits for the page.
    fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        // Several demos that start at one moment would all find the same admin port free.
        let mut child = command(temporary.path(), arguments)
            .args(["--admin-listen", "127.0.0.1:0"])
            // A disk that is busy with a build beside is slow, not away.
            .args(["--set", "stores.timeout=60s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let mut page = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                page.push_str(&line);
                page.push('\n');
                if line.starts_with("Ctrl-C") {
                    let _ = send.send(std::mem::take(&mut page));
                }
            }
        });
        let page = receive.recv_timeout(NEVER).unwrap();
        Self {
            child,
            page,
            temporary,
        }
    }

    /// The printed commands with their titles, in their order.
    fn commands(&self) -> Vec<(&str, &str)> {
        let lines: Vec<&str> = self.page.lines().collect();
        lines
            .windows(2)
            .filter(|pair| pair[0].starts_with("# "))
            .map(|pair| (pair[0], pair[1]))
            .collect()
    }

    /// The first printed command whose title has `word`.
    fn command(&self, word: &str) -> &str {
        let found = self.commands().into_iter().find(|(t, _)| t.contains(word));
        found
            .unwrap_or_else(|| panic!("{word} in\n{}", self.page))
            .1
    }

    /// The address behind a label at the top of the page.
    fn address(&self, label: &str) -> SocketAddr {
        let line = self
            .page
            .lines()
            .find(|l| l.trim_start().starts_with(label));
        let url = line.unwrap().split_whitespace().last().unwrap();
        url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// The operator's token.
    fn operator(&self) -> &str {
        let mut rows = self.page.lines().map(str::trim_start);
        let row = rows.find(|row| row.starts_with("operator "));
        row.unwrap().split_whitespace().last().unwrap()
    }

    /// Acts as Ctrl-C in a terminal: SIGINT to the whole group. Answers the exit status.
    fn interrupt(&mut self) -> Option<i32> {
        let started = Instant::now();
        let group = self.child.id();
        assert!(
            sh(&format!("kill -INT -{group}")).status.success(),
            "no process to interrupt"
        );
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < NEVER, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Pastes a command.
fn sh(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().unwrap()
}

fn pasted(command: &str) -> String {
    let output = sh(command);
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}\n{text}{complaint}");
    text
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// An agent that streams, an event for each permit. The last one is final.
fn agent_with_permits(events: usize) -> (SocketAddr, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (permit, permits) = channel();
    std::thread::spawn(move || {
        // A connection without a request is none.
        for stream in listener.incoming().flatten() {
            let mut request = BufReader::new(&stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                if request.read_line(&mut line).is_err() {
                    break;
                }
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            if length == 0 {
                continue;
            }
            let mut body = vec![0; length];
            request.read_exact(&mut body).unwrap();
            let call = json(std::str::from_utf8(&body).unwrap());
            let id = &call["id"];
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
            (&stream).write_all(head.as_bytes()).unwrap();
            for n in 0..events {
                permits.recv().unwrap();
                let last = n + 1 == events;
                let state = if last { "completed" } else { "working" };
                let event = json!({"jsonrpc": "2.0", "id": id, "result": {"kind": "status-update", "taskId": "t",
                "contextId": "c", "final": last, "status": {"state": state}, "metadata": {"n": n}}});
                let event = format!("data: {event}\n\n");
                (&stream).write_all(event.as_bytes()).unwrap();
            }
        }
    });
    (address, permit)
}

#[test]
fn every_printed_command_does_what_its_title_says() {
    let demo = Demo::start(&["--listen", "127.0.0.1:0"]);
    let commands = demo.commands();
    assert!(commands.len() >= 6, "{}", demo.page);

    let first = demo.page.lines().find(|l| l.starts_with("curl")).unwrap();
    assert_eq!(first, commands[0].1);
    let answer = json(&pasted(first));
    assert_eq!(answer["jsonrpc"], "2.0");
    assert_eq!(answer["result"]["parts"][0]["text"], "echo: hello");
    // The agent was told who asks, by the gateway.
    assert_eq!(answer["result"]["metadata"]["caller"], "acme-dev");

    let refused = json(&pasted(demo.command("refused")));
    assert_eq!(refused["error"]["data"][0]["reason"], "NOT_PERMITTED");

    let half = pasted(demo.command("half a call"));
    let (head, body) = half.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let completed = head.lines().find(|l| l.starts_with("x-a2a-completed: "));
    let completed = completed.unwrap();
    for word in ["envelope", "method", "message-id", "parts", "role"] {
        assert!(completed.contains(word), "{completed}");
    }
    assert_eq!(json(body)["result"]["parts"][0]["text"], "echo: hello");

    let found = json(&pasted(demo.command("looks up")));
    assert_eq!(found["status"], "online");
    assert_eq!(found["agent_card"]["name"], "slow (example)");

    let canvas = demo.command("canvas");
    let four: Vec<Value> = (0..4).map(|_| json(&pasted(canvas))).collect();
    assert_eq!(four[0]["error"]["code"], -32603, "the agent's own error");
    let cut = &four[1]["error"]["data"][0];
    assert_eq!(cut["reason"], "AGENT_PROTOCOL_ERROR");
    assert_eq!(cut["metadata"]["delivered"], "true");
    assert!(four[2]["result"].is_object() && four[3]["result"].is_object());

    let peers = json(&pasted(demo.command("which workspaces acme-dev")));
    let pm = peers
        .as_array()
        .unwrap()
        .iter()
        .find(|peer| peer["id"] == "acme-pm");
    assert_eq!(pm.unwrap()["rule"], "child");

    let grant = json(&pasted(demo.command("across orgs")));
    assert_eq!(grant["caller_id"], "rival-spy", "{grant}");
    let answered = json(&pasted(demo.command("refused")));
    assert!(answered["result"].is_object(), "{answered}");

    // It stays open: its beginning is enough.
    let watch = format!("exec {} --max-time 120", demo.command("watch"));
    let watch = Command::new("sh")
        .args(["-c", &watch])
        .stdout(Stdio::piped())
        .spawn();
    let mut watch = watch.unwrap();
    let mut begins = String::new();
    BufReader::new(watch.stdout.take().unwrap())
        .read_line(&mut begins)
        .unwrap();
    assert_eq!(begins, "retry: 2000\n");
    watch.kill().unwrap();
    watch.wait().unwrap();

    let counted = pasted(demo.command("counted"));
    assert!(counted.contains("outcome=\"not_permitted\""), "{counted}");
    assert!(counted.contains("outcome=\"answered\""), "{counted}");

    let lines = pasted(demo.command("without curl"));
    assert!(lines.starts_with("[submitted] (task "), "{lines}");
    assert!(lines.ends_with("[completed]\n"), "{lines}");
    assert!(lines.contains("[working] step 10 of 10"), "{lines}");

    let records = json(&pasted(demo.command("the newest three records")));
    let records = records["records"].as_array().unwrap();
    assert_eq!(records.len(), 3, "{records:?}");
    assert!(
        records
            .iter()
            .all(|record| record["event_type"] == "A2A_CALL")
    );

    let explained = sh(demo.command("would not reach"));
    let text = String::from_utf8(explained.stdout).unwrap();
    assert_eq!(explained.status.code(), Some(1), "{text}");
    assert!(
        text.contains("not_permitted") && text.contains("What to do: "),
        "{text}"
    );

    let verified = pasted(demo.command("was any record"));
    assert!(verified.contains("all as they were written"), "{verified}");

    // One after the other, that is all; the page has no command that neither this case nor the next one knows.
    assert_eq!(commands.len(), 16);
}

#[test]
fn an_agent_that_sleeps_is_woken_and_a_breaker_opens_and_closes() {
    let demo = Demo::start(&["--listen", "127.0.0.1:0"]);
    let woken = json(&pasted(demo.command("rival-night sleeps")));
    assert_eq!(
        woken["result"]["parts"][0]["text"], "echo: are you up?",
        "{woken}"
    );

    let broken = pasted(demo.command("its breaker opens"));
    let answers: Vec<Value> = broken
        .lines()
        .filter(|line| !line.is_empty())
        .map(json)
        .collect();
    assert_eq!(answers.len(), 7, "{broken}");
    assert!(
        answers[..5]
            .iter()
            .all(|one| one["error"]["code"] == -32603),
        "its own errors: {broken}"
    );
    let refused = &answers[5]["error"]["data"][0];
    assert_eq!(refused["reason"], "AGENT_BUSY", "{broken}");
    assert_eq!(refused["metadata"]["breaker"], "open", "{broken}");
    let up = &answers[6]["result"]["parts"][0]["text"];
    assert_eq!(up, "up again: are you up?", "{broken}");
}

#[test]
fn the_stream_arrives_event_by_event_as_the_agent_sends_it() {
    const EVENTS: usize = 12;
    let demo = Demo::start(&["--listen", "127.0.0.1:0"]);
    let (agent, permit) = agent_with_permits(EVENTS);
    let moved = format!(
        "curl -sSf -X PATCH http://{}/workspaces/acme-dev -H 'Authorization: Bearer {}' \
         -H 'Content-Type: application/json' -d '{{\"url\":\"http://{agent}/\"}}'",
        demo.address("callers and agents"),
        demo.operator(),
    );
    assert_eq!(json(&pasted(&moved))["url"], format!("http://{agent}/"));
    let never = NEVER.as_secs().to_string();
    let mut child = Command::new("timeout")
        .args([&never, "sh", "-c", demo.command("event by event")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut events = lines.filter_map(|line| Some(json(line.unwrap().strip_prefix("data: ")?)));
    for n in 0..EVENTS {
        // The agent sends nothing more until this one is here.
        permit.send(()).unwrap();
        let event = events.next().expect("an event");
        assert_eq!(event["result"]["metadata"]["n"], n, "{event}");
        assert_eq!(event["result"]["final"], n + 1 == EVENTS, "{event}");
    }
    assert_eq!(events.next(), None);
    assert!(child.wait().unwrap().success());
}

#[test]
fn ctrl_c_ends_everything_also_in_the_middle_of_a_stream() {
    let mut demo = Demo::start(&["--listen", "127.0.0.1:0"]);
    let public = demo.address("callers and agents");
    let admin = demo.address("metrics and health");
    let left: Vec<_> = std::fs::read_dir(demo.temporary.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the stores are in one temporary folder");
    let mut stream = Command::new("sh")
        .args(["-c", demo.command("event by event")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stream.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("data: "));

    assert_eq!(demo.interrupt(), Some(0));
    for address in [public, admin] {
        assert!(TcpStream::connect(address).is_err(), "{address} answers");
    }
    let left: Vec<_> = std::fs::read_dir(demo.temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(members_of(demo.child.id()), Vec::<u32>::new());
    let _ = lines.count();
    let _ = stream.wait();
}

/// The processes of a group that still run.
fn members_of(group: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let numbers = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|process| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
            // pid (name) state ppid pgrp; the name may hold spaces.
            stat.is_ok_and(|stat| {
                let fields = stat.rsplit(')').next().unwrap_or_default();
                let mut fields = fields.split_whitespace().skip(2);
                fields.next() == Some(&group.to_string())
            })
        })
        .collect()
}

#[test]
fn listen_moves_it_and_a_port_that_is_taken_is_named() {
    let address = ports::free_address("127.0.0.1").to_string();
    let demo = Demo::start(&["--listen", &address]);
    let first = demo.commands()[0].1;
    assert!(first.contains(&format!("http://{address}/")), "{first}");
    assert!(json(&pasted(first))["result"].is_object());

    // A second one at the same address.
    let temporary = tempfile::tempdir().unwrap();
    let output = command(temporary.path(), &["--listen", &address]).output();
    let output = output.unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(&address), "{complaint}");
    assert!(
        complaint.contains("choose another with --listen"),
        "{complaint}"
    );
    assert!(output.stdout.is_empty());
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_setting_is_taken_and_one_that_cannot_be_starts_nothing() {
    let demo = Demo::start(&[
        "--listen",
        "127.0.0.1:0",
        "--set",
        "card.sign=true",
        "--set=a2a.default_workspace=acme-pm",
    ]);
    let public = demo.address("callers");
    let token = demo.operator();
    let card = json(&pasted(&format!(
        "curl -sS http://{public}/.well-known/agent-card.json -H 'Authorization: Bearer {token}'"
    )));
    assert!(card["signatures"].is_array(), "{card}");
    for (set, says) in [
        ("server.listen=127.0.0.1:1", "--listen does"),
        ("admin.listen=127.0.0.1:1", "--admin-listen does"),
        ("card.sing=true", "card.sing"),
    ] {
        let temporary = tempfile::tempdir().unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--set", set];
        let output = command(temporary.path(), &arguments).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{complaint}");
        assert!(complaint.contains(says), "{complaint}");
        let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_folder_that_is_named_keeps_the_tokens() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().to_str().unwrap();
    let tokens = |demo: &Demo| -> Vec<String> {
        let rows = demo.page.lines().filter(|l| l.contains(" a2aw_"));
        rows.filter(|l| !l.contains("curl") && !l.contains("--token"))
            .map(str::to_owned)
            .collect()
    };
    let mut demo = Demo::start(&["--listen", "127.0.0.1:0", "--data", data]);
    let first = tokens(&demo);
    assert_eq!(first.len(), 7, "{}", demo.page);
    assert_eq!(demo.interrupt(), Some(0));
    let demo = Demo::start(&["--listen", "127.0.0.1:0", "--data", data]);
    assert_eq!(tokens(&demo), first);
    assert!(json(&pasted(demo.commands()[0].1))["result"].is_object());
}

/// The command line of a user with a file of contexts of its own. Dropping it ends the demo in the background.
struct User(tempfile::TempDir);

impl User {
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_a2a-gateway"))
            .args(arguments)
            .env_clear()
            .env("A2A_CONTEXTS", self.0.path().join("contexts.toml"))
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let code = output.status.code();
        (code, text(output.stdout), text(output.stderr))
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
        out
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.run(&["demo", "--stop"]);
    }
}

/// Types what is wrong, and finds a cause and a next step in what is said, and no route and no secret.
fn check_wrong_uses(user: &User) {
    let shown: Value = serde_json::from_str(&user.done(&["context", "show", "--json"])).unwrap();
    let public = shown["url"].as_str().unwrap();
    let table = include_str!("wrong_uses.txt");
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let mut wrong = Vec::new();
    for row in rows {
        let (caller, rest) = row.split_once('|').unwrap();
        // From behind, since a cause may have the mark, too.
        let (typed, rest) = rest.split_once('|').unwrap();
        let (cause, next) = rest.rsplit_once('|').unwrap();
        let typed = typed.replace("PUBLIC", public);
        let mut words: Vec<&str> = typed.split(' ').collect();
        if !caller.is_empty() {
            words.extend(["--as", caller]);
        }
        let (code, _, err) = user.run(&words);
        let route = ["GET /", "POST /", "PATCH /", "DELETE /"]
            .iter()
            .find(|route| err.contains(**route));
        let is_told = err.contains(cause) && err.contains(next) && route.is_none();
        if !is_told || !matches!(code, Some(1 | 64)) || err.contains("geheim") {
            wrong.push(format!("{row}\n  {code:?} {err}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_demo_in_the_background_is_the_current_context_until_it_is_stopped() {
    let user = User(tempfile::tempdir().unwrap());
    user.done(&["context", "add", "mine", "--url", "http://h", "--offline"]);
    let start = [
        "demo",
        "--detach",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--set",
        "stores.timeout=60s",
    ];
    let page = user.done(&start);
    assert!(
        page.contains("a2a-gateway send acme-pm 'hello' --as acme-dev"),
        "{page}"
    );
    assert!(!page.contains("a2aw_") && !page.contains("a2aa_"), "{page}");
    let answer = user.done(&["send", "acme-pm", "hello", "--as", "acme-dev"]);
    assert_eq!(answer, "echo: hello\n");
    let who = user.done(&["whoami"]);
    assert!(
        who.starts_with("operator, role admin, at http://127.0.0.1:"),
        "{who}"
    );
    assert_eq!(user.done(&["health", "--wait"]), "ready\n");
    let agents = user.done(&["agents", "--wait", "acme-pm", "--wait", "acme-qa"]);
    assert_eq!(agents.lines().count(), 3, "{agents}");
    let (code, _, err) = user.run(&["send", "acme-pm", "hello", "--as", "acme-ceo"]);
    assert_eq!(code, Some(64));
    assert!(
        err.contains("none of acme-ceo") && err.contains("acme-dev"),
        "{err}"
    );
    let (code, _, err) = user.run(&start);
    assert_eq!(code, Some(1));
    assert!(err.contains("`a2a-gateway demo --stop` ends it"), "{err}");
    check_wrong_uses(&user);
    // The one that sleeps has a waker; a call to any other whose agent has left is answered at once.
    let shown = user.done(&["workspace", "show", "acme-qa", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["wake"], Value::Null, "{shown}");
    let woken = user.done(&["send", "rival-night", "up?", "--as", "rival-spy"]);
    assert_eq!(woken, "echo: up?\n");
    assert_eq!(user.done(&["demo", "--stop"]), "the demo has ended\n");
    let current = user.done(&["context", "show"]);
    assert!(
        current.starts_with("name:") && current.contains("mine"),
        "{current}"
    );
    let (code, _, err) = user.run(&["demo", "--stop"]);
    assert_eq!(code, Some(1), "{err}");
}
